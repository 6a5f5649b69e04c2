package api

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// appProto returns the app in the form of the API, without its URLs.
func appProto(f facts, app model.App) *windlassv1.App {
	out := &windlassv1.App{
		Id: app.ID, WorkspaceId: app.WorkspaceID, ProjectId: app.ProjectID, EnvironmentId: app.EnvironmentID,
		ProjectName: f.projects[app.ProjectID].Name, EnvironmentName: f.environments[app.EnvironmentID].Name,
		Name: app.Name, Description: app.Description,
		LiveDeploymentId: app.LiveDeploymentID, LiveVersion: f.deployments[app.LiveDeploymentID].Version,
		PreviousVersion: f.deployments[app.PreviousDeploymentID].Version, LatestVersion: app.LatestVersion,
		RolloutId: app.RolloutID,
		CreatedAt: app.CreatedAt, UpdatedAt: app.UpdatedAt, ResourceVersion: app.ResourceVersion,
	}
	out.Pooled = model.IsPooled(f.deployments[app.LiveDeploymentID].Spec)
	rolloutState := f.rolloutStates[app.ID]
	out.RolloutPolicy = rolloutState.Policy
	live := f.livePlaces(app)
	if rolloutState.Progress.Active(app.RolloutID) {
		live = f.movingPlaces(app, rolloutState.Progress, live)
	} else {
		live = f.laggingPlaces(app, rolloutState.Progress, live)
	}
	for _, p := range live {
		out.Replicas += p.Row.Replicas
		out.ReadyReplicas += min(p.Observed.ReadyReplicas, p.Row.Replicas)
		out.Regions = append(out.Regions, p.Name())
	}
	out.Status, out.Message = f.statusOf(app, live)
	for _, p := range f.pins[app.ID] {
		out.Pins = append(out.Pins, pinProto(f, app, p))
	}
	return out
}

func (f facts) livePlaces(app model.App) []rollup.Place {
	if app.LiveDeploymentID == "" {
		return nil
	}
	return f.placesOf(app.ID, app.LiveDeploymentID, topology.Active)
}

// movingPlaces returns the live deployment's places during a staged rollout. Each place has the replicas that its
// region should have in total, and the ready replicas of both versions.
func (f facts) movingPlaces(app model.App, c *model.Progress, live []rollup.Place) []rollup.Place {
	live = slices.Clone(live)
	for i := range live {
		p := &live[i]
		region := p.Row.RegionID
		size, ok := c.OldSizes[region]
		p.Observed.ReadyReplicas = f.servingReplicas(p.Row)
		for _, t := range f.rows[app.ID] {
			if t.RegionID != region || t.DeploymentID == app.LiveDeploymentID || !topology.Active(t) || f.isPinned(t) {
				continue
			}
			p.Observed.ReadyReplicas += f.servingReplicas(t)
			if n, there := c.Sizes[region]; there && !c.Back && t.Replicas > p.Row.Replicas {
				size, ok = n, true
			}
		}
		if ok {
			p.Row.Replicas = size
		}
	}
	return live
}

// outdatedReplicas returns the number of taken-over replicas of other versions that serve under the row's deployment.
func (f facts) outdatedReplicas(t model.Topology) int32 {
	d := f.deployments[t.DeploymentID]
	return plan.Outdated(t, f.rows[t.AppID], f.observedOf, &d)
}

// servingReplicas returns the number of replicas of any version that serve under the row's deployment.
func (f facts) servingReplicas(t model.Topology) int32 {
	d := f.deployments[t.DeploymentID]
	return plan.Serving(t, f.rows[t.AppID], f.observedOf, &d)
}

func (f facts) observedOf(t model.Topology) model.Observed {
	return f.observed[[2]string{t.DeploymentID, t.RegionID}]
}

