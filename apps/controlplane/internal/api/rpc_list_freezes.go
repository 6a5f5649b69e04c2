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
func (a *API) ListFreezes(ctx context.Context, req *windlassv1.ListFreezesRequest) (*windlassv1.ListFreezesResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res, at := &windlassv1.ListFreezesResponse{}, now()
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err := tx.ListFreezes(by.WorkspaceID, page)
		if err != nil {
			return err
		}
		rows, res.Page = cut(rows, page, func(f model.Freeze) string { return f.Name })
		res.Freezes = nil
		for _, f := range rows {
			v, err := a.freezeView(tx, f, at)
			if err != nil {
				return err
			}
			res.Freezes = append(res.Freezes, v)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list freezes: %w", err)
	}
	return res, nil
}

// freezeView is the freeze as the API shows it, with the names of what it is about.
func (a *API) freezeView(tx Tx, f model.Freeze, at int64) (*windlassv1.Freeze, error) {
	out := &windlassv1.Freeze{
		Id: f.ID, Name: f.Name, Reason: f.Reason, OnStart: f.OnStart, From: f.From, Until: f.Until,
		TimeZone: f.TimeZone, SetBy: f.SetBy, SetAt: f.SetAt, FromFile: f.FromFile,
	}
	for _, w := range f.Weekly {
		out.Weekly = append(out.Weekly, &windlassv1.WeeklyWindow{Start: w.Start, End: w.End})
	}
	if out.InForceUntil, out.InForce = freeze.InForce(f, at); !out.InForce {
		out.NextAt = freeze.NextAt(f, at)
	}
	if f.ProjectID != "" {
		p, err := tx.GetProject(f.WorkspaceID, f.ProjectID)
		if err != nil && !errors.Is(err, model.ErrNotFound) {
			return nil, fmt.Errorf("read project %s: %w", f.ProjectID, err)
		}
		out.Project = cmp.Or(p.Name, f.ProjectID)
	}
	if f.AppID == "" {
		return out, nil
	}
	app, err := tx.GetApp(f.WorkspaceID, f.AppID)
	if errors.Is(err, model.ErrNotFound) {
		out.App = f.AppID
		return out, nil
	} else if err != nil {
		return nil, fmt.Errorf("read app %s: %w", f.AppID, err)
	}
	names := noNames()
	if err := readNames(tx, names, []model.App{app}); err != nil {
		return nil, err
	}
	out.App = names.projects[app.ProjectID].Name + "/" + names.environments[app.EnvironmentID].Name + "/" + app.Name
	return out, nil
}
