package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListWorkspaces returns all workspaces by name.
func (a workspaceService) ListWorkspaces(ctx context.Context, req *windlassv1.ListWorkspacesRequest) (*windlassv1.ListWorkspacesResponse, error) {
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	var rows []model.Workspace
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err = tx.ListWorkspaces(page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	res := &windlassv1.ListWorkspacesResponse{}
	rows, res.Page = cutPage(rows, page, func(w model.Workspace) string { return w.Name })
	for _, w := range rows {
		res.Workspaces = append(res.Workspaces, workspaceProto(w))
	}
	return res, nil
}
