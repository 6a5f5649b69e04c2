package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeleteEnvironment deletes an environment without apps, and its secrets.
func (a environmentService) DeleteEnvironment(ctx context.Context, req *windlassv1.DeleteEnvironmentRequest) (*windlassv1.DeleteEnvironmentResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeleteEnvironmentResponse, error) {
		e, err := a.findEnvironment(c, c.workspaceID, req.GetEnvironment(), "environment")
		if err != nil {
			return nil, err
		}
		before, err := a.environmentView(c, e)
		if err != nil {
			return nil, err
		}
		if err := c.tenants().deleteEnvironment(e); err != nil {
			return nil, err
		}
		return &windlassv1.DeleteEnvironmentResponse{}, c.auditChange("environment", e.ID, before, nil)
	})
	return res, err
}

func (c tenantMutation) deleteEnvironment(e model.Environment) error {
	_, err := c.LockEnvironment(e.WorkspaceID, e.ID)
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock environment %s: %w", e.ID, err)
	}
	// No app can be made after this lock, because a call that makes an app also locks the workspace before it reads
	// the environment.
	if _, err := c.LockAdmission(e.WorkspaceID); err != nil {
		return fmt.Errorf("lock workspace %s: %w", e.WorkspaceID, err)
	}
	n, err := c.CountApps(e.WorkspaceID, "", e.ID)
	if err != nil {
		return fmt.Errorf("count apps of environment %s: %w", e.ID, err)
	}
	if n > 0 {
		return apierr.InUse(fmt.Sprintf("environment %s has %s", e.Name, plural.Count(n, "app")), "Delete its apps first, and wait until they are gone.")
	}
	if err := c.DeleteProtectionsOf(e.WorkspaceID, e.ID); err != nil {
		return fmt.Errorf("delete protections of environment %s: %w", e.ID, err)
	}
	if err := c.Tx.DeleteEnvironment(e.WorkspaceID, e.ID); err != nil {
		return fmt.Errorf("delete environment %s: %w", e.ID, err)
	}
	return nil
}
