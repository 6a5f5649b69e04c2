package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testRecords(t *testing.T, setup setup) {
	t.Run("history is read newest first and followed oldest first", func(t *testing.T) {
		w := setup(t)
		entry := func(n int) model.History {
			return model.History{ID: fmt.Sprintf("his_%d", n), WorkspaceID: w.ws, AppID: "app_1", At: now, What: fmt.Sprint(n)}
		}
		other := entry(5)
		other.AppID = "app_2"
		w.update(func(tx store.Tx) error { return tx.InsertHistory([]model.History{entry(2), entry(1), other}) })
		w.update(func(tx store.Tx) error { return tx.InsertHistory([]model.History{entry(3)}) })
		w.update(func(tx store.Tx) error { return tx.InsertHistory(nil) })
		require.Equal(t, []model.History{entry(3), entry(2), entry(1)}, read(w, func(tx store.Tx) ([]model.History, error) {
			return tx.ListHistory(w.ws, "app_1", store.Page{Limit: 9})
		}))
		require.Equal(t, []model.History{entry(2), entry(3)}, read(w, func(tx store.Tx) ([]model.History, error) {
			return tx.HistorySince("app_1", "his_1", 9)
		}))
		require.Equal(t, []model.History{entry(1)}, read(w, func(tx store.Tx) ([]model.History, error) { return tx.HistorySince("app_1", "", 1) }))
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertHistory([]model.History{entry(4), entry(1)}) })
		require.Len(t, read(w, func(tx store.Tx) ([]model.History, error) { return tx.HistorySince("app_1", "", 9) }), 3)
	})

	t.Run("of many requests with one idempotency key exactly one is recorded", func(t *testing.T) {
		w := setup(t)
		const writers = 10
		oneWins(t, w.runUpdates(writers, func(i int, tx store.Tx) error {
			// The effect and its record are one transaction: a loser has no effect.
			if err := tx.InsertAudit(model.Audit{ID: fmt.Sprintf("aud_%02d", i), WorkspaceID: w.ws, At: now}); err != nil {
				return err
			}
			return tx.InsertIdempotency(model.Idempotency{
				WorkspaceID: w.ws, Key: "key", RequestHash: []byte{1}, Procedure: "Deploy", Response: []byte{byte(i)}, CreatedAt: now,
			})
		}), model.ErrExists)
		record := read(w, func(tx store.Tx) (model.Idempotency, error) { return tx.GetIdempotency(w.ws, "key") })
		audit := read(w, func(tx store.Tx) ([]model.Audit, error) { return tx.ListAudit(w.ws, store.Page{Limit: 99}) })
		require.Len(t, audit, 1)
		require.Equal(t, fmt.Sprintf("aud_%02d", record.Response[0]), audit[0].ID)
		w.update(func(tx store.Tx) error {
			return tx.InsertIdempotency(model.Idempotency{WorkspaceID: "ws_2", Key: "key", RequestHash: []byte{1}, Response: []byte{1}, CreatedAt: now})
		})
	})

	t.Run("an idempotency key is free again once its record is deleted", func(t *testing.T) {
		w := setup(t)
		record := func(workspace, key string, n byte) model.Idempotency {
			return model.Idempotency{WorkspaceID: workspace, Key: key, RequestHash: []byte{n}, Procedure: "Restart", Response: []byte{n}, CreatedAt: now}
		}
		const odd = "\x00\xff key "
		w.update(func(tx store.Tx) error { return tx.InsertIdempotency(record(w.ws, odd, 1)) })
		w.update(func(tx store.Tx) error { return tx.InsertIdempotency(record(w.ws, odd+" ", 2)) })
		w.update(func(tx store.Tx) error { return tx.InsertIdempotency(record("ws_2", odd, 3)) })
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertIdempotency(record(w.ws, odd, 4)) })
		for range 2 { // the second time there is nothing to delete
			w.update(func(tx store.Tx) error { return tx.DeleteIdempotencyKey(w.ws, odd) })
		}
		requireMissing(w, func(tx store.Tx) (model.Idempotency, error) { return tx.GetIdempotency(w.ws, odd) })
		w.update(func(tx store.Tx) error { return tx.InsertIdempotency(record(w.ws, odd, 5)) })
		for _, r := range []model.Idempotency{record(w.ws, odd, 5), record(w.ws, odd+" ", 2), record("ws_2", odd, 3)} {
			require.Equal(t, r, read(w, func(tx store.Tx) (model.Idempotency, error) { return tx.GetIdempotency(r.WorkspaceID, r.Key) }))
		}
	})

	t.Run("a call writes several audit rows", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			return tx.InsertAudit(model.Audit{ID: "aud_2", WorkspaceID: w.ws, At: 2}, model.Audit{ID: "aud_1", WorkspaceID: w.ws, At: 1})
		})
		w.update(func(tx store.Tx) error { return tx.InsertAudit() })
		rows := read(w, func(tx store.Tx) ([]model.Audit, error) { return tx.ListAudit(w.ws, store.Page{Limit: 9}) })
		require.Len(t, rows, 2)
	})

	t.Run("idempotency records are deleted by age and up to the limit", func(t *testing.T) {
		w := setup(t)
		for n := range 4 {
			w.update(func(tx store.Tx) error {
				return tx.InsertIdempotency(model.Idempotency{
					WorkspaceID: w.ws, Key: fmt.Sprint(n), RequestHash: []byte{1}, Response: []byte{1}, CreatedAt: now + int64(n),
				})
			})
		}
		forget := func() int {
			return write(w, func(tx store.Tx) (int, error) { return tx.DeleteIdempotency(now+3, 2) })
		}
		require.Equal(t, 2, forget())
		require.Equal(t, 1, forget())
		require.Equal(t, 0, forget())
		requireMissing(w, func(tx store.Tx) (model.Idempotency, error) { return tx.GetIdempotency(w.ws, "2") })
		require.Equal(t, now+3, read(w, func(tx store.Tx) (model.Idempotency, error) { return tx.GetIdempotency(w.ws, "3") }).CreatedAt)
	})
}
