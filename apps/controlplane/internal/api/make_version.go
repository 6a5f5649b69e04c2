package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/protection"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// This file has the steps that make a version from any source: Deploy, Rollback, SetEnvironment and SetSecret. They run
// in one transaction, in the order of deployment.makeVersion.

// deployment is a version that is being added to an app. Each step reads the results of the steps before it.
type deployment struct {
	versionMutation
	want version
	// presets are the presets that the spec may use. Only Deploy sets them.
	presets *preset.Registry
	app     model.App // locked, so that versions have no gaps
	// environment is the environment of the app. Only Deploy sets it.
	environment model.Environment
	// was is the state of the app before the change.
	was running
	// next, rollout and progress are the new rows. progress is nil for a rollout without a policy.
	next     model.Deployment
	rollout  model.Rollout
	progress *model.Progress
	// scalingChanged means that the app's scaling policy has changed.
	scalingChanged bool
	// rolesScaled means that the counts of a pool's roles have changed.
	rolesScaled bool
	// unscaled are the app's rows before the counts changed, nil if they have not changed.
	unscaled []model.Topology
	// out is the outcome. done means that no further step of makeVersion is needed.
	out  outcome
	done bool
}

// makeVersion runs deployment.makeVersion with the locked app and the configuration want. SetEnvironment, SetSecret and
// Rollback use it.
func (c *mutation) makeVersion(app model.App, want version) (*deployment, error) {
	d := &deployment{versionMutation: versionMutation{c}, app: app, want: want}
	return d, d.makeVersion()
}

// makeVersion makes d.want the app's newest version, unless the app already runs it or has a rollout to it.
func (d *deployment) makeVersion() (err error) {
	if err := d.mayOverride(d.want.Override); err != nil {
		return err
	}
	if d.was, err = d.readRunning(d.app); err != nil {
		return err
	}
	for _, step := range []func() error{d.mayUseFeatures, d.keepLayout, d.keepSlots, d.setPolicy, d.startRoles, d.scaleRoles, d.keepRunning, d.startAtZero, d.composeRows, d.replaceRollout, d.storeVersion, d.noteVersion} {
		if err := step(); err != nil || d.done {
			return err
		}
	}
	return nil
}

// setPolicy sets the app's rollout policy, scaling policy and own freeze to the values of d.want, nil for none.
func (d *deployment) setPolicy() error {
	if !d.want.SetsPolicy {
		return nil
	}
	if s := &d.was.rolloutState; !proto.Equal(s.Policy, d.want.Policy) {
		if err := d.collectRefusal(d.mayLoosen(s.Policy, d.want.Policy)); err != nil {
			return err
		}
		why := "from now on, rollouts follow the policy of the deployed file"
		if d.want.Policy == nil {
			why = "from now on, rollouts go region by region, replica by replica, because the deployed file has no policy"
		}
		if s.Progress.Active(d.app.RolloutID) {
			why += "; the rollout in flight keeps its policy"
		}
		s.Policy = d.want.Policy
		d.log(d.app, model.History{What: "RolloutPolicyChanged", Why: why})
		if err := d.putRolloutState(*s); err != nil {
			return err
		}
	}
	if err := d.setScaling(); err != nil {
		return err
	}
	return d.collectRefusal(freezeMutation{d.mutation}.setFileFreeze(d.app, d.want.Freeze))
}

// keepRunning keeps the current version if the app already runs d.want, or has a rollout to it.
//
//	in flight  live   requested
//	   x        -        x       nothing to make
//	   -        x        x       nothing to make, but replicas may change
//	   y        x        x       y is aborted, and x stays
//	   *        *     another    a new version, which supersedes the one in flight
//	   x        -   x, resized   a new version if x has not begun, because x has no rows to scale
func (d *deployment) keepRunning() error {
	for _, have := range []*model.Deployment{d.was.active.deployment, d.was.live} {
		if have == nil {
			continue
		}
		same, err := appspec.Same(have.Spec, d.want.Spec)
		if err != nil {
			return err
		}
		if same && !d.was.missesSizes(*have, d.want) {
			d.done = true
			return d.keepVersion(*have)
		}
	}
	return nil
}

