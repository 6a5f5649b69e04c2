package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ApprovePrune lets the region remove all named workloads. It fails if one of them is not in quarantine,
// because the caller then probably made a mistake.
func (a regionService) ApprovePrune(ctx context.Context, req *windlassv1.ApprovePruneRequest) (*windlassv1.ApprovePruneResponse, error) {
	for i, key := range req.GetKeys() {
		if !plainID(key) {
			return nil, apierr.Missing(fmt.Sprintf("keys[%d]", i), "quarantined workload", apierr.Clip(key, maxID), "List the workloads in quarantine.")
		}
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.ApprovePruneResponse, error) {
		r, err := c.regions().managedRegion(req.GetRegion())
		if err != nil {
			return nil, err
		}
		approved, err := c.ApproveQuarantine(r.ID, req.GetKeys(), c.at)
		if err != nil {
			return nil, fmt.Errorf("approve pruning in region %s: %w", r.ID, err)
		}
		found := map[string]bool{}
		for _, q := range approved {
			found[q.Key] = true
			c.Change(r.ID, model.KindDeployment, q.Key, q.Generation+1)
			if err := c.auditChange("quarantine", q.Key, nil, quarantineProto(r, q)); err != nil {
				return nil, err
			}
		}
		for i, key := range req.GetKeys() {
			if !found[key] {
				return nil, apierr.Missing(fmt.Sprintf("keys[%d]", i), "quarantined workload", key, "List the workloads in quarantine.")
			}
		}
		return &windlassv1.ApprovePruneResponse{Approved: int32(len(approved))}, nil
	})
	return res, err
}
