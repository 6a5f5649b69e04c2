package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// This file has the changes that deploys and people make to an app's scaling, and the reads and writes of the scaler.
// Package scaler makes the decisions.

// scalingOf reads the locked app's scaling.
func (c *mutation) scalingOf(app model.App) (model.Scaling, error) {
	rows, err := c.GetScalings([]string{app.ID})
	if err != nil {
		return model.Scaling{}, fmt.Errorf("read scaling of app %s: %w", app.ID, err)
	}
	if len(rows) == 0 {
		return model.Scaling{AppID: app.ID, WorkspaceID: app.WorkspaceID}, nil
	}
	return rows[0], nil
}

func (c *mutation) putScaling(s model.Scaling) error {
	// The scaler compares UpdatedAt, so two changes in one millisecond must have different values.
	s.UpdatedAt = max(c.at, s.UpdatedAt+1)
	if err := c.PutScaling(s); err != nil {
		return fmt.Errorf("store scaling of app %s: %w", s.AppID, err)
	}
	return nil
}

// resolveScaling sets the ids of the regions that overrides of the policy name, and the initial replicas of an app's
// first version. startRoles sets the initial instances of roles.
func (d *deployment) resolveScaling() error {
	p := d.want.Scaling
	if p == nil {
		return nil
	}
	p = proto.CloneOf(p)
	var names []string
	for _, o := range scaling.Overrides(p) {
		names = append(names, o.GetRegions()...)
	}
	ids := map[string]string{}
	if len(names) > 0 {
		regions, err := d.GetRegionsByName(d.workspaceID, names)
		if err != nil {
			return fmt.Errorf("read regions of workspace %s: %w", d.workspaceID, err)
		}
		for _, r := range regions {
			ids[r.Name] = r.ID
		}
	}
	for _, o := range scaling.Overrides(p) {
		o.RegionIds = nil
		for _, name := range o.GetRegions() {
			if ids[name] != "" {
				o.RegionIds = append(o.RegionIds, ids[name])
			}
		}
		slices.Sort(o.RegionIds)
	}
	d.want.Scaling = p
	if len(p.GetRoles()) > 0 || d.app.LatestVersion > 0 || d.want.Spec.Replicas != nil {
		return nil
	}
	for _, region := range append([]string{""}, slices.Sorted(maps.Keys(ids))...) {
		policy, fault := scaling.New(p, region)
		switch {
		case fault != nil:
			return apierr.InvalidFix("scaling."+fault.Field, fault.Message, fault.Fix)
		case region == "":
			d.want.Spec.Replicas = new(int32(policy.Initial))
		default:
			override.SetReplicas(d.want.Spec, region, ids[region], int32(policy.Initial))
		}
	}
	return nil
}

// startRoles sets the initial instances of scaled roles that no running version of the app has. Other roles keep
// their instances. It runs after setPolicy.
func (d *deployment) startRoles() error {
	policies, fault := scaling.NewRoles(d.was.scaling.Policy, "")
	if fault != nil {
		return apierr.InvalidFix("scaling."+fault.Field, fault.Message, fault.Fix)
	}
	runs := map[string]bool{}
	for _, have := range []*model.Deployment{d.was.live, d.was.active.deployment} {
		if have == nil {
			continue
		}
		for _, r := range have.Spec.GetRoles() {
			runs[r.GetName()] = true
		}
	}
	for _, p := range policies {
		for _, r := range d.want.Spec.GetRoles() {
			if r.GetName() == p.Role && r.GetInstances() == 0 && !runs[p.Role] {
				r.Instances = int32(p.Initial)
			}
		}
	}
	return nil
}

// setScaling sets the app's scaling policy to the policy of the version, nil for none. Agents get the policy with
// each deployment, so each deployment gets a new generation.
func (d *deployment) setScaling() error {
	s := d.was.scaling.Clone()
	if proto.Equal(s.Policy, d.want.Scaling) {
		return nil
	}
	why := "its replicas follow the load by the policy of the deployed file"
	switch {
	case len(d.want.Scaling.GetRoles()) > 0 && d.want.Scaling.GetMode() != windlassv1.ScalingPolicy_MODE_ADVISE:
		why = "the instances of its roles follow the load by the policy of the deployed file"
		s.Holds = slices.DeleteFunc(s.Holds, func(h model.ScalingHold) bool {
			return !slices.ContainsFunc(d.want.Scaling.GetRoles(), func(r *windlassv1.RoleScaling) bool { return r.GetRole() == h.Role })
		})
	case d.want.Scaling == nil:
		why, s.Holds = "its replicas no longer follow the load, because the deployed file has no scaling", nil
	case d.want.Scaling.GetMode() == windlassv1.ScalingPolicy_MODE_ADVISE:
		why, s.Holds = "its policy only advises: decisions are shown, but change nothing", nil
	}
	s.Policy = d.want.Scaling
	d.log(d.app, model.History{What: "ScalingPolicyChanged", Why: why})
	if err := d.putScaling(s); err != nil {
		return err
	}
	d.was.scaling, d.scalingChanged = s, true
	changed := topology.Renew(d.was.rows, d.traceparent, d.at)
	if len(changed) == 0 {
		return nil
	}
	if err := topology.Write(d.mutation, topology.State{Rows: d.was.rows}, topology.State{Rows: changed}); err != nil {
		return fmt.Errorf("tell regions how app %s scales: %w", d.app.ID, err)
	}
	d.was.rows = replaced(d.was.rows, changed)
	return d.expect(d.app.ID)
}

