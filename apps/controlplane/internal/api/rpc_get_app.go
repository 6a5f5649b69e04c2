package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetApp returns one app.
func (a appService) GetApp(ctx context.Context, req *windlassv1.GetAppRequest) (*windlassv1.GetAppResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.GetAppResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), false)
		if err != nil {
			return err
		}
		if res.App, err = a.appView(tx, app); err != nil {
			return err
		}
		rows, err := tx.GetScalings([]string{app.ID})
		if err != nil {
			return fmt.Errorf("read scaling of app %s: %w", app.ID, err)
		}
		if len(rows) > 0 {
			res.App.Scaling = rows[0].Policy
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// appView returns one app in the form of the API.
func (a *server) appView(tx Tx, app model.App) (*windlassv1.App, error) {
	f, err := a.loadFacts(tx, []model.App{app}, nil)
	if err != nil {
		return nil, err
	}
	return appWithURLs(tx, f, app)
}

// appWithURLs returns the app in the form of the API. f must have the facts of the app.
func appWithURLs(tx Tx, f facts, app model.App) (_ *windlassv1.App, err error) {
	out := appProto(f, app)
	out.Urls, err = urlsOf(tx, f, app)
	return out, err
}
