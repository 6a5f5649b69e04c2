package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testFreezes(t *testing.T, setup setup) {
	list := func(w *fixture, workspaceID string) (names []string) {
		for _, f := range read(w, func(tx store.Tx) ([]model.Freeze, error) { return tx.ListFreezes(workspaceID, store.Page{Limit: 9}) }) {
			names = append(names, f.Name)
		}
		return names
	}

	t.Run("a freeze is what was put last, by its name", func(t *testing.T) {
		w := setup(t)
		f := filledRow[model.Freeze]()
		f.WorkspaceID, f.Name = w.ws, "quarter"
		f.Weekly = []model.FreezeWindow{{Start: "Fri 16:00", End: "Mon 08:00"}, {Start: "22:00", End: "06:00"}}
		w.update(func(tx store.Tx) error { return tx.PutFreeze(f) })
		require.Equal(t, []model.Freeze{f}, read(w, func(tx store.Tx) ([]model.Freeze, error) { return tx.ListFreezes(w.ws, store.Page{Limit: 9}) }))
		f.Weekly, f.Reason, f.OnStart = nil, "another", windlassv1.Freeze_ON_START_HOLD
		other := model.Freeze{ID: "frz_2", WorkspaceID: w.ws, Name: "audit", AppID: "app_1", ProjectID: ""}
		elsewhere := model.Freeze{ID: "frz_3", WorkspaceID: "ws_other", Name: "quarter"}
		w.update(func(tx store.Tx) error {
			for _, f := range []model.Freeze{f, other, elsewhere} {
				if err := tx.PutFreeze(f); err != nil {
					return err
				}
			}
			return nil
		})
		require.Equal(t, []model.Freeze{other, f}, read(w, func(tx store.Tx) ([]model.Freeze, error) { return tx.ListFreezes(w.ws, store.Page{Limit: 9}) }))
		require.Equal(t, []model.Freeze{f}, read(w, func(tx store.Tx) ([]model.Freeze, error) {
			return tx.ListFreezes(w.ws, store.Page{Limit: 9, After: "audit"})
		}))
		w.update(func(tx store.Tx) error { return tx.DeleteFreeze(w.ws, "quarter") })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteFreeze(w.ws, "quarter") })
		require.Equal(t, []string{"audit"}, list(w, w.ws))
		require.Equal(t, []string{"quarter"}, list(w, "ws_other"))
	})

	t.Run("freezes from other apps' files do not concern an app", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			for _, f := range []model.Freeze{
				{Name: "all"},
				{Name: "other", AppID: "app_2"},
				{Name: "file", AppID: "app_1", FromFile: true},
				{Name: "file-2", AppID: "app_2", FromFile: true},
			} {
				f.ID, f.WorkspaceID = ident.New("frz"), w.ws
				if err := tx.PutFreeze(f); err != nil {
					return err
				}
			}
			return nil
		})
		found := func(appID, name string) (names []string) {
			for _, f := range read(w, func(tx store.Tx) ([]model.Freeze, error) { return tx.ListFreezesFor(w.ws, name, appID) }) {
				names = append(names, f.Name)
			}
			return names
		}
		require.Equal(t, []string{"all", "other"}, found("", ""))
		require.Equal(t, []string{"all", "file", "other"}, found("app_1", ""))
		require.Equal(t, []string{"all", "file-2", "other"}, found("", "file-2"))
		require.Len(t, list(w, w.ws), 4)
	})

	t.Run("freezes are deleted with their project or app", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			for _, f := range []model.Freeze{
				{Name: "all"}, {Name: "project", ProjectID: "prj_1"}, {Name: "app", AppID: "app_1"}, {Name: "other", AppID: "app_2"},
			} {
				f.ID, f.WorkspaceID = ident.New("frz"), w.ws
				if err := tx.PutFreeze(f); err != nil {
					return err
				}
			}
			return nil
		})
		w.update(func(tx store.Tx) error { return tx.DeleteFreezesOf(w.ws, "", "") })
		require.Len(t, list(w, w.ws), 4)
		w.update(func(tx store.Tx) error { return tx.DeleteFreezesOf(w.ws, "", "app_1") })
		require.Equal(t, []string{"all", "other", "project"}, list(w, w.ws))
		w.update(func(tx store.Tx) error { return tx.DeleteFreezesOf(w.ws, "prj_1", "") })
		require.Equal(t, []string{"all", "other"}, list(w, w.ws))
		w.update(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		require.Empty(t, list(w, w.ws))
	})

	t.Run("apps are listed whose rollout in flight a freeze holds", func(t *testing.T) {
		w := setup(t)
		var ids []string
		for i, name := range []string{"held", "moving", "still"} {
			app := w.insertApp(name)
			ids = append(ids, app.ID)
			r := model.Rollout{ID: ident.New("rol"), WorkspaceID: w.ws, AppID: app.ID, CreatedAt: now}
			if i == 0 {
				r.FrozenSince, r.FrozenBy = now, "quarter"
			}
			w.update(func(tx store.Tx) error {
				if i < 2 {
					app.RolloutID = r.ID
				}
				if err := tx.InsertRollout(r); err != nil {
					return err
				}
				locked, err := tx.LockApp(w.ws, app.ID)
				if err != nil {
					return err
				}
				locked.RolloutID = app.RolloutID
				return tx.UpdateApp(locked)
			})
		}
		held := func(ws string) []string {
			return read(w, func(tx store.Tx) ([]string, error) { return tx.ListFrozenApps(ws) })
		}
		require.Equal(t, ids[:1], held(w.ws))
		require.Empty(t, held("ws_other"))
	})
}
