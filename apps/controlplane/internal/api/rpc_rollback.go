package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/protection"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Rollback without a version aborts the rollout in flight, if there is one. Otherwise, it makes a retained version
// live again, or makes a version with the configuration of an earlier version: its variables, its image by digest,
// and the app's current replicas. Secrets have their newest versions unless the request sets with_secrets, because
// old values may be revoked. If an equal version is already in flight, Rollback returns that version.
func (a appService) Rollback(ctx context.Context, req *windlassv1.RollbackRequest) (res *windlassv1.RollbackResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RollbackResponse, error) {
		app, environment, err := c.appToChange(req.GetApp())
		if err != nil {
			return nil, err
		}
		if err := c.rollbacks().sameLive(app, req); err != nil {
			return nil, err
		}
		if req.GetVersion() == 0 {
			if res, err := c.rollbacks().abortActiveRollout(app, req.GetMessage()); res != nil || err != nil {
				return res, err
			}
		}
		old, err := c.rollbacks().rollbackTo(app, req.GetVersion())
		if err != nil {
			return nil, err
		}
		rotated, err := c.rollbacks().rotatedSince(environment, old)
		if err != nil {
			return nil, err
		}
		warnings, err := c.rollbacks().rollbackWarnings(app, old)
		if err != nil {
			return nil, err
		}
		warnings = append(warnings, secretWarnings(old, rotated, req.GetWithSecrets())...)
		var res *windlassv1.RollbackResponse
		if len(rotated) == 0 || req.GetWithSecrets() {
			res, err = c.rollbacks().restoreVersion(app, old, req.GetMessage())
		}
		if res == nil && err == nil {
			res, err = c.rollbacks().rollbackAnew(app, environment, old, len(rotated) > 0 && !req.GetWithSecrets(), req)
		}
		if err != nil {
			return nil, err
		}
		res.Warnings = append(res.Warnings, warnings...)
		return res, nil
	})
	return res, err
}

// sameLive refuses a rollback if the live version is not the version that the caller expects. If the request names no
// version to go back to, sameLive also refuses it during a rollout, because the call would abort the rollout.
func (c rollbackMutation) sameLive(app model.App, req *windlassv1.RollbackRequest) error {
	want := req.GetLiveVersion()
	if want == 0 {
		return nil
	}
	live, err := c.versions().liveOf(app)
	if err != nil {
		return err
	}
	var now string
	switch {
	case live == nil:
		now = "no version is live"
	case live.Version != want:
		now = fmt.Sprintf("v%d is live", live.Version)
	case req.GetVersion() == 0 && app.RolloutID != "":
		now = "a rollout is in flight"
	default:
		return nil
	}
	return rpc.ErrorWith(connect.CodeAborted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_CONFLICT, Field: "live_version",
		Fix: "Read the app again (`windlass status`), decide again, and repeat the call with what is live.",
	}, fmt.Sprintf("app %s has changed since you read it: %s", app.Name, now))
}

// rollbackAnew makes a version with the configuration of old. If old was stable, the rollout is straight, because old
// passed the policy once. Approvals are skipped only for the previous stable version, for emergencies. An older version
// needs them, because the gate may have been added for a change that this version lacks. If a protection requires
// approvals, they are also kept when secrets have new values.
func (c rollbackMutation) rollbackAnew(app model.App, e model.Environment, old model.Deployment, newSecrets bool, req *windlassv1.RollbackRequest) (*windlassv1.RollbackResponse, error) {
	spec := proto.CloneOf(old.Spec)
	spec.Replicas = new(app.Replicas)
	spec.Message = req.GetMessage()
	gone, err := c.checkAgain(spec, e, "spec.env")
	if err != nil {
		return nil, err
	}
	if !req.GetWithSecrets() {
		if err := c.specs().resolveSecrets(e.ID, spec, "spec"); err != nil {
			return nil, err
		}
	}
	protections, err := c.versions().protectionsOn(app)
	if err != nil {
		return nil, err
	}
	v := version{
		Spec: spec, Source: model.SourceRollback, FromVersion: old.Version, ResolvedImage: old.ResolvedImage,
		Straight: old.Stable && !req.GetWithSteps(), KeepGates: old.ID != app.PreviousDeploymentID || newSecrets && protection.Approves(protections), Gone: gone,
		KeepsFeatures: old.ID == app.PreviousDeploymentID,
	}
	d, err := c.makeVersion(app, v)
	if err != nil {
		return nil, err
	}
	out := d.out
	if out.Effect == windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY {
		text := fmt.Sprintf("v%d, which is live, already has the configuration of v%d", out.Deployment.Version, old.Version)
		same, err := appspec.Same(out.Deployment.Spec, old.Spec)
		if err != nil {
			return nil, err
		}
		if !same {
			return nil, apierr.NothingToDo(text+", except for the versions of secrets", "To also restore the secrets: `windlass rollback --with-secrets`. Or name another version.")
		}
		return nil, apierr.NothingToDo(text, "Name another version.")
	}
	err = c.auditChange("deployment", out.Deployment.ID, deploymentProto(facts{}, app, old), deploymentProto(facts{}, app, out.Deployment))
	if err != nil {
		return nil, err
	}
	return &windlassv1.RollbackResponse{
		DeploymentId: out.Deployment.ID, RolloutId: out.RolloutID, Version: out.Deployment.Version, FromVersion: old.Version,
		Effect: out.Effect, TookBack: out.Ended.Version, TookBackRolloutId: out.Ended.ID, Warnings: slices.Concat(leftOut(gone), out.Tightened, out.Started),
		Straight: v.Straight && out.Effect == windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION,
	}, nil
}

