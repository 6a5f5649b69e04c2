package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetFeatures returns the features that a workspace may use.
func (a workspaceService) GetFeatures(ctx context.Context, req *windlassv1.GetFeaturesRequest) (*windlassv1.GetFeaturesResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.GetFeaturesResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		w, err := a.visibleWorkspace(tx, by, req.GetWorkspace())
		if err != nil {
			return err
		}
		have, err := tx.GetFeatures(w.ID)
		if err != nil {
			return fmt.Errorf("read features of workspace %s: %w", w.ID, err)
		}
		res.Features = featuresProto(w, have)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func featuresProto(w model.Workspace, f model.WorkspaceFeatures) *windlassv1.WorkspaceFeatures {
	return &windlassv1.WorkspaceFeatures{
		WorkspaceId: w.ID, WorkspaceName: w.Name, Features: f.InForce().List(), Tier: f.Tier, TierFeatures: f.TierFeatures.List(),
		Allowed: f.Allowed.List(), Denied: f.Denied.List(), ResourceVersion: f.ResourceVersion,
	}
}
