package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListProtections returns the workspace's protections, those of the workspace first.
func (a *API) ListProtections(ctx context.Context, req *windlassv1.ListProtectionsRequest) (*windlassv1.ListProtectionsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListProtectionsResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		w, err := a.visibleWorkspace(tx, by, req.GetWorkspace())
		if err != nil {
			return err
		}
		rows, err := tx.ListProtections(w.ID)
		if err != nil {
			return fmt.Errorf("list protections of workspace %s: %w", w.ID, err)
		}
		res.Protections = nil
		for _, p := range rows {
			if by.IsOperator() && !p.ByOperator {
				continue // it names what an operator does not see
			}
			v, err := a.protectionView(tx, p)
			if errors.Is(err, model.ErrNotFound) {
				continue // its scope was deleted meanwhile
			}
			if err != nil {
				return err
			}
			res.Protections = append(res.Protections, v)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(res.Protections, func(a, b *windlassv1.Protection) int {
		return cmp.Or(cmp.Compare(a.GetEnvironment(), b.GetEnvironment()), cmp.Compare(a.GetProject(), b.GetProject()))
	})
	return res, nil
}
