package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RevokeGrant ends a workspace's grant of a region. Its apps stay there, and may shrink but not grow, until they are
// deployed without the region or EvictWorkspace removes them.
func (a regionService) RevokeGrant(ctx context.Context, req *windlassv1.RevokeGrantRequest) (*windlassv1.RevokeGrantResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RevokeGrantResponse, error) {
		r, w, err := c.regions().grantOf(req.GetRegion(), req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		err = c.Tx.RevokeGrant(r.ID, w.ID)
		switch {
		case errors.Is(err, model.ErrNotFound):
			return nil, apierr.NothingToDo(fmt.Sprintf("region %s is not granted to workspace %s", r.Name, w.Name), "")
		case err != nil:
			return nil, fmt.Errorf("revoke grant of region %s to workspace %s: %w", r.ID, w.ID, err)
		}
		if err := c.regions().wakeIn(r, w); err != nil {
			return nil, err
		}
		return &windlassv1.RevokeGrantResponse{}, c.auditFor(w.ID, "region_grant", r.ID, workspaceProto(w), nil)
	})
	return res, err
}
