package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetRollout returns one rollout.
func (a rolloutService) GetRollout(ctx context.Context, req *windlassv1.GetRolloutRequest) (*windlassv1.GetRolloutResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if !plainID(req.GetRollout()) {
		return nil, apierr.Missing("rollout", "rollout", req.GetRollout(), "Name it by its id.")
	}
	var out *windlassv1.Rollout
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		r, err := tx.GetRollout(by.WorkspaceID, req.GetRollout())
		if err != nil {
			return err
		}
		out, err = a.rolloutWithProgress(tx, r)
		return err
	})
	switch {
	case errors.Is(err, model.ErrNotFound):
		return nil, apierr.Missing("rollout", "rollout", req.GetRollout(), "`windlass history APP` shows the rollouts.")
	case err != nil:
		return nil, fmt.Errorf("read rollout %s: %w", req.GetRollout(), err)
	}
	return &windlassv1.GetRolloutResponse{Rollout: out}, nil
}

func (a *server) rolloutWithProgress(tx Tx, r model.Rollout) (*windlassv1.Rollout, error) {
	app, err := tx.GetApp(r.WorkspaceID, r.AppID)
	if err != nil {
		return nil, err
	}
	deployments, err := tx.GetDeployments([]string{r.DeploymentID})
	if err != nil {
		return nil, err
	}
	f, err := a.loadFacts(tx, []model.App{app}, deployments)
	if err != nil {
		return nil, err
	}
	out := rolloutView(f, app, r)
	out.PreviewUrls, err = previewURLs(tx, f, app, r)
	return out, err
}
