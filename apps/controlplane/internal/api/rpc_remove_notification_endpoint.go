package api

import (
	"context"
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RemoveNotificationEndpoint deletes an endpoint and its pending notifications.
func (a notificationService) RemoveNotificationEndpoint(ctx context.Context, req *windlassv1.RemoveNotificationEndpointRequest) (*windlassv1.RemoveNotificationEndpointResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RemoveNotificationEndpointResponse, error) {
		e, err := c.lockedEndpoint(req.GetName(), "name")
		if err != nil {
			return nil, err
		}
		before, err := endpointView(c, e)
		if err != nil {
			return nil, err
		}
		if err := c.DeleteNotificationEndpoint(e.WorkspaceID, e.ID); err != nil {
			return nil, fmt.Errorf("remove notification endpoint %s: %w", e.Name, err)
		}
		return &windlassv1.RemoveNotificationEndpointResponse{}, c.auditChange("notification_endpoint", e.ID, before, nil)
	})
	return res, err
}
