package mysql

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func history(r gen.History) (model.History, error) {
	return model.History{
		ID: r.ID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, At: r.At, What: r.What, Why: r.Why, Who: r.Who,
		RolloutID: r.RolloutID, DeploymentID: r.DeploymentID, Version: r.Version, RegionID: r.Region,
	}, nil
}

var insertHistory = insertInto("InsertHistory", "history",
	"id", "workspace_id", "app_id", "at", "what", "why", "who", "rollout_id", "deployment_id", "version", "region")

func (t *tx) InsertHistory(rows []model.History) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b model.History) int { return cmp.Compare(a.ID, b.ID) })
	return t.err(runBulk(t, t.db, insertHistory, rows, func(args []any, h model.History) []any {
		return append(args, h.ID, h.WorkspaceID, h.AppID, h.At, clip(h.What, maxReason), clip(h.Why, maxMessage),
			clip(h.Who, maxName), h.RolloutID, h.DeploymentID, h.Version, h.RegionID)
	}), "insert history", "")
}

func (t *tx) ListHistory(workspaceID, appID string, p store.Page) ([]model.History, error) {
	return list(t, "list history of app", appID, history)(t.q.ListHistory(t.ctx, gen.ListHistoryParams{
		WorkspaceID: workspaceID, AppID: appID, Before: before(p), Limit: limit(p.Limit),
	}))
}

func (t *tx) HistorySince(appID, after string, n int) ([]model.History, error) {
	return list(t, "list history of app", appID, history)(t.q.HistorySince(t.ctx, gen.HistorySinceParams{
		AppID: appID, After: after, Limit: limit(n),
	}))
}

func (t *tx) InsertAudit(a model.Audit) error {
	return t.err(t.q.InsertAudit(t.ctx, gen.InsertAuditParams{
		ID: a.ID, WorkspaceID: a.WorkspaceID, At: a.At, Actor: clip(a.Actor, maxName), ActorID: a.ActorID,
		Source: clip(a.Source, maxName), ProcedureName: a.Procedure, ResourceKind: a.ResourceKind, ResourceID: a.ResourceID,
		BeforeJson: []byte(a.Before), AfterJson: []byte(a.After),
	}), "insert audit", a.ID)
}

func (t *tx) ListAudit(workspaceID string, p store.Page) ([]model.Audit, error) {
	return list(t, "list audit of", workspaceID, func(r gen.Audit) (model.Audit, error) {
		return model.Audit{
			ID: r.ID, WorkspaceID: r.WorkspaceID, At: r.At, Actor: r.Actor, ActorID: r.ActorID, Source: r.Source,
			Procedure: r.ProcedureName, ResourceKind: r.ResourceKind, ResourceID: r.ResourceID,
			Before: string(r.BeforeJson), After: string(r.AfterJson),
		}, nil
	})(t.q.ListAudit(t.ctx, gen.ListAuditParams{WorkspaceID: workspaceID, Before: before(p), Limit: limit(p.Limit)}))
}

// GetIdempotency reads the primary: a retry must find what its first try wrote.
func (t *tx) GetIdempotency(workspaceID, key string) (model.Idempotency, error) {
	return get(t, "get idempotency record", key, func(r gen.Idempotency) (model.Idempotency, error) {
		return model.Idempotency{
			WorkspaceID: r.WorkspaceID, Key: string(r.IdemKey), RequestHash: blob(r.RequestHash),
			Procedure: r.ProcedureName, Response: blob(r.Response), CreatedAt: r.CreatedAt,
		}, nil
	})(t.primary.GetIdempotency(t.ctx, gen.GetIdempotencyParams{WorkspaceID: workspaceID, IdemKey: []byte(key)}))
}

func (t *tx) InsertIdempotency(m model.Idempotency) error {
	return t.err(t.q.InsertIdempotency(t.ctx, gen.InsertIdempotencyParams{
		WorkspaceID: m.WorkspaceID, IdemKey: []byte(m.Key), RequestHash: notNull(m.RequestHash), ProcedureName: m.Procedure,
		Response: notNull(m.Response), CreatedAt: m.CreatedAt,
	}), "insert idempotency record", m.Key)
}

func (t *tx) DeleteIdempotency(madeBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteIdempotency(t.ctx, gen.DeleteIdempotencyParams{MadeBefore: madeBefore, Limit: limit(n)})
	return int(gone), t.err(err, "delete idempotency records", "")
}
