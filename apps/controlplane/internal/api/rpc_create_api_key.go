package api

import (
	"context"
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CreateApiKey makes a key. Its value is in this answer and nowhere else.
func (a *API) CreateApiKey(ctx context.Context, req *windlassv1.CreateApiKeyRequest) (*windlassv1.CreateApiKeyResponse, error) {
	if req.GetExpiresAt() != 0 && req.GetExpiresAt() <= now() {
		return nil, invalid("expires_at", "expires_at is in the past: give unix milliseconds in the future, or 0 for never")
	}
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	switch ofPlatform := req.GetRole() == windlassv1.Role_ROLE_OPERATOR; {
	case ofPlatform && !by.IsOperator():
		return nil, denied("a key of a workspace makes no operator's key", "Ask an operator of the platform.")
	case !ofPlatform && by.IsOperator():
		return nil, invalidFix("role", "an operator's key makes operators' keys: it belongs to no workspace", "Use role operator, or a key of an owner of the workspace.")
	}
	value := random(keyPrefix)
	res, replayed, err := mutate(ctx, a, req, func(c *change) (*windlassv1.CreateApiKeyResponse, error) {
		k := newKey(value, c.workspaceID, req.GetName(), req.GetRole(), c.at, req.GetExpiresAt())
		err := c.InsertAPIKey(k)
		switch {
		case a.cfg.IsExists(err):
			return nil, exists("name", "API key", req.GetName())
		case err != nil:
			return nil, fmt.Errorf("create API key %s: %w", req.GetName(), err)
		}
		return &windlassv1.CreateApiKeyResponse{Key: keyProto(k)}, c.audit("api_key", k.ID, nil, keyProto(k))
	})
	if err == nil && !replayed {
		res.Value = value
	}
	return res, err
}
