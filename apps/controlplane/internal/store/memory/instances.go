package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const terminated = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED

// PutInstances lets no region overwrite another's instances, because agents choose the ids.
func (t *tx) PutInstances(rows []model.Instance) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b model.Instance) int { return cmp.Compare(a.ID, b.ID) })
	for _, i := range rows {
		stored, ok, err := instanceTable.overlayIn(t).lock(i.ID)
		if err != nil {
			return err
		}
		if ok && (i.Guard <= stored.Guard || i.RegionID != stored.RegionID) {
			continue
		}
		if err := instanceTable.overlayIn(t).put(i); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) GetInstance(workspaceID, id string) (model.Instance, error) {
	i, ok := instanceTable.overlayIn(t).get(id)
	return oneRow(i, ok && i.WorkspaceID == workspaceID, "instance", id)
}

func (t *tx) MarkLost(regionID string, before model.Guard, now int64) ([]string, error) {
	rows, err := instanceTable.overlayIn(t).lockList(func(i model.Instance) bool {
		return i.RegionID == regionID && i.Guard < before && i.Status != terminated
	})
	if err != nil {
		return nil, err
	}
	var deployments []string
	for _, i := range rows {
		i.Status, i.Reason, i.Message = terminated, "Lost", "the region's inventory no longer has it"
		i.UpdatedAt = now
		if err := instanceTable.overlayIn(t).put(i); err != nil {
			return nil, err
		}
		deployments = append(deployments, i.DeploymentID)
	}
	return sortDistinct(deployments), nil
}

func (t *tx) CountInstancesByStatus() (map[windlassv1.InstanceStatus]int, error) {
	counts := map[windlassv1.InstanceStatus]int{}
	for _, i := range instanceTable.overlayIn(t).list(func(model.Instance) bool { return true }) {
		counts[i.Status]++
	}
	return counts, nil
}

func (t *tx) ListInstances(f store.InstanceFilter, p store.Page) ([]model.Instance, error) {
	is := func(want, got string) bool { return want == "" || want == got }
	rows := instanceTable.overlayIn(t).list(func(i model.Instance) bool {
		return is(f.WorkspaceID, i.WorkspaceID) && is(f.AppID, i.AppID) && is(f.DeploymentID, i.DeploymentID) &&
			is(f.RegionID, i.RegionID) && (f.IncludeTerminated || i.Status != terminated)
	})
	return pageOf(rows, p, func(i model.Instance) string { return i.ID }), nil
}

func (t *tx) CountInstances(regionIDs []string) (map[string]int, error) {
	of := setOf(regionIDs)
	counts := map[string]int{}
	for _, i := range instanceTable.overlayIn(t).list(func(i model.Instance) bool { return of[i.RegionID] && i.Status != terminated }) {
		counts[i.RegionID]++
	}
	return counts, nil
}

func (t *tx) DeleteInstances(terminatedBefore int64, limit int) (int, error) {
	rows, err := instanceTable.overlayIn(t).lockList(func(i model.Instance) bool { return i.Status == terminated && i.UpdatedAt < terminatedBefore })
	if err != nil {
		return 0, err
	}
	slices.SortFunc(rows, func(a, b model.Instance) int { return cmp.Compare(a.UpdatedAt, b.UpdatedAt) })
	rows = firstRows(rows, limit)
	for _, i := range rows {
		if err := instanceTable.overlayIn(t).delete(i.ID); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}
