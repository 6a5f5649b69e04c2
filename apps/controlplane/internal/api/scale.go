package api

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
)

// scaleDeployments sets the replicas of the deployments, stores the app, and returns the number of regions in which they
// changed.
func (c versionMutation) scaleDeployments(app *model.App, r running, deploymentIDs []string, asked plan.Asked) (int, error) {
	if r.rolloutState.Progress.Active(app.RolloutID) {
		return c.resizeStaged(app, r, asked)
	}
	var changed []model.Topology
	if id := r.rolloutState.Progress.Retained(); id != "" {
		deploymentIDs = append(deploymentIDs, id)
	}
	lagging, err := c.scaleLagging(&r, asked)
	if err != nil {
		return 0, err
	}
	elsewhere := slices.DeleteFunc(slices.Clone(r.rows), func(t model.Topology) bool { return r.rolloutState.Progress.LaggingIn(t.RegionID) != nil })
	for _, id := range deploymentIDs {
		changed = append(changed, topology.Scale(elsewhere, id, asked.In, c.traceparent, c.at)...)
	}
	if err := c.mayGrow(grownRows(r.rows, changed), asked); err != nil {
		return 0, err
	}
	if err := c.storeReplicas(app, asked, len(changed)+lagging > 0); err != nil {
		return 0, err
	}
	if len(changed)+lagging == 0 {
		return 0, nil
	}
	if err := topology.Write(c.mutation, topology.State{Rows: r.rows}, topology.State{Rows: changed}); err != nil {
		return 0, fmt.Errorf("scale app %s: %w", app.ID, err)
	}
	c.claimUsage(*app, r.live, r.active.deployment, quotaRows(r.rolloutState, *app, r.live, r.active.deployment, withReplaced(r.rows, changed)))
	if r.active.rollout == nil && r.rolloutState.Progress == nil {
		return len(changed), c.expect(app.ID) // the workflow has nothing to do before regions report
	}
	return len(changed) + lagging, c.wake(app.ID)
}

// storeReplicas stores the replicas of the app's next deployment in the app's row. It writes nothing if they stay the
// same and no region is scaled.
func (c versionMutation) storeReplicas(app *model.App, asked plan.Asked, scaled bool) error {
	if asked.All != nil && *asked.All != app.Replicas {
		app.Replicas, scaled = *asked.All, true
	}
	if !scaled {
		return nil
	}
	return c.store(app)
}

// withReplaced returns rows, in which rows of changed replace the old rows.
func withReplaced(rows, changed []model.Topology) []model.Topology {
	rows = slices.Clone(rows)
	for i, t := range rows {
		for _, now := range changed {
			if now.DeploymentID == t.DeploymentID && now.RegionID == t.RegionID {
				rows[i] = now
			}
		}
	}
	return rows
}

// scaleLagging sets the replicas of lagging regions, and returns the number of changed regions. The workflow then
// scales the rows.
func (c versionMutation) scaleLagging(r *running, asked plan.Asked) (int, error) {
	if r.rolloutState.Progress == nil {
		return 0, nil
	}
	before := r.rolloutState.Progress
	r.rolloutState = r.rolloutState.Clone()
	n := plan.ResizeLagging(r.rolloutState.Progress, asked)
	if n == 0 {
		return 0, nil
	}
	if err := c.mayGrow(grownSizes(before, r.rolloutState.Progress), asked); err != nil {
		return 0, err
	}
	return n, c.putRolloutState(r.rolloutState)
}

// resizeStaged scales an app during a staged rollout, and returns the number of changed regions. The workflow then scales
// the rows.
func (c versionMutation) resizeStaged(app *model.App, r running, asked plan.Asked) (int, error) {
	s := r.rolloutState.Clone()
	n := plan.Resize(s.Progress, asked)
	if err := c.mayGrow(grownSizes(r.rolloutState.Progress, s.Progress), asked); err != nil {
		return 0, err
	}
	if err := c.storeReplicas(app, asked, n > 0); err != nil {
		return 0, err
	}
	if s.Progress.Equal(r.rolloutState.Progress) {
		return 0, nil
	}
	if err := c.putRolloutState(s); err != nil || n == 0 {
		return 0, err
	}
	c.claimUsage(*app, r.live, r.active.deployment, quotaRows(s, *app, r.live, r.active.deployment, r.rows))
	return n, c.wake(app.ID)
}
