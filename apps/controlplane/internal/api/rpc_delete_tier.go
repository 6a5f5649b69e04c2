package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeleteTier deletes a tier that no workspace has. Deleting the default tier resets it to all features.
func (a workspaceService) DeleteTier(ctx context.Context, req *windlassv1.DeleteTierRequest) (*windlassv1.DeleteTierResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeleteTierResponse, error) {
		name := req.GetName()
		tier, err := c.LockTier(name)
		if errors.Is(err, model.ErrNotFound) {
			return nil, apierr.Missing("name", "tier", name, "`windlass workspace tier list` shows the tiers.")
		}
		if err != nil {
			return nil, fmt.Errorf("lock tier %s: %w", name, err)
		}
		if name != model.DefaultTier {
			n, err := c.CountWorkspacesOfTier(name)
			if err != nil {
				return nil, fmt.Errorf("count workspaces of tier %s: %w", name, err)
			}
			if n > 0 {
				return nil, apierr.InUse(fmt.Sprintf("tier %s is the tier of %d workspace(s)", name, n), "Give them another tier first: `windlass workspace features WORKSPACE --tier default`.")
			}
		}
		if err := c.Tx.DeleteTier(name); err != nil {
			return nil, fmt.Errorf("delete tier %s: %w", name, err)
		}
		return &windlassv1.DeleteTierResponse{}, c.auditChange("tier", name, tierProto(tier), nil)
	})
	return res, err
}