// keepVersion sets the outcome to a version (have) that the app already runs or has a rollout to. It aborts a rollout from
// this version to another, and sets the requested replicas.
func (d *deployment) keepVersion(have model.Deployment) (err error) {
	isNewest := have.ID == cmp.Or(d.was.active.deployment, d.was.live).ID
	ended := d.was.active.rollout
	if isNewest && d.was.active.leaving == nil {
		ended = nil
	}
	if why := fmt.Sprintf("v%d, which is live, was requested again", have.Version); !isNewest && d.was.rolloutState.Progress.Active(d.app.RolloutID) {
		// Some regions have moved partly, and only the workflow can move them back.
		if err := d.turnBack(d.app, *d.was.active.rollout, why); err != nil {
			return err
		}
	} else if !isNewest {
		if d.app, err = d.supersedeRollout(d.app, d.was.active, why); err != nil {
			return err
		}
		d.was.active = activeRollout{}
		d.claimUsage(d.app, d.was.live, nil, d.was.rows)
	}
	d.out = outcome{
		Deployment: have, RolloutID: d.app.RolloutID, Unchanged: true, Effect: windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY,
	}
	if f := d.was.active; f.deployment != nil && f.deployment.ID == have.ID {
		d.out.Effect = windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY
		if d.want.Override == "" {
			d.out.Hold = holdProto(*f.rollout)
		} else if err := d.release(d.app, f, d.want.Override); err != nil {
			return err
		}
	}
	if d.rolesScaled {
		d.out.Unchanged, d.out.Scaled, d.out.Effect = false, true, windlassv1.VersionEffect_VERSION_EFFECT_SCALED
	}
	if err := d.scaleKept(have); err != nil {
		return err
	}
	if ended != nil {
		d.out.Ended, d.out.Effect = *ended, windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK
	}
	return nil
}

// scaleKept sets the replicas of the kept deployment, if the request sets replicas.
func (d *deployment) scaleKept(have model.Deployment) error {
	if d.want.Asked.Nothing() {
		return nil
	}
	if err := d.collectRefusal(d.portsFitScaled(d.was, d.want.Asked, "")); err != nil {
		return err
	}
	if err := d.collectRefusal(d.hostsFitScaled(d.was, d.want.Asked)); err != nil {
		return err
	}
	n, err := d.scaleDeployments(&d.app, d.was, []string{have.ID}, d.want.Asked)
	if err != nil || n == 0 {
		return err
	}
	d.out.Unchanged, d.out.Scaled, d.out.Effect = false, true, windlassv1.VersionEffect_VERSION_EFFECT_SCALED
	d.log(d.app, model.History{
		What: "Scaled", Why: fmt.Sprintf("v%d gets %s", have.Version, appspec.AskedText(d.want.Asked, d.want.Spec)),
		RolloutID: d.app.RolloutID, DeploymentID: have.ID, Version: have.Version,
	})
	return nil
}

// composeRows makes the rows of the version, its rollout and its progress, but does not write them.
func (d *deployment) composeRows() error {
	live := d.was.live
	asked := d.carrySizes()
	hash, err := appspec.Hash(d.want.Spec)
	if err != nil {
		return err
	}
	d.next = model.Deployment{
		ID: ident.New("dep"), WorkspaceID: d.app.WorkspaceID, AppID: d.app.ID, Version: d.app.LatestVersion + 1,
		Spec: d.want.Spec, SpecHash: hash, ResolvedImage: d.want.ResolvedImage,
		Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING,
		Source: d.want.Source, FromVersion: d.want.FromVersion, CreatedBy: d.by.Name, CreatedAt: d.at,
	}
	if d.next.RolesMade, err = appspec.RolesMade(d.want.Spec, live); err != nil {
		return err
	}
	d.rollout = model.Rollout{
		ID: ident.New("rol"), WorkspaceID: d.app.WorkspaceID, AppID: d.app.ID, DeploymentID: d.next.ID, Version: d.next.Version,
		Status:    windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING,
		CreatedBy: d.by.Name, Traceparent: d.traceparent, CreatedAt: d.at,
		Deadline: d.at + plan.ProgressDeadline(d.was.rolloutState.Policy, d.want.Spec),
	}
	if live != nil {
		d.rollout.FromDeploymentID, d.rollout.FromVersion = live.ID, live.Version
		alike, err := appspec.MadeAlike(live.Spec, d.want.Spec)
		if err != nil {
			return err
		}
		if alike {
			d.next.MadeAs = live.Made()
		}
	}
	protections, err := d.protectionsOf(d.app, d.want)
	if err != nil {
		return err
	}
	policy := d.beginProgress(asked, protections)
	if gate, ok := plan.NewStartGate(policy); ok {
		gate.DeployedByID, gate.DeployedByFamily = d.by.ID, d.by.Family()
		d.rollout.StartGate = gate.Encode()
	}
	return nil
}

