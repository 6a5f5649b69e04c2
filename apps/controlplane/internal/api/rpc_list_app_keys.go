package api

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListAppKeys returns keys of apps, by app and name, without their values.
func (a routeService) ListAppKeys(ctx context.Context, req *windlassv1.ListAppKeysRequest) (*windlassv1.ListAppKeysResponse, error) {
	found, next, err := listByApp(ctx, a.server, req.GetPage(), req.GetApp(), "app keys", Tx.ListAppKeys,
		func(k model.AppKey) string { return k.AppID + "\x00" + k.Name }, a.appKeyViews)
	if err != nil {
		return nil, err
	}
	return &windlassv1.ListAppKeysResponse{Keys: found, Page: next}, nil
}

// appKeyViews returns keys in the form of the API, with the names of their apps.
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
			Name: k.Name, AppId: k.AppID, App: f.pathOf(byID[k.AppID]), Prefix: k.Prefix,
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
