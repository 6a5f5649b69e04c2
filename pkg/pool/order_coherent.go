package pool

import "slices"

// coherent moves the versions next to each other, in shares of the pool: see Units. A step that gives the new version k
// of s parts has ceil(k n / s) new units of a role and n - floor(k n / s) old ones. If at most one role differs, units
// of the other roles are of both versions, so that the region replaces units in their places.
type coherent struct{}

func (coherent) InPlace(differing int) bool { return differing <= 1 }

// Bounds lets every role move. Several roles have old units only on the way back to a version from which a pool was taken
// over in another order. They then move in steps, because the fewest units of two versions then serve each other.
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
		return wholly(roles)
	}
	return interleaved{}.Bounds(moving)
}
