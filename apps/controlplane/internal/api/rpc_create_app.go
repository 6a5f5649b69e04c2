package api

import (
	"context"
	"errors"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CreateApp makes an app that runs nothing yet.
func (a appService) CreateApp(ctx context.Context, req *windlassv1.CreateAppRequest) (*windlassv1.CreateAppResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateAppResponse, error) {
		e, err := a.environment(c, c.workspaceID, req.GetEnvironment(), "environment")
		if err != nil {
			return nil, err
		}
		app, err := c.insertApp(e, req.GetName(), req.GetDescription())
		if errors.Is(err, model.ErrExists) {
			return nil, apierr.Exists("name", "app", req.GetName())
		}
		if err != nil {
			return nil, err
		}
		view, err := a.appView(c, app)
		if err != nil {
			return nil, err
		}
		return &windlassv1.CreateAppResponse{App: view}, c.audit("app", app.ID, nil, view)
	})
	return res, err
}
