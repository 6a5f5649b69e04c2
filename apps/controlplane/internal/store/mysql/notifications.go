package mysql

import (
	"cmp"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func notificationEndpoint(r gen.NotificationEndpoint) (model.NotificationEndpoint, error) {
	return model.NotificationEndpoint{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Name: r.Name, ScopeID: r.ScopeID, Format: model.NotificationFormat(r.Format),
		Kinds: r.Kinds, Origin: r.Origin, Disabled: r.Disabled, PreviousUntil: r.PreviousUntil, TestedAt: r.TestedAt,
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}, nil
}

func (t *tx) InsertNotificationEndpoint(e model.NotificationEndpoint) error {
	return t.queryError(t.q.InsertNotificationEndpoint(t.ctx, gen.InsertNotificationEndpointParams{
		ID: e.ID, WorkspaceID: e.WorkspaceID, Name: e.Name, ScopeID: e.ScopeID, Format: int32(e.Format), Kinds: e.Kinds,
		Origin: e.Origin, Disabled: e.Disabled, PreviousUntil: e.PreviousUntil, TestedAt: e.TestedAt,
		CreatedBy: clipText(e.CreatedBy, maxName), CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt,
	}), "insert notification endpoint", e.Name)
}

func (t *tx) UpdateNotificationEndpoint(e model.NotificationEndpoint) error {
	n, err := t.q.UpdateNotificationEndpoint(t.ctx, gen.UpdateNotificationEndpointParams{
		ScopeID: e.ScopeID, Format: int32(e.Format), Kinds: e.Kinds, Origin: e.Origin, Disabled: e.Disabled,
		PreviousUntil: e.PreviousUntil, TestedAt: e.TestedAt, UpdatedAt: e.UpdatedAt, WorkspaceID: e.WorkspaceID, ID: e.ID,
	})
	return t.requireFound(n, err, "update notification endpoint", e.Name)
}

func (t *tx) LockNotificationEndpoint(workspaceID, name string) (model.NotificationEndpoint, error) {
	if err := t.requireUpdate("lock notification endpoint", name); err != nil {
		return model.NotificationEndpoint{}, err
	}
	return get(t, "lock notification endpoint", name, notificationEndpoint)(t.q.LockNotificationEndpoint(t.ctx, gen.LockNotificationEndpointParams{
		WorkspaceID: workspaceID, Name: name,
	}))
}

func (t *tx) ListNotificationEndpoints(workspaceID string) ([]model.NotificationEndpoint, error) {
	return list(t, "list notification endpoints of", workspaceID, notificationEndpoint)(t.q.ListNotificationEndpoints(t.ctx, gen.ListNotificationEndpointsParams{
		WorkspaceID: workspaceID, Limit: model.ListedNotificationEndpoints,
	}))
}

// GetNotificationEndpoints reads the primary, because deliveries are sent to the endpoints that it returns.
func (t *tx) GetNotificationEndpoints(ids []string) ([]model.NotificationEndpoint, error) {
	return list(t, "get notification endpoints", "", notificationEndpoint)(inChunks(sortDistinct(ids), func(ids []string) ([]gen.NotificationEndpoint, error) {
		return t.primary.GetNotificationEndpoints(t.ctx, ids)
	}))
}

func (t *tx) NotificationEndpointsOfRegion(regionID string, k model.NotificationKind) ([]model.NotificationEndpoint, error) {
	return list(t, "list notification endpoints of region", regionID, notificationEndpoint)(t.q.NotificationEndpointsOfRegion(t.ctx, gen.NotificationEndpointsOfRegionParams{
		KindBit: k.Bit(), Region: regionID,
	}))
}

func (t *tx) DeleteNotificationEndpoint(workspaceID, id string) error {
	n, err := t.q.DeleteNotificationEndpoint(t.ctx, gen.DeleteNotificationEndpointParams{WorkspaceID: workspaceID, ID: id})
	if err := t.requireFound(n, err, "delete notification endpoint", id); err != nil {
		return err
	}
	for _, forget := range []func() error{
		func() error { return t.q.DeleteSecretVersionsOfEnvironment(t.ctx, id) },
		func() error { return t.q.DeleteSecretsOfEnvironment(t.ctx, id) },
		func() error { return t.q.DeleteDeliveriesOfEndpoint(t.ctx, id) },
	} {
		if err := forget(); err != nil {
			return t.queryError(err, "delete rows of notification endpoint", id)
		}
	}
	return nil
}

func (t *tx) DeleteNotificationEndpointsOf(workspaceID, scopeID string) error {
	return t.deleteEndpointsOf([]string{scopeID}, func(e gen.NotificationEndpoint) bool { return e.WorkspaceID == workspaceID })
}

// deleteEndpointsOf deletes the endpoints of the projects and apps for which match is true.
func (t *tx) deleteEndpointsOf(scopeIDs []string, match func(gen.NotificationEndpoint) bool) error {
	rows, err := t.primary.NotificationEndpointsOfScopes(t.ctx, scopeIDs)
	if err != nil {
		return t.queryError(err, "list notification endpoints of", scopeIDs[0])
	}
	for _, r := range rows {
		if !match(r) {
			continue
		}
		if err := t.DeleteNotificationEndpoint(r.WorkspaceID, r.ID); err != nil {
			return err
		}
	}
	return nil
}

// deleteEndpointsOfWorkspace deletes all endpoints of the workspace.
func (t *tx) deleteEndpointsOfWorkspace(id string) error {
	all, err := t.ListNotificationEndpoints(id)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := t.DeleteNotificationEndpoint(id, e.ID); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) NotifyRegion(n model.RegionNotice) error { return store.NotifyRegion(t, n) }

// maxAppNames is the column's width.
const maxAppNames = 4 << 10

var insertDeliveries = insertInto("InsertDeliveries", "notification_deliveries",
	"endpoint_id", "message_id", "workspace_id", "kind", "at", "what", "why", "who", "workspace", "project", "environment", "app", "app_id",
	"version", "rollout_id", "deployment_id", "region", "region_id", "events", "apps", "app_names", "state", "attempts", "due_at",
	"tries_since", "done_at", "problem")

func (t *tx) InsertDeliveries(rows []model.Delivery) error {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, model.CompareDeliveries)
	return t.queryError(runBulk(t, t.db, insertDeliveries, rows, func(args []any, d model.Delivery) []any {
		return append(args, d.EndpointID, d.MessageID, d.WorkspaceID, int32(d.Kind), d.At, clipText(d.What, maxReason), clipText(d.Why, maxWhy),
			clipText(d.Who, maxName), d.Workspace, d.Project, d.Environment, d.App, d.AppID, d.Version, d.RolloutID, d.DeploymentID,
			d.Region, d.RegionID, d.Events, d.Apps, clipText(d.AppNames, maxAppNames), int32(d.State), d.Attempts, d.DueAt, d.TriesSince,
			d.DoneAt, clipText(d.Problem, maxWhy))
	}), "insert notification deliveries", "")
}

