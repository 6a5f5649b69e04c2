package api

import (
	"context"
	"fmt"
	"maps"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// UpdateRegion replaces a region's labels.
func (a regionService) UpdateRegion(ctx context.Context, req *windlassv1.UpdateRegionRequest) (*windlassv1.UpdateRegionResponse, error) {
	if err := checkLabels(req.GetLabels()); err != nil {
		return nil, err
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.UpdateRegionResponse, error) {
		r, err := c.regions().managedRegion(req.GetRegion())
		if err != nil {
			return nil, err
		}
		if r.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("region", r.ID, r.ResourceVersion)
		}
		before, err := a.regionView(c, c.by, r)
		if err != nil {
			return nil, err
		}
		if maps.Equal(r.Labels, req.GetLabels()) {
			return &windlassv1.UpdateRegionResponse{Region: before, Unchanged: true}, nil
		}
		// An earlier release accepted any coordinates, which must not prevent a change of other labels.
		if changesPlace(r.Labels, req.GetLabels()) {
			if err := checkPlace(req.GetLabels()); err != nil {
				return nil, err
			}
		}
		r.Labels = req.GetLabels()
		if err := c.regions().storeRegion(&r); err != nil {
			return nil, err
		}
		after, err := a.regionView(c, c.by, r)
		if err != nil {
			return nil, err
		}
		return &windlassv1.UpdateRegionResponse{Region: after}, c.auditChange("region", r.ID, before, after)
	})
	return res, err
}

// changesPlace reports whether a label that says where a region is differs.
func changesPlace(before, after map[string]string) bool {
	for name := range placeLabels {
		was, had := before[name]
		if is, has := after[name]; is != was || has != had {
			return true
		}
	}
	return false
}

// storeRegion writes the locked region's row, and updates the copy to match it.
func (c regionMutation) storeRegion(r *model.Region) error {
	r.UpdatedAt = c.at
	if err := c.UpdateRegion(*r); err != nil {
		return fmt.Errorf("update region %s: %w", r.ID, err)
	}
	r.ResourceVersion++
	return nil
}
