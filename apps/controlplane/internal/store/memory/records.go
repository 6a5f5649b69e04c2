package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertHistory(rows []model.History) error {
	for _, h := range rows {
		if err := historyTable.overlayIn(t).insert(h); err != nil {
			return err
		}
	}
	return t.notifyHistory(rows)
}

func (t *tx) ListHistory(workspaceID, appID string, p store.Page) ([]model.History, error) {
	rows := historyTable.overlayIn(t).list(func(h model.History) bool { return h.WorkspaceID == workspaceID && h.AppID == appID })
	return pageDown(rows, p, func(h model.History) string { return h.ID }), nil
}

func (t *tx) HistorySince(appID, after string, limit int) ([]model.History, error) {
	rows := historyTable.overlayIn(t).list(func(h model.History) bool { return h.AppID == appID && h.ID > after })
	return pageOf(rows, store.Page{Limit: limit}, func(h model.History) string { return h.ID }), nil
}

func (t *tx) InsertAudit(rows ...model.Audit) error {
	for _, a := range rows {
		if err := auditTable.overlayIn(t).insert(a); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) ListAudit(workspaceID string, p store.Page) ([]model.Audit, error) {
	rows := auditTable.overlayIn(t).list(func(a model.Audit) bool { return a.WorkspaceID == workspaceID })
	return pageDown(rows, p, func(a model.Audit) string { return a.ID }), nil
}

func (t *tx) GetIdempotency(workspaceID, key string) (model.Idempotency, error) {
	i, ok := idempotencyTable.overlayIn(t).get(pair{workspaceID, key})
	return oneRow(i, ok, "idempotency record", key)
}

func (t *tx) InsertIdempotency(i model.Idempotency) error {
	return idempotencyTable.overlayIn(t).insert(i)
}

func (t *tx) DeleteIdempotencyKey(workspaceID, key string) error {
	if _, ok := idempotencyTable.overlayIn(t).get(pair{workspaceID, key}); !ok {
		return nil
	}
	return idempotencyTable.overlayIn(t).delete(pair{workspaceID, key})
}

func (t *tx) DeleteIdempotency(before int64, limit int) (int, error) {
	rows, err := idempotencyTable.overlayIn(t).lockList(func(i model.Idempotency) bool { return i.CreatedAt < before })
	if err != nil {
		return 0, err
	}
	slices.SortFunc(rows, func(a, b model.Idempotency) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	rows = firstRows(rows, limit)
	for _, i := range rows {
		if err := idempotencyTable.overlayIn(t).delete(idempotencyTable.key(i)); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}
