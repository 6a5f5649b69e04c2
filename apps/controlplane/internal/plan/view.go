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
	// course is the progress of this rollout; planner.course is that of the app's own.
	course *model.Course
	// behind is the lagging region, nil for the app's own rollout.
	behind *model.Behind
}

// main returns the view of the app's own rollout.
func (p *planner) main() *view { return &view{planner: p, course: p.course} }

// lagging returns the view of the rollout of a region that catches up.
func (p *planner) lagging(b *model.Behind) *view {
	return &view{planner: p, course: b.Course, behind: b}
}

// log adds to the history of this rollout.
func (v *view) log(what, why string, d *model.Deployment, region string) {
	v.planner.log(what, why, d, region)
	if v.behind != nil {
		v.history[len(v.history)-1].RolloutID = v.course.RolloutID
	}
}
