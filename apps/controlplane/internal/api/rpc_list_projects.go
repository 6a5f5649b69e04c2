package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListProjects returns projects by name.
func (a projectService) ListProjects(ctx context.Context, req *windlassv1.ListProjectsRequest) (*windlassv1.ListProjectsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	var rows []model.Project
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err = tx.ListProjects(by.WorkspaceID, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list projects: %w", err)
	}
	res := &windlassv1.ListProjectsResponse{}
	rows, res.Page = cutPage(rows, page, func(p model.Project) string { return p.Name })
	for _, p := range rows {
		res.Projects = append(res.Projects, projectProto(p))
	}
	return res, nil
}
