package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListQuarantine returns the region's workloads that the control plane does not know, by key.
func (a regionService) ListQuarantine(ctx context.Context, req *windlassv1.ListQuarantineRequest) (*windlassv1.ListQuarantineResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListQuarantineResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		r, err := a.findRegion(tx, by, req.GetRegion())
		if err != nil {
			return err
		}
		if r.WorkspaceID != by.WorkspaceID {
			return apierr.Denied(fmt.Sprintf("region %s belongs to the platform", r.Name), "Ask an operator of the platform.")
		}
		rows, err := tx.ListQuarantine(r.ID, page)
		if err != nil {
			return fmt.Errorf("list quarantine of region %s: %w", r.ID, err)
		}
		rows, res.Page = cutPage(rows, page, func(q model.Quarantined) string { return q.Key })
		for _, q := range rows {
			res.Workloads = append(res.Workloads, quarantineProto(r, q))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
