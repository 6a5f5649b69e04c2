package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// UpdateProject renames a project.
func (a projectService) UpdateProject(ctx context.Context, req *windlassv1.UpdateProjectRequest) (*windlassv1.UpdateProjectResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.UpdateProjectResponse, error) {
		p, err := a.findProject(c, c.workspaceID, req.GetProject(), "project")
		if err != nil {
			return nil, err
		}
		if p.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("project", p.ID, p.ResourceVersion)
		}
		before := projectProto(p)
		if p.Name == req.GetName() {
			return &windlassv1.UpdateProjectResponse{Project: before, Unchanged: true}, nil
		}
		p.Name, p.UpdatedAt = req.GetName(), c.at
		err = c.Tx.UpdateProject(p)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "project", req.GetName())
		case errors.Is(err, model.ErrConflict):
			return nil, apierr.Conflict("project", p.ID, p.ResourceVersion+1)
		case err != nil:
			return nil, fmt.Errorf("update project %s: %w", p.ID, err)
		}
		p.ResourceVersion++
		return &windlassv1.UpdateProjectResponse{Project: projectProto(p)}, c.auditChange("project", p.ID, before, projectProto(p))
	})
	return res, err
}
