package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListEnvironments returns the environments of a project by name.
func (a environmentService) ListEnvironments(ctx context.Context, req *windlassv1.ListEnvironmentsRequest) (*windlassv1.ListEnvironmentsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListEnvironmentsResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		p, err := a.findProject(tx, by.WorkspaceID, req.GetProject(), "project")
		if err != nil {
			return err
		}
		rows, err := tx.ListEnvironments(by.WorkspaceID, p.ID, page)
		if err != nil {
			return fmt.Errorf("list environments of project %s: %w", p.ID, err)
		}
		rows, res.Page = cutPage(rows, page, func(e model.Environment) string { return e.Name })
		for _, e := range rows {
			res.Environments = append(res.Environments, environmentProto(p, e))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}
