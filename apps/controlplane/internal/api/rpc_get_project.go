package api

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetProject returns one project.
func (a projectService) GetProject(ctx context.Context, req *windlassv1.GetProjectRequest) (*windlassv1.GetProjectResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var p model.Project
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		p, err = a.findProject(tx, by.WorkspaceID, req.GetProject(), "project")
		return err
	})
	if err != nil {
		return nil, err
	}
	return &windlassv1.GetProjectResponse{Project: projectProto(p)}, nil
}
