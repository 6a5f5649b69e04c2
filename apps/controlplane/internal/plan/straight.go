package plan

import (
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// StraightPolicy returns the policy for going back to a version that was stable before. It has no pauses, analysis
// and bake times, because they judge a new version, and no steps that only serve these. Waves, their order and
// max_parallel, surge, capacity and the rules by which a region goes back stay. keepGates keeps approvals, and the canary
// steps that need an approval.
func StraightPolicy(p *windlassv1.RolloutPolicy, keepGates bool) *windlassv1.RolloutPolicy {
	p = proto.CloneOf(p)
	p.Analysis = nil
	if !keepGates {
		p.StartApproval = nil
	}
	strategy.Of(p).Straighten(p, keepGates)
	for _, w := range p.GetWaves() {
		w.BakeTime = nil
		if !keepGates {
			w.Approval = nil
		}
	}
	return p
}
