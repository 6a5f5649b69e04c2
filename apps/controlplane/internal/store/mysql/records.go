package mysql

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func historyFromRow(r gen.History) (model.History, error) {
	return model.History{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, At: r.At, What: r.What, Why: r.Why, Who: r.Who,
		RolloutID: r.RolloutID, DeploymentID: r.DeploymentID, Version: r.Version, RegionID: r.Region,
	}, nil
}

var insertHistory = insertInto("InsertHistory", "history",
	"id", "workspace_id", "app_id", "at", "what", "why", "who", "rollout_id", "deployment_id", "version", "region")

func (t *tx) InsertHistory(rows []model.History) error {
	if c := t.shared; c != nil {
		keepRows(c, &c.late.history, nil, rows...)
		return nil
	}
	return t.insertHistory(slices.Clone(rows))
}

func (t *tx) insertHistory(rows []model.History) error {
	slices.SortStableFunc(rows, func(a, b model.History) int { return cmp.Compare(a.ID, b.ID) })
	err := runBulk(t, t.db, insertHistory, rows, func(args []any, h model.History) []any {
		return append(args, h.ID, h.WorkspaceID, h.AppID, h.At, clipText(h.What, maxReason), clipText(h.Why, maxMessage),
			clipText(h.Who, maxName), h.RolloutID, h.DeploymentID, h.Version, h.RegionID)
	})
	if err != nil {
		return t.queryError(err, "insert history", "")
	}
	return t.notifyHistory(rows)
}

func (t *tx) ListHistory(workspaceID, appID string, p store.Page) ([]model.History, error) {
	return list(t, "list history of app", appID, historyFromRow)(t.q.ListHistory(t.ctx, gen.ListHistoryParams{
		WorkspaceID: workspaceID, AppID: appID, Before: beforeCursor(p), Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) HistorySince(appID, after string, n int) ([]model.History, error) {
	return list(t, "list history of app", appID, historyFromRow)(t.q.HistorySince(t.ctx, gen.HistorySinceParams{
		AppID: appID, After: after, Limit: limitOrAll(n),
	}))
}

var insertAudit = insertInto("InsertAudit", "audit",
	"id", "workspace_id", "at", "actor", "actor_id", "source", "procedure_name", "resource_kind", "resource_id", "before_json", "after_json")

func (t *tx) InsertAudit(rows ...model.Audit) error {
	if c := t.shared; c != nil {
		for _, a := range rows {
			keepRows(c, &c.late.audit, nil, a)
		}
		return nil
	}
	return t.insertAudit(rows)
}

func (t *tx) insertAudit(rows []model.Audit) error {
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b model.Audit) int { return cmp.Compare(a.ID, b.ID) })
	return t.queryError(runBulk(t, t.db, insertAudit, rows, func(args []any, a model.Audit) []any {
		return append(args, a.ID, a.WorkspaceID, a.At, clipText(a.Actor, maxName), a.ActorID, clipText(a.Source, maxName), a.Procedure,
			a.ResourceKind, a.ResourceID, notNull([]byte(a.Before)), notNull([]byte(a.After)))
	}), "insert audit", rows[0].ID)
}

func (t *tx) ListAudit(workspaceID string, p store.Page) ([]model.Audit, error) {
	return list(t, "list audit of", workspaceID, func(r gen.Audit) (model.Audit, error) {
		return model.Audit{
			ID: r.ID, WorkspaceID: r.WorkspaceID, At: r.At, Actor: r.Actor, ActorID: r.ActorID, Source: r.Source,
			Procedure: r.ProcedureName, ResourceKind: r.ResourceKind, ResourceID: r.ResourceID,
			Before: string(r.BeforeJson), After: string(r.AfterJson),
		}, nil
	})(t.q.ListAudit(t.ctx, gen.ListAuditParams{WorkspaceID: workspaceID, Before: beforeCursor(p), Limit: limitOrAll(p.Limit)}))
}

// GetIdempotency reads the primary, because a retry must find what its first try wrote.
func (t *tx) GetIdempotency(workspaceID, key string) (model.Idempotency, error) {
	return get(t, "get idempotency record", key, func(r gen.Idempotency) (model.Idempotency, error) {
		return model.Idempotency{
			WorkspaceID: r.WorkspaceID, Key: string(r.IdemKey), RequestHash: blobOrNil(r.RequestHash),
			Procedure: r.ProcedureName, Response: blobOrNil(r.Response), CreatedAt: r.CreatedAt,
		}, nil
	})(t.primary.GetIdempotency(t.ctx, gen.GetIdempotencyParams{WorkspaceID: workspaceID, IdemKey: []byte(key)}))
}

var insertIdempotency = insertInto("InsertIdempotency", "idempotency",
	"workspace_id", "idem_key", "request_hash", "procedure_name", "response", "created_at")

func (t *tx) InsertIdempotency(m model.Idempotency) error {
	if c := t.shared; c != nil {
		keepRows(c, &c.late.keys, nil, m)
		return nil
	}
	return t.insertIdempotency([]model.Idempotency{m})
}

func (t *tx) insertIdempotency(records []model.Idempotency) error {
	if len(records) == 0 {
		return nil
	}
	slices.SortFunc(records, func(a, b model.Idempotency) int {
		return cmp.Or(cmp.Compare(a.WorkspaceID, b.WorkspaceID), cmp.Compare(a.Key, b.Key))
	})
	return t.queryError(runBulk(t, t.db, insertIdempotency, records, func(args []any, m model.Idempotency) []any {
		return append(args, m.WorkspaceID, []byte(m.Key), notNull(m.RequestHash), m.Procedure, notNull(m.Response), m.CreatedAt)
	}), "insert idempotency record", records[0].Key)
}

func (t *tx) DeleteIdempotencyKey(workspaceID, key string) error {
	err := t.q.DeleteIdempotencyKey(t.ctx, gen.DeleteIdempotencyKeyParams{WorkspaceID: workspaceID, IdemKey: []byte(key)})
	return t.queryError(err, "delete idempotency record", key)
}

func (t *tx) DeleteIdempotency(madeBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteIdempotency(t.ctx, gen.DeleteIdempotencyParams{MadeBefore: madeBefore, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete idempotency records", "")
}
