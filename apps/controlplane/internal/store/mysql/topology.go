package mysql

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func topologyFromRow(r gen.DeploymentTopology) (model.Topology, error) {
	return model.Topology{
		WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, RegionID: r.Region,
		Replicas: r.Replicas, Weight: r.Weight, Generation: r.Generation, Status: windlassv1.TopologyStatus(r.Status),
		Reason: r.Reason, Traceparent: r.Traceparent, Workload: r.Workload, WorkloadVersion: r.WorkloadVersion, Transferred: r.HandedOver, MaxUnavailable: r.MaxUnavailable, Roles: r.Roles, Moving: r.Moving,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}, nil
}

func (t *tx) LockTopology(appIDs ...string) ([]model.Topology, error) {
	if err := t.requireUpdate("lock topology", ""); err != nil {
		return nil, err
	}
	if rows, ok := t.lockedRows(appIDs); ok {
		return rows, nil
	}
	rows, ok, err := prefetchRows(t, theApps, "topology", appIDs, func(r model.Topology) string { return r.AppID }, t.lockTopology)
	if !ok {
		rows, err = t.lockTopology(appIDs)
	}
	if err != nil {
		return nil, err
	}
	for _, id := range appIDs {
		t.locked[id] = map[place]model.Topology{}
	}
	for _, r := range rows {
		t.locked[r.AppID][place{r.DeploymentID, r.RegionID}] = r
	}
	return rows, nil
}

func (t *tx) lockTopology(appIDs []string) ([]model.Topology, error) {
	done := t.ignoreDeferred(appIDs...)
	defer done()
	rows, err := list(t, "lock topology", "", topologyFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.DeploymentTopology, error) {
		return t.q.LockTopologyOfApps(t.ctx, ids)
	}))
	slices.SortFunc(rows, byPlace)
	return rows, err
}

// lockedRows returns the apps' rows if this transaction has locked all of them, so that no other transaction changes
// them.
func (t *tx) lockedRows(appIDs []string) ([]model.Topology, bool) {
	var rows []model.Topology
	for _, id := range sortDistinct(appIDs) {
		locked, ok := t.locked[id]
		if !ok {
			return nil, false
		}
		rows = slices.AppendSeq(rows, maps.Values(locked))
	}
	slices.SortFunc(rows, byPlace)
	return rows, true
}

func (t *tx) ListTopology(appIDs []string) ([]model.Topology, error) {
	if rows, ok := t.lockedRows(appIDs); ok {
		return rows, nil
	}
	done := t.ignoreDeferred(appIDs...)
	defer done()
	rows, err := list(t, "list topology", "", topologyFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.DeploymentTopology, error) {
		return t.q.ListTopologyOfApps(t.ctx, ids)
	}))
	slices.SortFunc(rows, byPlace)
	return rows, err
}

func byPlace(a, b model.Topology) int {
	return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
}

func (t *tx) ListTopologyByEnvironment(environmentID string) ([]model.Topology, error) {
	return list(t, "list topology of environment", environmentID, topologyFromRow)(t.q.ListTopologyOfEnvironment(t.ctx, environmentID))
}

func (t *tx) CountTopologyByRegion(regionID string) (int, error) {
	n, err := t.q.CountTopologyOfRegion(t.ctx, regionID)
	return int(n), t.queryError(err, "count topology of region", regionID)
}

func (t *tx) CountTopology() ([]model.TopologyCount, error) {
	return list(t, "count topology", "", func(r gen.CountTopologyRow) (model.TopologyCount, error) {
		return model.TopologyCount{RegionID: r.Region, Status: windlassv1.TopologyStatus(r.Status), Rows: int(r.RowCount)}, nil
	})(t.q.CountTopology(t.ctx))
}

func (t *tx) CountActiveRollouts() (model.ActiveRolloutCount, error) {
	r, err := t.q.CountActiveRollouts(t.ctx)
	return model.ActiveRolloutCount{Rollouts: int(r.RowCount), OldestAt: r.OldestAt}, t.queryError(err, "count rollouts in flight", "")
}

