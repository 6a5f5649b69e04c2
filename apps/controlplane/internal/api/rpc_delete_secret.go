package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeleteSecret deletes a secret that no running version and no version in flight uses. Later rollbacks to versions
// that refer to it fail.
func (a environmentService) DeleteSecret(ctx context.Context, req *windlassv1.DeleteSecretRequest) (*windlassv1.DeleteSecretResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeleteSecretResponse, error) {
		// A call that deploys a version with secrets takes the same lock.
		e, err := c.lockedEnvironment(req.GetEnvironment())
		if err != nil {
			return nil, err
		}
		s, err := c.GetSecret(e.WorkspaceID, e.ID, req.GetName())
		switch {
		case errors.Is(err, model.ErrNotFound):
			return nil, apierr.Missing("name", "secret", req.GetName(), "`windlass secret list` shows the environment's secrets.")
		case err != nil:
			return nil, fmt.Errorf("read secret %s: %w", req.GetName(), err)
		}
		if err := c.secrets().requireUnused(e, s.Name); err != nil {
			return nil, err
		}
		if err := c.Tx.DeleteSecret(e.WorkspaceID, e.ID, s.Name); err != nil {
			return nil, fmt.Errorf("delete secret %s: %w", s.Name, err)
		}
		return &windlassv1.DeleteSecretResponse{}, c.auditChange("secret", e.ID, secretProto(s), nil)
	})
	return res, err
}

// requireUnused fails if an app runs with the secret, or has a rollout to a version with it.
func (c secretMutation) requireUnused(e model.Environment, secret string) error {
	refuse := func(appID string) error {
		app, err := c.GetApp(e.WorkspaceID, appID)
		if err != nil {
			return fmt.Errorf("read app %s: %w", appID, err)
		}
		return apierr.InUse(fmt.Sprintf("app %s runs with secret %s", app.Name, secret), "Deploy the app without the secret first, or delete the app.")
	}
	rows, err := c.specs().runningWith(e.ID, secret)
	if err != nil {
		return err
	}
	if len(rows) > 0 {
		return refuse(rows[0].AppID)
	}
	active, err := c.activeRolloutsWith(e, secret)
	if err != nil {
		return err
	}
	if len(active) > 0 {
		return refuse(active[0])
	}
	return nil
}

// activeRolloutsWith returns the ids of the environment's apps that have a rollout to a version with the
// secret.
func (c secretMutation) activeRolloutsWith(e model.Environment, secret string) (ids []string, err error) {
	page := model.Page{Limit: 500}
	for {
		apps, err := c.ListApps(e.WorkspaceID, e.ID, page)
		if err != nil {
			return nil, fmt.Errorf("list apps of environment %s: %w", e.ID, err)
		}
		for _, app := range apps {
			f, err := c.versions().activeRolloutOf(app)
			if err != nil {
				return nil, err
			}
			if f.deployment != nil && appspec.RefersTo(f.deployment.Spec, secret) {
				ids = append(ids, app.ID)
			}
			page.After = app.Name + "\x00" + app.ID
		}
		if len(apps) < page.Limit {
			return ids, nil
		}
	}
}
