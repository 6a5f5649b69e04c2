package api

import (
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// deploymentViews returns versions of apps in the form of the API.
func (a *server) deploymentViews(tx Tx, rows []model.Deployment) ([]*windlassv1.Deployment, error) {
	apps, err := a.appsOf(tx, rows)
	if err != nil {
		return nil, err
	}
	f, err := a.loadFacts(tx, slices.Collect(maps.Values(apps)), rows)
	if err != nil {
		return nil, err
	}
	var out []*windlassv1.Deployment
	for _, d := range rows {
		out = append(out, deploymentProto(f, apps[d.AppID], d))
	}
	return out, nil
}

// appsOf reads the apps of the deployments, by id.
func (a *server) appsOf(tx Tx, rows []model.Deployment) (map[string]model.App, error) {
	ids := map[string]bool{}
	for _, d := range rows {
		ids[d.AppID] = true
	}
	found, err := tx.GetApps(keysOf(ids))
	if err != nil {
		return nil, fmt.Errorf("read apps: %w", err)
	}
	apps := map[string]model.App{}
	for _, app := range found {
		apps[app.ID] = app
	}
	return apps, nil
}
