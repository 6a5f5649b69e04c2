package api

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetSecret stores a new version of the secret. In the same transaction, it makes new versions of the apps that use
// the secret.
func (a environmentService) SetSecret(ctx context.Context, req *windlassv1.SetSecretRequest) (*windlassv1.SetSecretResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetSecretResponse, error) {
		if err := c.versions().mayOverride(req.GetOverrideFreeze()); err != nil {
			return nil, err
		}
		e, err := c.lockedEnvironment(req.GetEnvironment())
		if err != nil {
			return nil, err
		}
		floor, err := c.SecretFloor(e.ID)
		if err != nil {
			return nil, fmt.Errorf("read versions of deleted secrets: %w", err)
		}
		s := model.Secret{
			WorkspaceID: e.WorkspaceID, EnvironmentID: e.ID, Name: req.GetName(), Version: floor + 1, CreatedAt: c.at, UpdatedAt: c.at,
		}
		was, err := c.GetSecret(e.WorkspaceID, e.ID, req.GetName())
		if err != nil && !errors.Is(err, model.ErrNotFound) {
			return nil, fmt.Errorf("read secret %s: %w", req.GetName(), err)
		}
		var before *windlassv1.Secret
		if err == nil {
			if a.hasValue(was, req.GetValue()) {
				return &windlassv1.SetSecretResponse{Secret: secretProto(was), Unchanged: true}, nil
			}
			before = secretProto(was)
			s.Version, s.CreatedAt = was.Version+1, was.CreatedAt
		}
		s.Ciphertext, err = a.cfg.Box.Seal([]byte(req.GetValue()), model.SecretContext(e.ID, s.Name, s.Version))
		if err != nil {
			return nil, fmt.Errorf("seal secret %s: %w", s.Name, err)
		}
		if err := c.InsertSecretVersion(s); err != nil {
			return nil, fmt.Errorf("store version %d of secret %s: %w", s.Version, s.Name, err)
		}
		res := &windlassv1.SetSecretResponse{Secret: secretProto(s)}
		if err := c.secrets().rotateSecret(e, s, req.GetOverrideFreeze(), res); err != nil {
			return nil, err
		}
		return res, c.auditChange("secret", e.ID, before, secretProto(s))
	})
	return res, err
}

// hasValue reports whether the secret has the value. For a secret that cannot be opened it returns false, so that
// setting the same value repairs the secret.
func (a environmentService) hasValue(s model.Secret, value string) bool {
	have, err := a.cfg.Box.Open(s.Ciphertext, model.SecretContext(s.EnvironmentID, s.Name, s.Version))
	return err == nil && subtle.ConstantTimeCompare(have, []byte(value)) == 1
}

// rotateSecret makes a version with the secret's new value for each app that uses the secret. Rows that use the secret
// without a version, for example to pull images, get a new generation, so that agents fetch the value again. The
// environment must be locked. rotate locks the apps in the order of their ids. If an app cannot get a version, a
// warning says why, and the other apps get theirs. The results are added to res.
func (c secretMutation) rotateSecret(e model.Environment, s model.Secret, override string, res *windlassv1.SetSecretResponse) error {
	users, err := c.usersOf(e, s.Name)
	if err != nil {
		return err
	}
	for _, id := range users {
		app, err := c.LockApp(c.workspaceID, id)
		if errors.Is(err, model.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock app %s: %w", id, err)
		}
		rotated, leftOut, err := c.rotateOf(app, s, override, res)
		if err != nil {
			return err
		}
		if rotated {
			res.AppIds = append(res.AppIds, id)
		}
		if leftOut != "" {
			res.Warnings = append(res.Warnings, fmt.Sprintf("app %s is left out, and keeps its current value: %s", app.Name, leftOut))
			c.log(app, model.History{
				What: "SecretNotTaken", Why: fmt.Sprintf("version %d of secret %s: %s", s.Version, s.Name, leftOut), DeploymentID: app.LiveDeploymentID,
			})
		}
	}
	return nil
}

// usersOf returns the sorted ids of the apps that run with the secret, or that have a rollout to a version with the
// secret.
func (c secretMutation) usersOf(e model.Environment, secret string) (apps []string, err error) {
	rows, err := c.specs().runningWith(e.ID, secret)
	if err != nil {
		return nil, err
	}
	for _, t := range rows {
		apps = append(apps, t.AppID)
	}
	active, err := c.activeRolloutsWith(e, secret)
	apps = append(apps, active...)
	slices.Sort(apps)
	return slices.Compact(apps), err
}

