package memory

import (
	"errors"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertWorkspace(w model.Workspace) error { return workspaceTable.overlayIn(t).insert(w) }

func (t *tx) GetWorkspace(id string) (model.Workspace, error) {
	w, ok := workspaceTable.overlayIn(t).get(id)
	return oneRow(w, ok, "workspace", id)
}

func (t *tx) GetWorkspaces(ids []string) ([]model.Workspace, error) {
	var rows []model.Workspace
	for _, id := range sortDistinct(ids) {
		if w, ok := workspaceTable.overlayIn(t).get(id); ok {
			rows = append(rows, w)
		}
	}
	return rows, nil
}

func (t *tx) GetWorkspaceByName(name string) (model.Workspace, error) {
	w, ok := workspaceTable.overlayIn(t).find(0, name)
	return oneRow(w, ok, "workspace", name)
}

func (t *tx) ListWorkspaces(p store.Page) ([]model.Workspace, error) {
	rows := workspaceTable.overlayIn(t).list(func(model.Workspace) bool { return true })
	return pageOf(rows, p, func(w model.Workspace) string { return w.Name }), nil
}

func (t *tx) UpdateWorkspace(w model.Workspace) error {
	stored, ok, err := workspaceTable.overlayIn(t).lock(w.ID)
	switch {
	case err != nil:
		return err
	case !ok:
		return notFound("workspace", w.ID)
	case stored.ResourceVersion != w.ResourceVersion:
		return conflictError("workspace", w.ID)
	}
	stored.Name, stored.UpdatedAt = w.Name, w.UpdatedAt
	stored.ResourceVersion++
	return workspaceTable.overlayIn(t).put(stored)
}

// DeleteWorkspace also deletes the workspace's keys, members, sign-in rules, limits, features, presets, freezes and protections.
func (t *tx) DeleteWorkspace(id string) error {
	if _, ok := workspaceTable.overlayIn(t).get(id); !ok {
		return notFound("workspace", id)
	}
	for _, k := range apiKeyTable.overlayIn(t).list(func(k model.APIKey) bool { return k.WorkspaceID == id }) {
		if err := apiKeyTable.overlayIn(t).delete(k.ID); err != nil {
			return err
		}
	}
	freezes := t.deleteFreezes(func(f model.Freeze) bool { return f.WorkspaceID == id })
	protections := t.deleteProtections(func(p model.Protection) bool { return p.WorkspaceID == id })
	endpoints := t.deleteEndpoints(func(e model.NotificationEndpoint) bool { return e.WorkspaceID == id })
	members := t.deleteMembersOfWorkspace(id)
	presets := t.deletePresets(func(p model.Preset) bool { return p.WorkspaceID == id })
	if err := errors.Join(
		limitsTable.overlayIn(t).delete(id), startsTable.overlayIn(t).delete(id), featuresTable.overlayIn(t).delete(id), presetFloorTable.overlayIn(t).delete(id),
		freezes, protections, endpoints, members, presets,
	); err != nil {
		return err
	}
	return workspaceTable.overlayIn(t).delete(id)
}

func (t *tx) InsertAPIKey(k model.APIKey) error { return apiKeyTable.overlayIn(t).insert(k) }

func (t *tx) GetAPIKey(workspaceID, id string) (model.APIKey, error) {
	k, ok := apiKeyTable.overlayIn(t).get(id)
	return oneRow(k, ok && k.WorkspaceID == workspaceID, "API key", id)
}

func (t *tx) GetAPIKeyByHash(hash []byte) (model.APIKey, error) {
	k, ok := apiKeyTable.overlayIn(t).find(0, string(hash))
	return oneRow(k, ok, "API key", "by hash")
}

func (t *tx) ListAPIKeys(workspaceID string, p store.Page) ([]model.APIKey, error) {
	rows := apiKeyTable.overlayIn(t).list(func(k model.APIKey) bool { return k.WorkspaceID == workspaceID })
	return pageOf(rows, p, func(k model.APIKey) string { return k.Name }), nil
}

// RevokeAPIKey does not change an earlier revocation.
func (t *tx) RevokeAPIKey(workspaceID, id string, at int64) error {
	k, ok, err := apiKeyTable.overlayIn(t).lock(id)
	if err != nil {
		return err
	}
	if !ok || k.WorkspaceID != workspaceID {
		return notFound("API key", id)
	}
	if k.RevokedAt != 0 {
		return nil
	}
	k.RevokedAt = at
	return apiKeyTable.overlayIn(t).put(k)
}
