package api

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetWorkspace returns one workspace.
func (a workspaceService) GetWorkspace(ctx context.Context, req *windlassv1.GetWorkspaceRequest) (*windlassv1.GetWorkspaceResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var w model.Workspace
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		w, err = a.visibleWorkspace(tx, by, req.GetWorkspace())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &windlassv1.GetWorkspaceResponse{Workspace: workspaceProto(w)}, nil
}