// notifyRow inserts the delivery of one history entry to the endpoints of the entry's scope, with current names.
// Its literals are compared with columns directly, so that every table is read by its index.
const notifyRow = `SELECT e.id, ?, e.workspace_id, ?, ?, ?, ?, ?, w.name, p.name, v.name, a.name, a.id, ?, ?, ?, COALESCE(r.name, ''), ?, 1, 1, CONCAT(p.name, '/', v.name, '/', a.name), 0, 0, ?, ?, 0, ''
FROM notification_endpoints e JOIN apps a ON a.id = ? AND a.workspace_id = e.workspace_id
JOIN environments v ON v.id = a.environment_id JOIN projects p ON p.id = a.project_id JOIN workspaces w ON w.id = e.workspace_id
LEFT JOIN regions r ON r.id = ?
WHERE e.workspace_id = ? AND e.scope_id IN ('', a.project_id, a.id) AND e.disabled = FALSE AND e.kinds & ? <> 0`

// notifyRows bounds the entries of one statement.
const notifyRows = 100

// notifyHistory inserts deliveries of the entries that are sent to endpoints, in one statement. Without such
// entries, it runs no statement.
func (t *tx) notifyHistory(rows []model.History) error {
	var deliveries []model.Delivery
	for _, h := range rows {
		if k, ok := model.NotificationOf(h.What); ok {
			deliveries = append(deliveries, model.DeliveryOf(h, k))
		}
	}
	parts := strings.Split(notifyRow, "?")
	for part := range slices.Chunk(deliveries, notifyRows) {
		query := []byte("-- name: NotifyHistory :exec\nINSERT INTO notification_deliveries" + columnList(insertDeliveries.columns) + "\n")
		for i, d := range part {
			if i > 0 {
				query = append(query, "\nUNION ALL "...)
			}
			var err error
			query, err = appendRow(query, parts, []any{
				d.MessageID, int32(d.Kind), d.At, clipText(d.What, maxReason), clipText(d.Why, maxWhy), clipText(d.Who, maxName),
				d.Version, d.RolloutID, d.DeploymentID, d.RegionID, d.DueAt, d.TriesSince,
				d.AppID, d.RegionID, d.WorkspaceID, d.Kind.Bit(),
			})
			if err != nil {
				return err
			}
		}
		if _, err := t.db.ExecContext(t.ctx, string(query)); err != nil {
			return t.queryError(err, "notify of history", part[0].MessageID)
		}
	}
	return nil
}

