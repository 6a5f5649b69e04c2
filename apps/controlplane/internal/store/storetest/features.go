package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testFeatures(t *testing.T, setup setup) {
	features := func(w *fixture, id string) model.WorkspaceFeatures {
		return read(w, func(tx store.Tx) (model.WorkspaceFeatures, error) { return tx.GetFeatures(id) })
	}
	tiers := func(w *fixture) []model.Tier {
		return read(w, func(tx store.Tx) ([]model.Tier, error) { return tx.ListTiers() })
	}
	basic := model.Tier{Name: "basic", Features: 1<<3 | 1<<62, UpdatedAt: now, ResourceVersion: 1}

	t.Run("a workspace has the features that were put and ends with them", func(t *testing.T) {
		w := setup(t)
		none := model.WorkspaceFeatures{WorkspaceID: w.ws, Tier: model.DefaultTier, TierFeatures: model.AllFeatures}
		require.Equal(t, none, features(w, w.ws))
		requireMissing(w, func(tx store.Tx) (model.WorkspaceFeatures, error) { return tx.GetFeatures("ws_unknown") })

		w.update(func(tx store.Tx) error { return tx.InsertTier(basic) })
		given := filledRow[model.WorkspaceFeatures]()
		given.WorkspaceID, given.Tier = w.ws, basic.Name
		for range 2 { // they are put, not inserted
			w.update(func(tx store.Tx) error { return tx.PutFeatures(given) })
			given.TierFeatures = basic.Features
			require.Equal(t, given, features(w, w.ws), "the tier's features are not stored with the workspace")
			given.Allowed, given.Denied, given.TierFeatures = 0, model.AllFeatures, 0
		}
		given.Tier = "unknown"
		w.update(func(tx store.Tx) error { return tx.PutFeatures(given) })
		require.Zero(t, features(w, w.ws).TierFeatures)
		given.Tier = model.DefaultTier
		w.update(func(tx store.Tx) error { return tx.PutFeatures(given) })
		require.Equal(t, model.AllFeatures, features(w, w.ws).TierFeatures)

		w.update(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		w.update(func(tx store.Tx) error { return tx.InsertWorkspace(model.Workspace{ID: w.ws, Name: "acme"}) })
		require.Equal(t, none, features(w, w.ws))
	})

	t.Run("a tier is what was stored last", func(t *testing.T) {
		w := setup(t)
		require.Empty(t, tiers(w))
		ours := model.Tier{Name: model.DefaultTier, Features: 1 << 1, UpdatedAt: now, ResourceVersion: 1}
		w.update(func(tx store.Tx) error { return tx.InsertTier(ours) })
		w.update(func(tx store.Tx) error { return tx.InsertTier(basic) })
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertTier(basic) })
		require.Equal(t, []model.Tier{basic, ours}, tiers(w))
		require.Equal(t, ours.Features, features(w, w.ws).TierFeatures, "of a workspace for which none was put")

		next := model.Tier{Name: basic.Name, Features: model.AllFeatures, UpdatedAt: now + 1, ResourceVersion: 2}
		w.update(func(tx store.Tx) error { return tx.UpdateTier(next) })
		require.Equal(t, next, write(w, func(tx store.Tx) (model.Tier, error) { return tx.LockTier(basic.Name) }))
		require.Error(t, w.s.View(t.Context(), func(tx store.Tx) error { _, err := tx.LockTier(basic.Name); return err }))

		w.update(func(tx store.Tx) error { return tx.DeleteTier(basic.Name) })
		for _, f := range []func(store.Tx) error{
			func(tx store.Tx) error { return tx.DeleteTier(basic.Name) },
			func(tx store.Tx) error { return tx.UpdateTier(next) },
			func(tx store.Tx) error { _, err := tx.LockTier(basic.Name); return err },
		} {
			w.requireFails(model.ErrNotFound, f)
		}
		require.Equal(t, []model.Tier{ours}, tiers(w))
	})

	t.Run("a tier that a workspace takes is not deleted meanwhile", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error { return tx.InsertTier(basic) })
		errs := w.runUpdates(2, func(i int, tx store.Tx) error {
			if _, err := tx.LockTier(basic.Name); err != nil {
				return err
			}
			if i == 0 {
				return tx.PutFeatures(model.WorkspaceFeatures{WorkspaceID: w.ws, Tier: basic.Name})
			}
			if n, err := tx.CountWorkspacesOfTier(basic.Name); err != nil || n > 0 {
				return err
			}
			return tx.DeleteTier(basic.Name)
		})
		require.NoError(t, errs[1])
		if errs[0] != nil {
			require.ErrorIs(t, errs[0], model.ErrNotFound)
			require.Empty(t, tiers(w))
			return
		}
		require.Len(t, tiers(w), 1)
		n := read(w, func(tx store.Tx) (int, error) { return tx.CountWorkspacesOfTier(basic.Name) })
		require.Equal(t, 1, n)
	})
}
