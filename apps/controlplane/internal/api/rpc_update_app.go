package api

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// UpdateApp changes the app's description.
func (a appService) UpdateApp(ctx context.Context, req *windlassv1.UpdateAppRequest) (*windlassv1.UpdateAppResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.UpdateAppResponse, error) {
		app, err := c.lockedApp(req.GetApp())
		if err != nil {
			return nil, err
		}
		if app.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("app", app.ID, app.ResourceVersion)
		}
		before, err := a.appView(c, app)
		if err != nil {
			return nil, err
		}
		if app.Description == req.GetDescription() {
			return &windlassv1.UpdateAppResponse{App: before, Unchanged: true}, nil
		}
		app.Description = req.GetDescription()
		if err := c.store(&app); err != nil {
			return nil, err
		}
		after, err := a.appView(c, app)
		if err != nil {
			return nil, err
		}
		return &windlassv1.UpdateAppResponse{App: after}, c.auditChange("app", app.ID, before, after)
	})
	return res, err
}
