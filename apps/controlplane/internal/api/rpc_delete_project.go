package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeleteProject deletes a project without apps, and its environments.
func (a projectService) DeleteProject(ctx context.Context, req *windlassv1.DeleteProjectRequest) (*windlassv1.DeleteProjectResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeleteProjectResponse, error) {
		p, err := a.findProject(c, c.workspaceID, req.GetProject(), "project")
		if err != nil {
			return nil, err
		}
		if err := c.tenants().deleteProject(p); err != nil {
			return nil, err
		}
		return &windlassv1.DeleteProjectResponse{}, c.auditChange("project", p.ID, projectProto(p), nil)
	})
	return res, err
}

// deleteProject deletes a project and its environments, unless an environment has apps. The workspace is locked
// before apps are counted, so that no app is made meanwhile.
func (c tenantMutation) deleteProject(p model.Project) error {
	for {
		environments, err := c.ListEnvironments(p.WorkspaceID, p.ID, model.Page{Limit: 100})
		if err != nil {
			return fmt.Errorf("list environments of project %s: %w", p.ID, err)
		}
		if len(environments) == 0 {
			break
		}
		for _, e := range environments {
			if err := c.deleteEnvironment(e); err != nil {
				return err
			}
		}
	}
	if err := c.DeleteFreezesOf(p.WorkspaceID, p.ID, ""); err != nil {
		return fmt.Errorf("forget freezes of project %s: %w", p.ID, err)
	}
	if err := c.DeleteProtectionsOf(p.WorkspaceID, p.ID); err != nil {
		return fmt.Errorf("delete protections of project %s: %w", p.ID, err)
	}
	if err := c.DeleteNotificationEndpointsOf(p.WorkspaceID, p.ID); err != nil {
		return fmt.Errorf("delete notification endpoints of project %s: %w", p.ID, err)
	}
	if err := c.Tx.DeleteProject(p.WorkspaceID, p.ID); err != nil {
		return fmt.Errorf("delete project %s: %w", p.ID, err)
	}
	return nil
}
