package plan

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// view is the planner's state as one staged rollout sees it: the app's own, or the one by which a
// lagging region catches up with the live version. Both go by the same rules. What differs is
// which progress is changed, which versions are the newer and the older one, and which rollout the
// history names.
type view struct {
	*planner
	// progress is the progress of this rollout; planner.progress is that of the app's own.
	progress *model.Progress
	// behind is the lagging region, nil for the app's own rollout.
	behind *model.LaggingRegion
}

// main returns the view of the app's own rollout.
func (p *planner) main() *view { return &view{planner: p, progress: p.progress} }

// lagging returns the view of the rollout of a region that catches up.
func (p *planner) lagging(b *model.LaggingRegion) *view {
	return &view{planner: p, progress: b.Progress, behind: b}
}

// log adds to the history of this rollout.
func (v *view) log(what, why string, d *model.Deployment, region string) {
	v.planner.log(what, why, d, region)
	if v.behind != nil {
		v.history[len(v.history)-1].RolloutID = v.progress.RolloutID
	}
}
