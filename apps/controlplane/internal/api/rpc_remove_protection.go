package api

import (
	"context"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RemoveProtection deletes the protection of a scope.
func (a protectionService) RemoveProtection(ctx context.Context, req *windlassv1.RemoveProtectionRequest) (*windlassv1.RemoveProtectionResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RemoveProtectionResponse, error) {
		of, have, err := c.protectionAt(req)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(have, func(p model.Protection) bool { return p.ScopeID == of.ScopeID && p.ByOperator == of.ByOperator })
		if i < 0 {
			if !of.ByOperator && slices.ContainsFunc(have, func(p model.Protection) bool { return p.ScopeID == of.ScopeID }) {
				return nil, apierr.Denied("an operator set this protection", "Ask an operator of the platform to remove it.")
			}
			return nil, noProtection(req)
		}
		before, err := protectionView(c, have[i])
		if err != nil {
			return nil, err
		}
		if err := c.DeleteProtection(of.WorkspaceID, of.ScopeID, of.ByOperator); err != nil {
			return nil, fmt.Errorf("remove protection of workspace %s: %w", of.WorkspaceID, err)
		}
		return &windlassv1.RemoveProtectionResponse{}, c.auditFor(of.WorkspaceID, "protection", protectionID(of), before, nil)
	})
	return res, err
}

// noProtection returns the error for a scope without a protection.
func noProtection(of inScope) error {
	field, scope := "", "the workspace"
	switch {
	case of.GetEnvironment() != "":
		field, scope = "environment", "environment "+of.GetEnvironment()
	case of.GetProject() != "":
		field, scope = "project", "project "+of.GetProject()
	}
	return rpc.ErrorWith(connect.CodeNotFound, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, Field: field,
		Fix: "`windlass protection list` shows the existing protections.",
	}, scope+" has no protection")
}
