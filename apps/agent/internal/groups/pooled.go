package groups

import (
	"cmp"
	"slices"
)

// choosePoolSlots returns the slots of a role of a pool that stay, and the slots for units that are missing. Units of
// the role's present template replace units of older templates:
//
//	Unavailable 0    one new unit starts, and an old unit is deleted once the new one is ready
//	Unavailable n    n old units are deleted, and then new units start in their place
//
// Old units that are not ready are deleted at once, because they serve nothing, and a broken one must not delay the
// template that repairs it. A unit that exists in any state takes up room, also while it is leaving.
func choosePoolSlots(r Role, there units) []int {
	var present, fresh, old []int
	state, replacing := map[int]int{}, false
	for slot, ranks := range there {
		present = append(present, slot)
		state[slot] = unitState(r, ranks)
		isOld := slices.ContainsFunc(ranks, func(i Instance) bool { return i.Old })
		replacing = replacing || isOld
		switch {
		case state[slot] == unitLeaves:
		case isOld:
			old = append(old, slot)
		default:
			fresh = append(fresh, slot)
		}
	}
	if !replacing {
		return chooseSlots(r, there)
	}
	byState := func(a, b int) int { return cmp.Or(cmp.Compare(state[a], state[b]), cmp.Compare(a, b)) }
	slices.SortFunc(fresh, byState)
	slices.SortFunc(old, byState)
	fresh = fresh[:min(len(fresh), max(r.Units, 0))]
	stay, serve := slices.Clone(fresh), 0
	for _, slot := range fresh {
		if state[slot] < unitNotReady {
			serve++
		}
	}
	for _, slot := range old {
		if state[slot] < unitNotReady && serve < r.Units-r.Unavailable {
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
