package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetDeployment returns one version, by its id or by app and number.
func (a deploymentService) GetDeployment(ctx context.Context, req *windlassv1.GetDeploymentRequest) (*windlassv1.GetDeploymentResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case req.GetDeployment() == "" && (req.GetApp() == "" || req.GetVersion() == 0):
		return nil, apierr.Invalid("deployment", "set deployment to an id, or set app and version")
	case req.GetDeployment() != "" && (req.GetApp() != "" || req.GetVersion() != 0):
		return nil, apierr.Invalid("deployment", "set either deployment, or app and version, not both")
	}
	res := &windlassv1.GetDeploymentResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		var d model.Deployment
		var err error
		if req.GetDeployment() != "" {
			d, err = a.findDeployment(tx, by.WorkspaceID, req.GetDeployment(), "deployment")
		} else {
			d, err = a.versionOf(tx, by.WorkspaceID, req.GetApp(), req.GetVersion())
		}
		if err != nil {
			return err
		}
		views, err := a.deploymentViews(tx, []model.Deployment{d})
		if err != nil {
			return err
		}
		res.Deployment = views[0]
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (a deploymentService) versionOf(tx Tx, workspaceID, ref string, number int32) (model.Deployment, error) {
	app, err := a.findApp(tx, workspaceID, ref, true)
	if err != nil {
		return model.Deployment{}, err
	}
	d, err := tx.GetDeploymentByVersion(workspaceID, app.ID, number)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return d, apierr.Missing("version", "version", fmt.Sprint(number), fmt.Sprintf("The versions of app %s are 1 to %d.", app.Name, app.LatestVersion))
	case err != nil:
		return d, fmt.Errorf("read version %d of app %s: %w", number, app.ID, err)
	}
	return d, nil
}
