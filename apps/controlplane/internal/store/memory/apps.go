package memory

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertApp(a model.App) error {
	if err := appTable.overlayIn(t).insert(a); err != nil {
		return err
	}
	t.touchApp(a.ID)
	return nil
}

func (t *tx) GetApp(workspaceID, id string) (model.App, error) {
	a, ok := appTable.overlayIn(t).get(id)
	return oneRow(a, ok && a.WorkspaceID == workspaceID, "app", id)
}

func (t *tx) GetApps(ids []string) ([]model.App, error) {
	var rows []model.App
	for _, id := range sortDistinct(ids) {
		if a, ok := appTable.overlayIn(t).get(id); ok {
			rows = append(rows, a)
		}
	}
	return rows, nil
}

func (t *tx) GetAppByName(workspaceID, environmentID, name string) (model.App, error) {
	a, ok := appTable.overlayIn(t).find(0, environmentID+"\x00"+name)
	return oneRow(a, ok && a.WorkspaceID == workspaceID, "app", name)
}

func (t *tx) LockApp(workspaceID, id string) (model.App, error) {
	a, ok, err := appTable.overlayIn(t).lock(id)
	if err != nil {
		return model.App{}, err
	}
	return oneRow(a, ok && (workspaceID == "" || a.WorkspaceID == workspaceID), "app", id)
}

func (t *tx) LockApps(ids []string) ([]model.App, error) {
	var rows []model.App
	for _, id := range sortDistinct(ids) {
		a, ok, err := appTable.overlayIn(t).lock(id)
		if err != nil {
			return nil, err
		}
		if ok {
			rows = append(rows, a)
		}
	}
	return rows, nil
}

// UpdateApp does not change the step number, the name, the project and the environment.
func (t *tx) UpdateApp(a model.App) error {
	stored, ok, err := appTable.overlayIn(t).lock(a.ID)
	switch {
	case err != nil:
		return err
	case !ok || stored.WorkspaceID != a.WorkspaceID:
		return notFound("app", a.ID)
	case stored.ResourceVersion != a.ResourceVersion:
		return conflictError("app", a.ID)
	}
	return t.putApp(a, stored)
}

// putApp keeps the stored values of fields that no update changes.
func (t *tx) putApp(a, stored model.App) error {
	a.ProjectID, a.EnvironmentID, a.Name = stored.ProjectID, stored.EnvironmentID, stored.Name
	a.Step, a.CreatedAt = stored.Step, stored.CreatedAt
	a.ResourceVersion++
	t.touchApp(a.ID)
	return appTable.overlayIn(t).put(a)
}

func (t *tx) StepApps(steps []model.AppStep) error {
	for _, s := range steps {
		a := s.App
		stored, ok, err := appTable.overlayIn(t).lock(a.ID)
		if err != nil {
			return err
		}
		if !ok || stored.Step != a.Step || s.Changed && (stored.WorkspaceID != a.WorkspaceID || stored.ResourceVersion != a.ResourceVersion) {
			return conflictError("step of app", a.ID)
		}
		stored.Step++
		if !s.Changed {
			if err := appTable.overlayIn(t).put(stored); err != nil {
				return err
			}
			continue
		}
		a.Domains, a.AppKeys = stored.Domains, stored.AppKeys
		if err := t.putApp(a, stored); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) ListApps(workspaceID, environmentID string, p store.Page) ([]model.App, error) {
	rows := appTable.overlayIn(t).list(func(a model.App) bool {
		return a.WorkspaceID == workspaceID && a.DeletedAt == 0 && (environmentID == "" || a.EnvironmentID == environmentID)
	})
	return pageOf(rows, p, func(a model.App) string { return a.Name + "\x00" + a.ID }), nil
}

func (t *tx) CountApps(workspaceID, projectID, environmentID string) (int, error) {
	return len(appTable.overlayIn(t).list(func(a model.App) bool {
		return a.WorkspaceID == workspaceID && a.DeletedAt == 0 &&
			(projectID == "" || a.ProjectID == projectID) && (environmentID == "" || a.EnvironmentID == environmentID)
	})), nil
}
