package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetRollout returns one rollout.
func (a *API) GetRollout(ctx context.Context, req *windlassv1.GetRolloutRequest) (*windlassv1.GetRolloutResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if !plainID(req.GetRollout()) {
		return nil, missing("rollout", "rollout", req.GetRollout(), "Name it by its id.")
	}
	var r model.Rollout
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		r, err = tx.GetRollout(by.WorkspaceID, req.GetRollout())
		return err
	})
	switch {
	case a.cfg.IsNotFound(err):
		return nil, missing("rollout", "rollout", req.GetRollout(), "List the rollouts of the app.")
	case err != nil:
		return nil, fmt.Errorf("read rollout %s: %w", req.GetRollout(), err)
	}
	return &windlassv1.GetRolloutResponse{Rollout: rolloutProto(r)}, nil
}
