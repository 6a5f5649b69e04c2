package plan

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A version is retained after its successor became live: it stays as it is, ready and without traffic. To go back to a
// retained version, only the live pointer moves, and the weights follow. The retention ends after a time, or when a newer
// version needs the room.

// isRetained reports whether the deployment is retained.
func (f *facts) isRetained(deployment string) bool {
	return deployment != "" && f.progress.Retained() == deployment
}

// hasTransferred reports whether instances of the deployment already belong to another deployment. Moving the live
// pointer alone cannot make such a deployment live again. It takes its instances back, which is as fast.
func (f *facts) hasTransferred(d *model.Deployment) bool {
	return slices.ContainsFunc(f.rows, func(t *model.Topology) bool { return t.DeploymentID == d.ID && isRowActive(t) && t.Transferred })
}

// endRetention ends the retention of a version that must not be retained any longer.
func (p *planner) endRetention() {
	c := p.progress
	var why string
	switch {
	case p.app.DeletingSince != 0:
		why = "the app is being deleted"
	case p.targetDeployment() != nil:
		why = "a newer version is on its way"
	case p.now >= c.RetainedUntil:
		why = "the time for which it was retained is over"
	default:
		return
	}
	d := p.deps[c.RetainedID]
	c.RetainedID, c.RetainedUntil = "", 0
	if d == nil || p.app.DeletingSince != 0 {
		return
	}
	p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED)
	d.Reason, d.Message = ReasonSuperseded, why
	p.log("DeploymentSuperseded", why, d, "")
}

// Restore makes the retained version live again, in place of the live version, if it serves
// in all of its places. Unreachable regions do not matter, because they still run what they ran before.
// The planner moves the traffic.
func Restore(c *model.Progress, app *model.App, live, old *model.Deployment, places []rollup.Place, now int64) bool {
	if c.Retained() != old.ID || now >= c.RetainedUntil || app.RolloutID != "" {
		return false
	}
	for _, pl := range places {
		if !pl.Unreachable() && !pl.Settled() {
			return false
		}
		// A lagging region still has the version, unless it has begun to catch up.
		if b := c.LaggingIn(pl.Row.RegionID); b != nil && (pl.Row.Weight != fullWeight || pl.Row.Replicas != b.Progress.OldSizes[b.RegionID]) {
			return false
		}
	}
	if slices.ContainsFunc(c.Lagging, func(b model.LaggingRegion) bool { return b.DeploymentID != old.ID }) {
		return false
	}
	c.Lagging = nil
	app.LiveDeploymentID = old.ID
	if live.Stable {
		app.PreviousDeploymentID = live.ID
	}
	live.Status, live.EndedAt = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, now
	live.Reason, live.Message = ReasonSuperseded, fmt.Sprintf("v%d, which was retained, is live again", old.Version)
	c.RetainedID, c.RetainedUntil, c.RolledBack = "", 0, true
	return true
}
