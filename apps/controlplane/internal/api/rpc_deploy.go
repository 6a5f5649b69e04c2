package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/pool"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// This file has the steps of Deploy in their order:
//
//	Expand         the preset of serve fills in the spec
//	checkDeploy    the checks that need no database
//	mutate         begins the transaction: idempotency key, rate of starts
//	findApp        the app and its environment, locked; a new app is made
//	resolveSpec    resolves names in the spec: regions, secrets, overrides, variables
//	makeVersion    the steps of every call that makes a version
//	findRoom       checks free GPUs for the beginning of the rollout
//	auditVersion
//	mutate         ends the transaction: history, idempotency key, quotas, wake-up
//
// PlanDeploy takes the same steps on a transaction that writes nothing.

// Deploy makes the app's next version. It answers after the commit.
func (a appService) Deploy(ctx context.Context, req *windlassv1.DeployRequest) (res *windlassv1.DeployResponse, err error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	presets, err := a.presetsFor(ctx, by.WorkspaceID, req.GetSpec().GetServe().GetEngine())
	if err != nil {
		return earlierOr[*windlassv1.DeployResponse](ctx, a.server, req, err)
	}
	spec, findings, err := a.expandSpec(req, presets)
	if err != nil {
		// The preset may have been deleted or changed since an earlier call with the key.
		return earlierOr[*windlassv1.DeployResponse](ctx, a.server, req, err)
	}
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeployResponse, error) {
		// The transaction may run again, so each run has its own limit on the cost of expressions.
		return c.deployVersion(req, proto.CloneOf(spec), presets.Within(ctx), findings)
	})
	return res, err
}

// expandSpec returns the spec with the output of its preset and with defaults, after the checks that need no database.
// findings are the preset's findings.
func (a appService) expandSpec(req *windlassv1.DeployRequest, presets *preset.Registry) (spec *windlassv1.DeploymentSpec, findings []preset.Finding, err error) {
	spec, findings = appspec.Expand(req.GetSpec(), presets)
	if refused := appspec.Refusals(findings); len(refused) > 0 {
		return nil, nil, refused[0]
	}
	findings = append(findings, appspec.DeadlineFindings(spec, req.GetRollout())...)
	spec, err = a.checkDeploy(req, spec)
	return spec, findings, err
}

// checkDeploy runs the checks that need no database. spec is already expanded. checkDeploy returns it with defaults.
func (a appService) checkDeploy(req *windlassv1.DeployRequest, spec *windlassv1.DeploymentSpec) (*windlassv1.DeploymentSpec, error) {
	spec = appspec.WithDefaults(spec)
	if err := appspec.Check(spec, "spec"); err != nil {
		return nil, err
	}
	if err := appspec.CheckPolicy(req.GetRollout(), spec, "rollout"); err != nil {
		return nil, err
	}
	if err := appspec.CheckProgress(req.GetRollout(), req.GetSpec(), "rollout"); err != nil {
		return nil, err
	}
	if err := a.canMeasure(req.GetRollout(), "rollout.analysis"); err != nil {
		return nil, err
	}
	if err := appspec.CheckScaling(req.GetScaling(), req.GetSpec(), "scaling"); err != nil {
		return nil, err
	}
	if err := appspec.CheckScalingSignals(req.GetScaling(), spec, "scaling"); err != nil {
		return nil, err
	}
	if err := a.canScaleBy(req.GetScaling(), "scaling"); err != nil {
		return nil, err
	}
	return spec, nil
}

// deployVersion is Deploy in its transaction. findings are the findings of the spec's preset.
func (c *mutation) deployVersion(req *windlassv1.DeployRequest, spec *windlassv1.DeploymentSpec, presets *preset.Registry, findings []preset.Finding) (*windlassv1.DeployResponse, error) {
	d := &deployment{versionMutation: versionMutation{c}, presets: presets, want: version{
		Spec: spec, Source: "deploy",
		SetsPolicy: true, Policy: appspec.PolicyWithDefaults(req.GetRollout()), Freeze: req.GetFreeze(), Scaling: req.GetScaling(),
		Override: req.GetOverrideFreeze(),
	}}
	if err := d.findApp(req.GetApp()); err != nil {
		return nil, err
	}
	inRegions, err := d.resolveSpec(req)
	if err != nil {
		return nil, err
	}
	if err := d.makeVersion(); err != nil {
		return nil, err
	}
	if err := d.findRoom(); err != nil {
		return nil, err
	}
	if err := d.auditVersion(nil); err != nil {
		return nil, err
	}
	res := &windlassv1.DeployResponse{
		AppId: d.app.ID, DeploymentId: d.out.Deployment.ID, RolloutId: d.out.RolloutID, Version: d.out.Deployment.Version,
		Unchanged: d.out.Unchanged, Scaled: d.out.Scaled, Hold: d.out.Hold,
		Effect: d.out.Effect, TookBack: d.out.Ended.Version, TookBackRolloutId: d.out.Ended.ID, Warnings: d.out.Tightened, ScalingChanged: d.scalingChanged,
	}
	warnings := appspec.Warnings(slices.Concat(findings, inRegions))
	if c.dry != nil {
		c.dry.warnings = slices.Concat(warnings, d.startFindings()) // a plan shows warnings with their fields
		return res, nil
	}
	res.Warnings = append(res.Warnings, d.out.Started...)
	for _, w := range warnings {
		res.Warnings = append(res.Warnings, appspec.WarningText(w))
	}
	return res, nil
}

