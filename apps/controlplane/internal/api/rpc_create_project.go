package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CreateProject makes a project with the environment "production".
func (a projectService) CreateProject(ctx context.Context, req *windlassv1.CreateProjectRequest) (*windlassv1.CreateProjectResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateProjectResponse, error) {
		p, err := c.tenants().insertProject(c.workspaceID, req.GetName())
		if err != nil {
			return nil, err
		}
		return &windlassv1.CreateProjectResponse{Project: projectProto(p)}, c.auditChange("project", p.ID, nil, projectProto(p))
	})
	return res, err
}

// insertProject writes a project and its first environment.
func (c tenantMutation) insertProject(workspaceID, name string) (model.Project, error) {
	p := model.Project{ID: ident.New("prj"), WorkspaceID: workspaceID, Name: name, CreatedAt: c.at, UpdatedAt: c.at, ResourceVersion: 1}
	err := c.InsertProject(p)
	switch {
	case errors.Is(err, model.ErrExists):
		return p, apierr.Exists("name", "project", name)
	case err != nil:
		return p, fmt.Errorf("create project %s: %w", name, err)
	}
	e := model.Environment{
		ID: ident.New("env"), WorkspaceID: workspaceID, ProjectID: p.ID, Name: defaultEnvironment,
		CreatedAt: c.at, UpdatedAt: c.at, ResourceVersion: 1,
	}
	if err := c.InsertEnvironment(e); err != nil {
		return p, fmt.Errorf("create environment of project %s: %w", p.ID, err)
	}
	return p, nil
}