// statusOf returns the app's status, computed from the facts. If nothing is live or in flight, it returns a failure
// that the workflow stored.
func (f facts) statusOf(app model.App, live []rollup.Place) (windlassv1.AppStatus, string) {
	var in rollup.Facts
	switch {
	case app.DeletingSince != 0:
		in.Deleting = true
		for _, t := range f.rows[app.ID] {
			if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				in.Live = append(in.Live, f.placeOf(t))
			}
		}
		slices.SortStableFunc(in.Live, byName)
	case app.RolloutID != "":
		target := f.targetOf(app)
		if r := f.rollouts[app.RolloutID]; holdProto(r) != nil || plan.StartMissing(r) != "" {
			in.Progress = plan.FrozenMessage(r)
		}
		if f.rolloutStates[app.ID].Progress.Active(app.RolloutID) {
			in.Progress = app.Message // only the workflow's message describes waves
		}
		in.AwaitsCapacity = plan.WaitsForCapacity(f.rolloutStates[app.ID].Policy) > 0
		in.Target, in.TargetPlaces = &target, f.placesOf(app.ID, target.ID, topology.Active)
	case app.LiveDeploymentID != "" && f.isLagging(app):
		return app.Status, app.Message // only the workflow knows the state of lagging regions
	case app.LiveDeploymentID != "":
		in.HasLive, in.Live = true, live
		in.Pins = pins.Failed(f.pins[app.ID], func(id string) string { return f.regions[id].ShownName() })
	case app.Status == windlassv1.AppStatus_APP_STATUS_FAILED:
		return app.Status, app.Message
	}
	return rollup.Status(in)
}

// targetOf returns the deployment of the rollout in flight, which is always the newest version. If the facts do not
// have the deployment, because it has no rows yet, targetOf returns only its version and a pending status.
func (f facts) targetOf(app model.App) model.Deployment {
	for _, d := range f.deployments {
		if d.AppID == app.ID && d.Version == app.LatestVersion {
			return d
		}
	}
	return model.Deployment{Version: app.LatestVersion, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING}
}

// deploymentProto returns a version of the app in the form of the API.
func deploymentProto(f facts, app model.App, d model.Deployment) *windlassv1.Deployment {
	out := &windlassv1.Deployment{
		Id: d.ID, AppId: d.AppID, AppName: app.Name, Version: d.Version, Spec: d.Spec, Status: d.Status,
		Reason: d.Reason, Message: d.Message, Source: d.Source, FromVersion: d.FromVersion,
		ResolvedImage: d.ResolvedImage, CreatedBy: d.CreatedBy, Live: d.ID == app.LiveDeploymentID, Stable: d.Stable,
		CreatedAt: d.CreatedAt, ReadyAt: d.ReadyAt, EndedAt: d.EndedAt,
	}
	if p := f.pinOf(app.ID, d.ID); p != nil && !p.Removing {
		out.PinnedWeight = p.Weight
	}
	for _, p := range f.placesOf(d.AppID, d.ID, func(model.Topology) bool { return true }) {
		out.Regions = append(out.Regions, p.Proto())
	}
	return out
}

func historyProto(f map[string]model.Region, h model.History) *windlassv1.HistoryEntry {
	region := ""
	if h.RegionID != "" {
		region = f[h.RegionID].ShownName()
	}
	return &windlassv1.HistoryEntry{
		Id: h.ID, At: h.At, What: h.What, Why: h.Why, Who: h.Who,
		RolloutId: h.RolloutID, DeploymentId: h.DeploymentID, Version: h.Version, Region: region,
	}
}

func (a *server) historyViews(tx Tx, rows []model.History) ([]*windlassv1.HistoryEntry, error) {
	ids := map[string]bool{}
	for _, h := range rows {
		if h.RegionID != "" {
			ids[h.RegionID] = true
		}
	}
	regions, err := a.regionsByID(tx, ids)
	if err != nil {
		return nil, err
	}
	var out []*windlassv1.HistoryEntry
	for _, h := range rows {
		out = append(out, historyProto(regions, h))
	}
	return out, nil
}