var (
	topologyColumns = []string{
		"deployment_id", "region", "workspace_id", "app_id", "replicas", "weight", "generation",
		"status", "reason", "traceparent", "workload", "workload_version", "handed_over", "max_unavailable", "roles", "moving", "created_at", "updated_at",
	}
	addTopology     = insertInto("AddTopology", "deployment_topology", topologyColumns...)
	replaceTopology = insertInto("ReplaceTopology", "deployment_topology", topologyColumns...).replacingColumns(topologyColumns[2:]...)
)

func topologyArgs(args []any, r model.Topology) []any {
	return append(args, r.DeploymentID, r.RegionID, r.WorkspaceID, r.AppID, r.Replicas, r.Weight, r.Generation,
		int32(r.Status), clipText(r.Reason, maxName), r.Traceparent, r.Workload, r.WorkloadVersion, r.Transferred, r.MaxUnavailable, r.Roles, r.Moving, r.CreatedAt, r.UpdatedAt)
}

// PutTopology locks the existing rows, unless LockTopology has locked them, and compares generations before it writes
// any row. It inserts the missing rows without ON DUPLICATE KEY. So a row that another transaction inserted
// meanwhile is a conflict, and is not overwritten.
func (t *tx) PutTopology(rows []model.Topology) error {
	if len(rows) == 0 {
		return nil
	}
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, byPlace)
	stored, err := t.storedGenerations(rows)
	if err != nil {
		return t.queryError(err, "lock topology of deployment", rows[0].DeploymentID)
	}
	var added, replaced []model.Topology
	for i, r := range rows {
		t.touchApp(r.AppID)
		if i > 0 && byPlace(rows[i-1], r) == 0 {
			return fmt.Errorf("store: put topology %q in %q twice in one call", r.DeploymentID, r.RegionID)
		}
		at, exists := stored[place{r.DeploymentID, r.RegionID}]
		switch {
		case !exists:
			added = append(added, r)
		case at > r.Generation:
			return fmt.Errorf("store: put topology %q in %q at generation %d, stored is %d: %w",
				r.DeploymentID, r.RegionID, r.Generation, at, model.ErrConflict)
		default:
			replaced = append(replaced, r)
		}
	}
	if c := t.shared; c != nil {
		for _, r := range rows {
			c.about[r.AppID], c.about[r.DeploymentID] = true, true
		}
		keepRows(c, &c.late.added, nil, added...)
		keepRows(c, &c.late.replaced, nil, replaced...)
	} else if err := t.addTopology(added); err != nil {
		return err
	} else if err := t.replaceTopology(replaced); err != nil {
		return err
	}
	for _, r := range rows {
		if known, ok := t.locked[r.AppID]; ok {
			known[place{r.DeploymentID, r.RegionID}] = r
		}
	}
	return nil
}

func (t *tx) addTopology(rows []model.Topology) error {
	if len(rows) == 0 {
		return nil
	}
	slices.SortStableFunc(rows, byPlace)
	err := runBulk(t, t.db, addTopology, rows, topologyArgs)
	if isDuplicate(err) {
		return fmt.Errorf("store: put topology of %q: %w", rows[0].DeploymentID, model.ErrConflict)
	}
	return t.queryError(err, "put topology of deployment", rows[0].DeploymentID)
}

func (t *tx) replaceTopology(rows []model.Topology) error {
	if len(rows) == 0 {
		return nil
	}
	slices.SortStableFunc(rows, byPlace)
	return t.queryError(runBulk(t, t.db, replaceTopology, rows, topologyArgs), "put topology of deployment", rows[0].DeploymentID)
}

// place is the key of a topology row.
type place struct{ deployment, region string }

