package memory

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) PutFreeze(f model.Freeze) error { return freezeTable.overlayIn(t).put(f) }

func (t *tx) ListFreezes(workspaceID string, p store.Page) ([]model.Freeze, error) {
	rows := freezeTable.overlayIn(t).list(func(f model.Freeze) bool { return f.WorkspaceID == workspaceID })
	return pageOf(rows, p, func(f model.Freeze) string { return f.Name }), nil
}

func (t *tx) ListFreezesFor(workspaceID, name string, appIDs ...string) ([]model.Freeze, error) {
	of := setOf(appIDs)
	return freezeTable.overlayIn(t).list(func(f model.Freeze) bool {
		return f.WorkspaceID == workspaceID && (!f.FromFile || of[f.AppID] || f.Name == name)
	}), nil
}

func (t *tx) DeleteFreeze(workspaceID, name string) error {
	key := pair{workspaceID, name}
	if _, ok, err := freezeTable.overlayIn(t).lock(key); err != nil {
		return err
	} else if !ok {
		return notFound("freeze", name)
	}
	return freezeTable.overlayIn(t).delete(key)
}

func (t *tx) DeleteFreezesOf(workspaceID, projectID, appID string) error {
	return t.deleteFreezes(func(f model.Freeze) bool {
		return f.WorkspaceID == workspaceID &&
			(f.ProjectID != "" && f.ProjectID == projectID || f.AppID != "" && f.AppID == appID)
	})
}

func (t *tx) deleteFreezes(which func(model.Freeze) bool) error {
	for _, f := range freezeTable.overlayIn(t).list(which) {
		if err := freezeTable.overlayIn(t).delete(pair{f.WorkspaceID, f.Name}); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) ListFrozenApps(workspaceID string) ([]string, error) {
	var ids []string
	for _, a := range appTable.overlayIn(t).list(func(a model.App) bool {
		return a.WorkspaceID == workspaceID && a.DeletedAt == 0 && a.RolloutID != ""
	}) {
		if r, ok := rolloutTable.overlayIn(t).get(a.RolloutID); ok && r.FrozenSince > 0 {
			ids = append(ids, a.ID)
		}
	}
	slices.Sort(ids)
	return ids, nil
}
