package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListDeployments returns versions, the newest first.
func (a deploymentService) ListDeployments(ctx context.Context, req *windlassv1.ListDeploymentsRequest) (*windlassv1.ListDeploymentsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListDeploymentsResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		var appID string
		if req.GetApp() != "" {
			app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), true)
			if err != nil {
				return err
			}
			appID = app.ID
		}
		rows, err := tx.ListDeployments(by.WorkspaceID, appID, page)
		if err != nil {
			return fmt.Errorf("list deployments: %w", err)
		}
		rows, res.Page = cutPage(rows, page, func(d model.Deployment) string { return d.ID })
		res.Deployments, err = a.deploymentViews(tx, rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
