package plan

import (
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// StraightPolicy returns the policy for the way back to a version that was stable before: without
// the pauses, analysis and bake times that judge a new version, and without the steps that are for
// them. Waves, their order and max_parallel, surge and capacity stay, and so does what takes a
// region back. keepGates keeps approvals, and of a canary the steps that need one.
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
