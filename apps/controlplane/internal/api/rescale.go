package api

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// This file has the reads and writes of the scaler. Package scaler makes the decisions.

// ScaledApps returns the scaler's input for the apps. Apps without a scaling policy are left out. The number of
// queries does not depend on the number of apps.
func (a *API) ScaledApps(ctx context.Context, ids []string) (out []model.ScaledApp, err error) {
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		out, err = scaledApps(tx, ids)
		return err
	})
	return out, err
}

func scaledApps(tx Tx, ids []string) (out []model.ScaledApp, err error) {
	rows, err := tx.GetScalings(ids)
	if err != nil {
		return nil, fmt.Errorf("read scaling of %d apps: %w", len(ids), err)
	}
	scalings := map[string]model.Scaling{}
	for _, s := range rows {
		if s.Policy != nil {
			scalings[s.AppID] = s
		}
	}
	if len(scalings) == 0 {
		return nil, nil
	}
	found, err := tx.GetApps(slices.Sorted(maps.Keys(scalings)))
	if err != nil {
		return nil, fmt.Errorf("read %d apps: %w", len(scalings), err)
	}
	found = slices.DeleteFunc(found, func(app model.App) bool { return app.DeletingSince != 0 || app.LiveDeploymentID == "" })
	inputs, err := planinput.Rows(tx, found)
	if err != nil {
		return nil, fmt.Errorf("read what %d apps run: %w", len(found), err)
	}
	for _, in := range inputs {
		if app, ok := scaledApp(in, scalings[in.App.ID]); ok {
			out = append(out, app)
		}
	}
	return out, nil
}

func scaledApp(in *plan.Input, s model.Scaling) (out model.ScaledApp, ok bool) {
	out = model.ScaledApp{
		AppID: in.App.ID, WorkspaceID: in.App.WorkspaceID, Name: in.App.Name, Scaling: s,
		Deployments: map[string]bool{}, Regions: map[string]model.ScaledRegion{},
	}
	r := running{rows: in.Topology, rolloutState: model.RolloutState{}}
	if in.RolloutState != nil {
		r.rolloutState = *in.RolloutState
	}
	for i, d := range in.Deployments {
		if d.ID == in.App.LiveDeploymentID {
			r.live = &in.Deployments[i]
		}
		out.Deployments[d.ID] = true
	}
	if r.live == nil {
		return out, false
	}
	out.Version, out.StartupBudget = r.live.Version, r.live.Spec.GetHealthCheck().GetStartupBudget().AsDuration()
	out.EngineMetrics = r.live.Spec.GetGenerated().GetMetrics()
	for _, p := range in.Pins {
		delete(out.Deployments, p.DeploymentID)
	}
	moving := r.rolloutState.Progress.Active(in.App.RolloutID)
	sizes := r.liveSizes()
	for _, t := range in.Topology {
		size, live := sizes[t.RegionID]
		if t.DeploymentID != r.live.ID || !live || !topology.Active(t) {
			continue
		}
		if moving {
			size = plan.Size(r.rolloutState.Progress, t.RegionID)
		}
		spec := override.In(r.live.Spec, t.RegionID)
		instances, gpus := admission.Of(spec, 1)
		region := model.ScaledRegion{
			Replicas: size, Counted: admission.CountedReplicas(spec, size), Generation: t.Generation, Moving: moving, Instances: instances, GPUs: gpus,
			CanWake: canWake(in, r.live, t.RegionID),
			MadeFor: madeFor(in, out.Deployments, r.live.ID, t.RegionID),
		}
		if model.IsPooled(spec) {
			region.Roles, region.RoleCosts = liveCounts(in.Topology, t), map[string]model.RoleCost{}
			for _, role := range spec.GetRoles() {
				region.RoleCosts[role.GetName()] = admission.CostOfRole(spec, role)
			}
		}
		for _, found := range in.Regions {
			if found.ID == t.RegionID {
				region.Name = found.ShownName()
			}
		}
		out.Regions[t.RegionID] = region
	}
	return out, true
}

// canWake reports whether a request starts the app's live version, and the version of the rollout in flight, if they have
// no replicas in the region.
func canWake(in *plan.Input, live *model.Deployment, regionID string) bool {
	return !slices.ContainsFunc(in.Deployments, func(d model.Deployment) bool {
		wanted := d.ID == live.ID || in.Rollout != nil && d.ID == in.Rollout.DeploymentID
		return wanted && override.In(d.Spec, regionID).GetRouting().GetColdStart() == nil
	})
}

