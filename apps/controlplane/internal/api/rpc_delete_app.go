package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeleteApp begins the deletion of the app. A second call changes nothing, except that it may give up regions
// that are out of reach.
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
		what, why := "DeletionRequested", "its routes go first, then its instances in every region"
		if app.DeletingSince != 0 {
			what = "AbandonmentRequested"
		} else {
			app.DeletingSince = c.at
		}
		if req.GetAbandonUnreachable() {
			app.AbandonUnreachable = true
			why = "regions that are out of reach are not waited for"
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
		return &windlassv1.DeleteAppResponse{App: after}, c.audit("app", app.ID, before, after)
	})
	return res, err
}