// carrySizes sets the version's replicas in regions for which the new spec or the live spec has its own number. The
// number is the requested one, or else the current one, because new versions keep scaled replicas. In regions where
// nothing runs, it is the spec's number, which then counts as requested. carrySizes returns all requested numbers.
func (d *deployment) carrySizes() plan.Asked {
	spec := d.want.Spec
	asked := plan.Asked{All: d.want.Asked.All, Regions: map[string]int32{}}
	maps.Copy(asked.Regions, d.want.Asked.Regions)
	now, done := d.was.liveSizes(), map[string]bool{}
	size := func(p *windlassv1.PinnedOverride) (n int32, ok bool) {
		done[p.GetRegionId()] = true
		if n, ok = d.want.Asked.In(p.GetRegionId()); !ok {
			n, ok = now[p.GetRegionId()]
		}
		return n, ok
	}
	for _, p := range slices.Clone(spec.GetPinnedOverrides()) {
		if p.GetValues().Replicas == nil {
			continue
		}
		n, ok := size(p)
		if !ok {
			n = p.GetValues().GetReplicas()
			asked.Regions[p.GetRegionId()] = n
		}
		override.SetReplicas(spec, p.GetRegion(), p.GetRegionId(), n)
	}
	if d.was.live == nil {
		return asked
	}
	for _, p := range d.was.live.Spec.GetPinnedOverrides() {
		if p.GetValues().Replicas == nil || done[p.GetRegionId()] || !slices.Contains(spec.GetRegions(), p.GetRegion()) {
			continue
		}
		n, ok := size(p)
		if !ok {
			n = d.app.Replicas
		}
		override.SetReplicas(spec, p.GetRegion(), p.GetRegionId(), n)
	}
	return asked
}

// beginProgress sets d.progress for the rollout, nil for a rollout without a policy. It returns the policy of the
// rollout: the app's policy, tightened by the protections.
func (d *deployment) beginProgress(asked plan.Asked, protections []model.Protection) *windlassv1.RolloutPolicy {
	policy := cmp.Or(d.was.rolloutState.Policy, plan.DefaultPolicy())
	d.progress = plan.NextProgress(d.was.rolloutState.Clone(), d.app, d.was.rows, d.rollout.ID, asked)
	if d.progress != nil {
		policy = d.progress.Policy
	}
	if d.want.Straight {
		policy = plan.StraightPolicy(policy, d.want.KeepGates)
	}
	policy, d.out.Tightened = protection.Tighten(policy, protections, d.app)
	if d.progress == nil {
		return policy
	}
	d.progress.Policy, d.progress.BakeProtected = policy, protection.Bakes(protections)
	d.progress.DeployedBy, d.progress.DeployedByID, d.progress.DeployedByFamily = d.by.Name, d.by.ID, d.by.Family()
	if d.want.Source == model.SourceRollback {
		// This rollback's promotions are automatic. After a rollback, promotions of the next rollout wait for a
		// person.
		d.progress.PromotionPaused, d.progress.RolledBack = false, true
	}
	return policy
}

// replaceRollout ends the rollout in flight, because the new rollout replaces it. It fails if a region cannot run the
// version's instances of several hosts, if a fixed port is not free, or if a freeze refuses the rollout. If a freeze
// only holds the rollout, it sets d.out.Hold.
func (d *deployment) replaceRollout() (err error) {
	if err := d.collectRefusal(d.hostsFit(d.want.Spec, d.progress)); err != nil {
		return err
	}
	if err := d.collectRefusal(d.portsFit(d.app, d.was, d.want.Spec, d.progress, len(d.next.MadeAs) > 0)); err != nil {
		return err
	}
	if d.was.active.rollout != nil {
		if d.app, err = d.supersedeRollout(d.app, d.was.active, fmt.Sprintf("v%d took its place", d.next.Version)); err != nil {
			return err
		}
	}
	d.out.Hold, err = d.mayStart(d.app, d.was.active, &d.rollout, d.want)
	return d.collectRefusal(err)
}

