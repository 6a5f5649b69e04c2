package api

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetTier makes a tier, or replaces its features.
func (a workspaceService) SetTier(ctx context.Context, req *windlassv1.SetTierRequest) (*windlassv1.SetTierResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetTierResponse, error) {
		have, err := c.LockTier(req.GetName())
		isNew := errors.Is(err, model.ErrNotFound)
		if err != nil && !isNew {
			return nil, fmt.Errorf("lock tier %s: %w", req.GetName(), err)
		}
		if have.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("tier", req.GetName(), have.ResourceVersion)
		}
		next := model.Tier{
			Name: req.GetName(), Features: model.FeaturesOf(req.GetFeatures()), UpdatedAt: c.at, ResourceVersion: have.ResourceVersion + 1,
		}
		if !isNew && next.Features == have.Features {
			return &windlassv1.SetTierResponse{Tier: tierProto(have), Unchanged: true}, nil
		}
		var before proto.Message
		if isNew {
			if err := c.tenants().insertTier(next); err != nil {
				return nil, err
			}
		} else {
			before = tierProto(have)
			if err := c.UpdateTier(next); err != nil {
				return nil, fmt.Errorf("store tier %s: %w", next.Name, err)
			}
		}
		return &windlassv1.SetTierResponse{Tier: tierProto(next)}, c.auditChange("tier", next.Name, before, tierProto(next))
	})
	return res, err
}

func (c tenantMutation) insertTier(t model.Tier) error {
	have, err := c.ListTiers()
	if err != nil {
		return fmt.Errorf("list tiers: %w", err)
	}
	if len(have) >= model.MaxTiers {
		return apierr.OverLimit("name", fmt.Sprintf("there are %d tiers, which is the maximum", len(have)), "Delete a tier that no workspace has.")
	}
	err = c.InsertTier(t)
	if errors.Is(err, model.ErrExists) {
		return apierr.Conflict("tier", t.Name, 1) // another call made the tier meanwhile
	}
	if err != nil {
		return fmt.Errorf("create tier %s: %w", t.Name, err)
	}
	return nil
}
