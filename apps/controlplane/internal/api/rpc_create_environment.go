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

// CreateEnvironment makes an environment.
func (a environmentService) CreateEnvironment(ctx context.Context, req *windlassv1.CreateEnvironmentRequest) (*windlassv1.CreateEnvironmentResponse, error) {
	if err := appspec.CheckEnv(req.GetVariables(), "variables"); err != nil {
		return nil, err
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateEnvironmentResponse, error) {
		p, err := a.findProject(c, c.workspaceID, req.GetProject(), "project")
		if err != nil {
			return nil, err
		}
		e := model.Environment{
			ID: ident.New("env"), WorkspaceID: p.WorkspaceID, ProjectID: p.ID, Name: req.GetName(), Variables: req.GetVariables(),
			CreatedAt: c.at, UpdatedAt: c.at, ResourceVersion: 1,
		}
		err = c.InsertEnvironment(e)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "environment", p.Name+"/"+req.GetName())
		case err != nil:
			return nil, fmt.Errorf("create environment %s of project %s: %w", req.GetName(), p.ID, err)
		}
		view := environmentProto(p, e)
		return &windlassv1.CreateEnvironmentResponse{Environment: view}, c.auditChange("environment", e.ID, nil, view)
	})
	return res, err
}
