package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/choices"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SetFeatures sets a workspace's tier, and the features that are allowed or denied to the workspace alone.
func (a workspaceService) SetFeatures(ctx context.Context, req *windlassv1.SetFeaturesRequest) (*windlassv1.SetFeaturesResponse, error) {
	for i, f := range req.GetDenied() {
		if slices.Contains(req.GetAllowed(), f) {
			return nil, apierr.InvalidFix(fmt.Sprintf("denied[%d]", i), fmt.Sprintf("the feature %s is both allowed and denied", choices.Of(f)), "Name it in one of the two lists.")
		}
	}
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.SetFeaturesResponse, error) {
		w, err := a.visibleWorkspace(c, c.by, req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		if _, err := c.LockAdmission(w.ID); err != nil { // the lock of the workspace
			return nil, fmt.Errorf("lock workspace %s: %w", w.ID, err)
		}
		have, err := c.GetFeatures(w.ID)
		if err != nil {
			return nil, fmt.Errorf("read features of workspace %s: %w", w.ID, err)
		}
		if have.ResourceVersion != req.GetResourceVersion() {
			return nil, apierr.Conflict("features of workspace", w.ID, have.ResourceVersion)
		}
		next := have
		next.Tier, next.Allowed, next.Denied = cmp.Or(req.GetTier(), model.DefaultTier), model.FeaturesOf(req.GetAllowed()), model.FeaturesOf(req.GetDenied())
		if next == have {
			return &windlassv1.SetFeaturesResponse{Features: featuresProto(w, have), Unchanged: true}, nil
		}
		tier, err := c.tenants().lockTier(next.Tier, "tier")
		if err != nil {
			return nil, err
		}
		next.TierFeatures, next.UpdatedAt = tier.Features, c.at
		next.ResourceVersion++
		if err := c.PutFeatures(next); err != nil {
			return nil, fmt.Errorf("store features of workspace %s: %w", w.ID, err)
		}
		before, after := featuresProto(w, have), featuresProto(w, next)
		return &windlassv1.SetFeaturesResponse{Features: after}, c.auditFor(w.ID, "features", w.ID, before, after)
	})
	return res, err
}

// lockTier locks a tier, so that it is not deleted before the end of the transaction. The default tier exists even if
// it is not stored.
func (c tenantMutation) lockTier(name, field string) (model.Tier, error) {
	tier, err := c.LockTier(name)
	if errors.Is(err, model.ErrNotFound) {
		if name == model.DefaultTier {
			return model.Tier{Name: name, Features: model.AllFeatures}, nil
		}
		return tier, apierr.Missing(field, "tier", name, "`windlass workspace tier list` shows the tiers, and `windlass workspace tier set` makes one.")
	}
	if err != nil {
		return tier, fmt.Errorf("lock tier %s: %w", name, err)
	}
	return tier, nil
}
