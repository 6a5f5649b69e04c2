package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
)

// An app at zero has rows without replicas. A region starts replicas by itself when a request comes, and reports that
// for the row's present generation. The planner answers with a generation that wants them. Until then the region keeps
// what it started, so that the answer need not be fast. A report for an older generation crossed a later decision, and
// the region repeats it for the newer generation.

func (f *facts) hasWoken() bool {
	return f.app.DeletingSince == 0 && slices.ContainsFunc(f.rows, f.woken)
}

func (f *facts) woken(t *model.Topology) bool { return t.Assigned() && f.place(t).Woken() }

func (p *planner) takeUpWoken() {
	for _, t := range p.rows {
		if !p.woken(t) || p.in.Closed[t.RegionID] || !p.writable(t.RegionID) {
			continue // closeAtZero takes it down where the region is closed
		}
		d := p.deps[t.DeploymentID]
		n := t.WakeTo(override.In(d.Spec, t.RegionID))
		if n == 0 {
			continue
		}
		if p.staged() || p.isLagging(t.RegionID) {
			// Later phases change the rows of the version that is wanted there.
			if Resize(p.progress, AskedIn(t.RegionID, n)) == 0 {
				continue
			}
		} else {
			t.Replicas = n
			t.Generation++
		}
		p.log("Woken", "a request came while it was at zero: "+model.SizeText(d.Spec, n), d, t.RegionID)
	}
}