// holdScaling sets or ends a hold for Scale. If replicas of an app or instances of a role follow the load, a person
// can only set them for a time. done means that there is nothing to scale. held means that a hold was set or ended.
func (c *mutation) holdScaling(app model.App, r running, regionID, where string, req *windlassv1.ScaleRequest) (held, done bool, err error) {
	s, hold, role := r.scaling.Clone(), req.GetHoldFor().AsDuration(), req.GetRole()
	active := s.Scales(role)
	subject, unit, flags := "the replicas of app "+app.Name, "replicas", fmt.Sprintf("--replicas %d", req.GetReplicas())
	if role != "" {
		subject, unit, flags = fmt.Sprintf("the instances of role %s of app %s", role, app.Name), "instances of role "+role, fmt.Sprintf("--role %s=%d", role, req.GetReplicas())
	}
	switch {
	case !active && (hold > 0 || req.GetEndHold()):
		field := "hold_for"
		if req.GetEndHold() {
			field = "end_hold"
		}
		return false, true, apierr.InvalidFix(field, subject+" do not follow the load, so a hold has no effect", "Leave it out.")
	case !active:
		return false, false, nil
	case hold > 0 && req.GetEndHold():
		return false, true, apierr.InvalidFix("end_hold", "hold_for and end_hold are both set", "Set one of the two.")
	case req.GetEndHold():
		// Ending the hold in one region has no effect while a hold in all regions exists.
		if all := s.HoldInAll(role, c.at); regionID != "" && all != nil {
			return false, true, apierr.InvalidFix("region", fmt.Sprintf("a hold of app %s applies to all regions: %d %s until %s, by %s",
				app.Name, all.Replicas, unit, time.UnixMilli(all.Until).UTC().Format(time.RFC3339), all.Who), "Leave region out to end the holds in all regions.")
		}
		if !s.EndHold(regionID, role, c.at) {
			return false, true, nil
		}
		c.log(app, model.History{What: "ScalingHoldEnded", Why: endedText(role) + where, RegionID: regionID})
		return true, true, c.putScaling(s)
	case hold == 0:
		return false, true, rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_SCALED, Field: "replicas",
			Fix: fmt.Sprintf("Hold the number for a time: `windlass scale %s %s --for 2h`. Or change min and max of its scaling, and deploy.", app.Name, flags),
		}, subject+" follow the load")
	}
	until := c.at + hold.Milliseconds()
	s.Hold(model.ScalingHold{RegionID: regionID, Role: role, Replicas: req.GetReplicas(), Until: until, Who: c.by.Name}, c.at)
	c.log(app, model.History{
		What: "ScalingHeld", RegionID: regionID,
		Why: fmt.Sprintf("%d %s in %s until %s", req.GetReplicas(), unit, where, time.UnixMilli(until).UTC().Format(time.RFC3339)),
	})
	return true, false, c.putScaling(s)
}

// endedText returns the text of the history for the end of a hold. The caller appends the region.
func endedText(role string) string {
	if role != "" {
		return "the instances of role " + role + " follow the load again in "
	}
	return "its replicas follow the load again in "
}

type scalingService struct{ *server }

// ScalingDecisions returns the newest scaling decisions of all processes.
type ScalingDecisions interface {
	// Scaling returns the decision for an app in a region, from the process that has the region's stream. It returns
	// nil if the region has not reported its load recently. It fails with model.ErrAgentUnreachable if no process has
	// the stream, or if that process does not answer.
	Scaling(ctx context.Context, regionID, appID string) (*windlassv1.RegionScaling, error)
	// ScalingNow returns the decisions for an app, by region id. Decisions of processes that do not answer are
	// missing.
	ScalingNow(ctx context.Context, appID string) map[string]*windlassv1.RegionScaling
}

