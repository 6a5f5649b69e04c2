package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CreateApp makes an app without a version.
func (a appService) CreateApp(ctx context.Context, req *windlassv1.CreateAppRequest) (*windlassv1.CreateAppResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateAppResponse, error) {
		e, err := a.findEnvironment(c, c.workspaceID, req.GetEnvironment(), "environment")
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
		return &windlassv1.CreateAppResponse{App: view}, c.auditChange("app", app.ID, nil, view)
	})
	return res, err
}

// insertApp writes a new app. At the end of the transaction, with the workspace locked, enter checks that the
// environment still exists.
func (c *mutation) insertApp(e model.Environment, name, description string) (model.App, error) {
	app := model.App{
		ID: ident.New("app"), WorkspaceID: c.workspaceID, ProjectID: e.ProjectID, EnvironmentID: e.ID,
		Name: name, Description: description, Status: windlassv1.AppStatus_APP_STATUS_IDLE, Replicas: appspec.DefaultReplicas,
		CreatedAt: c.at, UpdatedAt: c.at, ResourceVersion: 1,
	}
	if err := c.InsertApp(app); err != nil {
		return app, fmt.Errorf("create app %s: %w", name, err)
	}
	c.claimUsage(app, nil, nil, nil)
	c.asked.createdIn = e.ID
	c.log(app, model.History{What: "AppCreated", Why: "it did not exist in environment " + e.Name})
	return app, nil
}
