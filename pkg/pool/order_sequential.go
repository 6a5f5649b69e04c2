package pool

import "slices"

// sequential moves one role after another: the next role moves once every unit of the role before it is ready.
type sequential struct {
	// sequence has names of roles. The other roles follow, in the order of the spec.
	sequence []string
}

func (sequential) InPlace(int) bool { return true }

func (s sequential) Bounds(roles []Progress) []Bound {
	out := make([]Bound, len(roles))
	turn := true
	for _, i := range s.orderOf(roles) {
		r := roles[i]
		if turn {
			out[i].New = r.Units
		} else {
			out[i] = Bound{New: min(r.Ready, r.Units), Old: max(0, r.Units-r.Ready)}
		}
		turn = turn && r.isDone()
	}
	return out
}

// orderOf returns the indices of the roles in the order in which they move.
func (s sequential) orderOf(roles []Progress) []int {
	var out []int
	for _, name := range s.sequence {
		i := slices.IndexFunc(roles, func(r Progress) bool { return r.Name == name })
		if i >= 0 && !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	for i := range roles {
		if !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	return out
}
