package api

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func environmentProto(p model.Project, e model.Environment) *windlassv1.Environment {
	return &windlassv1.Environment{
		Id: e.ID, ProjectId: e.ProjectID, ProjectName: p.Name, Name: e.Name, Variables: e.Variables,
		CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt, ResourceVersion: e.ResourceVersion,
	}
}

// environmentView returns the environment in the form of the API, with its project.
func (a environmentService) environmentView(tx Tx, e model.Environment) (*windlassv1.Environment, error) {
	p, err := tx.GetProject(e.WorkspaceID, e.ProjectID)
	if err != nil {
		return nil, fmt.Errorf("read project %s: %w", e.ProjectID, err)
	}
	return environmentProto(p, e), nil
}

func projectProto(p model.Project) *windlassv1.Project {
	return &windlassv1.Project{
		Id: p.ID, Name: p.Name, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, ResourceVersion: p.ResourceVersion,
	}
}

func secretProto(s model.Secret) *windlassv1.Secret {
	return &windlassv1.Secret{Name: s.Name, Version: s.Version, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt}
}

func workspaceProto(w model.Workspace) *windlassv1.Workspace {
	return &windlassv1.Workspace{
		Id: w.ID, Name: w.Name, CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt, ResourceVersion: w.ResourceVersion,
	}
}
