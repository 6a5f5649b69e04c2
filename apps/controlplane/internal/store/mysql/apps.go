package mysql

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func appFromRow(r gen.App) (model.App, error) {
	return model.App{
		ID: r.ID, WorkspaceID: r.WorkspaceID, ProjectID: r.ProjectID, EnvironmentID: r.EnvironmentID,
		Name: r.Name, Description: r.Description, Status: windlassv1.AppStatus(r.Status), Message: r.Message,
		LiveDeploymentID: r.LiveDeploymentID, PreviousDeploymentID: r.PreviousDeploymentID, RolloutID: r.RolloutID,
		LatestVersion: r.LatestVersion, Replicas: r.Replicas, Step: r.Step, DeletingSince: r.DeletingSince,
		AbandonUnreachable: r.AbandonUnreachable, DeletedAt: r.DeletedAt, Domains: r.Domains, AppKeys: r.AppKeys,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}, nil
}

var insertApps = insertInto("InsertApps", "apps",
	"id", "workspace_id", "project_id", "environment_id", "name", "description", "status", "message",
	"live_deployment_id", "previous_deployment_id", "rollout_id", "latest_version", "replicas", "step",
	"deleting_since", "abandon_unreachable", "deleted_at", "created_at", "updated_at", "resource_version", "domains", "app_keys")

func (t *tx) InsertApp(a model.App) error {
	if c := t.shared; c != nil {
		keepRows(c, &c.late.apps, []string{a.ID, nameOf(a.EnvironmentID, a.Name)}, a)
	} else if err := t.insertApps([]model.App{a}); err != nil {
		return err
	}
	t.touchApp(a.ID)
	t.unset[a.ID] = struct{}{}
	return nil
}

// nameOf returns the key that identifies an app by its name.
func nameOf(environmentID, name string) string { return environmentID + "/" + name }

func (t *tx) insertApps(apps []model.App) error {
	if len(apps) == 0 {
		return nil
	}
	slices.SortFunc(apps, func(a, b model.App) int { return cmp.Compare(a.ID, b.ID) })
	return t.queryError(runBulk(t, t.db, insertApps, apps, func(args []any, a model.App) []any {
		return append(args, a.ID, a.WorkspaceID, a.ProjectID, a.EnvironmentID, a.Name, a.Description, int32(a.Status), a.Message,
			a.LiveDeploymentID, a.PreviousDeploymentID, a.RolloutID, a.LatestVersion, a.Replicas, a.Step,
			a.DeletingSince, a.AbandonUnreachable, a.DeletedAt, a.CreatedAt, a.UpdatedAt, a.ResourceVersion, a.Domains, a.AppKeys)
	}), "insert app", apps[0].ID)
}

func (t *tx) GetApp(workspaceID, id string) (model.App, error) {
	done := t.ignoreDeferred(id)
	defer done()
	return get(t, "get app", id, appFromRow)(t.q.GetApp(t.ctx, gen.GetAppParams{WorkspaceID: workspaceID, ID: id}))
}

func (t *tx) GetApps(ids []string) ([]model.App, error) {
	done := t.ignoreDeferred(ids...)
	defer done()
	return list(t, "get apps", "", appFromRow)(inChunks(sortDistinct(ids), func(ids []string) ([]gen.App, error) {
		return t.q.GetApps(t.ctx, ids)
	}))
}

func (t *tx) GetAppByName(workspaceID, environmentID, name string) (model.App, error) {
	found, ok, err := prefetchRows(t, theNames, environmentID, []string{name}, nameOfApp, func(names []string) ([]model.App, error) {
		return t.getAppsByName(workspaceID, environmentID, names)
	})
	switch {
	case err != nil:
		return model.App{}, err
	case ok && len(found) == 1:
		return found[0], nil
	}
	done := t.ignoreDeferred(nameOf(environmentID, name))
	defer done()
	return get(t, "get app", name, appFromRow)(t.q.GetAppByName(t.ctx, gen.GetAppByNameParams{
		WorkspaceID: workspaceID, EnvironmentID: environmentID, Name: name,
	}))
}

