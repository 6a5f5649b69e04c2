package strategy

import (
	"cmp"
	"slices"
)

// fit takes away what a closed region plan has beyond Most: first replicas that are not ready, of versions
// without traffic before others, then ready ones, as far as enough still serve. A version with
// traffic keeps a replica unless the region is scaled to nothing.
func (s *Targets) fit(l RegionPlan) {
	if !l.Closed || !l.Hold {
		return
	}
	type part struct {
		Side
		assigned *int32
	}
	parts := []part{}
	for i := range s.From {
		parts = append(parts, part{l.From[i], &s.From[i]})
	}
	parts = append(parts, part{l.To, &s.To})
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(min(a.Weight, 1), min(b.Weight, 1)) })
	over, spare := -l.Most, -l.floor()
	for _, p := range parts {
		if l.Most == 0 {
			*p.assigned = 0
		}
		over, spare = over+*p.assigned, spare+p.Ready
	}
	for _, p := range parts {
		used := p.Ready
		if p.Weight > 0 {
			used = max(used, p.Serving)
		}
		drop := max(0, min(*p.assigned-used, over))
		*p.assigned, over = *p.assigned-drop, over-drop
	}
	for _, p := range parts {
		if !p.Known {
			continue // it may serve, and is counted when the region tells
		}
		keep := int32(1)
		if p.Weight == 0 && l.Acknowledged {
			keep = 0
		}
		drop := max(0, min(*p.assigned-keep, over, spare))
		*p.assigned, over, spare = *p.assigned-drop, over-drop, spare-drop
	}
}
