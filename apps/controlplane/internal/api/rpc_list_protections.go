package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListProtections returns the workspace's protections. The protection of the whole workspace comes first.
func (a protectionService) ListProtections(ctx context.Context, req *windlassv1.ListProtectionsRequest) (*windlassv1.ListProtectionsResponse, error) {
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
		if by.IsOperator() { // other protections name projects and environments, which an operator must not see
			rows = slices.DeleteFunc(rows, func(p model.Protection) bool { return !p.ByOperator })
		}
		res.Protections, err = protectionViews(tx, w.ID, rows...)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(res.Protections, func(a, b *windlassv1.Protection) int {
		return cmp.Or(cmp.Compare(a.GetEnvironment(), b.GetEnvironment()), cmp.Compare(a.GetProject(), b.GetProject()))
	})
	return res, nil
}
