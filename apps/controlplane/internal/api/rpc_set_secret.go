package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetSecret stores a new version of the secret, and in the same transaction tells
// every region that runs something with it.
func (a *API) SetSecret(ctx context.Context, req *windlassv1.SetSecretRequest) (*windlassv1.SetSecretResponse, error) {
	res, _, err := mutate(ctx, a, req, func(c *change) (*windlassv1.SetSecretResponse, error) {
		if err := c.mayOverride(req.GetOverrideFreeze()); err != nil {
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
		if err != nil && !a.cfg.IsNotFound(err) {
			return nil, fmt.Errorf("read secret %s: %w", req.GetName(), err)
		}
		var before *windlassv1.Secret
		if err == nil {
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
		if res.AppIds, err = c.rotate(e.ID, s, req.GetOverrideFreeze()); err != nil {
			return nil, err
		}
		return res, c.audit("secret", e.ID, before, secretProto(s))
	})
	return res, err
}

// rotate has what runs with the secret fetch it again. The environment is locked,
// and so are, one after the other in the order of their ids, its apps that run
// with the secret.
func (c *change) rotate(environmentID string, s model.Secret, override string) (apps []string, err error) {
	rows, specs, err := c.runningWith(environmentID, s.Name)
	if err != nil {
		return nil, err
	}
	for _, t := range rows {
		apps = append(apps, t.AppID)
	}
	slices.Sort(apps)
	apps = slices.Compact(apps)
	if len(apps) == 0 {
		return apps, nil
	}
	for _, id := range apps {
		freezes, err := c.freezesFor(id, "")
		if err != nil {
			return nil, err
		}
		app, err := c.LockApp(c.workspaceID, id)
		if c.api.cfg.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock app %s: %w", id, err)
		}
		have, err := c.LockTopology(id)
		if err != nil {
			return nil, fmt.Errorf("lock topology of app %s: %w", id, err)
		}
		changed := topology.BumpSecrets(have, specs, s.Name, c.traceparent, c.at)
		if len(changed) == 0 {
			continue
		}
		if found, frozen := freeze.Of(freezes, app, c.at); frozen && override == "" {
			// A freeze that holds would have to hold the value back from instances that start
			// meanwhile for another reason, and there is no rollout to show it by.
			return nil, refusal(fmt.Sprintf("the instances of app %s would be replaced for secret %s", app.Name, s.Name), found)
		} else if frozen {
			if err := c.overridden(app, model.Rollout{DeploymentID: app.LiveDeploymentID}, found, override); err != nil {
				return nil, err
			}
		}
		if err := topology.Write(c, topology.State{Rows: have}, topology.State{Rows: changed}); err != nil {
			return nil, fmt.Errorf("rotate secret %s of app %s: %w", s.Name, id, err)
		}
		c.log(app, model.History{
			What: "SecretRotated", Why: fmt.Sprintf("version %d of secret %s replaces the one that it runs with", s.Version, s.Name),
			RolloutID: app.RolloutID, DeploymentID: app.LiveDeploymentID,
		})
		if err := c.wake(id); err != nil {
			return nil, err
		}
	}
	return apps, nil
}
