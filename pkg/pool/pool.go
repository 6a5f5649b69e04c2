// Package pool has the arithmetic of pools. A pool is the only group that a region runs of an app with the layout
// pooled. Its roles are counted and scaled separately. The package is pure.
//
// A replica of such an app is one percent of the pool. While a region moves from one version to the next, each
// version has a share of the pool, and of every role the instances that belong to the share. So code that counts and
// moves replicas also moves pools. A step never ends with prefill servers of one version and decode servers of
// another version.
package pool

import (
	"fmt"

	"github.com/windlass-run/windlass/pkg/plural"
)

// Whole is the number of replicas of a pool.
const Whole = 100

// Role has the number of instances of a role. Have is how many exist or are ready. Pool is how many the whole pool
// should have.
type Role struct{ Have, Pool int }

// Units returns how many instances of a role belong to a share of the pool, rounded up.
func Units(share, instances int) int { return unitsOf(share, Whole, instances) }

// unitsOf is Units for a pool of whole parts. If a step has k new parts, there are ceil(k n / whole) new instances and
// n - floor(k n / whole) old ones.
func unitsOf(share, whole, instances int) int {
	share, instances = min(max(share, 0), whole), max(instances, 0)
	return (share*instances + whole - 1) / whole
}

// Ready returns the share of the pool for which every role has its instances. Have is how many are ready. It is the
// set capacity: 0 if a role has none.
func Ready(roles []Role) int {
	if len(roles) == 0 {
		return 0
	}
	share := Whole
	for _, r := range roles {
		share = min(share, coveredShare(r))
	}
	return max(share, 0)
}

// coveredShare returns the largest share of which the role has all instances.
func coveredShare(r Role) int {
	if r.Pool <= 0 || r.Have >= r.Pool {
		return Whole
	}
	return max(r.Have, 0) * Whole / r.Pool
}

// Existing returns the smallest share to which the instances of every role belong. Have is how many exist in any
// state. It is above Whole if a role has more instances than the pool.
func Existing(roles []Role) int {
	share := 0
	for _, r := range roles {
		if r.Have > 0 && r.Pool > 0 {
			share = max(share, (r.Have-1)*Whole/r.Pool+1)
		} else if r.Have > 0 {
			share = max(share, 1)
		}
	}
	return share
}

// Step returns how many instances of a role may be replaced at a time if unavailable percent of the pool may be out
// of service. It is at least one.
func Step(unavailable, instances int) int { return max(1, max(unavailable, 0)*instances/Whole) }

// SizeText returns a number of replicas in words: "1 replica", "2 replicas", or "a whole pool", "no pool" and "25% of a pool" for a
// pool.
func SizeText(pooled bool, replicas int32) string {
	switch {
	case !pooled:
		return plural.Count(replicas, "replica")
	case replicas == 0:
		return "no pool"
	case replicas == Whole:
		return "a whole pool"
	}
	return fmt.Sprintf("%d%% of a pool", replicas)
}
