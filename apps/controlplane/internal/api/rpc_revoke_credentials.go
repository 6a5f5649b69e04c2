package api

import (
	"context"
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RevokeCredentials revokes the credentials of the region's agents, and ends their streams with a new epoch. Running
// instances stay, because the next agent that joins gets the same desired state.
func (a regionService) RevokeCredentials(ctx context.Context, req *windlassv1.RevokeCredentialsRequest) (*windlassv1.RevokeCredentialsResponse, error) {
	salt := newCredential("")
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.RevokeCredentialsResponse, error) {
		r, err := c.regions().managedRegion(req.GetRegion())
		if err != nil {
			return nil, err
		}
		before, err := a.regionView(c, c.by, r)
		if err != nil {
			return nil, err
		}
		res := &windlassv1.RevokeCredentialsResponse{}
		if r.Status != windlassv1.RegionStatus_REGION_STATUS_PENDING {
			// A region has one agent at a time, with one credential.
			res.Revoked = 1
		}
		// A credential that is issued in this millisecond is also revoked.
		r.CredentialNotBefore = c.at + 1
		if err := c.regions().storeRegion(&r); err != nil {
			return nil, err
		}
		if _, err := c.BumpEpoch(r.ID, []byte(salt)); err != nil {
			return nil, fmt.Errorf("start a new epoch of region %s: %w", r.ID, err)
		}
		apps, err := c.AppsInRegion(r.ID)
		if err != nil {
			return nil, fmt.Errorf("list apps of region %s: %w", r.ID, err)
		}
		if err := c.Wake(apps, c.at, c.at); err != nil {
			return nil, fmt.Errorf("wake apps of region %s: %w", r.ID, err)
		}
		after, err := a.regionView(c, c.by, r)
		if err != nil {
			return nil, err
		}
		return res, c.auditChange("region", r.ID, before, after)
	})
	return res, err
}
