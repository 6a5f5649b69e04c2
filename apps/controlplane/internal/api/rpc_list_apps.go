package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListApps returns apps by name, without their URLs.
func (a appService) ListApps(ctx context.Context, req *windlassv1.ListAppsRequest) (*windlassv1.ListAppsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListAppsResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		var environmentID string
		if req.GetEnvironment() != "" {
			e, err := a.findEnvironment(tx, by.WorkspaceID, req.GetEnvironment(), "environment")
			if err != nil {
				return err
			}
			environmentID = e.ID
		}
		apps, err := tx.ListApps(by.WorkspaceID, environmentID, page)
		if err != nil {
			return fmt.Errorf("list apps: %w", err)
		}
		apps, res.Page = cutPage(apps, page, func(app model.App) string { return app.Name + "\x00" + app.ID })
		f, err := a.loadFacts(tx, apps, nil)
		if err != nil {
			return err
		}
		for _, app := range apps {
			res.Apps = append(res.Apps, appProto(f, app))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
