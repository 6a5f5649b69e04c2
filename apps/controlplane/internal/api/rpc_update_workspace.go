package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// UpdateWorkspace renames a workspace.
func (a workspaceService) UpdateWorkspace(ctx context.Context, req *windlassv1.UpdateWorkspaceRequest) (*windlassv1.UpdateWorkspaceResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.UpdateWorkspaceResponse, error) {
		w, err := a.visibleWorkspace(c, c.by, req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		if w.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("workspace", w.ID, w.ResourceVersion)
		}
		before := workspaceProto(w)
		if w.Name == req.GetName() {
			return &windlassv1.UpdateWorkspaceResponse{Workspace: before, Unchanged: true}, nil
		}
		w.Name, w.UpdatedAt = req.GetName(), c.at
		err = c.Tx.UpdateWorkspace(w)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "workspace", req.GetName())
		case errors.Is(err, model.ErrConflict):
			return nil, apierr.Conflict("workspace", w.ID, w.ResourceVersion+1)
		case err != nil:
			return nil, fmt.Errorf("update workspace %s: %w", w.ID, err)
		}
		w.ResourceVersion++
		return &windlassv1.UpdateWorkspaceResponse{Workspace: workspaceProto(w)}, c.auditChange("workspace", w.ID, before, workspaceProto(w))
	})
	return res, err
}
