package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListDomains returns domains by name.
func (a routeService) ListDomains(ctx context.Context, req *windlassv1.ListDomainsRequest) (*windlassv1.ListDomainsResponse, error) {
	domains, next, err := listByApp(ctx, a.server, req.GetPage(), req.GetApp(), "domains", Tx.ListDomains,
		func(d model.Domain) string { return d.Name + "\x00" + d.AppID }, a.domainViews)
	if err != nil {
		return nil, err
	}
	return &windlassv1.ListDomainsResponse{Domains: domains, Page: next}, nil
}

// domainViews returns domains in the form of the API, with the names of their apps.
func (a routeService) domainViews(tx Tx, rows []model.Domain) ([]*windlassv1.Domain, error) {
	ids := map[string]bool{}
	for _, d := range rows {
		ids[d.AppID] = true
	}
	f, byID, err := a.appNames(tx, ids)
	if err != nil {
		return nil, err
	}
	var out []*windlassv1.Domain
	for _, d := range rows {
		out = append(out, domainProto(f, byID[d.AppID], d))
	}
	return out, nil
}

func (a routeService) domainView(tx Tx, d model.Domain) (*windlassv1.Domain, error) {
	views, err := a.domainViews(tx, []model.Domain{d})
	if err != nil {
		return nil, err
	}
	return views[0], nil
}

// appNames returns the apps with the ids, by id, and facts with the names of their environments and projects.
func (a *server) appNames(tx Tx, ids map[string]bool) (facts, map[string]model.App, error) {
	f := noNames()
	apps, err := tx.GetApps(keysOf(ids))
	if err != nil {
		return f, nil, fmt.Errorf("read apps: %w", err)
	}
	byID := map[string]model.App{}
	for _, app := range apps {
		byID[app.ID] = app
	}
	return f, byID, readNames(tx, f, apps)
}
