package api

import (
	"context"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestNotificationEndpoint sends a test notification.
func (a notificationService) TestNotificationEndpoint(ctx context.Context, req *windlassv1.TestNotificationEndpointRequest) (*windlassv1.TestNotificationEndpointResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.TestNotificationEndpointResponse, error) {
		e, err := c.lockedEndpoint(req.GetName(), "name")
		if err != nil {
			return nil, err
		}
		if e.Disabled {
			return nil, apierr.NothingToDo("notification endpoint "+e.Name+" is disabled, so nothing is sent to it",
				fmt.Sprintf("Enable it: `windlass notify set %s --enable`.", e.Name))
		}
		if wait := time.Duration(e.TestedAt+testEvery.Milliseconds()-c.at) * time.Millisecond; wait > 0 {
			return nil, rpc.TooFast(wait, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED, Field: "name", Fix: "Call again after that.",
				Limit: &windlassv1.LimitDetail{Name: "notification_tests", Max: int64(time.Minute / testEvery), Used: 1, Asked: 1, RetryAfterMs: wait.Milliseconds()},
			}, fmt.Sprintf("notification endpoint %s was tested less than %s ago: wait %s", e.Name, testEvery, wait))
		}
		workspace, err := c.GetWorkspace(c.workspaceID)
		if err != nil {
			return nil, fmt.Errorf("read workspace %s: %w", c.workspaceID, err)
		}
		e.TestedAt = c.at
		if err := c.UpdateNotificationEndpoint(e); err != nil {
			return nil, fmt.Errorf("store notification endpoint %s: %w", e.Name, err)
		}
		d := model.Delivery{
			EndpointID: e.ID, MessageID: ident.New("ntf"), WorkspaceID: c.workspaceID, Kind: model.NotifyTest, At: c.at, What: model.WhatTest,
			Why: "a test of notification endpoint " + e.Name, Who: c.by.Name, Workspace: workspace.Name, Events: 1, DueAt: c.at, TriesSince: c.at,
		}
		if err := c.InsertDeliveries([]model.Delivery{d}); err != nil {
			return nil, fmt.Errorf("send a test to notification endpoint %s: %w", e.Name, err)
		}
		res := &windlassv1.TestNotificationEndpointResponse{Delivery: deliveryView(d)}
		return res, c.auditChange("notification_endpoint", e.ID, nil, res.Delivery)
	})
	return res, err
}
