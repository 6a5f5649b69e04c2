package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetApp returns one app.
func (a *API) GetApp(ctx context.Context, req *windlassv1.GetAppRequest) (*windlassv1.GetAppResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.GetAppResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		app, err := a.app(tx, by.WorkspaceID, req.GetApp(), false)
		if err != nil {
			return err
		}
		res.App, err = a.appView(tx, app)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// appView is one app with all that the API shows of it.
func (a *API) appView(tx Tx, app model.App) (*windlassv1.App, error) {
	f, err := a.facts(tx, []model.App{app}, nil)
	if err != nil {
		return nil, err
	}
	return appView(tx, f, app)
}

func appView(tx Tx, f facts, app model.App) (_ *windlassv1.App, err error) {
	out := appProto(f, app)
	out.Urls, err = urls(tx, app.WorkspaceID, app.LiveDeploymentID)
	return out, err
}

const (
	// maxURLs of a deployment are shown: enough to try one, and to see that there are
	// several.
	maxURLs = 20
	// urlCandidates are the instances looked at for them.
	urlCandidates = 200
)

// urls of ready instances of a deployment; of none without one.
func urls(tx Tx, workspaceID, deploymentID string) ([]string, error) {
	if deploymentID == "" {
		return nil, nil
	}
	instances, err := tx.ListInstances(
		model.InstanceFilter{WorkspaceID: workspaceID, DeploymentID: deploymentID}, model.Page{Limit: urlCandidates})
	if err != nil {
		return nil, fmt.Errorf("list instances of %s: %w", deploymentID, err)
	}
	var out []string
	for _, i := range instances {
		if i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY && i.Address != "" && len(out) < maxURLs {
			out = append(out, "http://"+i.Address)
		}
	}
	return out, nil
}
