package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListAppKeys returns keys of apps, by app and name, without their values.
func (a routeService) ListAppKeys(ctx context.Context, req *windlassv1.ListAppKeysRequest) (*windlassv1.ListAppKeysResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListAppKeysResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		appID := ""
		if req.GetApp() != "" {
			app, err := a.app(tx, by.WorkspaceID, req.GetApp(), false)
			if err != nil {
				return err
			}
			appID = app.ID
		}
		rows, err := tx.ListAppKeys(by.WorkspaceID, appID, page)
		if err != nil {
			return fmt.Errorf("list app keys: %w", err)
		}
		rows, res.Page = cut(rows, page, func(k model.AppKey) string { return k.AppID + "\x00" + k.Name })
		res.Keys, err = a.appKeyViews(tx, rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// appKeyViews are keys as the API shows them, with the names of their apps.
func (a routeService) appKeyViews(tx Tx, rows []model.AppKey) ([]*windlassv1.AppKey, error) {
	ids := map[string]bool{}
	for _, k := range rows {
		ids[k.AppID] = true
	}
	f, byID, err := a.appNames(tx, ids)
	if err != nil {
		return nil, err
	}
	var out []*windlassv1.AppKey
	for _, k := range rows {
		out = append(out, &windlassv1.AppKey{
			Name: k.Name, AppId: k.AppID, App: f.path(byID[k.AppID]), Prefix: k.Prefix,
			CreatedBy: k.CreatedBy, CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt,
		})
	}
	return out, nil
}

func (a routeService) appKeyView(tx Tx, k model.AppKey) (*windlassv1.AppKey, error) {
	views, err := a.appKeyViews(tx, []model.AppKey{k})
	if err != nil {
		return nil, err
	}
	return views[0], nil
}
