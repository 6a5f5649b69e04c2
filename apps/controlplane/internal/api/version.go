package api

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// version is a configuration that an app is to run.
type version struct {
	// Spec is complete: defaults, pinned variables, replicas.
	Spec *windlassv1.DeploymentSpec
	// Asked are the replicas that the caller asked for. Where nothing is, Spec's are what
	// the app has, and no reason to scale.
	Asked plan.Asked
	// Source is "deploy", "environment", model.SourceSecret or model.SourceRollback.
	Source      string
	FromVersion int32
	// Straight: its rollout goes by plan.StraightPolicy, which KeepGates is for.
	Straight, KeepGates bool
	// Gone are regions that the version is made without, since the workspace has them no longer.
	Gone          []string
	ResolvedImage string
	// SetsPolicy: the app's rollouts go by Policy from now on, nil for none.
	// So does its own freeze.
	SetsPolicy bool
	Policy     *windlassv1.RolloutPolicy
	Freeze     *windlassv1.FileFreeze
	// Override is why it starts in spite of freezes, empty for not.
	Override string
}

// outcome of asking an app to run a version.
type outcome struct {
	Deployment model.Deployment
	RolloutID  string
	// Unchanged: Deployment runs it already, or is on its way. Scaled: it is given
	// other replicas.
	Unchanged, Scaled bool
	// Effect is what asking came to.
	Effect windlassv1.VersionEffect
	// TookBack is the rollout that was taken back for it, nil for none.
	TookBack *model.Rollout
	// Hold is what keeps the rollout from starting, nil for nothing.
	Hold *windlassv1.FreezeHold
	// Tightened says what protections ask for beyond the app's policy.
	Tightened []string
}

// tookBack returns the version and the id of the rollout that was taken back, 0 and "" for none.
func (o outcome) tookBack() (version int32, rolloutID string) {
	if o.TookBack == nil {
		return 0, ""
	}
	return o.TookBack.Version, o.TookBack.ID
}

// run makes the version the app's newest, unless it is what the app runs, or is on
// its way to, already. The app's row is locked: versions have no gaps.
//
//	in flight  live   asked for
//	   x        -        x       nothing to make
//	   -        x        x       nothing to make, unless replicas are to change
//	   y        x        x       y is taken back: x stays
//	   *        *     another    a new version, which supersedes what is in flight
//	   x        -   x, resized   the same, while x has not begun: it has nothing to scale
func (c versionMutation) run(app model.App, v version) (outcome, error) {
	if err := c.mayOverride(v.Override); err != nil {
		return outcome{}, err
	}
	r, err := c.running(app)
	if err != nil {
		return outcome{}, err
	}
	if v.SetsPolicy {
		if err := c.setPolicy(app, &r.rolloutState, v.Policy); err != nil {
			return outcome{}, err
		}
		if err := c.hold(c.freezing().setFileFreeze(app, v.Freeze)); err != nil {
			return outcome{}, err
		}
	}
	current := cmp.Or(r.flight.deployment, r.live)
	for _, d := range []*model.Deployment{r.flight.deployment, r.live} {
		if d == nil {
			continue
		}
		same, err := appspec.Same(d.Spec, v.Spec)
		if err != nil {
			return outcome{}, err
		}
		if !same || r.missesSizes(*d, v) {
			continue
		}
		tookBack := r.flight.rollout
		if d == current && r.flight.leaving == nil {
			tookBack = nil
		}
		if d != current && r.rolloutState.Progress.Active(app.RolloutID) {
			// Regions are between the two, and it takes the workflow to bring them back.
			if err := c.turnBack(app, *r.flight.rollout, fmt.Sprintf("v%d, which is live, was asked for again", d.Version)); err != nil {
				return outcome{}, err
			}
		} else if d != current {
			if app, err = c.takeBack(app, r.flight, fmt.Sprintf("v%d, which is live, was asked for again", d.Version)); err != nil {
				return outcome{}, err
			}
			r.flight = flight{}
			c.claims(app, r.live, nil, r.rows)
		}
		out, err := c.keep(app, r, *d, v)
		if err == nil && tookBack != nil {
			out.TookBack, out.Effect = tookBack, windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK
		}
		return out, err
	}
	return c.make(app, r, v)
}

// missesSizes reports whether the version asks for other replicas than the deployment will begin
// with. No rows could be scaled that are not there yet, and a spec that is stored stays so.
func (r running) missesSizes(d model.Deployment, v version) bool {
	if r.live != nil || v.Asked.Nothing() || slices.ContainsFunc(r.rows, func(t model.Topology) bool { return t.DeploymentID == d.ID }) {
		return false
	}
	return slices.ContainsFunc(v.Spec.GetRegions(), func(region string) bool {
		return appspec.ReplicasIn(d.Spec, region) != appspec.ReplicasIn(v.Spec, region)
	})
}