// findApp finds the app by its id or name, and locks it. If no app has the name, it makes the app. If the spec uses
// secrets, it locks the environment before the app, so that the secrets do not change before the end of the
// transaction.
func (d *deployment) findApp(ref string) (err error) {
	if ident.Valid("app", ref) {
		if d.app, err = d.api.findApp(d.Tx, d.workspaceID, ref, false); err != nil {
			return err
		}
		if d.environment, err = d.GetEnvironment(d.workspaceID, d.app.EnvironmentID); err != nil {
			return fmt.Errorf("read environment %s: %w", d.app.EnvironmentID, err)
		}
	} else {
		environment, name := splitApp(ref)
		if !ident.ValidName(name) {
			return apierr.Invalid("app", fmt.Sprintf(
				"%q does not name an app: use its id, name, or project/environment/name, each of at most 63 lower-case letters, digits and dashes", apierr.Clip(name, 100)))
		}
		if d.environment, err = d.api.findEnvironment(d.Tx, d.workspaceID, environment, "app"); err != nil {
			return err
		}
		d.app, err = d.GetAppByName(d.workspaceID, d.environment.ID, name)
		if errors.Is(err, model.ErrNotFound) {
			if d.app, err = d.insertApp(d.environment, name, ""); !errors.Is(err, model.ErrExists) {
				return err
			}
			// Another call made the app meanwhile.
			d.app, err = d.GetAppByName(d.workspaceID, d.environment.ID, name)
		}
		if err != nil {
			return fmt.Errorf("read app %s: %w", ref, err)
		}
	}
	if appspec.UsesSecrets(d.want.Spec) {
		if d.environment, err = d.LockEnvironment(d.workspaceID, d.environment.ID); err != nil {
			return fmt.Errorf("lock environment %s: %w", d.environment.ID, err)
		}
	}
	if d.app, err = d.lockedApp(d.app.ID); err != nil {
		return err
	}
	return requireNotDeleted(d.app)
}

// resolveSpec resolves the spec against the current rows. It checks regions, and sets the newest versions of secrets,
// overrides by region and variables of the environment. If the spec has no replicas, it sets the app's replicas. It
// returns the preset's findings in regions that have overrides.
func (d *deployment) resolveSpec(req *windlassv1.DeployRequest) (findings []preset.Finding, err error) {
	specs, spec, policy := specMutation{d.mutation}, d.want.Spec, req.GetRollout()
	if err := specs.checkRegions(spec, "spec"); err != nil {
		return nil, err
	}
	if err := specs.resolveSecrets(d.environment.ID, spec, "spec"); err != nil {
		return nil, err
	}
	if err := specs.checkSigningSecrets(d.environment.ID, policy, "rollout.analysis"); err != nil {
		return nil, err
	}
	if err := d.collectRefusal(specs.resolveOverrides(spec, "spec")); err != nil {
		return nil, err
	}
	findings = appspec.ExpandRegions(spec, req.GetSpec(), d.presets)
	for _, refusal := range appspec.Refusals(findings) {
		if err := d.collectRefusal(refusal); err != nil {
			return nil, err
		}
	}
	appspec.InheritEnv(spec, d.environment.Variables, spec.GetEnv())
	if err := appspec.CheckEnv(spec.GetEnv(), "spec.env"); err != nil {
		return nil, err
	}
	if err := d.collectRefusal(specs.checkWaves(policy, spec)); err != nil {
		return nil, err
	}
	d.want.Asked = appspec.AskedBy(spec)
	if err := d.resolveScaling(); err != nil {
		return nil, err
	}
	if spec.Replicas == nil {
		spec.Replicas = new(d.app.Replicas)
		if model.IsPooled(spec) && (d.app.LatestVersion == 0 || d.app.Replicas > 0) {
			spec.Replicas = new(int32(pool.Whole))
		}
	}
	if err := appspec.Check(spec, "spec"); err != nil {
		return nil, err
	}
	return findings, appspec.CheckOverridden(spec, "spec")
}

// findRoom fails if the free capacity that regions report is too small to begin the rollout, unless its policy waits
// for capacity. A dry run skips this, because its preview checks the whole rollout.
func (d *deployment) findRoom() error {
	if d.dry != nil || d.done || !slices.ContainsFunc(override.Any(d.out.Deployment.Spec), preview.HasGPU) {
		return nil
	}
	return d.checkCapacity(d.app.ID, d.out.Deployment.ID, d.unscaled)
}
