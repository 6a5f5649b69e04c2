package api

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// isBehind reports whether regions of the app have yet to catch up with what is live.
func (f facts) isBehind(app model.App) bool {
	c := f.rolloutStates[app.ID].Progress
	return c != nil && len(c.Behind) > 0
}

// behind are the deployments that serve in regions that are behind, but for those shown.
func (f facts) behind(app model.App, shown []model.Deployment) (more []model.Deployment) {
	if !f.isBehind(app) {
		return nil
	}
	for _, b := range f.rolloutStates[app.ID].Progress.Behind {
		d, ok := f.deployments[b.DeploymentID]
		same := func(other model.Deployment) bool { return other.ID == d.ID }
		if ok && !slices.ContainsFunc(shown, same) && !slices.ContainsFunc(more, same) {
			more = append(more, d)
		}
	}
	return more
}

// behindPlaces are the live deployment's, with those of regions that are behind: each with
// the replicas that it should have, and with those of both versions that are ready.
func (f facts) behindPlaces(app model.App, c *model.Progress, live []rollup.Place) []rollup.Place {
	if !f.isBehind(app) {
		return live
	}
	live = slices.DeleteFunc(slices.Clone(live), func(p rollup.Place) bool { return c.BehindIn(p.Row.RegionID) != nil })
	for _, b := range c.Behind {
		p := rollup.Place{Region: f.regions[b.RegionID], Row: model.Topology{RegionID: b.RegionID, Replicas: behindSize(b)}}
		for _, t := range f.rows[app.ID] {
			if t.RegionID == b.RegionID && topology.Active(t) && !f.isPinned(t) {
				p.Observed.ReadyReplicas += f.serving(t)
			}
		}
		live = append(live, p)
	}
	slices.SortStableFunc(live, byName)
	return live
}

// behindSize is how many replicas the region is to come to.
func behindSize(b model.LaggingRegion) int32 {
	if n, ok := b.Progress.Sizes[b.RegionID]; ok && !b.Progress.Back {
		return n
	}
	return b.Progress.OldSizes[b.RegionID]
}

// behindProto is where each region is that has yet to catch up.
func behindProto(c *model.Progress) (out []*windlassv1.WaveProgress) {
	for _, b := range c.Behind {
		of := progressProto(b.Progress).Waves
		if st := of[0].Regions[0]; st.State == windlassv1.RegionProgress_STATE_WAITING {
			st.State = windlassv1.RegionProgress_STATE_SKIPPED
		}
		out = append(out, of...)
	}
	return out
}

// behindView fills in what runs in the regions that have yet to catch up.
func behindView(f facts, app model.App, c *model.Progress, out []*windlassv1.WaveProgress) {
	live := f.deployments[app.LiveDeploymentID]
	for i, b := range c.Behind {
		st, g := b.Progress.Waves[0].Regions[0], out[i].Regions[0]
		g.Replicas = behindSize(b)
		if app.RolloutID == "" {
			g.Deadline = plan.RegionDeadline(b.Progress, live.Spec, st)
		}
		fillRegion(f, app, st, g, f.deployments[b.DeploymentID], live)
	}
}