// keep has the deployment stay what the app runs, with other replicas if they were
// asked for.
func (c versionMutation) keep(app model.App, r running, d model.Deployment, v version) (outcome, error) {
	out := outcome{
		Deployment: d, RolloutID: app.RolloutID, Unchanged: true, Effect: windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY,
	}
	if f := r.flight; f.deployment != nil && f.deployment.ID == d.ID {
		out.Effect = windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY
		if v.Override == "" {
			out.Hold = holdProto(*f.rollout)
		} else if err := c.release(app, f, v.Override); err != nil {
			return outcome{}, err
		}
	}
	if v.Asked.Nothing() {
		return out, nil
	}
	if err := c.hold(c.portsFitScaled(r, v.Asked, "")); err != nil {
		return outcome{}, err
	}
	n, err := c.scale(&app, r, []string{d.ID}, v.Asked)
	if err != nil || n == 0 {
		return out, err
	}
	out.Unchanged, out.Scaled, out.Effect = false, true, windlassv1.VersionEffect_VERSION_EFFECT_SCALED
	c.log(app, model.History{
		What: "Scaled", Why: fmt.Sprintf("v%d gets %s", d.Version, appspec.AskedText(v.Asked, v.Spec)),
		RolloutID: app.RolloutID, DeploymentID: d.ID, Version: d.Version,
	})
	return out, nil
}

// scale gives the deployments the replicas asked for, and tells how many regions that
// changed. It stores the app.
func (c versionMutation) scale(app *model.App, r running, deploymentIDs []string, asked plan.Asked) (int, error) {
	if r.rolloutState.Progress.Active(app.RolloutID) {
		return c.resize(app, r, asked)
	}
	var changed []model.Topology
	if id := r.rolloutState.Progress.Retained(); id != "" {
		deploymentIDs = append(deploymentIDs, id)
	}
	behind, err := c.scaleBehind(&r, asked)
	if err != nil {
		return 0, err
	}
	elsewhere := slices.DeleteFunc(slices.Clone(r.rows), func(t model.Topology) bool { return r.rolloutState.Progress.BehindIn(t.RegionID) != nil })
	for _, id := range deploymentIDs {
		changed = append(changed, topology.Scale(elsewhere, id, asked.In, c.traceparent, c.at)...)
	}
	if err := c.mayGrow(grownRows(r.rows, changed), asked); err != nil {
		return 0, err
	}
	if err := c.storeReplicas(app, asked, len(changed)+behind > 0); err != nil {
		return 0, err
	}
	if len(changed)+behind == 0 {
		return 0, nil
	}
	if err := topology.Write(c.mutation, topology.State{Rows: r.rows}, topology.State{Rows: changed}); err != nil {
		return 0, fmt.Errorf("scale app %s: %w", app.ID, err)
	}
	c.claims(*app, r.live, r.flight.deployment, counted(r.rolloutState, *app, r.live, r.flight.deployment, replaced(r.rows, changed)))
	if r.flight.rollout == nil && r.rolloutState.Progress == nil {
		return len(changed), c.expect(app.ID) // the regions have all of it
	}
	return len(changed) + behind, c.wake(app.ID)
}

// storeReplicas stores the app, with how many replicas its next deployment gets. It writes nothing
// if that stays the same and no region is scaled.
func (c versionMutation) storeReplicas(app *model.App, asked plan.Asked, scaled bool) error {
	if asked.All != nil && *asked.All != app.Replicas {
		app.Replicas, scaled = *asked.All, true
	}
	if !scaled {
		return nil
	}
	return c.store(app)
}

