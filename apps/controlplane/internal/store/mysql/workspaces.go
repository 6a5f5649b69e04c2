package mysql

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func workspaceFromRow(r gen.Workspace) (model.Workspace, error) {
	return model.Workspace{
		ID: r.ID, Name: r.Name, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}, nil
}

func (t *tx) InsertWorkspace(w model.Workspace) error {
	return t.queryError(t.q.InsertWorkspace(t.ctx, gen.InsertWorkspaceParams{
		ID: w.ID, Name: w.Name, CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt, ResourceVersion: w.ResourceVersion,
	}), "insert workspace", w.ID)
}

func (t *tx) GetWorkspace(id string) (model.Workspace, error) {
	return get(t, "get workspace", id, workspaceFromRow)(t.q.GetWorkspace(t.ctx, id))
}

func (t *tx) GetWorkspaces(ids []string) ([]model.Workspace, error) {
	return list(t, "get workspaces", "", workspaceFromRow)(inChunks(sortDistinct(ids), func(ids []string) ([]gen.Workspace, error) {
		return t.q.GetWorkspaces(t.ctx, ids)
	}))
}

func (t *tx) GetWorkspaceByName(name string) (model.Workspace, error) {
	return get(t, "get workspace", name, workspaceFromRow)(t.q.GetWorkspaceByName(t.ctx, name))
}

func (t *tx) ListWorkspaces(p store.Page) ([]model.Workspace, error) {
	return list(t, "list workspaces", "", workspaceFromRow)(
		t.q.ListWorkspaces(t.ctx, gen.ListWorkspacesParams{After: p.After, Limit: limitOrAll(p.Limit)}))
}

func (t *tx) UpdateWorkspace(w model.Workspace) error {
	n, err := t.q.UpdateWorkspace(t.ctx, gen.UpdateWorkspaceParams{
		Name: w.Name, UpdatedAt: w.UpdatedAt, ID: w.ID, ResourceVersion: w.ResourceVersion,
	})
	return t.requireSwapped(n, err, func() error { _, err := t.GetWorkspace(w.ID); return err }, "update workspace", w.ID)
}

// DeleteWorkspace also deletes the workspace's keys, members, sign-in rules, limits, features, presets, freezes and protections.
func (t *tx) DeleteWorkspace(id string) error {
	n, err := t.q.DeleteWorkspace(t.ctx, id)
	if err := t.requireFound(n, err, "delete workspace", id); err != nil {
		return err
	}
	for _, forget := range []func(context.Context, string) error{
		t.q.DeleteLimits, t.q.DeleteStarts, t.q.DeleteFeatures, t.q.DeleteAPIKeysOfWorkspace, t.q.DeleteFreezesOfWorkspace,
		t.q.DeleteProtectionsOfWorkspace, t.q.DeletePresetsOfWorkspace, t.q.DeletePresetFloor,
		t.q.DeleteMembersOfWorkspace, t.q.DeleteSignInRulesOfWorkspace,
	} {
		if err := forget(t.ctx, id); err != nil {
			return t.queryError(err, "delete rows of workspace", id)
		}
	}
	return t.deleteEndpointsOfWorkspace(id)
}

func apiKey(r gen.ApiKey) (model.APIKey, error) {
	return model.APIKey{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Name: r.Name, Role: windlassv1.Role(r.Role), Prefix: r.Prefix,
		Hash: blobOrNil(r.Hash), CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt, RevokedAt: r.RevokedAt,
		MadeBy: r.MadeBy, FamilyID: r.FamilyID,
	}, nil
}

func (t *tx) InsertAPIKey(k model.APIKey) error {
	return t.queryError(t.q.InsertAPIKey(t.ctx, gen.InsertAPIKeyParams{
		ID: k.ID, WorkspaceID: k.WorkspaceID, Name: k.Name, Role: int32(k.Role), Prefix: k.Prefix, Hash: notNull(k.Hash),
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt, MadeBy: k.MadeBy, FamilyID: k.FamilyID,
	}), "insert API key", k.ID)
}

func (t *tx) GetAPIKey(workspaceID, id string) (model.APIKey, error) {
	return get(t, "get API key", id, apiKey)(
		t.q.GetAPIKey(t.ctx, gen.GetAPIKeyParams{WorkspaceID: workspaceID, ID: id}))
}

// GetAPIKeyByHash reads the primary, so that a revocation takes effect at once.
func (t *tx) GetAPIKeyByHash(hash []byte) (model.APIKey, error) {
	return get(t, "get API key", "by hash", apiKey)(t.primary.GetAPIKeyByHash(t.ctx, hash))
}

func (t *tx) ListAPIKeys(workspaceID string, p store.Page) ([]model.APIKey, error) {
	return list(t, "list API keys of", workspaceID, apiKey)(t.q.ListAPIKeys(t.ctx, gen.ListAPIKeysParams{
		WorkspaceID: workspaceID, After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) RevokeAPIKey(workspaceID, id string, at int64) error {
	n, err := t.q.RevokeAPIKey(t.ctx, gen.RevokeAPIKeyParams{At: at, WorkspaceID: workspaceID, ID: id})
	return t.requireFound(n, err, "revoke API key", id)
}
