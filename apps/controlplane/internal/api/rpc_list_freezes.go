package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/freeze"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListFreezes returns freezes by name.
func (a freezeService) ListFreezes(ctx context.Context, req *windlassv1.ListFreezesRequest) (*windlassv1.ListFreezesResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res, at := &windlassv1.ListFreezesResponse{}, nowMillis()
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err := tx.ListFreezes(by.WorkspaceID, page)
		if err != nil {
			return err
		}
		rows, res.Page = cutPage(rows, page, func(f model.Freeze) string { return f.Name })
		res.Freezes, err = freezeViews(tx, by.WorkspaceID, at, rows...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list freezes: %w", err)
	}
	return res, nil
}

// freezeViews returns freezes of a workspace in the form of the API, with the names of their projects and apps. For a
// deleted project or app, it shows the id.
func freezeViews(tx Tx, workspaceID string, at int64, of ...model.Freeze) (out []*windlassv1.Freeze, err error) {
	projects, apps := map[string]bool{}, map[string]bool{}
	for _, f := range of {
		if f.ProjectID != "" {
			projects[f.ProjectID] = true
		}
		if f.AppID != "" {
			apps[f.AppID] = true
		}
	}
	rows, err := tx.GetApps(keysOf(apps))
	if err != nil {
		return nil, fmt.Errorf("read apps: %w", err)
	}
	names, byID := noNames(), map[string]model.App{}
	for _, app := range rows {
		byID[app.ID] = app
	}
	if err := errors.Join(readProjects(tx, names, workspaceID, projects), readNames(tx, names, rows)); err != nil {
		return nil, err
	}
	for _, f := range of {
		v := &windlassv1.Freeze{
			Id: f.ID, Name: f.Name, Reason: f.Reason, OnStart: f.OnStart, From: f.From, Until: f.Until,
			TimeZone: f.TimeZone, SetBy: f.SetBy, SetAt: f.SetAt, FromFile: f.FromFile,
		}
		for _, w := range f.Weekly {
			v.Weekly = append(v.Weekly, &windlassv1.WeeklyWindow{Start: w.Start, End: w.End})
		}
		if v.InForceUntil, v.InForce = freeze.InForce(f, at); !v.InForce {
			v.NextAt = freeze.NextAt(f, at)
		}
		if f.ProjectID != "" {
			v.Project = cmp.Or(names.projects[f.ProjectID].Name, f.ProjectID)
		}
		if app, ok := byID[f.AppID]; ok {
			v.App = names.projects[app.ProjectID].Name + "/" + names.environments[app.EnvironmentID].Name + "/" + app.Name
		} else {
			v.App = f.AppID
		}
		out = append(out, v)
	}
	return out, nil
}

// freezeView returns one freeze in the form of the API.
func freezeView(tx Tx, f model.Freeze, at int64) (*windlassv1.Freeze, error) {
	views, err := freezeViews(tx, f.WorkspaceID, at, f)
	if err != nil {
		return nil, err
	}
	return views[0], nil
}
