package plan

import (
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ReasonNoRoomForBoth means that a step shares the traffic between two versions, but the region may have only one
// replica in total.
const ReasonNoRoomForBoth = "NoRoomForBoth"

// FixNoRoomForBoth says how to update such a region.
var FixNoRoomForBoth = "Set maxSurge to 1, run 2 replicas or more, or use strategy " + strategy.NamesWithoutOverlap() + "."

// HasRoomForBoth reports whether a region with size replicas can be at a step of the policy. At a step, each of the two
// versions needs a replica. Blue-green always has a second set of replicas. Without replicas, nothing is shared.
func HasRoomForBoth(policy *windlassv1.RolloutPolicy, size int32) bool {
	if size == 0 || Steps(policy) == 0 {
		return true
	}
	surge, _ := strategy.Of(policy).Bounds(policy, size, strategy.Sizes{})
	return size+surge > 1
}

// lacksRoomForBoth fails a region at a step that the region has no room for, before the serving version loses its only
// replica. It reports whether it failed the region.
func (s *stager) lacksRoomForBoth(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) bool {
	c := s.progress
	if st.State != regionRolling || st.Emptied || c.CatchesUp || c.FullBy != "" || st.Step >= Steps(c.Policy) || l.keeps ||
		HasRoomForBoth(c.Policy, l.Size) {
		return false
	}
	s.failRegion(d, w, st, ReasonNoRoomForBoth, fmt.Sprintf("%d replica and maxSurge 0 leave no room for a step with two versions: %s", l.Size,
		strings.TrimSuffix(FixNoRoomForBoth, ".")))
	return true
}
