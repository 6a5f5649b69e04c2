package api

import (
	"cmp"
	"context"
	"fmt"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RotateNotificationSecret makes a new signing secret. Only this answer has the secret.
func (a notificationService) RotateNotificationSecret(ctx context.Context, req *windlassv1.RotateNotificationSecretRequest) (*windlassv1.RotateNotificationSecretResponse, error) {
	secret := newSigningSecret()
	res, replayed, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RotateNotificationSecretResponse, error) {
		e, err := c.lockedEndpoint(req.GetName(), "name")
		if err != nil {
			return nil, err
		}
		target, version, err := c.targetOf(e)
		if err != nil {
			return nil, err
		}
		was := e
		keep := time.Duration(cmp.Or(req.GetKeepPreviousSeconds(), int64(keepPrevious/time.Second))) * time.Second
		e.PreviousUntil, e.UpdatedAt = c.at+keep.Milliseconds(), c.at
		rotated := target.Rotate(secret, e.PreviousUntil)
		if keep < 0 {
			e.PreviousUntil = 0
			rotated.Secrets = rotated.Secrets[:1]
		}
		if err := c.putTarget(e, rotated, version+1); err != nil {
			return nil, err
		}
		if err := c.UpdateNotificationEndpoint(e); err != nil {
			return nil, fmt.Errorf("store notification endpoint %s: %w", e.Name, err)
		}
		views, err := endpointViews(c, c.workspaceID, was, e)
		if err != nil {
			return nil, err
		}
		return &windlassv1.RotateNotificationSecretResponse{Endpoint: views[1]}, c.auditChange("notification_endpoint", e.ID, views[0], views[1])
	})
	if err == nil && !replayed {
		res.Secret = secret
	}
	return res, err
}