// straightText describes what a straight rollback skips.
func straightText(keepGates bool) string {
	if keepGates {
		return "straight back, because that version was stable: without steps, pauses, analysis and bake times, but with approvals"
	}
	return "straight back, because that version was live and stable before: without steps, pauses, approvals, analysis and bake times"
}

// abortActiveRollout aborts the rollout in flight. It returns nil if there is none. If the rollout in flight is
// itself a rollback, it is not aborted but returned, so that a repeated call does not undo the first.
func (c rollbackMutation) abortActiveRollout(app model.App, message string) (*windlassv1.RollbackResponse, error) {
	f, err := c.versions().activeRolloutOf(app)
	if err != nil || f.rollout == nil {
		return nil, err
	}
	if d := f.deployment; d != nil && d.Source == model.SourceRollback {
		return &windlassv1.RollbackResponse{
			DeploymentId: d.ID, RolloutId: f.rollout.ID, Version: d.Version, FromVersion: d.FromVersion,
			Effect: windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY,
		}, nil
	}
	res := &windlassv1.RollbackResponse{
		RolloutId: f.rollout.ID, Effect: windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK,
		TookBack: f.rollout.Version, TookBackRolloutId: f.rollout.ID,
	}
	live, err := c.versions().liveOf(app)
	if err != nil {
		return nil, err
	}
	if live != nil {
		res.DeploymentId, res.Version, res.FromVersion = live.ID, live.Version, live.Version
	} else {
		res.Warnings = append(res.Warnings, fmt.Sprintf("no version is live: once the rollout of v%d is aborted, nothing serves", f.rollout.Version))
	}
	return res, c.rollouts().cancelRollout(app, *f.rollout, message)
}

// rollbackWarnings returns warnings about effects of the rollback that a person may not expect.
func (c rollbackMutation) rollbackWarnings(app model.App, old model.Deployment) (warnings []string, err error) {
	if !old.Stable {
		warnings = append(warnings, fmt.Sprintf("v%d was never stable: its rollout %s. The rollback takes all steps of a new version",
			old.Version, neverStable(old)))
	}
	live, err := c.versions().liveOf(app)
	if err != nil {
		return nil, err
	}
	if live != nil && live.Source == model.SourceRollback && old.ID == app.PreviousDeploymentID {
		warnings = append(warnings, fmt.Sprintf("v%d, which is live, is a rollback from v%d: this brings v%d back", live.Version, old.Version, old.Version))
	}
	return warnings, nil
}

// rotatedSince finds the secrets that have a newer version than the version that old uses. It returns their newest
// versions, by name.
func (c rollbackMutation) rotatedSince(e model.Environment, old model.Deployment) (map[string]int32, error) {
	names, _ := appspec.SecretsOf(old.Spec, "spec")
	if len(names) == 0 {
		return nil, nil
	}
	newest, err := c.SecretVersions(e.ID, names)
	if err != nil {
		return nil, fmt.Errorf("read secrets of environment %s: %w", e.ID, err)
	}
	out := map[string]int32{}
	appspec.EachSecret(old.Spec, func(ref *windlassv1.SecretReference) {
		if now := newest[ref.GetSecret()]; ref.GetVersion() != 0 && ref.GetVersion() < now {
			out[ref.GetSecret()] = now
		}
	})
	return out, nil
}

