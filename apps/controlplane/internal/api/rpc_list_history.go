package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
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
	if req.GetUntil() > 0 {
		if req.GetSince() > req.GetUntil() {
			return nil, apierr.InvalidFix("since", "since is after until: no entry is between them", "Use an earlier since, or a later until.")
		}
		// Ids sort by time, so until can be converted to a position in the list.
		if end := ident.Before("hst", time.UnixMilli(req.GetUntil()+1)); page.After == "" || end < page.After {
			page.After = end
		}
	}
	begin := ident.Before("hst", time.UnixMilli(req.GetSince()))
	res := &windlassv1.ListHistoryResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), true)
		if err != nil {
			return err
		}
		rows, err := tx.ListHistory(by.WorkspaceID, app.ID, page)
		if err != nil {
			return fmt.Errorf("list history of app %s: %w", app.ID, err)
		}
		rows, res.Page = cutPage(rows, page, func(h model.History) string { return h.ID })
		if i := slices.IndexFunc(rows, func(h model.History) bool { return h.ID < begin }); i >= 0 {
			rows, res.Page = rows[:i], &windlassv1.PageResponse{}
		}
		res.Entries, err = a.historyViews(tx, rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
