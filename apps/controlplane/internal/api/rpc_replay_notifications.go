package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ReplayNotifications sends dead deliveries of an endpoint again.
func (a notificationService) ReplayNotifications(ctx context.Context, req *windlassv1.ReplayNotificationsRequest) (*windlassv1.ReplayNotificationsResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.ReplayNotificationsResponse, error) {
		e, err := c.lockedEndpoint(req.GetEndpoint(), "endpoint")
		if err != nil {
			return nil, err
		}
		if e.Disabled {
			return nil, apierr.NothingToDo("notification endpoint "+e.Name+" is disabled, so nothing is sent to it",
				fmt.Sprintf("Enable it: `windlass notify set %s --enable`.", e.Name))
		}
		if req.GetId() != "" && !plainID(req.GetId()) {
			return nil, apierr.Missing("id", "dead notification", req.GetId(), fmt.Sprintf("`windlass notify deliveries %s --state dead` lists them.", e.Name))
		}
		n, err := c.ReplayDeliveries(e.ID, req.GetId(), c.at)
		switch {
		case err != nil:
			return nil, fmt.Errorf("replay notifications of endpoint %s: %w", e.Name, err)
		case n == 0 && req.GetId() != "":
			return nil, apierr.Missing("id", "dead notification", req.GetId(), fmt.Sprintf("`windlass notify deliveries %s --state dead` lists them.", e.Name))
		}
		res := &windlassv1.ReplayNotificationsResponse{Replayed: int32(n)}
		if n == 0 {
			return res, nil
		}
		return res, c.auditChange("notification_endpoint", e.ID, nil, res)
	})
	return res, err
}
