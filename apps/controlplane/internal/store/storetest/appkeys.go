package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testAppKeys(t *testing.T, setup setup) {
	w := setup(t)
	key := func(appID, name string) model.AppKey {
		return model.AppKey{
			AppID: appID, Name: name, WorkspaceID: w.ws, Prefix: "wlk_abcd", Hash: []byte(appID + name),
			CreatedBy: "ada", CreatedAt: now, ExpiresAt: now + hour,
		}
	}
	a1, b1, a2 := key("app_1", "a"), key("app_1", "b"), key("app_2", "a")
	elsewhere := key("app_9", "a")
	elsewhere.WorkspaceID = "ws_other"
	for _, k := range []model.AppKey{b1, elsewhere, a2, a1} {
		w.update(func(tx store.Tx) error { return tx.InsertAppKey(k) })
	}
	w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertAppKey(a1) })
	of := func(appIDs ...string) []model.AppKey {
		return read(w, func(tx store.Tx) ([]model.AppKey, error) { return tx.KeysOfApps(appIDs) })
	}
	list := func(appID, after string, n int) []model.AppKey {
		return read(w, func(tx store.Tx) ([]model.AppKey, error) {
			return tx.ListAppKeys(w.ws, appID, store.Page{After: after, Limit: n})
		})
	}
	require.Equal(t, []model.AppKey{a1, b1, a2}, of("app_2", "app_1", "app_none"))
	require.Equal(t, []model.AppKey{a1, b1}, list("", "", 2))
	require.Equal(t, []model.AppKey{a2}, list("", "app_1\x00b", 2))
	require.Equal(t, []model.AppKey{b1}, list("app_1", "app_1\x00a", 9))

	w.update(func(tx store.Tx) error { return tx.DeleteAppKey("app_1", "a") })
	w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteAppKey("app_1", "a") })
	require.Equal(t, []model.AppKey{b1, a2, elsewhere}, of("app_1", "app_2", "app_9"))
}
