package mysql

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

func observedFromRow(r gen.DeploymentObserved) (model.Observed, error) {
	return model.Observed{
		WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, RegionID: r.Region,
		Guard: model.Guard(r.GuardNo), AppliedEpoch: r.AppliedEpoch, AppliedGeneration: r.AppliedGeneration,
		Phase: r.Phase, Code: r.Code, Message: r.Message, Retryable: r.Retryable, Deleted: r.Deleted,
		CountsGeneration: r.CountsGeneration, Pending: r.Pending, Running: r.Running, Ready: r.Ready,
		Draining: r.Draining, Fail: r.Failed, ReadyReplicas: r.ReadyReplicas, Doomed: r.Doomed, Reason: r.Reason,
		ReasonMessage: r.ReasonMessage, Restarts: r.Restarts, SlowestStartMS: r.SlowestStartMs,
		RoleCounts: string(r.RoleCounts), UpdatedAt: r.UpdatedAt,
	}, nil
}

func (t *tx) ListObserved(appIDs []string) ([]model.Observed, error) {
	if rows, ok, err := prefetchRows(t, theApps, "observed", appIDs, func(o model.Observed) string { return o.AppID }, t.listObserved); ok {
		return rows, err
	}
	return t.listObserved(appIDs)
}

func (t *tx) listObserved(appIDs []string) ([]model.Observed, error) {
	rows, err := list(t, "list observed", "", observedFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.DeploymentObserved, error) {
		return t.q.ListObservedOfApps(t.ctx, ids)
	}))
	slices.SortFunc(rows, byObservedPlace)
	return rows, err
}

func byObservedPlace(a, b model.Observed) int {
	return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
}

// GetObserved reads the primary, because reports are merged into the newest row.
func (t *tx) GetObserved(deployments map[string][]string) ([]model.Observed, error) {
	rows, err := list(t, "get observed", "", observedFromRow)(rowsOf(wantedOf(deployments),
		func(r gen.DeploymentObserved) pair { return pair{r.Region, r.DeploymentID} },
		func(ids, regions []string) ([]gen.DeploymentObserved, error) {
			return t.primary.GetObserved(t.ctx, gen.GetObservedParams{DeploymentIds: ids, Regions: regions})
		}))
	slices.SortFunc(rows, byObservedPlace)
	return rows, err
}

// newer is the condition of every report. A report whose guard is not above the stored one is ignored.
const newer = "VALUES(guard_no) > guard_no"

var (
	observedColumns = []string{
		"workspace_id", "app_id", "applied_epoch", "applied_generation", "phase", "code", "message", "retryable",
		"deleted", "counts_generation", "pending", "running", "ready", "draining", "failed", "ready_replicas",
		"doomed", "reason", "reason_message", "restarts", "slowest_start_ms", "role_counts",
		"updated_at",
	}
	putObserved = insertInto("PutObserved", "deployment_observed",
		append([]string{"deployment_id", "region", "guard_no"}, observedColumns...)...).
		guardedBy(newer, "guard_no", observedColumns...)

	routeObservedColumns = []string{"epoch", "generation", "phase", "code", "message", "updated_at"}
	putRouteObserved     = insertInto("PutRouteObserved", "route_observed",
		append([]string{"app_id", "region", "guard_no"}, routeObservedColumns...)...).
		guardedBy(newer, "guard_no", routeObservedColumns...)
)

func (t *tx) PutObserved(rows []model.Observed) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, byObservedPlace)
	for _, o := range rows {
		t.touchApp(o.AppID)
	}
	return t.queryError(runBulk(t, t.db, putObserved, rows, func(args []any, o model.Observed) []any {
		return append(args, o.DeploymentID, o.RegionID, int64(o.Guard),
			o.WorkspaceID, o.AppID, o.AppliedEpoch, o.AppliedGeneration, o.Phase, clipText(o.Code, maxReason),
			clipText(o.Message, maxMessage), o.Retryable, o.Deleted, o.CountsGeneration, o.Pending, o.Running, o.Ready,
			o.Draining, o.Fail, o.ReadyReplicas, o.Doomed, clipText(o.Reason, maxReason),
			clipText(o.ReasonMessage, maxMessage), o.Restarts, o.SlowestStartMS, []byte(o.RoleCounts), o.UpdatedAt)
	}), "put observed", "")
}

func (t *tx) ListRouteObserved(appIDs []string) ([]model.RouteObserved, error) {
	return list(t, "list observed routes", "", func(r gen.RouteObserved) (model.RouteObserved, error) {
		return model.RouteObserved{
			AppID: r.AppID, RegionID: r.Region, Guard: model.Guard(r.GuardNo), Epoch: r.Epoch,
			Generation: r.Generation, Phase: r.Phase, Code: r.Code, Message: r.Message, UpdatedAt: r.UpdatedAt,
		}, nil
	})(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.RouteObserved, error) {
		return t.q.ListRouteObservedOfApps(t.ctx, ids)
	}))
}

func (t *tx) PutRouteObserved(rows []model.RouteObserved) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b model.RouteObserved) int {
		return cmp.Or(cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.RegionID, b.RegionID))
	})
	for _, o := range rows {
		t.touchApp(o.AppID)
	}
	return t.queryError(runBulk(t, t.db, putRouteObserved, rows, func(args []any, o model.RouteObserved) []any {
		return append(args, o.AppID, o.RegionID, int64(o.Guard), o.Epoch, o.Generation, o.Phase,
			clipText(o.Code, maxReason), clipText(o.Message, maxMessage), o.UpdatedAt)
	}), "put observed routes", "")
}

// ResetObserved locks the rows before it changes them, to return their apps.
func (t *tx) ResetObserved(regionID string, guard model.Guard, now int64) ([]string, error) {
	if err := t.requireUpdate("reset observed of region", regionID); err != nil {
		return nil, err
	}
	rows, err := t.q.LockStaleObserved(t.ctx, gen.LockStaleObservedParams{Region: regionID, GuardNo: int64(guard)})
	if err != nil || len(rows) == 0 {
		return nil, t.queryError(err, "find stale observed of region", regionID)
	}
	if err := t.q.ResetObserved(t.ctx, gen.ResetObservedParams{At: now, Region: regionID, GuardNo: int64(guard)}); err != nil {
		return nil, t.queryError(err, "reset observed of region", regionID)
	}
	apps := make([]string, len(rows))
	for i, r := range rows {
		apps[i] = r.AppID
		t.touchApp(r.AppID)
	}
	return sortDistinct(apps), nil
}
