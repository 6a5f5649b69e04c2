package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListGateways returns the addresses of gateways that agents of workspaces' regions report.
func (a regionService) ListGateways(ctx context.Context, req *windlassv1.ListGatewaysRequest) (*windlassv1.ListGatewaysResponse, error) {
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListGatewaysResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err := tx.ListGateways(req.GetWaiting(), page)
		if err != nil {
			return fmt.Errorf("list gateways: %w", err)
		}
		rows, res.Page = cutPage(rows, page, func(r model.Region) string { return r.ID })
		owners := map[string]bool{}
		for _, r := range rows {
			owners[r.WorkspaceID] = true
		}
		workspaces, err := tx.GetWorkspaces(keysOf(owners))
		if err != nil {
			return fmt.Errorf("read workspaces: %w", err)
		}
		names := map[string]string{}
		for _, w := range workspaces {
			names[w.ID] = w.Name
		}
		for _, r := range rows {
			res.Gateways = append(res.Gateways, &windlassv1.RegionGateway{
				Region: r.ID, Name: r.Name, WorkspaceId: r.WorkspaceID, Workspace: names[r.WorkspaceID],
				GatewayUrl: r.GatewayURL, ApprovedGatewayUrl: r.ApprovedGatewayURL,
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
