package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CreateApiKey makes a key. Only this answer has the key's value.
func (a accessService) CreateApiKey(ctx context.Context, req *windlassv1.CreateApiKeyRequest) (*windlassv1.CreateApiKeyResponse, error) {
	if req.GetExpiresAt() != 0 && req.GetExpiresAt() <= nowMillis() {
		return nil, apierr.Invalid("expires_at", "expires_at is in the past: use unix milliseconds in the future, or 0 for never")
	}
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	switch ofPlatform := req.GetRole() == windlassv1.Role_ROLE_OPERATOR; {
	case ofPlatform && !by.IsOperator():
		return nil, apierr.Denied("a key of a workspace cannot create an operator's key", "Ask an operator of the platform.")
	case req.GetWorkspace() != "" && !by.IsOperator():
		return nil, apierr.Denied("only an operator may name the workspace of a new key", "Leave workspace out. The key then belongs to your workspace.")
	case ofPlatform && req.GetWorkspace() != "":
		return nil, apierr.InvalidFix("workspace", "an operator's key belongs to no workspace", "Leave workspace out, or use role viewer, deployer or owner.")
	case !ofPlatform && by.IsOperator() && req.GetWorkspace() == "":
		return nil, apierr.InvalidFix("workspace", "a key of role "+model.RoleName(req.GetRole())+" belongs to a workspace", "Name the workspace, or use role operator.")
	}
	value := newCredential(keyPrefix)
	res, replayed, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateApiKeyResponse, error) {
		workspaceID := c.workspaceID
		if req.GetWorkspace() != "" {
			w, err := a.visibleWorkspace(c, c.by, req.GetWorkspace())
			if err != nil {
				return nil, err
			}
			workspaceID = w.ID
		}
		k := c.tenants().newKey(value, workspaceID, req.GetName(), req.GetRole(), req.GetExpiresAt())
		err := c.InsertAPIKey(k)
		switch {
		case errors.Is(err, model.ErrExists):
			return nil, apierr.Exists("name", "API key", req.GetName())
		case err != nil:
			return nil, fmt.Errorf("create API key %s: %w", req.GetName(), err)
		}
		return &windlassv1.CreateApiKeyResponse{Key: keyProto(k)}, c.auditFor(workspaceID, "api_key", k.ID, nil, keyProto(k))
	})
	if err == nil && !replayed {
		res.Value = value
	}
	return res, err
}