// replaced are the rows, with those that changed as they are now.
func replaced(rows, changed []model.Topology) []model.Topology {
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

// make writes the next version and its rollout.
func (c versionMutation) make(app model.App, was running, v version) (outcome, error) {
	f, live := was.flight, was.live
	asked := carrySizes(app, was, v)
	hash, err := appspec.Hash(v.Spec)
	if err != nil {
		return outcome{}, err
	}
	d := model.Deployment{
		ID: ident.New("dep"), WorkspaceID: app.WorkspaceID, AppID: app.ID, Version: app.LatestVersion + 1,
		Spec: v.Spec, SpecHash: hash, ResolvedImage: v.ResolvedImage,
		Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING,
		Source: v.Source, FromVersion: v.FromVersion, CreatedBy: c.by.Name, CreatedAt: c.at,
	}
	if live != nil {
		alike, err := appspec.MadeAlike(live.Spec, v.Spec)
		if err != nil {
			return outcome{}, err
		}
		if alike {
			d.MadeAs = live.Made()
		}
	}
	rolloutID := ident.New("rol")
	protections, err := c.protectionsOf(app, v)
	if err != nil {
		return outcome{}, err
	}
	progress, policy, tightened := progressOf(app, was, v, rolloutID, asked, protections)
	if err := c.hold(c.portsFit(app, was, v.Spec, progress, len(d.MadeAs) > 0)); err != nil {
		return outcome{}, err
	}
	if f.rollout != nil {
		if app, err = c.takeBack(app, f, fmt.Sprintf("v%d took its place", d.Version)); err != nil {
			return outcome{}, err
		}
	}
	r := model.Rollout{
		ID: rolloutID, WorkspaceID: app.WorkspaceID, AppID: app.ID, DeploymentID: d.ID, Version: d.Version,
		Status:    windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING,
		CreatedBy: c.by.Name, Traceparent: c.traceparent, CreatedAt: c.at,
		Deadline: c.at + plan.ProgressDeadline(was.rolloutState.Policy, v.Spec),
	}
	if live != nil {
		r.FromDeploymentID, r.FromVersion = live.ID, live.Version
	}
	if gate, ok := plan.NewStartGate(policy); ok {
		gate.DeployedByID, gate.DeployedByFamily = c.by.ID, c.by.Family()
		r.StartGate = gate.Encode()
	}
	held, err := c.thaw(app, f, &r, v)
	if err := c.hold(err); err != nil {
		return outcome{}, err
	}
	if err := c.InsertDeployment(d); err != nil {
		return outcome{}, fmt.Errorf("create version %d of app %s: %w", d.Version, app.ID, err)
	}
	if err := c.InsertRollout(r); err != nil {
		return outcome{}, fmt.Errorf("create rollout of version %d of app %s: %w", d.Version, app.ID, err)
	}
	if progress != nil {
		progress.DeployedBy, progress.DeployedByID, progress.DeployedByFamily = c.by.Name, c.by.ID, c.by.Family()
	}
	app.LatestVersion, app.RolloutID, app.Replicas = d.Version, r.ID, v.Spec.GetReplicas()
	app.Message = fmt.Sprintf("v%d: about to start", d.Version) // until the workflow's first word
	if err := c.store(&app); err != nil {
		return outcome{}, err
	}
	rolloutState := was.rolloutState.Clone()
	if progress != nil {
		rolloutState.Progress = progress
		if err := c.putRolloutState(rolloutState); err != nil {
			return outcome{}, err
		}
	}
	c.claims(app, live, &d, counted(rolloutState, app, live, &d, was.rows))
	c.log(app, model.History{
		What: "DeploymentCreated", Why: whyCreated(v, d, r), RolloutID: r.ID, DeploymentID: d.ID, Version: d.Version,
	})
	if len(tightened) > 0 {
		c.log(app, model.History{
			What: "RolloutProtected", Why: strings.Join(tightened, "; "), RolloutID: r.ID, DeploymentID: d.ID, Version: d.Version,
		})
	}
	return outcome{
		Deployment: d, RolloutID: r.ID, Effect: windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION, TookBack: f.rollout, Hold: held,
		Tightened: tightened,
	}, c.wake(app.ID)
}

func whyCreated(v version, d model.Deployment, r model.Rollout) string {
	why := map[string]string{
		"deploy": "a new configuration was deployed", "environment": "its variables were changed",
		model.SourceSecret: "a secret has a new value",
	}[v.Source]
	if v.FromVersion != 0 {
		why = fmt.Sprintf("back to the configuration of v%d", v.FromVersion)
	}
	if v.Straight {
		why += ", " + straightText(v.KeepGates)
	}
	for _, text := range leftOut(v.Gone) {
		why += "; " + text
	}
	why += "; " + plan.ReplicasText(v.Spec.GetRegions(), func(region string) int32 { return appspec.ReplicasIn(v.Spec, region) })
	if r.FromVersion != 0 {
		why += fmt.Sprintf("; v%d is live", r.FromVersion)
		if len(d.MadeAs) > 0 {
			why += ", and instances see no difference"
		}
	}
	if m := v.Spec.GetMessage(); m != "" {
		why += ": " + m
	}
	return why
}

// running is what a locked app runs, and is to run.
type running struct {
	live   *model.Deployment
	flight flight
	rows   []model.Topology // locked
	// rollout state is zero, but for its ids, while the app has none.
	rolloutState model.RolloutState
}

// running reads it, and notes what the app counts for before it is changed.
func (c versionMutation) running(app model.App) (r running, err error) {
	if r.flight, err = c.inFlight(app); err != nil {
		return r, err
	}
	if r.live, err = c.liveOf(app); err != nil {
		return r, err
	}
	// An app that never had a version has no rows.
	if app.LatestVersion > 0 {
		if r.rows, err = c.LockTopology(app.ID); err != nil {
			return r, fmt.Errorf("lock topology of app %s: %w", app.ID, err)
		}
	}
	if r.rolloutState, err = c.rolloutStateOf(app); err != nil {
		return r, err
	}
	if err := c.countPins(app); err != nil {
		return r, err
	}
	c.claims(app, r.live, r.flight.deployment, counted(r.rolloutState, app, r.live, r.flight.deployment, r.rows))
	return r, nil
}

// flight is the rollout in flight and its deployment, nil for none.
type flight struct {
	rollout *model.Rollout
	// deployment that is still wanted: none once its end was asked for.
	deployment *model.Deployment
	// leaving is a deployment whose end was asked for and is not written yet.
	leaving *model.Deployment
}

func (c versionMutation) inFlight(app model.App) (f flight, err error) {
	if app.RolloutID == "" {
		return f, nil
	}
	r, err := c.GetRollout(app.WorkspaceID, app.RolloutID)
	if errors.Is(err, model.ErrNotFound) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read rollout %s: %w", app.RolloutID, err)
	}
	if r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
		return f, nil
	}
	f.rollout = &r
	d, err := c.GetDeployment(app.WorkspaceID, r.DeploymentID)
	switch {
	case errors.Is(err, model.ErrNotFound):
	case err != nil:
		return f, fmt.Errorf("read deployment %s: %w", r.DeploymentID, err)
	case model.Terminal(model.DeploymentMoves, d.Status):
	case r.CancelRequested:
		f.leaving = &d
	default:
		f.deployment = &d
	}
	return f, nil
}

