package strategy

import (
	"cmp"
	"slices"
)

// fitBudget removes the replicas that a closed and held region plan has beyond MaxReplicas. First it removes replicas
// that are not ready, beginning with the versions without traffic. Then it removes ready replicas, while
// enough still serve. A version with traffic keeps one of its ready replicas, unless the region is scaled
// to zero.
func (s *Targets) fitBudget(l RegionPlan) {
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
	over, spare := -l.MaxReplicas, -l.servingFloor()
	for _, p := range parts {
		if l.MaxReplicas == 0 {
			*p.assigned = 0
		}
		over, spare = over+*p.assigned, spare+p.Ready
	}
	for _, p := range parts {
		used := p.Ready
		if p.Weight > 0 || !l.Acknowledged {
			used = max(used, p.Serving) // requests may go to them, whether the region has reported on them or not
		}
		drop := max(0, min(*p.assigned-used, over))
		*p.assigned, over = *p.assigned-drop, over-drop
	}
	for _, p := range parts {
		if !p.Known {
			continue // its replicas may serve: they count when the region has reported them
		}
		keep := int32(1)
		if p.Weight == 0 && l.Acknowledged {
			keep = 0
		}
		drop := max(0, min(*p.assigned-keep, over, spare))
		*p.assigned, over, spare = *p.assigned-drop, over-drop, spare-drop
	}
}