// rotateOf is rotate for one locked app. leftOut is the reason why the app gets no version, empty if it gets one or
// needs none. The rollout of the new version is added to res.
func (c secretMutation) rotateOf(app model.App, s model.Secret, override string, res *windlassv1.SetSecretResponse) (rotated bool, leftOut string, err error) {
	if app.DeletingSince != 0 {
		return false, "", nil
	}
	base, err := c.wantedDeployment(app)
	if err != nil {
		return false, "", err
	}
	have, changed, err := c.rowsFetching(app.ID, s.Name)
	if err != nil {
		return false, "", err
	}
	spec, moves := withVersion(base, s)
	if moves {
		left, _, err := c.regions().regionsLeft(spec)
		if err != nil {
			return false, "", err
		}
		if moves = len(left) > 0; !moves {
			leftOut = "the workspace may no longer use any of the app's regions"
		}
	}
	if len(changed) == 0 && !moves {
		return false, leftOut, nil
	}
	freezes, err := c.freezing().freezesFor(app.ID, "")
	if err != nil {
		return false, "", err
	}
	found, frozen := freeze.Of(freezes, app, c.at)
	if frozen && override == "" {
		// A freeze that only holds rollouts also refuses this call. Otherwise, the new value would take effect at an
		// unexpected time.
		return false, "", freezeRefusal(fmt.Sprintf("the instances of app %s would be replaced for secret %s", app.Name, s.Name), found)
	}
	if len(changed) > 0 {
		if frozen && !moves {
			if err := c.versions().recordOverride(app, model.Rollout{DeploymentID: app.LiveDeploymentID}, found, override); err != nil {
				return false, "", err
			}
		}
		if err := topology.Write(c.mutation, topology.State{Rows: have}, topology.State{Rows: changed}); err != nil {
			return false, "", fmt.Errorf("rotate secret %s of app %s: %w", s.Name, app.ID, err)
		}
		c.log(app, model.History{
			What: "SecretRotated", Why: fmt.Sprintf("version %d of secret %s replaces the earlier version", s.Version, s.Name),
			RolloutID: app.RolloutID, DeploymentID: app.LiveDeploymentID,
		})
		if err := c.wake(app.ID); err != nil {
			return false, "", err
		}
	}
	if !moves {
		return true, leftOut, nil
	}
	whole := proto.CloneOf(spec)
	gone, err := c.regions().withoutGone(spec, "spec")
	if err != nil {
		return false, "", err
	}
	if region, err := c.regions().servesIn(app, gone); err != nil {
		return false, "", err
	} else if region != "" {
		// The rollout of this app will fail and name the region. Other apps still get the value.
		spec, gone = whole, nil
	}
	spec.Replicas, spec.Message = new(app.Replicas), fmt.Sprintf("version %d of secret %s", s.Version, s.Name)
	d, err := c.makeVersion(app, version{Spec: spec, Source: model.SourceSecret, ResolvedImage: base.ResolvedImage, Override: override, Gone: gone})
	if detail := rpc.DetailOf(err); detail.GetReason() == windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY {
		// On a host, the new version cannot use a fixed port while the live version uses it.
		return len(changed) > 0, apierr.Message(err), nil
	}
	if err != nil {
		return false, "", err
	}
	if out := d.out; out.RolloutID != "" {
		res.Rollouts = append(res.Rollouts, &windlassv1.SecretRollout{
			AppId: app.ID, App: app.Name, RolloutId: out.RolloutID, DeploymentId: out.Deployment.ID, Version: out.Deployment.Version, Hold: out.Hold,
		})
	}
	c.exemptClaim()
	return true, "", d.findRoom()
}

// wantedDeployment returns the deployment that the app should run: the deployment in flight unless it is aborted, or
// else the live deployment, or nil. Changes are based on this deployment, so that no earlier change is lost.
func (c secretMutation) wantedDeployment(app model.App) (*model.Deployment, error) {
	f, err := c.versions().activeRolloutOf(app)
	if err != nil || f.deployment != nil {
		return f.deployment, err
	}
	return c.versions().liveOf(app)
}

// withVersion returns the deployment's spec with the new version of the secret. names reports whether the spec names
// a version of the secret.
func withVersion(d *model.Deployment, s model.Secret) (spec *windlassv1.DeploymentSpec, names bool) {
	if d == nil {
		return nil, false
	}
	spec = proto.CloneOf(d.Spec)
	appspec.EachSecret(spec, func(ref *windlassv1.SecretReference) {
		if ref.GetSecret() == s.Name && ref.GetVersion() != 0 {
			ref.Version, names = s.Version, true
		}
	})
	return spec, names
}

// rowsFetching returns the app's rows. changed are the rows of specs that use the secret without a version, for example
// to pull images, with the next generation.
func (c secretMutation) rowsFetching(appID, secret string) (have, changed []model.Topology, err error) {
	if have, err = c.LockTopology(appID); err != nil {
		return nil, nil, fmt.Errorf("lock topology of app %s: %w", appID, err)
	}
	ids := map[string]bool{}
	for _, t := range have {
		ids[t.DeploymentID] = true
	}
	deployments, err := c.GetDeployments(keysOf(ids))
	if err != nil {
		return nil, nil, fmt.Errorf("read deployments of app %s: %w", appID, err)
	}
	specs := map[string]*windlassv1.DeploymentSpec{}
	for _, d := range deployments {
		specs[d.ID] = d.Spec
	}
	return have, topology.BumpSecrets(have, specs, secret, c.traceparent, c.at), nil
}
