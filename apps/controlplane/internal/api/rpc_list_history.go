package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListHistory returns decisions about an app, the newest first. A deleted app is found by its id.
func (a historyService) ListHistory(ctx context.Context, req *windlassv1.ListHistoryRequest) (*windlassv1.ListHistoryResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListHistoryResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		app, err := a.app(tx, by.WorkspaceID, req.GetApp(), true)
		if err != nil {
			return err
		}
		rows, err := tx.ListHistory(by.WorkspaceID, app.ID, page)
		if err != nil {
			return fmt.Errorf("list history of app %s: %w", app.ID, err)
		}
		rows, res.Page = cut(rows, page, func(h model.History) string { return h.ID })
		res.Entries, err = a.historyViews(tx, rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
