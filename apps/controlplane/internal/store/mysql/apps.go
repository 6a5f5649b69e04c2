package mysql

import (
	"fmt"
	"strings"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

func app(r gen.App) (model.App, error) {
	return model.App{
		ID: r.ID, WorkspaceID: r.WorkspaceID, ProjectID: r.ProjectID, EnvironmentID: r.EnvironmentID,
		Name: r.Name, Description: r.Description, Status: windlassv1.AppStatus(r.Status), Message: r.Message,
		LiveDeploymentID: r.LiveDeploymentID, PreviousDeploymentID: r.PreviousDeploymentID, RolloutID: r.RolloutID,
		LatestVersion: r.LatestVersion, Replicas: r.Replicas, Step: r.Step, DeletingSince: r.DeletingSince,
		AbandonUnreachable: r.AbandonUnreachable, DeletedAt: r.DeletedAt, Domains: r.Domains, AppKeys: r.AppKeys,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}, nil
}

func (t *tx) InsertApp(a model.App) error {
	err := t.q.InsertApp(t.ctx, gen.InsertAppParams{
		ID: a.ID, WorkspaceID: a.WorkspaceID, ProjectID: a.ProjectID, EnvironmentID: a.EnvironmentID,
		Name: a.Name, Description: a.Description, Status: int32(a.Status), Message: a.Message,
		LiveDeploymentID: a.LiveDeploymentID, PreviousDeploymentID: a.PreviousDeploymentID, RolloutID: a.RolloutID,
		LatestVersion: a.LatestVersion, Replicas: a.Replicas, Step: a.Step, DeletingSince: a.DeletingSince,
		AbandonUnreachable: a.AbandonUnreachable, DeletedAt: a.DeletedAt, Domains: a.Domains, AppKeys: a.AppKeys,
		CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt, ResourceVersion: a.ResourceVersion,
	})
	if err != nil {
		return t.err(err, "insert app", a.ID)
	}
	t.touch(a.ID)
	t.unset[a.ID] = struct{}{}
	return nil
}

func (t *tx) GetApp(workspaceID, id string) (model.App, error) {
	return get(t, "get app", id, app)(t.q.GetApp(t.ctx, gen.GetAppParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) GetApps(ids []string) ([]model.App, error) {
	return list(t, "get apps", "", app)(inChunks(distinct(ids), func(ids []string) ([]gen.App, error) {
		return t.q.GetApps(t.ctx, ids)
	}))
}

func (t *tx) GetAppByName(workspaceID, environmentID, name string) (model.App, error) {
	return get(t, "get app", name, app)(t.q.GetAppByName(t.ctx, gen.GetAppByNameParams{
		WorkspaceID: workspaceID, EnvironmentID: environmentID, Name: name,
	}))
}

func (t *tx) LockApp(workspaceID, id string) (model.App, error) {
	if err := t.locking("lock app", id); err != nil {
		return model.App{}, err
	}
	if workspaceID == "" {
		return get(t, "lock app", id, app)(t.q.LockAppOfAny(t.ctx, id))
	}
	return get(t, "lock app", id, app)(t.q.LockApp(t.ctx, gen.LockAppParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) UpdateApp(a model.App) error {
	n, err := t.q.UpdateApp(t.ctx, gen.UpdateAppParams{
		Description: a.Description, Status: int32(a.Status), Message: a.Message,
		LiveDeploymentID: a.LiveDeploymentID, PreviousDeploymentID: a.PreviousDeploymentID, RolloutID: a.RolloutID,
		LatestVersion: a.LatestVersion, Replicas: a.Replicas, DeletingSince: a.DeletingSince,
		AbandonUnreachable: a.AbandonUnreachable, DeletedAt: a.DeletedAt, UpdatedAt: a.UpdatedAt, Domains: a.Domains, AppKeys: a.AppKeys,
		WorkspaceID: a.WorkspaceID, ID: a.ID, ResourceVersion: a.ResourceVersion,
	})
	t.touch(a.ID)
	return t.swapped(n, err, func() error { _, err := t.GetApp(a.WorkspaceID, a.ID); return err }, "update app", a.ID)
}

func (t *tx) UpdateAppInStep(a model.App) error {
	n, err := t.q.UpdateAppInStep(t.ctx, gen.UpdateAppInStepParams{
		Description: a.Description, Status: int32(a.Status), Message: a.Message,
		LiveDeploymentID: a.LiveDeploymentID, PreviousDeploymentID: a.PreviousDeploymentID, RolloutID: a.RolloutID,
		LatestVersion: a.LatestVersion, Replicas: a.Replicas, DeletingSince: a.DeletingSince,
		AbandonUnreachable: a.AbandonUnreachable, DeletedAt: a.DeletedAt, UpdatedAt: a.UpdatedAt,
		WorkspaceID: a.WorkspaceID, ID: a.ID, ResourceVersion: a.ResourceVersion, Step: a.Step,
	})
	t.touch(a.ID)
	return t.swapped(n, err, func() error { _, err := t.GetApp(a.WorkspaceID, a.ID); return err }, "step app", a.ID)
}

func (t *tx) StepApp(id string, step int64) error {
	n, err := t.q.StepApp(t.ctx, gen.StepAppParams{ID: id, Step: step})
	if err == nil && n == 0 {
		return fmt.Errorf("store: step app %q from %d: %w", id, step, store.ErrConflict)
	}
	return t.err(err, "step app", id)
}

func (t *tx) ListApps(workspaceID, environmentID string, p store.Page) ([]model.App, error) {
	name, id, _ := strings.Cut(p.After, "\x00")
	if environmentID == "" {
		return list(t, "list apps of", workspaceID, app)(t.q.ListApps(t.ctx, gen.ListAppsParams{
			WorkspaceID: workspaceID, AfterName: name, AfterID: id, Limit: limit(p.Limit),
		}))
	}
	return list(t, "list apps of", environmentID, app)(t.q.ListAppsOfEnvironment(t.ctx, gen.ListAppsOfEnvironmentParams{
		WorkspaceID: workspaceID, EnvironmentID: environmentID, AfterName: name, AfterID: id, Limit: limit(p.Limit),
	}))
}

func (t *tx) CountApps(workspaceID, projectID, environmentID string) (int, error) {
	var n int64
	var err error
	switch {
	case environmentID != "":
		n, err = t.q.CountAppsOfEnvironment(t.ctx, gen.CountAppsOfEnvironmentParams{WorkspaceID: workspaceID, EnvironmentID: environmentID})
	case projectID != "":
		n, err = t.q.CountAppsOfProject(t.ctx, gen.CountAppsOfProjectParams{WorkspaceID: workspaceID, ProjectID: projectID})
	default:
		n, err = t.q.CountAppsOfWorkspace(t.ctx, workspaceID)
	}
	return int(n), t.err(err, "count apps of", workspaceID)
}
