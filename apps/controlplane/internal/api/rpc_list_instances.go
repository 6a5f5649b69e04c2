package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListInstances returns instances. Pages are by id, so that they are stable while instances come and go. Within a
// page, instances are sorted by region, role, group and slot. Ended instances come last.
func (a deploymentService) ListInstances(ctx context.Context, req *windlassv1.ListInstancesRequest) (*windlassv1.ListInstancesResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(req.GetPage())
	if err != nil {
		return nil, err
	}
	if req.GetApp() != "" && req.GetDeployment() != "" {
		return nil, apierr.Invalid("deployment", "set app or deployment, not both")
	}
	res := &windlassv1.ListInstancesResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		filter, err := a.instanceFilter(tx, by, req)
		if err != nil {
			return err
		}
		rows, err := tx.ListInstances(filter, page)
		if err != nil {
			return fmt.Errorf("list instances: %w", err)
		}
		rows, res.Page = cutPage(rows, page, func(i model.Instance) string { return i.ID })
		res.Instances, err = a.instanceViews(tx, rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func (a deploymentService) instanceFilter(tx Tx, by caller, req *windlassv1.ListInstancesRequest) (model.InstanceFilter, error) {
	f := model.InstanceFilter{WorkspaceID: by.WorkspaceID, IncludeTerminated: req.GetIncludeTerminated()}
	if req.GetApp() != "" {
		app, err := a.findApp(tx, by.WorkspaceID, req.GetApp(), true)
		if err != nil {
			return f, err
		}
		f.AppID = app.ID
	}
	if req.GetDeployment() != "" {
		d, err := a.findDeployment(tx, by.WorkspaceID, req.GetDeployment(), "deployment")
		if err != nil {
			return f, err
		}
		f.DeploymentID = d.ID
	}
	if req.GetRegion() != "" {
		r, err := a.findRegion(tx, by, req.GetRegion())
		if err != nil {
			return f, err
		}
		f.RegionID = r.ID
	}
	return f, nil
}

func (a deploymentService) instanceViews(tx Tx, rows []model.Instance) ([]*windlassv1.Instance, error) {
	deploymentIDs, regionIDs := map[string]bool{}, map[string]bool{}
	for _, i := range rows {
		deploymentIDs[i.DeploymentID], regionIDs[i.RegionID] = true, true
	}
	deployments, err := tx.GetDeployments(keysOf(deploymentIDs))
	if err != nil {
		return nil, fmt.Errorf("read deployments: %w", err)
	}
	apps, err := a.appsOf(tx, deployments)
	if err != nil {
		return nil, err
	}
	made := map[string]model.Deployment{}
	for _, d := range deployments {
		made[d.ID] = d
	}
	regions, err := a.regionsByID(tx, regionIDs)
	if err != nil {
		return nil, err
	}
	out := make([]*windlassv1.Instance, 0, len(rows))
	for _, i := range rows {
		out = append(out, &windlassv1.Instance{
			Id: i.ID, AppId: i.AppID, AppName: apps[i.AppID].Name, DeploymentId: i.DeploymentID, Version: made[i.DeploymentID].Version,
			Region: regions[i.RegionID].ShownName(), Role: i.Role, Group: i.Group, Slot: i.Slot, Hosts: model.HostsOfInstance(made[i.DeploymentID].Spec, i.Role),
			Status: i.Status, Reason: i.Reason, Message: i.Message, Address: i.Address, Restarts: i.Restarts,
			Gpus: i.GPUs, RuntimeName: i.RuntimeName, StartedAt: i.StartedAt, ReadyAt: i.ReadyAt, UpdatedAt: i.UpdatedAt,
		})
	}
	slices.SortStableFunc(out, func(x, y *windlassv1.Instance) int {
		return cmp.Or(
			cmp.Compare(endedCount(x), endedCount(y)), cmp.Compare(x.GetRegion(), y.GetRegion()), cmp.Compare(x.GetRole(), y.GetRole()),
			cmp.Compare(x.GetGroup(), y.GetGroup()), cmp.Compare(x.GetSlot(), y.GetSlot()), cmp.Compare(x.GetId(), y.GetId()))
	})
	return out, nil
}

// endedCount returns 1 for an instance that has ended, else 0.
func endedCount(i *windlassv1.Instance) int {
	if i.GetStatus() == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
		return 1
	}
	return 0
}
