package plan

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// An Asked has replica counts that a person or a scaler sets, and that no rollout decides. A caller writes them to the
// place from which the planner reads them:
//
//	no staged rollout   model.Topology.Replicas of the version's rows; the planner does not change them
//	staged rollout      Resize: the sizes of both versions in its progress; the planner changes the rows
//	lagging region      ResizeLagging: the same in the progress of that region
//	pinned version      model.PinRegion.Replicas; an Asked does not affect pins
//
// The rules for these counts:
//
//   - A rollout continues from where it is. Surge and unavailable replicas are counted from the new size.
//   - Fewer replicas, even none, take no region past a step: see empty.go.
//   - A region that moved without replicas and later gets some reopens its wave: see startAgain.
//   - A closed region does not grow: see closed.go.
//   - The new generation is not a relapse and not a loss of health: see noteRelapse and isUnhealthy.
//   - Callers check quota and bounds, and wake the app. The planner does neither.

// Asked has the replica counts of a request. The zero value has none.
type Asked struct {
	// All is the count for each region, nil for none.
	All *int32
	// Regions has counts for single regions, by id. They take precedence over All.
	Regions map[string]int32
}

// AskedIn returns a request for the region, or for each if it is empty.
func AskedIn(region string, replicas int32) Asked {
	if region == "" {
		return Asked{All: &replicas}
	}
	return Asked{Regions: map[string]int32{region: replicas}}
}

// In returns the replica count for the region; ok reports whether the request names one.
func (a Asked) In(region string) (n int32, ok bool) {
	if n, ok = a.Regions[region]; !ok && a.All != nil {
		n, ok = *a.All, true
	}
	return n, ok
}

// Nothing reports whether the request names no replica counts.
func (a Asked) Nothing() bool { return a.All == nil && len(a.Regions) == 0 }

// noteIn writes the request into the progress. It replaces earlier requests.
func (a Asked) noteIn(c *model.Progress) {
	if a.All != nil {
		c.Replicas, c.RegionReplicas = *a.All, nil
	}
	for id, n := range a.Regions {
		if c.RegionReplicas == nil {
			c.RegionReplicas = map[string]int32{}
		}
		c.RegionReplicas[id] = n
	}
}

// Size returns how many replicas the region should have once its turn has come.
func Size(c *model.Progress, region string) int32 { return regionSize(c, region) }

// regionSize returns how many replicas the region should have at the end of the rollout: the requested number, else the
// current number, else the number for new regions.
func regionSize(c *model.Progress, region string) int32 {
	if n, ok := c.RegionReplicas[region]; ok {
		return n
	}
	if c.Replicas >= 0 {
		return c.Replicas
	}
	if n, had := c.OldSizes[region]; had {
		return n
	}
	return c.DefaultReplicas
}

// Resize sets the numbers of replicas of regions, for the versions that are wanted there. It returns the number of
// sizes that changed.
func Resize(c *model.Progress, asked Asked) (changed int) {
	for _, sizes := range []map[string]int32{c.OldSizes, c.Sizes} {
		for id, was := range sizes {
			if n, ok := asked.In(id); ok && n != was {
				sizes[id] = n
				changed++
			}
		}
	}
	asked.noteIn(c)
	return changed + ResizeLagging(c, asked)
}

// ResizeLagging is Resize for lagging regions.
func ResizeLagging(c *model.Progress, asked Asked) (changed int) {
	for _, b := range c.Lagging {
		if n, ok := asked.In(b.RegionID); ok {
			changed += Resize(b.Progress, AskedIn(b.RegionID, n))
		}
	}
	return changed
}
