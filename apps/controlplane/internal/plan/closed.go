package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
)

// A closed region is a region that the app's workspace may no longer use, because its grant was revoked.
//
// A rollout waits there until the grant is back, the rollout is aborted, or a version without the
// region is deployed:
//
//	its turn has not come    it does not begin
//	it is moving             it stays as it is, and no deadline runs; its health still counts
//	it goes back             the live version replaces the other version, within the replicas that the region had
//
// A row at zero stays, and no request may wake it. The region loses the app's hosts unless another row serves there.
// The row gets a generation with which the region starts nothing by itself, and stops replicas that it has already
// started. With the grant, the hosts return, and requests can wake the row again.

// judgeClosed holds a region that was moving when it was closed. It reports whether the
// region's health stopped the rollout.
func (s *stager) judgeClosed(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) (stopped bool) {
	if st.ClockStoppedSince == 0 {
		st.ProgressClock.Stop(s.now)
		s.log("RegionClosed", "the workspace may no longer use the region: the rollout stays as it is there; "+s.figuresText(l), d, st.RegionID)
	}
	return s.failsByHealth(d, w, st, l)
}

const closedText = "is closed to the workspace: ask an operator for the grant, or deploy without the region"

// isShut reports whether the row is at zero in a closed region, so that no request may wake it.
func isShut(f *facts, t *model.Topology) bool {
	d := f.deps[t.DeploymentID]
	return f.in.Closed[t.RegionID] && isRowActive(t) && d != nil && t.AtZero(override.In(d.Spec, t.RegionID))
}

// hasWrongWake reports whether the row's generation says wrongly whether requests may wake the row. No request wakes a
// row without traffic.
func hasWrongWake(f *facts, t *model.Topology) bool {
	if isShut(f, t) {
		return t.Reason == "" && t.Weight > 0 && t.Assigned()
	}
	return t.Reason == rollup.ReasonRegionClosed
}

func hasWrongWakes(f *facts) bool {
	return f.app.DeletingSince == 0 && slices.ContainsFunc(f.rows, func(t *model.Topology) bool { return hasWrongWake(f, t) })
}

// closeAtZero keeps requests from waking rows in closed regions, and lets them wake rows in regions that are open
// again.
func (p *planner) closeAtZero() {
	for _, t := range p.rows {
		if !hasWrongWake(p.facts, t) {
			continue
		}
		if !t.Assigned() || t.Replicas > 0 {
			t.Reason = "" // the row's newest generation already has other replicas
			continue
		}
		if !p.isWritable(t.RegionID) {
			continue
		}
		t.Generation++
		if d := p.deps[t.DeploymentID]; isShut(p.facts, t) {
			t.Reason = rollup.ReasonRegionClosed
			p.log("RegionClosed", "the workspace may no longer use the region: it is at zero there, and no request wakes it", d, t.RegionID)
		} else {
			t.Reason = ""
			p.log("RegionOpened", "the workspace may use the region again: a request wakes it there", d, t.RegionID)
		}
	}
}