// secretWarnings returns a warning for each rotated secret, which says the secret's version after the rollback.
func secretWarnings(old model.Deployment, rotated map[string]int32, withSecrets bool) (warnings []string) {
	named := map[string]bool{}
	appspec.EachSecret(old.Spec, func(ref *windlassv1.SecretReference) {
		name, now := ref.GetSecret(), rotated[ref.GetSecret()]
		if named[name] || now == 0 || ref.GetVersion() == 0 || ref.GetVersion() == now {
			return
		}
		named[name] = true
		text := fmt.Sprintf("it runs with version %d of secret %s, the newest; v%d ran with version %d, which --with-secrets brings back", now, name, old.Version, ref.GetVersion())
		if withSecrets {
			text = fmt.Sprintf("it runs with version %d of secret %s again, although the newest is %d: deploy the app again to use version %d", ref.GetVersion(), name, now, now)
		}
		warnings = append(warnings, text)
	})
	return warnings
}

// neverStable describes how the rollout of a version that was never stable ended.
func neverStable(d model.Deployment) string {
	if d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED {
		return "failed (" + cmp.Or(d.Reason, "Failed") + ")"
	}
	return "did not complete"
}

// restoreVersion makes a retained version live again. It returns nil if the version is not retained or no longer serves, or if
// the app is at zero in a region in which no request could start the version.
func (c rollbackMutation) restoreVersion(app model.App, old model.Deployment, message string) (*windlassv1.RollbackResponse, error) {
	s, err := c.versions().rolloutStateOf(app)
	if err != nil || s.Progress.Retained() != old.ID {
		return nil, err
	}
	r, err := c.versions().readRunning(app)
	if err != nil {
		return nil, err
	}
	if len(r.stuckAtZero(old.Spec)) > 0 {
		return nil, nil // a new version starts there
	}
	f, err := c.api.factsOf(c.Tx, app, r)
	if err != nil {
		return nil, err
	}
	before := deploymentProto(facts{}, app, *r.live)
	if !plan.Restore(r.rolloutState.Progress, &app, r.live, &old, f.placesOf(app.ID, old.ID, topology.Active), c.at) {
		return nil, nil
	}
	if err := c.store(&app); err != nil {
		return nil, err
	}
	if err := c.UpdateDeployment(*r.live); err != nil {
		return nil, fmt.Errorf("supersede deployment %s: %w", r.live.ID, err)
	}
	if err := c.putRolloutState(r.rolloutState); err != nil {
		return nil, err
	}
	why := fmt.Sprintf("it was retained, and replaces v%d with its current replicas", r.live.Version)
	if message != "" {
		why += ": " + message
	}
	c.log(app, model.History{What: "LiveReturned", Why: why, DeploymentID: old.ID, Version: old.Version})
	c.claimUsage(app, &old, nil, r.rows)
	if err := c.wake(app.ID); err != nil {
		return nil, err
	}
	return &windlassv1.RollbackResponse{
		DeploymentId: old.ID, Version: old.Version, FromVersion: old.Version, Retained: true,
		Effect: windlassv1.VersionEffect_VERSION_EFFECT_RETAINED,
	}, c.auditChange("deployment", old.ID, before, deploymentProto(facts{}, app, old))
}

// rollbackTo finds the version with the number. 0 is the previous stable version.
func (c rollbackMutation) rollbackTo(app model.App, number int32) (d model.Deployment, err error) {
	if number == 0 {
		if app.PreviousDeploymentID == "" {
			return d, apierr.NothingToDo(fmt.Sprintf("app %s has no earlier version that was stable", app.Name), "Name a version.")
		}
		d, err = c.GetDeployment(app.WorkspaceID, app.PreviousDeploymentID)
	} else {
		d, err = c.GetDeploymentByVersion(app.WorkspaceID, app.ID, number)
	}
	switch {
	case errors.Is(err, model.ErrNotFound):
		return d, apierr.NothingToDo(fmt.Sprintf("app %s has no version %d", app.Name, number),
			fmt.Sprintf("The newest version is %d. `windlass list deployments APP` shows the versions that are kept.", app.LatestVersion))
	case err != nil:
		return d, fmt.Errorf("read version %d of app %s: %w", number, app.ID, err)
	}
	return d, nil
}