// madeFor returns the ids of the deployments for which the app's instances in the region were made, the live
// deployment first, without pinned deployments. A deployment that took over instances has instances that were made
// for other deployments.
func madeFor(in *plan.Input, counts map[string]bool, liveID, regionID string) []string {
	out := []string{liveID}
	for _, t := range in.Topology {
		if t.RegionID != regionID || !counts[t.DeploymentID] && !t.Transferred {
			continue
		}
		for _, id := range []string{t.DeploymentID, t.WorkloadKey()} {
			if !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	return out
}

// Rescale writes a decision of the scaler: the replicas, if they change, an entry of the history, and the decision.
// It fails with model.ErrStale if the state on which the decision is based has changed, and with
// *model.NoRoomError if the region has no room for what the decision adds. It fails like Scale if a quota or a
// region does not let the app grow.
func (a *API) Rescale(ctx context.Context, r model.Rescale) error {
	by := caller{APIKey: model.APIKey{WorkspaceID: r.WorkspaceID, Name: "windlass"}, Source: "scaler"}
	return a.cfg.Store.UpdateBatched(ctx, r.WorkspaceID, r.AppID, func(tx Tx) (func() error, error) {
		c := a.newMutation(ctx, tx, by, false)
		if err := c.rescaleApp(r); err != nil {
			return nil, err
		}
		return func() error { return c.finish(model.Idempotency{}, nil) }, nil
	})
}

func (c *mutation) rescaleApp(r model.Rescale) error {
	app, err := c.lockedApp(r.AppID)
	if connect.CodeOf(err) == connect.CodeNotFound {
		return model.ErrStale
	}
	if err != nil {
		return err
	}
	if app.DeletingSince != 0 {
		return model.ErrStale
	}
	was, err := c.versions().readRunning(app)
	if err != nil {
		return err
	}
	if was.live == nil || was.scaling.UpdatedAt != r.ScalingAt {
		return model.ErrStale
	}
	switch {
	case r.Writes && (len(r.Roles) > 0 || r.Pool != nil):
		err = c.rescaleRoles(app, was, r)
	case r.Writes && r.Decision.GetWanted() != r.From:
		err = c.rescaleRegion(&app, was, r)
	}
	// A rollout that is under way stores the number, and gives it to the row later.
	if moving := was.rolloutState.Progress.Active(app.RolloutID); err == nil && r.Renews && (moving || r.Decision.GetWanted() == r.From) {
		err = renewRegion(c, was, r)
	}
	if err != nil {
		return err
	}
	for _, e := range r.Entries {
		c.log(app, model.History{
			What: e.What, Why: e.Why, RolloutID: app.RolloutID, DeploymentID: was.live.ID, Version: was.live.Version, RegionID: r.RegionID,
		})
	}
	if err := c.PutScalingDecision(model.ScalingDecision{
		AppID: app.ID, RegionID: r.RegionID, WorkspaceID: app.WorkspaceID, Decision: r.Decision, DecidedAt: r.Decision.GetAt(),
	}); err != nil {
		return fmt.Errorf("store scaling decision of app %s: %w", app.ID, err)
	}
	return nil
}

// sizeToRescale returns the number of replicas in the region from which the scaler scales. During a staged rollout,
// moving is true, and the number is the one that the rollout will bring. ok is false if the live version is not in the
// region.
func (r running) sizeToRescale(app *model.App, regionID string) (replicas int32, moving, ok bool) {
	replicas, ok = r.liveSizes()[regionID]
	if moving = r.rolloutState.Progress.Active(app.RolloutID); moving {
		replicas = plan.Size(r.rolloutState.Progress, regionID)
	}
	return replicas, moving, ok
}

// scaledIDs returns the ids of the deployments whose replicas change when the app is scaled.
func (r running) scaledIDs() []string {
	ids := []string{r.live.ID}
	if d := r.active.deployment; d != nil && d.ID != r.live.ID {
		ids = append(ids, d.ID)
	}
	return ids
}

// rescaleRegion sets the region's replicas. It fails with model.ErrStale if the state on which the decision is based
// has changed.
func (c *mutation) rescaleRegion(app *model.App, was running, r model.Rescale) error {
	have, moving, ok := was.sizeToRescale(app, r.RegionID)
	// A rollout that began after the decision keeps all its replicas, so the decision must not shrink them.
	shrinks := moving && r.Decision.GetWanted() < r.From
	if !ok || have != r.From || shrinks || was.scaling.HeldUntil(r.RegionID, "", c.at) > 0 {
		return model.ErrStale
	}
	for _, t := range was.rows {
		if !moving && t.DeploymentID == was.live.ID && t.RegionID == r.RegionID && t.Generation != r.Generation {
			return model.ErrStale
		}
	}
	if err := c.versions().roomFor(*app, was, r.RegionID, []growth{{from: r.From, to: r.Decision.GetWanted()}}); err != nil {
		return err
	}
	asked := plan.AskedIn(r.RegionID, r.Decision.GetWanted())
	if err := c.versions().hostsFitScaled(was, asked); err != nil {
		return err
	}
	_, err := c.versions().scaleDeployments(app, was, was.scaledIDs(), asked)
	return err
}

// renewRegion gives the live version in the region a new generation with the same replicas. It fails with
// model.ErrStale if the state on which the decision is based has changed.
func renewRegion(c *mutation, was running, r model.Rescale) error {
	if !slices.ContainsFunc(was.rows, func(t model.Topology) bool {
		return t.DeploymentID == was.live.ID && t.RegionID == r.RegionID && t.Generation == r.Generation && t.Assigned()
	}) {
		return model.ErrStale
	}
	return renewLive(c, was, r.RegionID)
}

// rescaleRoles sets the instances of roles of the region's pool, and takes it to zero or back. It fails with
// model.ErrStale if the state on which the decision is based has changed.
func (c *mutation) rescaleRoles(app model.App, was running, r model.Rescale) error {
	moving := was.rolloutState.Progress.Active(app.RolloutID)
	var live *model.Topology
	for i, t := range was.rows {
		if t.DeploymentID == was.live.ID && t.RegionID == r.RegionID && topology.Active(t) {
			live = &was.rows[i]
		}
	}
	if live == nil || !moving && live.Generation != r.Generation {
		return model.ErrStale
	}
	have, wanted := liveCounts(was.rows, *live), model.RoleCounts{}
	var grown []growth
	for _, role := range r.Roles {
		// A rollout that began after the decision keeps all its instances, so the decision must not shrink them.
		shrinks := moving && role.Wanted < role.From
		if have[role.Role] != role.From || role.Wanted < 1 || shrinks || was.scaling.HeldUntil(r.RegionID, role.Role, c.at) > 0 {
			return model.ErrStale
		}
		wanted[role.Role] = role.Wanted
		grown = append(grown, growth{role.Role, role.From, role.Wanted})
	}
	if r.Pool == nil && r.From > 0 {
		if err := c.versions().roomFor(app, was, r.RegionID, grown); err != nil {
			return err
		}
	}
	if len(wanted) > 0 {
		if err := c.versions().setRoleCounts(app, &was, r.RegionID, wanted); err != nil {
			return err
		}
	}
	if r.Pool == nil {
		return nil
	}
	return c.versions().rescalePool(&app, was, r)
}

// rescalePool takes the region's pool to zero, or back.
func (c versionMutation) rescalePool(app *model.App, was running, r model.Rescale) error {
	have, moving, ok := was.sizeToRescale(app, r.RegionID)
	if !ok || have != r.From {
		return model.ErrStale
	}
	if *r.Pool == 0 {
		held := slices.ContainsFunc(was.scaling.Policy.GetRoles(), func(role *windlassv1.RoleScaling) bool {
			return was.scaling.HeldUntil(r.RegionID, role.GetRole(), c.at) > 0
		})
		if moving || held {
			return model.ErrStale
		}
	}
	n, err := c.scaleDeployments(app, was, was.scaledIDs(), plan.AskedIn(r.RegionID, *r.Pool))
	if err == nil && n == 0 {
		return model.ErrStale
	}
	return err
}

// setRoleCounts sets the instances of roles of the region's pool.
func (c versionMutation) setRoleCounts(app model.App, was *running, regionID string, wanted model.RoleCounts) error {
	text, err := c.setCounts(app, was, func(id string) model.RoleCounts {
		if id != regionID {
			return nil
		}
		return wanted
	})
	if err == nil && text == "" {
		return model.ErrStale // no row has the roles now
	}
	return err
}
