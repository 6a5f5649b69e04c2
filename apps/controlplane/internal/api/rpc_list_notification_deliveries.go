package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// anyState selects deliveries of all states.
const anyState model.DeliveryState = -1

// ListNotificationDeliveries returns the deliveries of an endpoint in one state or in all states, the newest first.
func (a notificationService) ListNotificationDeliveries(ctx context.Context, req *windlassv1.ListNotificationDeliveriesRequest) (*windlassv1.ListNotificationDeliveriesResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	state := anyState
	for s, shown := range deliveryStates {
		if shown == req.GetState() {
			state = s
		}
	}
	res := &windlassv1.ListNotificationDeliveriesResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		endpoints, err := tx.ListNotificationEndpoints(by.WorkspaceID)
		if err != nil {
			return fmt.Errorf("list notification endpoints: %w", err)
		}
		i := slices.IndexFunc(endpoints, func(e model.NotificationEndpoint) bool { return e.Name == req.GetEndpoint() })
		if i < 0 {
			return apierr.Missing("endpoint", "notification endpoint", req.GetEndpoint(), "`windlass notify list` shows the existing endpoints.")
		}
		rows, err := tx.ListDeliveries(endpoints[i].ID, state, page)
		if err != nil {
			return fmt.Errorf("list notifications of endpoint %s: %w", req.GetEndpoint(), err)
		}
		rows, res.Page = cutPage(rows, page, func(d model.Delivery) string { return d.MessageID })
		for _, d := range rows {
			res.Deliveries = append(res.Deliveries, deliveryView(d))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
