package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
)

// An app at zero has rows without replicas. When a request comes, a region starts replicas by itself, and reports them
// for the row's current generation. The planner answers with a generation that has these replicas. Until then, the region
// keeps the replicas, so the answer need not be fast. If a report is for an older generation, a later decision was made
// meanwhile, and the region repeats the report for the newer generation.

func (f *facts) hasWoken() bool {
	return f.app.DeletingSince == 0 && slices.ContainsFunc(f.rows, f.isWoken)
}

func (f *facts) isWoken(t *model.Topology) bool { return t.Assigned() && f.placeOf(t).Woken() }

func (p *planner) takeUpWoken() {
	for _, t := range p.rows {
		if !p.isWoken(t) || p.in.Closed[t.RegionID] || !p.isWritable(t.RegionID) {
			continue // closeAtZero stops the replicas in a closed region
		}
		d := p.deps[t.DeploymentID]
		n := t.WakeTo(override.In(d.Spec, t.RegionID))
		if n == 0 {
			continue
		}
		if p.isStaged() || p.isLagging(t.RegionID) {
			// Later phases change the rows of the version that is wanted in the region.
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
