package api

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// isLagging reports whether regions of the app have yet to catch up with the live version.
func (f facts) isLagging(app model.App) bool {
	c := f.rolloutStates[app.ID].Progress
	return c != nil && len(c.Lagging) > 0
}

// laggingNotIn returns the deployments that serve in lagging regions and are not in shown.
func (f facts) laggingNotIn(app model.App, shown []model.Deployment) (more []model.Deployment) {
	if !f.isLagging(app) {
		return nil
	}
	for _, b := range f.rolloutStates[app.ID].Progress.Lagging {
		d, ok := f.deployments[b.DeploymentID]
		same := func(other model.Deployment) bool { return other.ID == d.ID }
		if ok && !slices.ContainsFunc(shown, same) && !slices.ContainsFunc(more, same) {
			more = append(more, d)
		}
	}
	return more
}

// laggingPlaces returns the live deployment's places, including lagging regions. The place of a lagging region has
// the replicas that it should have, and the ready replicas of both versions.
func (f facts) laggingPlaces(app model.App, c *model.Progress, live []rollup.Place) []rollup.Place {
	if !f.isLagging(app) {
		return live
	}
	live = slices.DeleteFunc(slices.Clone(live), func(p rollup.Place) bool { return c.LaggingIn(p.Row.RegionID) != nil })
	for _, b := range c.Lagging {
		p := rollup.Place{Region: f.regions[b.RegionID], Row: model.Topology{RegionID: b.RegionID, Replicas: laggingSize(b)}}
		for _, t := range f.rows[app.ID] {
			if t.RegionID == b.RegionID && topology.Active(t) && !f.isPinned(t) {
				p.Observed.ReadyReplicas += f.servingReplicas(t)
			}
		}
		live = append(live, p)
	}
	slices.SortStableFunc(live, byName)
	return live
}

// laggingSize returns the number of replicas that the region will have.
func laggingSize(b model.LaggingRegion) int32 {
	if n, ok := b.Progress.Sizes[b.RegionID]; ok && !b.Progress.Back {
		return n
	}
	return b.Progress.OldSizes[b.RegionID]
}

// laggingProto returns the progress of each lagging region.
func laggingProto(c *model.Progress) (out []*windlassv1.WaveProgress) {
	for _, b := range c.Lagging {
		of := progressProto(b.Progress).Waves
		if st := of[0].Regions[0]; st.State == windlassv1.RegionProgress_STATE_WAITING {
			st.State = windlassv1.RegionProgress_STATE_SKIPPED
		}
		out = append(out, of...)
	}
	return out
}

// fillLagging sets the fields about the instances in lagging regions.
func fillLagging(f facts, app model.App, c *model.Progress, out []*windlassv1.WaveProgress) {
	live := f.deployments[app.LiveDeploymentID]
	for i, b := range c.Lagging {
		st, g := b.Progress.Waves[0].Regions[0], out[i].Regions[0]
		g.Replicas = laggingSize(b)
		if app.RolloutID == "" {
			g.Deadline = plan.RegionDeadline(b.Progress, live.Spec, st)
		}
		fillRegion(f, app, st, g, f.deployments[b.DeploymentID], live)
	}
}
