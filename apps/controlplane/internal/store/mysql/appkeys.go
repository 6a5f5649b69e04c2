package mysql

import (
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func appKey(r gen.AppKey) (model.AppKey, error) {
	return model.AppKey{
		AppID: r.AppID, Name: r.Name, WorkspaceID: r.WorkspaceID, Prefix: r.Prefix, Hash: blobOrNil(r.Hash),
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt,
	}, nil
}

func (t *tx) InsertAppKey(k model.AppKey) error {
	return t.queryError(t.q.InsertAppKey(t.ctx, gen.InsertAppKeyParams{
		AppID: k.AppID, Name: k.Name, WorkspaceID: k.WorkspaceID, Prefix: k.Prefix, Hash: notNull(k.Hash),
		CreatedBy: clipText(k.CreatedBy, maxName), CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt,
	}), "insert app key", k.Name)
}

func (t *tx) DeleteAppKey(appID, name string) error {
	n, err := t.q.DeleteAppKey(t.ctx, gen.DeleteAppKeyParams{AppID: appID, Name: name})
	return t.requireFound(n, err, "delete app key", name)
}

func (t *tx) ListAppKeys(workspaceID, appID string, p store.Page) ([]model.AppKey, error) {
	id, name, _ := strings.Cut(p.After, "\x00")
	return list(t, "list app keys of", workspaceID, appKey)(t.q.ListAppKeys(t.ctx, gen.ListAppKeysParams{
		WorkspaceID: workspaceID, AppID: appID, AfterID: id, AfterName: name, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) KeysOfApps(appIDs []string) ([]model.AppKey, error) {
	return list(t, "list app keys", "", appKey)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.AppKey, error) {
		return t.q.KeysOfApps(t.ctx, ids)
	}))
}
