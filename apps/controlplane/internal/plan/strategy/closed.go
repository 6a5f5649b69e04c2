package strategy

// fit takes away what a closed lane has beyond Most, of the others first.
func (s *Targets) fit(l Lane) {
	if !l.Closed || !l.Hold {
		return
	}
	over := s.To - l.Most
	for _, n := range s.From {
		over += n
	}
	for i := range s.From {
		drop := min(s.From[i], max(0, over))
		s.From[i] -= drop
		over -= drop
	}
	s.To -= max(0, over)
}