func deliveryFromRow(r gen.NotificationDelivery) (model.Delivery, error) {
	return model.Delivery{
		EndpointID: r.EndpointID, MessageID: r.MessageID, WorkspaceID: r.WorkspaceID, Kind: model.NotificationKind(r.Kind), At: r.At,
		What: r.What, Why: r.Why, Who: r.Who, Workspace: r.Workspace, Project: r.Project, Environment: r.Environment, App: r.App,
		AppID: r.AppID, Version: r.Version, RolloutID: r.RolloutID, DeploymentID: r.DeploymentID, Region: r.Region, RegionID: r.RegionID,
		Events: r.Events, Apps: r.Apps, AppNames: r.AppNames, State: model.DeliveryState(r.State), Attempts: r.Attempts, DueAt: r.DueAt,
		TriesSince: r.TriesSince, DoneAt: r.DoneAt, Problem: r.Problem,
	}, nil
}

// DueDeliveries reads the primary, because its results are claimed.
func (t *tx) DueDeliveries(at int64, busy []string, n int) ([]model.Delivery, error) {
	// NOT IN with an empty list would match no row.
	return list(t, "list due notifications", "", deliveryFromRow)(t.primary.DueDeliveries(t.ctx, gen.DueDeliveriesParams{
		At: at, Busy: append([]string{"-"}, busy...), Limit: limitOrAll(n),
	}))
}

func (t *tx) ClaimDelivery(d model.Delivery, until int64, merged []string) error {
	n, err := t.q.ClaimDelivery(t.ctx, gen.ClaimDeliveryParams{
		ClaimedUntil: until, Events: d.Events, Apps: d.Apps, AppNames: clipText(d.AppNames, maxAppNames),
		EndpointID: d.EndpointID, MessageID: d.MessageID, Attempts: d.Attempts, DueAt: d.DueAt,
	})
	if err == nil && n == 0 {
		return wrapError(model.ErrConflict, "claim notification", d.MessageID)
	}
	if err != nil || len(merged) == 0 {
		return t.queryError(err, "claim notification", d.MessageID)
	}
	n, err = t.q.DeleteMergedDeliveries(t.ctx, gen.DeleteMergedDeliveriesParams{EndpointID: d.EndpointID, MessageIds: merged})
	if err == nil && int(n) != len(merged) {
		return wrapError(model.ErrConflict, "merge notifications into", d.MessageID)
	}
	return t.queryError(err, "merge notifications into", d.MessageID)
}

func (t *tx) NoteDelivery(d model.Delivery) error {
	n, err := t.q.NoteDelivery(t.ctx, gen.NoteDeliveryParams{
		State: int32(d.State), DueAt: d.DueAt, DoneAt: d.DoneAt, Problem: clipText(d.Problem, maxWhy),
		EndpointID: d.EndpointID, MessageID: d.MessageID, Attempts: d.Attempts,
	})
	if err == nil && n == 0 {
		return wrapError(model.ErrConflict, "note notification", d.MessageID)
	}
	return t.queryError(err, "note notification", d.MessageID)
}

func (t *tx) ListDeliveries(endpointID string, state model.DeliveryState, p store.Page) ([]model.Delivery, error) {
	return list(t, "list notifications of", endpointID, deliveryFromRow)(t.q.ListDeliveries(t.ctx, gen.ListDeliveriesParams{
		EndpointID: endpointID, State: int32(state), Before: beforeCursor(p), Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) CountDeliveries(workspaceID string) ([]model.DeliveryCount, error) {
	rows, err := t.q.CountDeliveries(t.ctx, workspaceID)
	if err != nil {
		return nil, t.queryError(err, "count notifications of", workspaceID)
	}
	var counts []model.DeliveryCount
	for _, r := range rows {
		counts = append(counts, model.DeliveryCount{EndpointID: r.EndpointID, State: model.DeliveryState(r.State), Count: r.N})
	}
	slices.SortFunc(counts, func(a, b model.DeliveryCount) int {
		return cmp.Or(cmp.Compare(a.EndpointID, b.EndpointID), cmp.Compare(a.State, b.State))
	})
	return counts, nil
}

func (t *tx) ReplayDeliveries(endpointID, messageID string, at int64) (int, error) {
	n, err := t.q.ReplayDeliveries(t.ctx, gen.ReplayDeliveriesParams{At: at, EndpointID: endpointID, MessageID: messageID})
	return int(n), t.queryError(err, "replay notifications of", endpointID)
}

func (t *tx) PendingDeliveries() (int, int64, error) {
	r, err := t.q.OldestPendingDelivery(t.ctx)
	return int(r.N), r.Since, t.queryError(err, "count pending notifications", "")
}

func (t *tx) ForgetDeliveries(at int64, n int) (int, error) {
	gone, err := t.q.ForgetDeliveries(t.ctx, gen.ForgetDeliveriesParams{DueAt: at, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "forget notifications", "")
}
