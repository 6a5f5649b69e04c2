package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListNotificationEndpoints returns the workspace's endpoints by name, with their numbers of pending and dead
// deliveries.
func (a notificationService) ListNotificationEndpoints(ctx context.Context, _ *windlassv1.ListNotificationEndpointsRequest) (*windlassv1.ListNotificationEndpointsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListNotificationEndpointsResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err := tx.ListNotificationEndpoints(by.WorkspaceID)
		if err != nil {
			return fmt.Errorf("list notification endpoints: %w", err)
		}
		if res.Endpoints, err = endpointViews(tx, by.WorkspaceID, rows...); err != nil || len(rows) == 0 {
			return err
		}
		counts, err := tx.CountDeliveries(by.WorkspaceID)
		if err != nil {
			return fmt.Errorf("count notifications: %w", err)
		}
		for _, n := range counts {
			for _, e := range res.Endpoints {
				switch {
				case e.Id != n.EndpointID:
				case n.State == model.DeliveryPending:
					e.Pending = n.Count
				case n.State == model.DeliveryDead:
					e.Dead = n.Count
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