// storeVersion stores the version, its rollout and its progress, and updates the app.
func (d *deployment) storeVersion() error {
	if err := d.InsertDeployment(d.next); err != nil {
		return fmt.Errorf("create version %d of app %s: %w", d.next.Version, d.app.ID, err)
	}
	if err := d.InsertRollout(d.rollout); err != nil {
		return fmt.Errorf("create rollout of version %d of app %s: %w", d.next.Version, d.app.ID, err)
	}
	d.app.LatestVersion, d.app.RolloutID, d.app.Replicas = d.next.Version, d.rollout.ID, d.want.Spec.GetReplicas()
	d.app.Message = fmt.Sprintf("v%d: about to start", d.next.Version) // until the workflow's first message
	if err := d.store(&d.app); err != nil {
		return err
	}
	state := d.was.rolloutState.Clone()
	if d.progress != nil {
		state.Progress = d.progress
		if err := d.putRolloutState(state); err != nil {
			return err
		}
	}
	d.claimUsage(d.app, d.was.live, &d.next, quotaRows(state, d.app, d.was.live, &d.next, d.was.rows))
	return nil
}

// noteVersion adds the version to the history, sets the outcome, and wakes the app's workflow.
func (d *deployment) noteVersion() error {
	d.log(d.app, model.History{
		What: "DeploymentCreated", Why: whyCreated(d.want, d.next, d.rollout, d.was.rows),
		RolloutID: d.rollout.ID, DeploymentID: d.next.ID, Version: d.next.Version,
	})
	if len(d.out.Started) > 0 {
		d.log(d.app, model.History{
			What: "Scaled", Why: strings.Join(d.out.Started, "; "),
			RolloutID: d.rollout.ID, DeploymentID: d.next.ID, Version: d.next.Version,
		})
	}
	if len(d.out.Tightened) > 0 {
		d.log(d.app, model.History{
			What: "RolloutProtected", Why: strings.Join(d.out.Tightened, "; "),
			RolloutID: d.rollout.ID, DeploymentID: d.next.ID, Version: d.next.Version,
		})
	}
	d.out.Deployment, d.out.RolloutID, d.out.Effect = d.next, d.rollout.ID, windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION
	if superseded := d.was.active.rollout; superseded != nil {
		d.out.Ended = *superseded
	}
	return d.wake(d.app.ID)
}

// whyCreated returns the text of the history that says why the version was made. rows are the app's rows.
func whyCreated(v version, d model.Deployment, r model.Rollout, rows []model.Topology) string {
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
	why += "; " + plan.ReplicasText(v.Spec, func(region string) int32 { return appspec.ReplicasIn(v.Spec, region) })
	if model.IsPooled(v.Spec) {
		why += "; a whole pool is " + wholePoolText(v.Spec, rows)
	} else if group := appspec.GroupText(v.Spec); group != "" {
		why += "; a replica is " + group
	}
	if text := appspec.TopologyText(v.Spec); text != "" {
		why += "; " + text
	}
	if r.FromVersion != 0 {
		why += fmt.Sprintf("; v%d is live", r.FromVersion)
		if len(d.MadeAs) > 0 {
			why += ", and instances do not change"
		}
	}
	if m := v.Spec.GetMessage(); m != "" {
		why += ": " + m
	}
	return why
}

// auditVersion writes the version to the audit, unless nothing changed. base is the version from which it was made,
// nil for none.
func (d *deployment) auditVersion(base *model.Deployment) error {
	if d.out.Unchanged {
		return nil
	}
	var before proto.Message
	if base != nil {
		before = deploymentProto(facts{}, d.app, *base)
	}
	return d.auditChange("deployment", d.out.Deployment.ID, before, deploymentProto(facts{}, d.app, d.out.Deployment))
}