// storedGenerations returns the generations of the existing rows, and locks the rows.
func (t *tx) storedGenerations(sorted []model.Topology) (map[place]int64, error) {
	stored := make(map[place]int64, len(sorted))
	for _, r := range sorted {
		known, ok := t.locked[r.AppID]
		if !ok {
			return t.lockGenerations(sorted)
		}
		at := place{r.DeploymentID, r.RegionID}
		if row, exists := known[at]; exists {
			stored[at] = row.Generation
		}
	}
	return stored, nil
}

// lockGenerations composes its statement, because sqlc has no list of pairs.
func (t *tx) lockGenerations(sorted []model.Topology) (map[place]int64, error) {
	stored := make(map[place]int64, len(sorted))
	for part := range slices.Chunk(sorted, bulkRows) {
		var q strings.Builder
		q.WriteString("-- name: LockGenerations :many\nSELECT deployment_id, region, generation FROM deployment_topology WHERE ")
		args := make([]any, 0, 2*len(part))
		for i, r := range part {
			if i > 0 {
				q.WriteString(" OR ")
			}
			q.WriteString("(deployment_id = ? AND region = ?)")
			args = append(args, r.DeploymentID, r.RegionID)
		}
		q.WriteString(" ORDER BY deployment_id, region FOR UPDATE")
		err := scanRows(t, t.db, q.String(), args, func(row scanner) error {
			var p place
			var generation int64
			err := row.Scan(&p.deployment, &p.region, &generation)
			stored[p] = generation
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return stored, nil
}

func (t *tx) DeleteTopology(stoppedBefore int64, n int) (int, error) {
	if err := t.requireUpdate("delete stopped topology", ""); err != nil {
		return 0, err
	}
	rows, err := t.q.LockStoppedTopology(t.ctx, gen.LockStoppedTopologyParams{StoppedBefore: stoppedBefore, Limit: limitOrAll(n)})
	if err != nil {
		return 0, t.queryError(err, "find stopped topology", "")
	}
	clear(t.locked)
	for part := range slices.Chunk(rows, bulkRows) {
		where := "(deployment_id = ? AND region = ?)" + strings.Repeat(" OR (deployment_id = ? AND region = ?)", len(part)-1)
		args := make([]any, 0, 2*len(part))
		for _, r := range part {
			args = append(args, r.DeploymentID, r.Region)
		}
		for _, q := range []string{
			"-- name: DeleteTopology :exec\nDELETE FROM deployment_topology WHERE ",
			"-- name: DeleteObserved :exec\nDELETE FROM deployment_observed WHERE ",
		} {
			if _, err := t.db.ExecContext(t.ctx, q+where, args...); err != nil {
				return 0, t.queryError(err, "delete stopped topology", "")
			}
		}
	}
	return len(rows), nil
}

// AppsInRegion is for callers that handle a change of the region's reports or history.
func (t *tx) AppsInRegion(regionID string) ([]string, error) {
	ids, err := t.q.AppsInRegion(t.ctx, regionID)
	return ids, t.queryError(err, "list apps in region", regionID)
}

// GetAssignments implements store.ObservedTx.
func (t *tx) GetAssignments(deployments map[string][]string) ([]model.Assignment, error) {
	rows, err := list(t, "read assignments", "", assignmentFromRow)(rowsOf(wantedOf(deployments),
		func(r gen.GetAssignmentsRow) pair {
			return pair{r.DeploymentTopology.Region, r.DeploymentTopology.DeploymentID}
		},
		func(ids, regions []string) ([]gen.GetAssignmentsRow, error) {
			return t.primary.GetAssignments(t.ctx, gen.GetAssignmentsParams{DeploymentIds: ids, Regions: regions})
		}))
	slices.SortFunc(rows, func(a, b model.Assignment) int { return byPlace(a.Topology, b.Topology) })
	return rows, err
}

func assignmentFromRow(r gen.GetAssignmentsRow) (model.Assignment, error) {
	t, err := topologyFromRow(r.DeploymentTopology)
	return model.Assignment{Topology: t, UnderWay: r.UnderWay != 0}, err
}
