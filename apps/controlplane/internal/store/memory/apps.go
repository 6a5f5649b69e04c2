package memory

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertApp(a model.App) error {
	if err := t.apps.insert(a); err != nil {
		return err
	}
	t.touch(a.ID)
	return nil
}

func (t *tx) GetApp(workspaceID, id string) (model.App, error) {
	a, ok := t.apps.get(id)
	return one(a, ok && a.WorkspaceID == workspaceID, "app", id)
}

func (t *tx) GetApps(ids []string) ([]model.App, error) {
	var rows []model.App
	for _, id := range distinct(ids) {
		if a, ok := t.apps.get(id); ok {
			rows = append(rows, a)
		}
	}
	return rows, nil
}

func (t *tx) GetAppByName(workspaceID, environmentID, name string) (model.App, error) {
	a, ok := t.apps.find(0, environmentID+"\x00"+name)
	return one(a, ok && a.WorkspaceID == workspaceID, "app", name)
}

func (t *tx) LockApp(workspaceID, id string) (model.App, error) {
	a, ok, err := t.apps.lock(id)
	if err != nil {
		return model.App{}, err
	}
	return one(a, ok && (workspaceID == "" || a.WorkspaceID == workspaceID), "app", id)
}

// UpdateApp leaves the step number and what names the app as they are.
func (t *tx) UpdateApp(a model.App) error { return t.updateApp(a, 0) }

func (t *tx) UpdateAppInStep(a model.App) error { return t.updateApp(a, 1) }

func (t *tx) updateApp(a model.App, steps int64) error {
	stored, ok, err := t.apps.lock(a.ID)
	switch {
	case err != nil:
		return err
	case !ok || stored.WorkspaceID != a.WorkspaceID:
		return notFound("app", a.ID)
	case stored.ResourceVersion != a.ResourceVersion || steps > 0 && stored.Step != a.Step:
		return conflict("app", a.ID)
	}
	a.ProjectID, a.EnvironmentID, a.Name = stored.ProjectID, stored.EnvironmentID, stored.Name
	a.Step, a.CreatedAt = stored.Step+steps, stored.CreatedAt
	if steps > 0 {
		a.Domains, a.AppKeys = stored.Domains, stored.AppKeys
	}
	a.ResourceVersion++
	t.touch(a.ID)
	return t.apps.put(a)
}

func (t *tx) StepApp(id string, step int64) error {
	a, ok, err := t.apps.lock(id)
	if err != nil {
		return err
	}
	if !ok || a.Step != step {
		return conflict("step of app", id)
	}
	a.Step++
	return t.apps.put(a)
}

func (t *tx) ListApps(workspaceID, environmentID string, p store.Page) ([]model.App, error) {
	rows := t.apps.list(func(a model.App) bool {
		return a.WorkspaceID == workspaceID && a.DeletedAt == 0 && (environmentID == "" || a.EnvironmentID == environmentID)
	})
	return page(rows, p, func(a model.App) string { return a.Name + "\x00" + a.ID }), nil
}

func (t *tx) CountApps(workspaceID, projectID, environmentID string) (int, error) {
	return len(t.apps.list(func(a model.App) bool {
		return a.WorkspaceID == workspaceID && a.DeletedAt == 0 &&
			(projectID == "" || a.ProjectID == projectID) && (environmentID == "" || a.EnvironmentID == environmentID)
	})), nil
}