// GetScaling returns an app's scaling policy and holds, and the newest decision in each region, from the process with
// the region's stream. If that process does not answer, it returns the stored decision.
func (a scalingService) GetScaling(ctx context.Context, req *windlassv1.GetScalingRequest) (*windlassv1.GetScalingResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var r storedScaling
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		app, err := a.app(tx, by.WorkspaceID, req.GetApp(), false)
		if err != nil {
			return err
		}
		r, err = readScaling(tx, app)
		return err
	})
	if err != nil || r.Policy == nil {
		return &windlassv1.GetScalingResponse{}, err
	}
	if a.cfg.Scaling != nil {
		maps.Copy(r.decisions, a.cfg.Scaling.ScalingNow(ctx, r.AppID))
	}
	return r.response(now()), nil
}

// storedScaling is an app's scaling in the database.
type storedScaling struct {
	model.Scaling

	// decisions and names are by region id.
	decisions map[string]*windlassv1.RegionScaling
	names     map[string]string
	// runsIn has the ids of the regions in which the app runs.
	runsIn map[string]bool
}

func readScaling(tx Tx, app model.App) (r storedScaling, err error) {
	found, err := tx.GetScalings([]string{app.ID})
	if err != nil {
		return r, fmt.Errorf("read scaling of app %s: %w", app.ID, err)
	}
	if len(found) == 0 || found[0].Policy == nil {
		return r, nil
	}
	r = storedScaling{Scaling: found[0], decisions: map[string]*windlassv1.RegionScaling{}, names: map[string]string{}, runsIn: map[string]bool{}}
	stored, err := tx.ListScalingDecisions(app.ID)
	if err != nil {
		return r, fmt.Errorf("list scaling decisions of app %s: %w", app.ID, err)
	}
	for _, d := range stored {
		if d.DecidedAt != 0 {
			r.decisions[d.RegionID] = d.Decision
		}
	}
	rows, err := tx.ListTopology([]string{app.ID})
	if err != nil {
		return r, fmt.Errorf("list topology of app %s: %w", app.ID, err)
	}
	ids := map[string]bool{}
	for _, t := range rows {
		if topology.Active(t) {
			r.runsIn[t.RegionID], ids[t.RegionID] = true, true
		}
	}
	for _, h := range r.Holds {
		ids[h.RegionID] = true
	}
	delete(ids, "")
	regions, err := tx.GetRegions(keys(ids))
	if err != nil {
		return r, fmt.Errorf("read regions of app %s: %w", app.ID, err)
	}
	for _, region := range regions {
		r.names[region.ID] = region.ShownName()
	}
	return r, nil
}

// response returns the answer, without decisions for regions that the app has left.
func (r *storedScaling) response(at int64) *windlassv1.GetScalingResponse {
	res := &windlassv1.GetScalingResponse{Policy: r.Policy}
	for id, d := range r.decisions {
		if r.runsIn[id] && r.names[id] != "" {
			d = proto.CloneOf(d)
			shown := d.GetRoles()
			if d.Roles = nil; len(shown) == 0 {
				shown = []*windlassv1.RegionScaling{d}
			}
			for _, one := range shown {
				one.Region = r.names[id]
			}
			res.Regions = append(res.Regions, shown...)
		}
	}
	slices.SortStableFunc(res.Regions, func(a, b *windlassv1.RegionScaling) int { return cmp.Compare(a.GetRegion(), b.GetRegion()) })
	for _, h := range r.Holds {
		if h.Until > at {
			res.Holds = append(res.Holds, &windlassv1.ScalingHold{Region: r.names[h.RegionID], Role: h.Role, Replicas: h.Replicas, Until: h.Until, Who: h.Who})
		}
	}
	return res
}

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
	sizes := r.sizes()
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
		if err := c.rescale(r); err != nil {
			return nil, err
		}
		return func() error { return c.finish(model.Idempotency{}, nil) }, nil
	})
}

func (c *mutation) rescale(r model.Rescale) error {
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
	was, err := c.versions().running(app)
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

// sizeToRescale returns how many replicas the scaler changes in the region: those that the app has there, or that a staged
// rollout will bring, in which case moving is true. ok is false if the live version is not in the region.
func (r running) sizeToRescale(app *model.App, regionID string) (replicas int32, moving, ok bool) {
	replicas, ok = r.sizes()[regionID]
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
	_, err := c.versions().scale(app, was, was.scaledIDs(), asked)
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
	n, err := c.scale(app, was, was.scaledIDs(), plan.AskedIn(r.RegionID, *r.Pool))
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
