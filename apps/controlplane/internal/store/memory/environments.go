package memory

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertProject(p model.Project) error { return projectTable.overlayIn(t).insert(p) }

func (t *tx) GetProject(workspaceID, id string) (model.Project, error) {
	p, ok := projectTable.overlayIn(t).get(id)
	return oneRow(p, ok && p.WorkspaceID == workspaceID, "project", id)
}

func (t *tx) GetProjects(workspaceID string, ids []string) ([]model.Project, error) {
	var rows []model.Project
	for _, id := range sortDistinct(ids) {
		if p, ok := projectTable.overlayIn(t).get(id); ok && p.WorkspaceID == workspaceID {
			rows = append(rows, p)
		}
	}
	return rows, nil
}

func (t *tx) GetProjectByName(workspaceID, name string) (model.Project, error) {
	p, ok := projectTable.overlayIn(t).find(0, workspaceID+"\x00"+name)
	return oneRow(p, ok, "project", name)
}

func (t *tx) ListProjects(workspaceID string, p store.Page) ([]model.Project, error) {
	rows := projectTable.overlayIn(t).list(func(r model.Project) bool { return r.WorkspaceID == workspaceID })
	return pageOf(rows, p, func(r model.Project) string { return r.Name }), nil
}

func (t *tx) UpdateProject(p model.Project) error {
	stored, ok, err := projectTable.overlayIn(t).lock(p.ID)
	switch {
	case err != nil:
		return err
	case !ok || stored.WorkspaceID != p.WorkspaceID:
		return notFound("project", p.ID)
	case stored.ResourceVersion != p.ResourceVersion:
		return conflictError("project", p.ID)
	}
	stored.Name, stored.UpdatedAt = p.Name, p.UpdatedAt
	stored.ResourceVersion++
	return projectTable.overlayIn(t).put(stored)
}

func (t *tx) DeleteProject(workspaceID, id string) error {
	if p, ok := projectTable.overlayIn(t).get(id); !ok || p.WorkspaceID != workspaceID {
		return notFound("project", id)
	}
	return projectTable.overlayIn(t).delete(id)
}

func (t *tx) InsertEnvironment(e model.Environment) error {
	return environmentTable.overlayIn(t).insert(e)
}

func (t *tx) GetEnvironment(workspaceID, id string) (model.Environment, error) {
	e, ok := environmentTable.overlayIn(t).get(id)
	return oneRow(e, ok && e.WorkspaceID == workspaceID, "environment", id)
}

func (t *tx) GetEnvironments(workspaceID string, ids []string) ([]model.Environment, error) {
	var rows []model.Environment
	for _, id := range sortDistinct(ids) {
		if e, ok := environmentTable.overlayIn(t).get(id); ok && e.WorkspaceID == workspaceID {
			rows = append(rows, e)
		}
	}
	return rows, nil
}

func (t *tx) GetEnvironmentByName(workspaceID, projectID, name string) (model.Environment, error) {
	e, ok := environmentTable.overlayIn(t).find(0, projectID+"\x00"+name)
	return oneRow(e, ok && e.WorkspaceID == workspaceID, "environment", name)
}

func (t *tx) LockEnvironment(workspaceID, id string) (model.Environment, error) {
	e, ok, err := environmentTable.overlayIn(t).lock(id)
	if err != nil {
		return model.Environment{}, err
	}
	return oneRow(e, ok && e.WorkspaceID == workspaceID, "environment", id)
}

func (t *tx) ListEnvironments(workspaceID, projectID string, p store.Page) ([]model.Environment, error) {
	rows := environmentTable.overlayIn(t).list(func(e model.Environment) bool {
		return e.WorkspaceID == workspaceID && e.ProjectID == projectID
	})
	return pageOf(rows, p, func(e model.Environment) string { return e.Name }), nil
}

func (t *tx) UpdateEnvironment(e model.Environment) error {
	stored, ok, err := environmentTable.overlayIn(t).lock(e.ID)
	switch {
	case err != nil:
		return err
	case !ok || stored.WorkspaceID != e.WorkspaceID:
		return notFound("environment", e.ID)
	case stored.ResourceVersion != e.ResourceVersion:
		return conflictError("environment", e.ID)
	}
	stored.Name, stored.Variables, stored.UpdatedAt = e.Name, e.Variables, e.UpdatedAt
	stored.ResourceVersion++
	return environmentTable.overlayIn(t).put(stored)
}

// DeleteEnvironment also deletes the environment's secrets.
func (t *tx) DeleteEnvironment(workspaceID, id string) error {
	if e, ok := environmentTable.overlayIn(t).get(id); !ok || e.WorkspaceID != workspaceID {
		return notFound("environment", id)
	}
	if err := t.deleteSecretsOf(id); err != nil {
		return err
	}
	return environmentTable.overlayIn(t).delete(id)
}

// deleteSecretsOf deletes all secrets of an environment or a notification endpoint.
func (t *tx) deleteSecretsOf(id string) error {
	for _, s := range secretTable.overlayIn(t).list(func(s secret) bool { return s.name.a == id }) {
		if err := t.deleteSecret(s.name); err != nil {
			return err
		}
	}
	return secretFloorTable.overlayIn(t).delete(id)
}