// getAppsByName finds apps by name, and registers them, because the batch members will lock them.
func (t *tx) getAppsByName(workspaceID, environmentID string, names []string) ([]model.App, error) {
	var about []string
	for _, name := range names {
		about = append(about, nameOf(environmentID, name))
	}
	done := t.ignoreDeferred(about...)
	defer done()
	apps, err := list(t, "get apps", "", appFromRow)(inChunks(names, func(names []string) ([]gen.App, error) {
		return t.q.GetAppsByName(t.ctx, gen.GetAppsByNameParams{WorkspaceID: workspaceID, EnvironmentID: environmentID, Names: names})
	}))
	t.shared.prefetched.registerApps(apps, &t.shared.prefetched.names, nameOfApp)
	return apps, err
}

func nameOfApp(a model.App) string { return a.Name }
func idOfApp(a model.App) string   { return a.ID }

func (t *tx) LockApp(workspaceID, id string) (model.App, error) {
	if err := t.requireUpdate("lock app", id); err != nil {
		return model.App{}, err
	}
	if workspaceID == "" {
		found, err := t.LockApps([]string{id})
		if err == nil && len(found) == 0 {
			err = wrapError(model.ErrNotFound, "lock app", id)
		}
		if err != nil {
			return model.App{}, err
		}
		return found[0], nil
	}
	found, ok, err := prefetchRows(t, theApps, "app", []string{id}, idOfApp, t.lockPrefetched)
	switch {
	case err != nil:
		return model.App{}, err
	case ok && len(found) == 1 && found[0].WorkspaceID == workspaceID:
		return found[0], nil
	case ok:
		return model.App{}, wrapError(model.ErrNotFound, "lock app", id)
	}
	done := t.ignoreDeferred(id)
	defer done()
	return get(t, "lock app", id, appFromRow)(t.q.LockApp(t.ctx, gen.LockAppParams{WorkspaceID: workspaceID, ID: id}))
}

// lockPrefetched locks apps, and registers them, because the batch members will read what the apps run.
func (t *tx) lockPrefetched(ids []string) ([]model.App, error) {
	apps, err := t.LockApps(ids)
	t.shared.prefetched.registerApps(apps, &t.shared.prefetched.apps, idOfApp)
	return apps, err
}

func (t *tx) LockApps(ids []string) ([]model.App, error) {
	if err := t.requireUpdate("lock apps", ""); err != nil {
		return nil, err
	}
	done := t.ignoreDeferred(ids...)
	defer done()
	return list(t, "lock apps", "", appFromRow)(inChunks(sortDistinct(ids), func(ids []string) ([]gen.App, error) {
		return t.q.LockApps(t.ctx, ids)
	}))
}

func (t *tx) UpdateApp(a model.App) error {
	t.touchApp(a.ID)
	c := t.shared
	if c == nil {
		return t.updateApps([]model.App{a})
	}
	same := func(o model.App) bool {
		return o.ID == a.ID && o.WorkspaceID == a.WorkspaceID && o.ResourceVersion == a.ResourceVersion
	}
	if at := slices.IndexFunc(c.late.apps.rows, same); at >= 0 {
		was := c.late.apps.rows[at]
		a.ProjectID, a.EnvironmentID, a.Name, a.Step, a.CreatedAt = was.ProjectID, was.EnvironmentID, was.Name, was.Step, was.CreatedAt
		a.ResourceVersion++
		c.late.apps.rows[at] = a
		return nil
	}
	if c.about[a.ID] {
		if err := t.flush(); err != nil {
			return err
		}
	}
	keepRows(c, &c.late.updated, []string{a.ID}, a)
	return nil
}

