package memory

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertAppKey(k model.AppKey) error { return appKeyTable.overlayIn(t).insert(k) }

func (t *tx) DeleteAppKey(appID, name string) error {
	key := pair{appID, name}
	if _, ok, err := appKeyTable.overlayIn(t).lock(key); err != nil {
		return err
	} else if !ok {
		return notFound("app key", name)
	}
	return appKeyTable.overlayIn(t).delete(key)
}

func (t *tx) ListAppKeys(workspaceID, appID string, p store.Page) ([]model.AppKey, error) {
	rows := appKeyTable.overlayIn(t).list(func(k model.AppKey) bool {
		return k.WorkspaceID == workspaceID && (appID == "" || k.AppID == appID)
	})
	return pageOf(rows, p, func(k model.AppKey) string { return k.AppID + "\x00" + k.Name }), nil
}

func (t *tx) KeysOfApps(appIDs []string) ([]model.AppKey, error) {
	return appKeyTable.overlayIn(t).list(func(k model.AppKey) bool { return slices.Contains(appIDs, k.AppID) }), nil
}