func (c versionMutation) liveOf(app model.App) (*model.Deployment, error) {
	if app.LiveDeploymentID == "" {
		return nil, nil
	}
	d, err := c.GetDeployment(app.WorkspaceID, app.LiveDeploymentID)
	if err != nil {
		return nil, fmt.Errorf("read live deployment %s: %w", app.LiveDeploymentID, err)
	}
	return &d, nil
}

// turnBack asks the workflow to bring a staged rollout back, because what is live is
// wanted again.
func (c versionMutation) turnBack(app model.App, r model.Rollout, why string) error {
	r.CancelRequested, r.CancelledBy, r.CancelWhy = true, c.by.Name, why
	if err := c.UpdateRollout(r); err != nil {
		return fmt.Errorf("turn rollout %s back: %w", r.ID, err)
	}
	c.log(app, model.History{
		What: "CancelRequested", Why: why, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version,
	})
	return c.wake(app.ID)
}

// takeBack ends the rollout in flight, because something else is wanted now. What
// it started leaves by the app's workflow.
func (c versionMutation) takeBack(app model.App, f flight, why string) (model.App, error) {
	r := *f.rollout
	r.Status, r.Reason, r.Message = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, plan.ReasonSuperseded, why
	r.FinishedAt = c.at
	if err := c.UpdateRollout(r); err != nil {
		return app, fmt.Errorf("supersede rollout %s: %w", r.ID, err)
	}
	c.ended = append(c.ended, r)
	if d := cmp.Or(f.deployment, f.leaving); d != nil {
		ended := *d
		ended.Status = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED
		ended.Reason, ended.Message, ended.EndedAt = plan.ReasonSuperseded, why, c.at
		if err := c.UpdateDeployment(ended); err != nil {
			return app, fmt.Errorf("supersede deployment %s: %w", d.ID, err)
		}
	}
	c.log(app, model.History{
		What: "RolloutSuperseded", Why: why, RolloutID: r.ID, DeploymentID: r.DeploymentID, Version: r.Version,
	})
	app.RolloutID = ""
	if err := c.store(&app); err != nil {
		return app, err
	}
	return app, c.wake(app.ID)
}

// store writes the locked app's row and keeps the copy in step with it.
func (c *mutation) store(app *model.App) error {
	app.UpdatedAt = c.at
	if err := c.UpdateApp(*app); err != nil {
		return fmt.Errorf("update app %s: %w", app.ID, err)
	}
	app.ResourceVersion++
	return nil
}
