package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListTiers returns all tiers by name, including the default tier.
func (a workspaceService) ListTiers(ctx context.Context, _ *windlassv1.ListTiersRequest) (*windlassv1.ListTiersResponse, error) {
	var rows []model.Tier
	err := a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		rows, err = tx.ListTiers()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tiers: %w", err)
	}
	byName := func(t model.Tier, name string) int { return cmp.Compare(t.Name, name) }
	if i, found := slices.BinarySearchFunc(rows, model.DefaultTier, byName); !found {
		rows = slices.Insert(rows, i, model.Tier{Name: model.DefaultTier, Features: model.AllFeatures})
	}
	res := &windlassv1.ListTiersResponse{}
	for _, t := range rows {
		res.Tiers = append(res.Tiers, tierProto(t))
	}
	return res, nil
}

func tierProto(t model.Tier) *windlassv1.Tier {
	return &windlassv1.Tier{Name: t.Name, Features: t.Features.List(), UpdatedAt: t.UpdatedAt, ResourceVersion: t.ResourceVersion}
}
