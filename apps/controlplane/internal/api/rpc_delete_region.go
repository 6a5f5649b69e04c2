package api

import (
	"context"
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// maxRegionUsers is the maximum number of users of a region that DeleteRegion names in its error.
const maxRegionUsers = 10

// DeleteRegion deletes a region that no app uses or should use.
func (a regionService) DeleteRegion(ctx context.Context, req *windlassv1.DeleteRegionRequest) (*windlassv1.DeleteRegionResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeleteRegionResponse, error) {
		r, err := c.regions().managedRegion(req.GetRegion())
		if err != nil {
			return nil, err
		}
		users, err := c.regions().usersOfRegion(r, maxRegionUsers)
		if err != nil {
			return nil, err
		}
		n, err := c.CountTopologyByRegion(r.ID)
		if err != nil {
			return nil, fmt.Errorf("count assignments of region %s: %w", r.ID, err)
		}
		if n > 0 {
			text := fmt.Sprintf("%d deployments are assigned to region %s", n, r.Name)
			if len(users) > 0 {
				text += ", which these apps name: " + strings.Join(users, ", ")
			}
			return nil, apierr.InUse(text, "Deploy the apps without the region, or delete them. If the region is gone: `windlass delete APP --abandon-unreachable`.")
		}
		if len(users) > 0 {
			return nil, apierr.InUse(fmt.Sprintf("apps still name region %s: %s", r.Name, strings.Join(users, ", ")),
				"Deploy these apps without the region, or delete them.")
		}
		before, err := a.regionView(c, c.by, r)
		if err != nil {
			return nil, err
		}
		if err := c.Tx.DeleteRegion(r.ID); err != nil {
			return nil, fmt.Errorf("delete region %s: %w", r.ID, err)
		}
		return &windlassv1.DeleteRegionResponse{}, c.auditChange("region", r.ID, before, nil)
	})
	return res, err
}
