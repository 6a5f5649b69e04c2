package mysql

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

// encodeJSON encodes values for columns that no query inspects.
func encodeJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return b, nil
}

// decodeJSON does not change v for an empty column or for null.
func decodeJSON(b []byte, v any) error {
	if len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

func projectFromRow(r gen.Project) (model.Project, error) {
	return model.Project{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Name: r.Name,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}, nil
}

func (t *tx) InsertProject(p model.Project) error {
	return t.queryError(t.q.InsertProject(t.ctx, gen.InsertProjectParams{
		ID: p.ID, WorkspaceID: p.WorkspaceID, Name: p.Name,
		CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, ResourceVersion: p.ResourceVersion,
	}), "insert project", p.ID)
}

func (t *tx) GetProject(workspaceID, id string) (model.Project, error) {
	return askOnce(t, "GetProject "+workspaceID+"/"+id, func() (model.Project, error) {
		return get(t, "get project", id, projectFromRow)(
			t.q.GetProject(t.ctx, gen.GetProjectParams{WorkspaceID: workspaceID, ID: id}))
	})
}

func (t *tx) GetProjects(workspaceID string, ids []string) ([]model.Project, error) {
	ids = sortDistinct(ids)
	return onceList(t, "GetProjects "+workspaceID+"/"+strings.Join(ids, " "), func() ([]model.Project, error) {
		return list(t, "get projects of", workspaceID, projectFromRow)(inChunks(ids, func(ids []string) ([]gen.Project, error) {
			return t.q.GetProjects(t.ctx, gen.GetProjectsParams{WorkspaceID: workspaceID, Ids: ids})
		}))
	})
}

func (t *tx) GetProjectByName(workspaceID, name string) (model.Project, error) {
	return askOnce(t, "GetProjectByName "+workspaceID+"/"+name, func() (model.Project, error) {
		return get(t, "get project", name, projectFromRow)(
			t.q.GetProjectByName(t.ctx, gen.GetProjectByNameParams{WorkspaceID: workspaceID, Name: name}))
	})
}

func (t *tx) ListProjects(workspaceID string, p store.Page) ([]model.Project, error) {
	return list(t, "list projects of", workspaceID, projectFromRow)(t.q.ListProjects(t.ctx, gen.ListProjectsParams{
		WorkspaceID: workspaceID, After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) UpdateProject(p model.Project) error {
	n, err := t.q.UpdateProject(t.ctx, gen.UpdateProjectParams{
		Name: p.Name, UpdatedAt: p.UpdatedAt, WorkspaceID: p.WorkspaceID, ID: p.ID, ResourceVersion: p.ResourceVersion,
	})
	return t.requireSwapped(n, err, func() error { _, err := t.GetProject(p.WorkspaceID, p.ID); return err }, "update project", p.ID)
}

func (t *tx) DeleteProject(workspaceID, id string) error {
	n, err := t.q.DeleteProject(t.ctx, gen.DeleteProjectParams{WorkspaceID: workspaceID, ID: id})
	return t.requireFound(n, err, "delete project", id)
}

func environmentFromRow(r gen.Environment) (model.Environment, error) {
	e := model.Environment{
		ID: r.ID, WorkspaceID: r.WorkspaceID, ProjectID: r.ProjectID, Name: r.Name,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}
	return e, decodeJSON(r.Variables, &e.Variables)
}

func (t *tx) InsertEnvironment(e model.Environment) error {
	vars, err := encodeJSON(e.Variables)
	if err != nil {
		return t.queryError(err, "insert environment", e.ID)
	}
	return t.queryError(t.q.InsertEnvironment(t.ctx, gen.InsertEnvironmentParams{
		ID: e.ID, WorkspaceID: e.WorkspaceID, ProjectID: e.ProjectID, Name: e.Name, Variables: vars,
		CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt, ResourceVersion: e.ResourceVersion,
	}), "insert environment", e.ID)
}

func (t *tx) GetEnvironment(workspaceID, id string) (model.Environment, error) {
	return askOnce(t, "GetEnvironment "+workspaceID+"/"+id, func() (model.Environment, error) {
		return get(t, "get environment", id, environmentFromRow)(
			t.q.GetEnvironment(t.ctx, gen.GetEnvironmentParams{WorkspaceID: workspaceID, ID: id}))
	})
}

func (t *tx) GetEnvironments(workspaceID string, ids []string) ([]model.Environment, error) {
	ids = sortDistinct(ids)
	return onceList(t, "GetEnvironments "+workspaceID+"/"+strings.Join(ids, " "), func() ([]model.Environment, error) {
		return list(t, "get environments of", workspaceID, environmentFromRow)(inChunks(ids, func(ids []string) ([]gen.Environment, error) {
			return t.q.GetEnvironments(t.ctx, gen.GetEnvironmentsParams{WorkspaceID: workspaceID, Ids: ids})
		}))
	})
}

func (t *tx) LockEnvironment(workspaceID, id string) (model.Environment, error) {
	if err := t.requireUpdate("lock environment", id); err != nil {
		return model.Environment{}, err
	}
	return get(t, "lock environment", id, environmentFromRow)(
		t.q.LockEnvironment(t.ctx, gen.LockEnvironmentParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) GetEnvironmentByName(workspaceID, projectID, name string) (model.Environment, error) {
	return askOnce(t, "GetEnvironmentByName "+workspaceID+"/"+projectID+"/"+name, func() (model.Environment, error) {
		return get(t, "get environment", name, environmentFromRow)(t.q.GetEnvironmentByName(t.ctx, gen.GetEnvironmentByNameParams{
			WorkspaceID: workspaceID, ProjectID: projectID, Name: name,
		}))
	})
}

func (t *tx) ListEnvironments(workspaceID, projectID string, p store.Page) ([]model.Environment, error) {
	return list(t, "list environments of", projectID, environmentFromRow)(t.q.ListEnvironments(t.ctx, gen.ListEnvironmentsParams{
		WorkspaceID: workspaceID, ProjectID: projectID, After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) UpdateEnvironment(e model.Environment) error {
	vars, err := encodeJSON(e.Variables)
	if err != nil {
		return t.queryError(err, "update environment", e.ID)
	}
	n, err := t.q.UpdateEnvironment(t.ctx, gen.UpdateEnvironmentParams{
		Name: e.Name, Variables: vars, UpdatedAt: e.UpdatedAt,
		WorkspaceID: e.WorkspaceID, ID: e.ID, ResourceVersion: e.ResourceVersion,
	})
	return t.requireSwapped(n, err, func() error { _, err := t.GetEnvironment(e.WorkspaceID, e.ID); return err }, "update environment", e.ID)
}

// DeleteEnvironment also deletes the environment's secrets.
func (t *tx) DeleteEnvironment(workspaceID, id string) error {
	n, err := t.q.DeleteEnvironment(t.ctx, gen.DeleteEnvironmentParams{WorkspaceID: workspaceID, ID: id})
	if err := t.requireFound(n, err, "delete environment", id); err != nil {
		return err
	}
	if err := t.q.DeleteSecretVersionsOfEnvironment(t.ctx, id); err != nil {
		return t.queryError(err, "delete secrets of environment", id)
	}
	if err := t.q.DeleteSecretFloor(t.ctx, id); err != nil {
		return t.queryError(err, "delete secret floor of environment", id)
	}
	return t.queryError(t.q.DeleteSecretsOfEnvironment(t.ctx, id), "delete secrets of environment", id)
}
