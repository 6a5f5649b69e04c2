package pool

import "slices"

// coherent runs both versions next to each other, each with a share of the pool: see Units. If a step gives the new
// version k of s parts, a role has ceil(k n / s) new units and n - floor(k n / s) old ones. If at most one role differs,
// the units of the other roles belong to both versions. Then the region replaces units in their places.
type coherent struct{}

func (coherent) InPlace(differing int) bool { return differing <= 1 }

// Bounds lets every role move. Several roles have old units only in one case: the pool goes back to a version from which
// it was taken over in another order. Then the roles move in steps, so that as few units as possible of different
// versions serve each other.
func (coherent) Bounds(roles []Progress) []Bound {
	moving, old := slices.Clone(roles), 0
	for i := range moving {
		if moving[i].HasOld {
			old++
		} else {
			moving[i].Settled = true
		}
	}
	if old < 2 {
		return fullBounds(roles)
	}
	return interleaved{}.Bounds(moving)
}
