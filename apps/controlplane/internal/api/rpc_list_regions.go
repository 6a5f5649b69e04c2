package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListRegions returns regions by name: the workspace's own and granted regions, or for an operator the platform's
// regions.
func (a regionService) ListRegions(ctx context.Context, req *windlassv1.ListRegionsRequest) (*windlassv1.ListRegionsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListRegionsResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err := tx.ListRegions(by.WorkspaceID, page)
		if err != nil {
			return fmt.Errorf("list regions: %w", err)
		}
		rows, res.Page = cutPage(rows, page, func(r model.Region) string { return r.Name })
		res.Regions, err = a.regionViews(tx, by, rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
