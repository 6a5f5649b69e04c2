package planinput

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// readRegions reads the regions whose ids the inputs name.
func (l *loader) readRegions() error {
	named := make([]map[string]bool, len(l.order))
	all := map[string]bool{}
	for i, in := range l.order {
		named[i] = l.regionsOf(in)
		for id := range named[i] {
			all[id] = true
		}
	}
	found, err := l.tx.GetRegions(sortedKeys(all))
	if err != nil {
		return err
	}
	for _, r := range found {
		l.regions[r.ID] = r
	}
	for i, in := range l.order {
		for _, id := range sortedKeys(named[i]) {
			if r, ok := l.regions[id]; ok {
				in.Regions = append(in.Regions, r)
			}
		}
	}
	return nil
}

// regionsOf returns the ids of regions that the input names.
func (l *loader) regionsOf(in *plan.Input) map[string]bool {
	want := map[string]bool{}
	for _, t := range in.Topology {
		want[t.RegionID] = true
	}
	for _, r := range in.Routes {
		want[r.RegionID] = true
	}
	for _, p := range in.Pins {
		for _, r := range p.Regions {
			want[r.RegionID] = true
		}
	}
	progress := progressOf(in)
	if progress == nil {
		return want
	}
	for _, b := range progress.Lagging {
		want[b.RegionID] = true
	}
	if l.pastWaves || progress.Active(in.App.RolloutID) {
		for _, w := range progress.Waves {
			for _, r := range w.Regions {
				want[r.RegionID] = true
			}
		}
	}
	return want
}

func progressOf(in *plan.Input) *model.Progress {
	if in.RolloutState == nil {
		return nil
	}
	return in.RolloutState.Progress
}

// readRegionNames resolves the names of regions for which the plan will write rows. It also finds the
// regions whose grant to the app's workspace was revoked: their names no longer resolve to them.
func (l *loader) readRegionNames() error {
	names := map[string]map[string]bool{}
	want := func(workspace, name string) {
		if names[workspace] == nil {
			names[workspace] = map[string]bool{}
		}
		names[workspace][name] = true
	}
	for _, in := range l.order {
		for _, name := range namesToResolve(in) {
			want(in.App.WorkspaceID, name)
		}
		for _, r := range in.Regions {
			if mayClose(in, r) {
				want(in.App.WorkspaceID, r.Name)
			}
		}
	}
	found := map[string]map[string]model.Region{}
	for _, workspace := range sortedKeys(names) {
		regions, err := l.tx.GetRegionsByName(workspace, sortedKeys(names[workspace]))
		if err != nil {
			return err
		}
		found[workspace] = map[string]model.Region{}
		for _, r := range regions {
			found[workspace][r.Name] = r
		}
	}
	for _, in := range l.order {
		resolveRegions(in, found[in.App.WorkspaceID])
	}
	return nil
}

// resolveRegions adds the regions that were found by name, and marks the regions that are closed to the workspace.
func resolveRegions(in *plan.Input, found map[string]model.Region) {
	here := map[string]model.Region{}
	for _, r := range in.Regions {
		here[r.ID] = r
		if mayClose(in, r) && found[r.Name].ID != r.ID {
			if in.Closed == nil {
				in.Closed = map[string]bool{}
			}
			in.Closed[r.ID] = true
		}
	}
	in.RegionIDs = map[string]string{}
	for _, name := range namesToResolve(in) {
		if r, ok := found[name]; ok {
			in.RegionIDs[name], here[r.ID] = r.ID, r
		}
	}
	in.Regions = nil
	for _, id := range sortedKeys(here) {
		in.Regions = append(in.Regions, here[id])
	}
}

// mayClose reports whether a revoked grant of the region would change the plan: the region is the
// platform's, and the app may still get replicas there.
func mayClose(in *plan.Input, r model.Region) bool {
	if r.WorkspaceID != "" || in.App.DeletingSince != 0 {
		return false
	}
	progress := progressOf(in)
	return len(in.Pins) > 0 || progress.Active(in.App.RolloutID) || progress.LaggingIn(r.ID) != nil || mayWake(in, r)
}

// mayWake reports whether a request may wake the app in the region, or could wake it if the region were not closed.
func mayWake(in *plan.Input, r model.Region) bool {
	return slices.ContainsFunc(in.Topology, func(t model.Topology) bool {
		return t.RegionID == r.ID && plan.Active(t) && slices.ContainsFunc(in.Deployments, func(d model.Deployment) bool {
			return d.ID == t.DeploymentID && t.AtZero(override.In(d.Spec, r.ID))
		})
	})
}

// namesToResolve returns the names of regions for which the plan may write rows.
func namesToResolve(in *plan.Input) []string {
	if in.Rollout == nil {
		return nil
	}
	for _, d := range in.Deployments {
		if d.ID == in.Rollout.DeploymentID &&
			(d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING ||
				d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING) {
			return d.Spec.GetRegions()
		}
	}
	return nil
}