// updateApps is a compare-and-set. step is not among the columns, because only StepApps sets it.
func (t *tx) updateApps(apps []model.App) error {
	if len(apps) == 0 {
		return nil
	}
	n, err := runRewrite(t, updateApps, apps, func(args []any, a model.App) []any {
		return append(args, a.ID, a.WorkspaceID, a.ResourceVersion,
			a.Description, int32(a.Status), a.Message, a.LiveDeploymentID, a.PreviousDeploymentID, a.RolloutID, a.LatestVersion, a.Replicas,
			a.DeletingSince, a.AbandonUnreachable, a.DeletedAt, a.UpdatedAt, a.Domains, a.AppKeys)
	})
	if err != nil || n == len(apps) {
		return t.queryError(err, "update app", apps[0].ID)
	}
	for _, a := range apps {
		if _, err := t.GetApp(a.WorkspaceID, a.ID); err != nil {
			return err
		}
	}
	return wrapError(model.ErrConflict, "update app", apps[0].ID)
}

var (
	updateApps = rewriteQuery("UpdateApps", "apps", []string{"workspace_id", "resource_version"}, "resource_version = resource_version + 1",
		"description", "status", "message", "live_deployment_id", "previous_deployment_id", "rollout_id", "latest_version", "replicas",
		"deleting_since", "abandon_unreachable", "deleted_at", "updated_at", "domains", "app_keys")
	stepApps = rewriteQuery("StepApps", "apps", []string{"step"}, "step = step + 1")
	// domains and app_keys are not among the columns, because no step sets them.
	stepChangedApps = rewriteQuery("StepChangedApps", "apps", []string{"workspace_id", "step", "resource_version"},
		"step = step + 1, resource_version = resource_version + 1",
		"description", "status", "message", "live_deployment_id", "previous_deployment_id", "rollout_id", "latest_version", "replicas",
		"deleting_since", "abandon_unreachable", "deleted_at", "updated_at")
)

// StepApps refuses the late step of a stalled process.
func (t *tx) StepApps(steps []model.AppStep) error {
	if len(steps) == 0 {
		return nil
	}
	var changed, still []model.App
	for _, s := range steps {
		if s.Changed {
			t.touchApp(s.App.ID)
			changed = append(changed, s.App)
		} else {
			still = append(still, s.App)
		}
	}
	n, err := runRewrite(t, stepApps, still, func(args []any, a model.App) []any { return append(args, a.ID, a.Step) })
	if err == nil {
		var more int
		more, err = runRewrite(t, stepChangedApps, changed, func(args []any, a model.App) []any {
			return append(args, a.ID, a.WorkspaceID, a.Step, a.ResourceVersion,
				a.Description, int32(a.Status), a.Message, a.LiveDeploymentID, a.PreviousDeploymentID, a.RolloutID, a.LatestVersion, a.Replicas,
				a.DeletingSince, a.AbandonUnreachable, a.DeletedAt, a.UpdatedAt)
		})
		n += more
	}
	if err == nil && n < len(steps) {
		err = model.ErrConflict
	}
	return t.queryError(err, fmt.Sprintf("step %d apps, such as", len(steps)), steps[0].App.ID)
}

func (t *tx) ListApps(workspaceID, environmentID string, p store.Page) ([]model.App, error) {
	name, id, _ := strings.Cut(p.After, "\x00")
	if environmentID == "" {
		return list(t, "list apps of", workspaceID, appFromRow)(t.q.ListApps(t.ctx, gen.ListAppsParams{
			WorkspaceID: workspaceID, AfterName: name, AfterID: id, Limit: limitOrAll(p.Limit),
		}))
	}
	return list(t, "list apps of", environmentID, appFromRow)(t.q.ListAppsOfEnvironment(t.ctx, gen.ListAppsOfEnvironmentParams{
		WorkspaceID: workspaceID, EnvironmentID: environmentID, AfterName: name, AfterID: id, Limit: limitOrAll(p.Limit),
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
	return int(n), t.queryError(err, "count apps of", workspaceID)
}
