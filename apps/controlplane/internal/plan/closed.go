package plan

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// A closed region is one that the app's workspace may use no longer, because its grant was
// revoked while a rollout was under way.
//
//	its turn has not come    it does not begin
//	it is on its way         it stays as it is, and no deadline runs; its health still counts
//	it goes back             the live version replaces the other within the replicas that it had
//
// The rollout waits there until the grant is back, the rollout is aborted, or a version without
// the region is deployed.

// judgeClosed holds a region that was on its way when it was closed. It reports whether the
// region's health stopped the rollout.
func (s *stager) judgeClosed(d *model.Deployment, w *model.WaveProgress, st *model.RegionProgress, l *regionPlan) (stopped bool) {
	if st.HeldSince == 0 {
		st.ProgressClock.Stop(s.now)
		s.log("RegionClosed", "the workspace may use the region no longer: the rollout stays as it is there; "+s.figures(l), d, st.RegionID)
	}
	return s.failsByHealth(d, w, st, l)
}

const closedText = "is closed to the workspace: have the grant given back, or deploy without the region"
