package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testProtections(t *testing.T, setup setup) {
	list := func(w *fixture, workspaceID string) []model.Protection {
		return read(w, func(tx store.Tx) ([]model.Protection, error) { return tx.ListProtections(workspaceID) })
	}
	put := func(w *fixture, all ...model.Protection) {
		w.update(func(tx store.Tx) error {
			for _, p := range all {
				if err := tx.PutProtection(p); err != nil {
					return err
				}
			}
			return nil
		})
	}

	t.Run("a protection is what was put last, by scope and setter", func(t *testing.T) {
		w := setup(t)
		p := filledRow[model.Protection]()
		p.WorkspaceID, p.ScopeID, p.ByOperator = w.ws, "env_1", false
		put(w, p)
		require.Equal(t, []model.Protection{p}, list(w, w.ws))
		p.Approvals, p.NotDeployer, p.Reason = 0, false, "another"
		own := model.Protection{WorkspaceID: w.ws, Reason: "own"}
		platform := model.Protection{WorkspaceID: w.ws, ByOperator: true, Reason: "platform"}
		elsewhere := model.Protection{WorkspaceID: "ws_other", ScopeID: "env_1"}
		put(w, elsewhere, platform, p, own)
		require.Equal(t, []model.Protection{own, platform, p}, list(w, w.ws))
		w.update(func(tx store.Tx) error { return tx.DeleteProtection(w.ws, "", false) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteProtection(w.ws, "", false) })
		require.Equal(t, []model.Protection{platform, p}, list(w, w.ws))
	})

	t.Run("protections are deleted with their scope", func(t *testing.T) {
		w := setup(t)
		put(w, model.Protection{WorkspaceID: w.ws}, model.Protection{WorkspaceID: w.ws, ScopeID: "prj_1"}, model.Protection{WorkspaceID: "ws_other", ScopeID: "prj_1"})
		w.update(func(tx store.Tx) error { return tx.DeleteProtectionsOf(w.ws, "prj_1") })
		require.Len(t, list(w, w.ws), 1)
		w.update(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		require.Empty(t, list(w, w.ws))
		require.Len(t, list(w, "ws_other"), 1)
	})
}
