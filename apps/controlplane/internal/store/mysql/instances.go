package mysql

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func instanceFromRow(r gen.Instance) (model.Instance, error) {
	m := model.Instance{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, RegionID: r.Region,
		Role: r.Role, Group: r.GroupNo, Slot: r.SlotNo, Status: windlassv1.InstanceStatus(r.Status),
		Reason: r.Reason, Message: r.Message, Address: r.Address, RuntimeName: r.RuntimeName, Restarts: r.Restarts,
		Guard: model.Guard(r.GuardNo), StartedAt: r.StartedAt, ReadyAt: r.ReadyAt, UpdatedAt: r.UpdatedAt,
	}
	return m, decodeJSON(r.Gpus, &m.GPUs)
}

// newerHere is newer, with a check of the region. Agents choose the ids of instances, and a region must not
// overwrite instances of another region.
const newerHere = "region = VALUES(region) AND " + newer

var (
	instanceColumns = []string{
		"workspace_id", "app_id", "deployment_id", "role", "group_no", "slot_no", "status", "reason", "message",
		"address", "runtime_name", "restarts", "gpus", "started_at", "ready_at", "updated_at", "terminated_at",
	}
	putInstances = insertInto("PutInstances", "instances",
		append([]string{"id", "region", "guard_no"}, instanceColumns...)...).
		guardedBy(newerHere, "guard_no", instanceColumns...).withDefaults(usualInstance)
)

// usualInstance has the default values of columns, which most instances have.
var usualInstance = map[string]any{
	"role": "main", "slot_no": int32(0), "reason": "", "message": "", "restarts": int32(0), "gpus": "[]", "terminated_at": int64(0),
}

func (t *tx) PutInstances(rows []model.Instance) error {
	// Pointers are sorted, because the rows are large. The instances of a report are usually in order already.
	sorted := make([]*model.Instance, len(rows))
	for i := range rows {
		sorted[i] = &rows[i]
	}
	slices.SortStableFunc(sorted, func(a, b *model.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return t.queryError(runBulk(t, t.db, putInstances, sorted, func(args []any, m *model.Instance) []any {
		gpus := "[]"
		if m.GPUs == nil || len(m.GPUs) > 0 {
			list, _ := encodeJSON(m.GPUs) // strings always encode
			gpus = string(list)
		}
		var terminated int64
		if m.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			terminated = max(m.UpdatedAt, 1)
		}
		return append(args, m.ID, m.RegionID, int64(m.Guard),
			m.WorkspaceID, m.AppID, m.DeploymentID, clipText(m.Role, 63), m.Group, m.Slot, int32(m.Status),
			clipText(m.Reason, maxReason), clipText(m.Message, maxMessage), clipText(m.Address, maxName),
			clipText(m.RuntimeName, maxName), m.Restarts, gpus, m.StartedAt, m.ReadyAt, m.UpdatedAt, terminated)
	}), "put instances", "")
}

func (t *tx) GetInstance(workspaceID, id string) (model.Instance, error) {
	return get(t, "get instance", id, instanceFromRow)(
		t.q.GetInstance(t.ctx, gen.GetInstanceParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) MarkLost(regionID string, guard model.Guard, now int64) ([]string, error) {
	ids, err := t.q.DeploymentsWithLost(t.ctx, gen.DeploymentsWithLostParams{Region: regionID, GuardNo: int64(guard)})
	if err != nil || len(ids) == 0 {
		return nil, t.queryError(err, "find lost instances of region", regionID)
	}
	return ids, t.queryError(t.q.MarkLost(t.ctx, gen.MarkLostParams{
		Message: "the region's inventory no longer has it",
		At:      max(now, 1), Region: regionID, GuardNo: int64(guard),
	}), "mark lost instances of region", regionID)
}

func (t *tx) ListInstances(f store.InstanceFilter, p store.Page) ([]model.Instance, error) {
	if f == (store.InstanceFilter{WorkspaceID: f.WorkspaceID, DeploymentID: f.DeploymentID}) && p.After == "" {
		rows, ok, err := prefetchRows(t, theDeployments, fmt.Sprintf("%d instances of %s", p.Limit, f.WorkspaceID), []string{f.DeploymentID},
			func(i model.Instance) string { return i.DeploymentID },
			func(ids []string) ([]model.Instance, error) {
				var each []store.InstanceFilter
				for _, id := range ids {
					each = append(each, store.InstanceFilter{WorkspaceID: f.WorkspaceID, DeploymentID: id})
				}
				return t.listInstances(p, each...)
			})
		if ok {
			return rows, err
		}
	}
	return t.listInstances(p, f)
}

// listInstances composes its query, because the set of conditions decides which index is used. Each filter
// has its own page.
func (t *tx) listInstances(p store.Page, filters ...store.InstanceFilter) ([]model.Instance, error) {
	var pages []string
	var args []any
	for _, f := range filters {
		where := []string{"id > ?"}
		args = append(args, p.After)
		for _, c := range []struct{ column, value string }{
			{"workspace_id", f.WorkspaceID}, {"app_id", f.AppID}, {"deployment_id", f.DeploymentID}, {"region", f.RegionID},
		} {
			if c.value != "" {
				where = append(where, c.column+" = ?")
				args = append(args, c.value)
			}
		}
		if !f.IncludeTerminated {
			where = append(where, "terminated_at = 0")
		}
		pages = append(pages, `(SELECT id, workspace_id, app_id, deployment_id, region, role, group_no, slot_no, status, reason, message,
    address, runtime_name, restarts, gpus, guard_no, started_at, ready_at, updated_at
FROM instances WHERE `+strings.Join(where, " AND ")+" ORDER BY id LIMIT ?)")
		args = append(args, limitOrAll(p.Limit))
	}
	rows := []model.Instance{}
	err := scanRows(t, t.db, "-- name: ListInstances :many\n"+strings.Join(pages, " UNION ALL "), args, func(row scanner) error {
		var r gen.Instance
		if err := row.Scan(&r.ID, &r.WorkspaceID, &r.AppID, &r.DeploymentID, &r.Region, &r.Role, &r.GroupNo, &r.SlotNo,
			&r.Status, &r.Reason, &r.Message, &r.Address, &r.RuntimeName, &r.Restarts, &r.Gpus, &r.GuardNo,
			&r.StartedAt, &r.ReadyAt, &r.UpdatedAt); err != nil {
			return err
		}
		m, err := instanceFromRow(r)
		rows = append(rows, m)
		return err
	})
	slices.SortFunc(rows, func(a, b model.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return rows, t.queryError(err, "list instances of", filters[0].WorkspaceID)
}

func (t *tx) CountInstances(regionIDs []string) (map[string]int, error) {
	counts := map[string]int{}
	rows, err := inChunks(sortDistinct(regionIDs), func(ids []string) ([]gen.CountInstancesRow, error) {
		return t.q.CountInstances(t.ctx, ids)
	})
	for _, r := range rows {
		counts[r.Region] = int(r.N)
	}
	return counts, t.queryError(err, "count instances", "")
}

func (t *tx) DeleteInstances(terminatedBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteInstances(t.ctx, gen.DeleteInstancesParams{TerminatedBefore: terminatedBefore, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete terminated instances", "")
}

func (t *tx) CountInstancesByStatus() (map[windlassv1.InstanceStatus]int, error) {
	rows, err := t.q.CountInstancesByStatus(t.ctx)
	counts := make(map[windlassv1.InstanceStatus]int, len(rows))
	for _, r := range rows {
		counts[windlassv1.InstanceStatus(r.Status)] = int(r.N)
	}
	return counts, t.queryError(err, "count instances by status", "")
}
