package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GrantRegion lets a workspace use a region of the platform. It fails if the workspace has another region with the
// same name, or if another workspace uses the region and the region does not isolate instances.
func (a regionService) GrantRegion(ctx context.Context, req *windlassv1.GrantRegionRequest) (*windlassv1.GrantRegionResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.GrantRegionResponse, error) {
		r, w, err := c.regions().grantOf(req.GetRegion(), req.GetWorkspace())
		if err != nil {
			return nil, err
		}
		other, err := c.GetRegionByName(w.ID, r.Name)
		switch {
		case err == nil && other.ID == r.ID:
			return &windlassv1.GrantRegionResponse{Unchanged: true}, nil
		case err == nil:
			return nil, apierr.Exists("region", "region", r.Name)
		case !errors.Is(err, model.ErrNotFound):
			return nil, fmt.Errorf("read region %s: %w", r.Name, err)
		}
		if err := c.regions().mayShare(r, w, req.GetTrustAllTenants()); err != nil {
			return nil, err
		}
		err = c.Tx.GrantRegion(r.ID, w.ID, c.at)
		if err != nil && !errors.Is(err, model.ErrExists) {
			return nil, fmt.Errorf("grant region %s to workspace %s: %w", r.ID, w.ID, err)
		}
		if err := c.regions().wakeIn(r, w); err != nil {
			return nil, err
		}
		return &windlassv1.GrantRegionResponse{}, c.auditFor(w.ID, "region_grant", r.ID, nil, workspaceProto(w))
	})
	return res, err
}

// wakeIn wakes the workspace's apps in the region, because the grant decides whether they may grow there.
func (c regionMutation) wakeIn(r model.Region, w model.Workspace) error {
	ids, err := c.appsIn(r, w)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := c.wake(id); err != nil {
			return err
		}
	}
	return nil
}

// appsIn returns the sorted ids of the workspace's apps that have rows in the region.
func (c regionMutation) appsIn(r model.Region, w model.Workspace) (ids []string, err error) {
	all, err := c.AppsInRegion(r.ID)
	if err != nil {
		return nil, fmt.Errorf("list apps in region %s: %w", r.ID, err)
	}
	apps, err := c.GetApps(all)
	if err != nil {
		return nil, fmt.Errorf("read apps in region %s: %w", r.ID, err)
	}
	for _, app := range apps {
		if app.WorkspaceID == w.ID {
			ids = append(ids, app.ID)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

func (c regionMutation) grantOf(region, workspace string) (r model.Region, w model.Workspace, err error) {
	if r, err = c.managedRegion(region); err != nil {
		return r, w, err
	}
	w, err = c.api.findWorkspace(c.mutation, workspace, "workspace")
	return r, w, err
}
