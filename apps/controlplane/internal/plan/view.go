package plan

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// view is the facts from the point of view of one staged rollout: the app's own rollout, or the rollout by which a
// lagging region catches up with the live version. Both follow the same rules. They differ in the progress that changes,
// in the newer and the older version, and in the rollout that the history names. Methods of view only read.
type view struct {
	*facts
	// progress is the progress of this rollout. facts.progress is the progress of the app's own rollout.
	progress *model.Progress
	// lagging is the lagging region, nil for the app's own rollout.
	lagging *model.LaggingRegion
}

// mainView returns the view of the app's own rollout.
func mainView(f *facts) *view { return &view{facts: f, progress: f.progress} }

// laggingView returns the view of the rollout of a region that catches up.
func laggingView(f *facts, r *model.LaggingRegion) *view {
	return &view{facts: f, progress: r.Progress, lagging: r}
}

// stager is a phase that runs for one staged rollout. It reads the rollout's view and changes the
// rollout's progress. It makes all other changes through its planner.
type stager struct {
	*view
	p *planner
}

// main returns the stager of the app's own rollout.
func (p *planner) main() *stager { return &stager{mainView(p.facts), p} }

// stagerOf returns the stager of the rollout of a region that catches up.
func (p *planner) stagerOf(r *model.LaggingRegion) *stager {
	return &stager{laggingView(p.facts, r), p}
}

// log adds to the history of this rollout.
func (s *stager) log(what, why string, d *model.Deployment, region string) {
	s.p.log(what, why, d, region)
	if s.lagging != nil {
		s.p.history[len(s.p.history)-1].RolloutID = s.progress.RolloutID
	}
}
