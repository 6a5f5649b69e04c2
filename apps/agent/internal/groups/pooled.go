package groups

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/pkg/pool"
)

// fitPool returns w, with Unavailable 1 for two kinds of roles without Unavailable: a role that
// yields and has a new unit without room, and a stable role. A unit of a stable role cannot start
// while another unit has its slot.
func fitPool(w Wanted, there map[string]units) Wanted {
	w.Roles = slices.Clone(w.Roles)
	for n := range w.Roles {
		r := &w.Roles[n]
		if r.Stable {
			r.Unavailable = max(r.Unavailable, 1)
		}
		if !r.YieldsWhenFull || r.Unavailable > 0 {
			continue
		}
		for _, ranks := range there[r.Name] {
			if slices.ContainsFunc(ranks, func(i Instance) bool { return i.Unfit && !i.Old && !i.Leaving }) {
				r.Unavailable = 1
			}
		}
	}
	return w
}

// poolBounds returns how many units of each role of a pool may be replaced now, in the order of the
// roles.
func poolBounds(w Wanted, there map[string]units) []pool.Bound {
	order := w.Order
	if order == nil {
		order = pool.OrderOf(nil)
	}
	roles := make([]pool.Progress, len(w.Roles))
	for n, r := range w.Roles {
		roles[n] = pool.Progress{Name: r.Name, Units: max(r.Units, 0), Unavailable: r.Unavailable}
		for _, ranks := range there[r.Name] {
			switch {
			case isOldUnit(ranks):
				roles[n].HasOld = true
			case unitState(r, ranks) < unitNotReady:
				roles[n].Ready++
			}
		}
		// If the role may have an additional unit, an old unit goes only once a new unit is ready
		// in its place.
		roles[n].Settled = (r.Unavailable == 0 && !r.YieldsWhenFull || r.Stays) && !roles[n].HasOld
	}
	return order.Bounds(roles)
}

func isOldUnit(ranks []Instance) bool {
	return slices.ContainsFunc(ranks, func(i Instance) bool { return i.Old })
}

// choosePoolSlots returns the slots of a role of a pool that stay, and the slots for units that are missing. Units of
// the role's present template replace units of older templates:
//
//	Unavailable 0    one new unit starts, and an old unit is deleted once the new one is ready
//	Unavailable n    n old units are deleted, and then new units start in their place
//	YieldsWhenFull   as 0, and as 1 while the new unit has no room: see fitPool
//
// bound is how many units the pool's order allows to replace now. Old units that are not ready are
// deleted at once, and new units start in their places whatever the bound is. The reason is that
// they serve nothing, and a broken unit must not delay the template that repairs it. A unit takes
// up room in every state, also while it is leaving.
func choosePoolSlots(r Role, there units, bound pool.Bound) []int {
	var present, fresh, old []int
	state, replacing := map[int]int{}, false
	for slot, ranks := range there {
		present = append(present, slot)
		state[slot] = unitState(r, ranks)
		isOld := isOldUnit(ranks)
		replacing = replacing || isOld
		switch {
		case state[slot] == unitLeaves:
		case !isOld:
			fresh = append(fresh, slot)
		case state[slot] < unitNotReady:
			old = append(old, slot)
		}
	}
	if !replacing {
		return chooseSlots(r, there)
	}
	byState := func(a, b int) int { return cmp.Or(cmp.Compare(state[a], state[b]), cmp.Compare(a, b)) }
	slices.SortFunc(fresh, byState)
	slices.SortFunc(old, byState)
	fresh = fresh[:min(len(fresh), max(r.Units, 0))]
	// mayHave is how many new units the role may have. New units that replace no ready unit do not
	// need a turn.
	mayHave := min(max(bound.New, len(fresh), r.Units-len(old)), max(r.Units, 0))
	keep := max(bound.Old, r.Units-mayHave)
	stay, serve := slices.Clone(fresh), 0
	for _, slot := range fresh {
		if state[slot] < unitNotReady {
			serve++
		}
	}
	// While a new unit starts in the room of an old unit that yielded, another new unit would find no room.
	hasYielded := r.YieldsWhenFull && len(old)+serve < r.Units
	for n, slot := range old {
		if serve < r.Units-r.Unavailable || n < keep {
			stay = append(stay, slot)
			serve++
		}
	}
	room := r.Units - len(present)
	if r.Unavailable == 0 && !hasYielded {
		room++
	}
	for slot := 0; len(fresh) < mayHave && room > 0; slot++ {
		if _, used := state[slot]; !used {
			stay, fresh = append(stay, slot), append(fresh, slot)
			room--
		}
	}
	slices.Sort(stay)
	return stay
}

// replacePoolSlots returns the keys of the instances of older templates to replace now, in the slots of a stable role of a
// pool. Units that are not ready are replaced at once, because they serve nothing. Ready ones are replaced from the
// highest slot, while at most r.Unavailable units are out of service and the bound allows it.
func replacePoolSlots(r Role, there units, slots []int, bound pool.Bound) (keys []string) {
	var old []int
	fresh, serve := 0, 0
	for _, slot := range slots {
		ranks := there[slot]
		switch {
		case !isOldUnit(ranks):
			fresh += min(len(ranks), 1)
			if isUnitReady(r, ranks) {
				serve++
			}
		case isUnitReady(r, ranks):
			old = append(old, slot)
			serve++
		default:
			keys = append(keys, keysOf(ranks)...)
		}
	}
	mayHave := min(max(bound.New, fresh, r.Units-len(old)), max(r.Units, 0))
	keep := max(bound.Old, r.Units-mayHave)
	for len(old) > keep && serve > r.Units-r.Unavailable {
		highest := old[len(old)-1]
		keys = append(keys, keysOf(there[highest])...)
		old = old[:len(old)-1]
		serve--
	}
	return keys
}

// keysOf returns the keys of the instances of older templates.
func keysOf(ranks []Instance) (keys []string) {
	for _, i := range ranks {
		if i.Old && !i.Leaving {
			keys = append(keys, i.Key)
		}
	}
	return keys
}
