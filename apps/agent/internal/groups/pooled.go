package groups

import (
	"cmp"
	"slices"
)

// poolSlots returns the slots of a role of a pool that stay, and those of units that are missing. Units of the role's
// template take the places of units of older ones:
//
//	Unavailable 0    one new unit starts, and an old one goes once the new one is ready
//	Unavailable n    n old units go, and new ones start where they were
//
// Old units that are not ready go at once: they serve nothing, and a broken one must not hold up the template that
// repairs it. As long as an old unit exists in any state, it takes up its place.
func poolSlots(r Role, there units) []int {
	var present, fresh, old []int
	state, replacing := map[int]int{}, false
	for slot, ranks := range there {
		present = append(present, slot)
		state[slot] = stateOf(r, ranks)
		isOld := slices.ContainsFunc(ranks, func(i Instance) bool { return i.Old })
		replacing = replacing || isOld
		switch {
		case state[slot] == leaves:
		case isOld:
			old = append(old, slot)
		default:
			fresh = append(fresh, slot)
		}
	}
	if !replacing {
		return keepSlots(r, there)
	}
	byState := func(a, b int) int { return cmp.Or(cmp.Compare(state[a], state[b]), cmp.Compare(a, b)) }
	slices.SortFunc(fresh, byState)
	slices.SortFunc(old, byState)
	fresh = fresh[:min(len(fresh), max(r.Units, 0))]
	stay, serve := slices.Clone(fresh), 0
	for _, slot := range fresh {
		if state[slot] < notReady {
			serve++
		}
	}
	for _, slot := range old {
		if state[slot] < notReady && serve < r.Units-r.Unavailable {
			stay = append(stay, slot)
			serve++
		}
	}
	room := r.Units - len(present)
	if r.Unavailable == 0 {
		room++
	}
	for slot := 0; len(fresh) < r.Units && room > 0; slot++ {
		if _, used := state[slot]; !used {
			stay, fresh = append(stay, slot), append(fresh, slot)
			room--
		}
	}
	slices.Sort(stay)
	return stay
}
