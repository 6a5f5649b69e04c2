package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeleteWorkspace deletes a workspace that has neither apps nor regions, and its keys.
func (a workspaceService) DeleteWorkspace(ctx context.Context, req *windlassv1.DeleteWorkspaceRequest) (*windlassv1.DeleteWorkspaceResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeleteWorkspaceResponse, error) {
		w, err := a.visibleWorkspace(c, c.by, req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		// No app can be made while the workspace is locked, or after its environments are deleted.
		if err := c.tenants().deleteProjects(w.ID); err != nil {
			return nil, err
		}
		regions, err := c.ListRegions(w.ID, model.Page{Limit: maxKnownRegions})
		if err != nil {
			return nil, fmt.Errorf("list regions of workspace %s: %w", w.ID, err)
		}
		for _, r := range regions {
			if r.WorkspaceID == w.ID {
				return nil, apierr.InUse(fmt.Sprintf("workspace %s has region %s", w.Name, r.Name), "Delete its regions first.")
			}
			if err := c.Tx.RevokeGrant(r.ID, w.ID); err != nil && !errors.Is(err, model.ErrNotFound) {
				return nil, fmt.Errorf("revoke grant of region %s: %w", r.ID, err)
			}
		}
		if err := c.Tx.DeleteWorkspace(w.ID); err != nil {
			return nil, fmt.Errorf("delete workspace %s: %w", w.ID, err)
		}
		return &windlassv1.DeleteWorkspaceResponse{}, c.auditChange("workspace", w.ID, workspaceProto(w), nil)
	})
	if err == nil {
		a.keys.forgetAll()
	}
	return res, err
}

// deleteProjects deletes the projects of a workspace without apps.
func (c tenantMutation) deleteProjects(workspaceID string) error {
	for {
		projects, err := c.ListProjects(workspaceID, model.Page{Limit: 100})
		if err != nil {
			return fmt.Errorf("list projects of workspace %s: %w", workspaceID, err)
		}
		if len(projects) == 0 {
			return nil
		}
		for _, p := range projects {
			if err := c.deleteProject(p); err != nil {
				return err
			}
		}
	}
}
