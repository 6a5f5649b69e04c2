package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListRollouts returns an app's rollouts, the newest first.
func (a rolloutService) ListRollouts(ctx context.Context, req *windlassv1.ListRolloutsRequest) (*windlassv1.ListRolloutsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListRolloutsResponse{}
	err = a.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), true)
		if err != nil {
			return err
		}
		rows, err := tx.ListRollouts(by.WorkspaceID, app.ID, page)
		if err != nil {
			return fmt.Errorf("list rollouts of app %s: %w", app.ID, err)
		}
		rows, res.Page = cutPage(rows, page, func(r model.Rollout) string { return r.ID })
		for _, r := range rows {
			res.Rollouts = append(res.Rollouts, rolloutProto(r))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
