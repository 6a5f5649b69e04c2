package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeleteApp begins the deletion of the app. A second call changes nothing, except that it can set
// abandon_unreachable.
func (a appService) DeleteApp(ctx context.Context, req *windlassv1.DeleteAppRequest) (res *windlassv1.DeleteAppResponse, err error) {
	res, _, err = mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeleteAppResponse, error) {
		app, err := c.lockedApp(req.GetApp())
		if err != nil {
			return nil, err
		}
		before, err := a.appView(c, app)
		if err != nil {
			return nil, err
		}
		if app.DeletingSince != 0 && (app.AbandonUnreachable || !req.GetAbandonUnreachable()) {
			return &windlassv1.DeleteAppResponse{App: before}, nil
		}
		what, why := "DeletionRequested", "routes are removed first, then instances in every region"
		if app.DeletingSince != 0 {
			what = "AbandonmentRequested"
		} else {
			app.DeletingSince = c.at
		}
		if req.GetAbandonUnreachable() {
			app.AbandonUnreachable = true
			why = "the deletion does not wait for regions that are out of reach"
		}
		if w := req.GetWhy(); w != "" {
			why += ": " + w
		}
		if err := c.store(&app); err != nil {
			return nil, err
		}
		c.log(app, model.History{What: what, Why: why, RolloutID: app.RolloutID})
		if err := c.DeleteFreezesOf(app.WorkspaceID, "", app.ID); err != nil {
			return nil, fmt.Errorf("forget freezes of app %s: %w", app.ID, err)
		}
		if err := c.DeleteDomainsOf(app.ID); err != nil {
			return nil, fmt.Errorf("forget domains of app %s: %w", app.ID, err)
		}
		if err := c.wake(app.ID); err != nil {
			return nil, err
		}
		after, err := a.appView(c, app)
		if err != nil {
			return nil, err
		}
		warnings, err := modelsLeft(c, app)
		if err != nil {
			return nil, err
		}
		return &windlassv1.DeleteAppResponse{App: after, Warnings: warnings}, c.auditChange("app", app.ID, before, after)
	})
	return res, err
}

// maxModelsLeft is the maximum number of models that a warning names.
const maxModelsLeft = 5

// modelsLeft returns a warning about models of the environment that no server loads after the app is deleted. These
// are the models that name the app as their server. If no other app of the environment has servers, they are also the
// models that name no app.
func modelsLeft(tx Tx, app model.App) ([]string, error) {
	own, err := tx.GetDeployments([]string{app.LiveDeploymentID})
	if err != nil {
		return nil, fmt.Errorf("read live version of app %s: %w", app.ID, err)
	}
	if len(own) == 0 || own[0].Spec.GetModels() == nil {
		return nil, nil
	}
	live, err := liveSpecs(tx, app)
	if err != nil {
		return nil, err
	}
	others := false
	for name, spec := range live {
		others = others || name != app.Name && spec.GetModels() != nil
	}
	var left []string
	for _, name := range slices.Sorted(maps.Keys(live)) {
		if m := live[name].GetModel(); m != nil && (m.GetServer() == app.Name || m.GetServer() == "" && !others) {
			left = append(left, name)
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	text := strings.Join(left[:min(len(left), maxModelsLeft)], ", ")
	if n := len(left) - maxModelsLeft; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return []string{fmt.Sprintf("no server loads %s any more: deploy another app with models and name it in model.server, or delete these models", text)}, nil
}

// liveSpecs returns the specs of the live versions in the app's environment, by name of app. Apps that are being
// deleted are left out, except for the app itself.
func liveSpecs(tx Tx, app model.App) (map[string]*windlassv1.DeploymentSpec, error) {
	names := map[string]string{}
	for page := (model.Page{Limit: 500}); ; {
		apps, err := tx.ListApps(app.WorkspaceID, app.EnvironmentID, page)
		if err != nil {
			return nil, fmt.Errorf("list apps of environment %s: %w", app.EnvironmentID, err)
		}
		for _, one := range apps {
			if one.LiveDeploymentID != "" && (one.DeletingSince == 0 || one.ID == app.ID) {
				names[one.LiveDeploymentID] = one.Name
			}
		}
		if len(apps) < page.Limit {
			break
		}
		last := apps[len(apps)-1]
		page.After = last.Name + "\x00" + last.ID
	}
	deployments, err := tx.GetDeployments(slices.Sorted(maps.Keys(names)))
	if err != nil {
		return nil, fmt.Errorf("read live versions of environment %s: %w", app.EnvironmentID, err)
	}
	out := map[string]*windlassv1.DeploymentSpec{}
	for _, d := range deployments {
		out[names[d.ID]] = d.Spec
	}
	return out, nil
}
