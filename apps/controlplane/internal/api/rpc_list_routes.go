package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListRoutes returns the hosts of apps with their targets. Pages count apps.
func (a routeService) ListRoutes(ctx context.Context, req *windlassv1.ListRoutesRequest) (*windlassv1.ListRoutesResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListRoutesResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		apps, next, err := a.pageOfApps(tx, by.WorkspaceID, req.GetApp(), page)
		if err != nil {
			return err
		}
		f, err := a.routeFacts(tx, apps, req.GetEnded())
		if err != nil {
			return err
		}
		res.Routes, res.Page = nil, next
		for _, app := range apps {
			res.Routes = append(res.Routes, f.routesOf(app, req.GetEnded())...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// pageOfApps returns the app that ref names, or a page of the workspace's apps.
func (a routeService) pageOfApps(tx Tx, workspaceID, ref string, page model.Page) ([]model.App, *windlassv1.PageResponse, error) {
	if ref != "" {
		app, err := a.findApp(tx, workspaceID, ref, true)
		return []model.App{app}, &windlassv1.PageResponse{}, err
	}
	apps, err := tx.ListApps(workspaceID, "", page)
	if err != nil {
		return nil, nil, fmt.Errorf("list apps: %w", err)
	}
	apps, next := cutPage(apps, page, func(app model.App) string { return app.Name + "\x00" + app.ID })
	return apps, next, nil
}
