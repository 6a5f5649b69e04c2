package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Defaults for the parts that a reference may leave out.
const (
	defaultProject     = "default"
	defaultEnvironment = "production"
)

// maxID is the size of the columns for ids, in bytes.
const maxID = 64

// plainID reports whether s could be an id. Other texts are not looked up, because the database cannot compare them.
func plainID(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// splitApp splits a reference into the environment ("" for the default environment) and the app's name.
func splitApp(ref string) (environment, name string) {
	i := strings.LastIndexByte(ref, '/')
	if i < 0 {
		return "", ref
	}
	return ref[:i], ref[i+1:]
}

// findEnvironment finds an environment by id, by "project/environment", or by its name in the default project. An empty
// ref is default/production.
func (a *server) findEnvironment(tx Tx, workspaceID, ref, field string) (e model.Environment, err error) {
	if ident.Valid("env", ref) {
		e, err = tx.GetEnvironment(workspaceID, ref)
	} else {
		projectName, name, ok := strings.Cut(ref, "/")
		switch {
		case ref == "":
			projectName, name = defaultProject, defaultEnvironment
		case !ok:
			projectName, name = defaultProject, ref
		}
		if !ident.ValidName(name) {
			return e, apierr.Missing(field, "environment", ref, `Name it by its id or as "project/environment".`)
		}
		var p model.Project
		if p, err = a.findProject(tx, workspaceID, projectName, field); err != nil {
			return e, err
		}
		e, err = tx.GetEnvironmentByName(workspaceID, p.ID, name)
	}
	switch {
	case errors.Is(err, model.ErrNotFound):
		return e, apierr.Missing(field, "environment", ref, "`windlass environment list` shows the environments. `windlass environment create` makes one.")
	case err != nil:
		return e, fmt.Errorf("read environment %s: %w", ref, err)
	}
	return e, nil
}

// findProject finds a project by id or name.
func (a *server) findProject(tx Tx, workspaceID, ref, field string) (p model.Project, err error) {
	if ident.Valid("prj", ref) {
		p, err = tx.GetProject(workspaceID, ref)
	} else if ident.ValidName(ref) {
		p, err = tx.GetProjectByName(workspaceID, ref)
	} else {
		return p, apierr.Missing(field, "project", ref, "Name it by its id or its name.")
	}
	switch {
	case errors.Is(err, model.ErrNotFound):
		return p, apierr.Missing(field, "project", ref, "`windlass project list` shows the projects. `windlass project create` makes one.")
	case err != nil:
		return p, fmt.Errorf("read project %s: %w", ref, err)
	}
	return p, nil
}

const listApps = "`windlass list apps` shows the apps. Name an app outside of default/production as project/environment/name."

// findApp finds an app by id, "project/environment/name", "environment/name" within the default project, or name
// within default/production. It finds a deleted app by id if gone is true.
func (a *server) findApp(tx Tx, workspaceID, ref string, gone bool) (app model.App, err error) {
	if ident.Valid("app", ref) {
		app, err = tx.GetApp(workspaceID, ref)
	} else {
		environment, name := splitApp(ref)
		if !ident.ValidName(name) {
			return app, apierr.Missing("app", "app", ref, `Name it by its id or as "project/environment/name".`)
		}
		var e model.Environment
		if e, err = a.findEnvironment(tx, workspaceID, environment, "app"); err != nil {
			return app, err
		}
		app, err = tx.GetAppByName(workspaceID, e.ID, name)
	}
	switch {
	case errors.Is(err, model.ErrNotFound), err == nil && app.DeletedAt != 0 && !gone:
		return model.App{}, apierr.Missing("app", "app", ref, listApps)
	case err != nil:
		return app, fmt.Errorf("read app %s: %w", ref, err)
	}
	return app, nil
}

// lockedApp finds an app like app, and locks its row until the end of the transaction.
func (c *mutation) lockedApp(ref string) (model.App, error) {
	id, fix := ref, listApps
	if !ident.Valid("app", ref) {
		app, err := c.api.findApp(c.Tx, c.workspaceID, ref, false)
		if err != nil {
			return app, err
		}
		id, fix = app.ID, "It was deleted."
	}
	locked, err := c.LockApp(c.workspaceID, id)
	switch {
	case errors.Is(err, model.ErrNotFound), err == nil && locked.DeletedAt != 0:
		return model.App{}, apierr.Missing("app", "app", ref, fix)
	case err != nil:
		return locked, fmt.Errorf("lock app %s: %w", id, err)
	}
	return locked, nil
}

// findRegion finds a region by id or name that the caller may use: a region of its workspace, a granted region, or for an
// operator a region of the platform.
func (a *server) findRegion(tx Tx, by caller, ref string) (r model.Region, err error) {
	const fix = "`windlass list regions` shows the regions that the workspace may use."
	switch {
	case ident.Valid("reg", ref):
		r, err = tx.GetRegion(ref)
		if err == nil && r.WorkspaceID != by.WorkspaceID {
			var ok bool
			if ok, err = a.isGranted(tx, r, by); err == nil && !ok {
				return model.Region{}, apierr.Missing("region", "region", ref, fix)
			}
		}
	case ident.ValidName(ref):
		r, err = tx.GetRegionByName(by.WorkspaceID, ref)
	default:
		return r, apierr.Missing("region", "region", ref, "Name it by its id or its name.")
	}
	switch {
	case errors.Is(err, model.ErrNotFound):
		return model.Region{}, apierr.Missing("region", "region", ref, fix)
	case err != nil:
		return r, fmt.Errorf("read region %s: %w", ref, err)
	}
	return r, nil
}

// isGranted reports whether a platform region is granted to the caller's workspace.
func (a *server) isGranted(tx Tx, r model.Region, by caller) (bool, error) {
	if r.WorkspaceID != "" || by.WorkspaceID == "" {
		return false, nil
	}
	ids, err := tx.RegionWorkspaces(r.ID)
	if err != nil {
		return false, err
	}
	return slices.Contains(ids, by.WorkspaceID), nil
}

// managedRegion finds and locks a region that the caller may change.
func (c regionMutation) managedRegion(ref string) (model.Region, error) {
	r, err := c.api.findRegion(c.Tx, c.by, ref)
	if err != nil {
		return r, err
	}
	if r.WorkspaceID != c.by.WorkspaceID {
		return r, apierr.Denied(fmt.Sprintf("region %s belongs to the platform", r.Name), "Ask an operator of the platform.")
	}
	locked, err := c.LockRegion(r.ID)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return locked, apierr.Missing("region", "region", ref, "It was deleted.")
	case err != nil:
		return locked, fmt.Errorf("lock region %s: %w", r.ID, err)
	}
	return locked, nil
}

func (a *server) findDeployment(tx Tx, workspaceID, id, field string) (d model.Deployment, err error) {
	if !plainID(id) {
		return d, apierr.Missing(field, "deployment", id, "Name it by its id.")
	}
	d, err = tx.GetDeployment(workspaceID, id)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return d, apierr.Missing(field, "deployment", id, "`windlass list deployments APP` shows the deployments.")
	case err != nil:
		return d, fmt.Errorf("read deployment %s: %w", id, err)
	}
	return d, nil
}

// lockedEnvironment finds and locks an environment.
func (c *mutation) lockedEnvironment(ref string) (model.Environment, error) {
	e, err := c.api.findEnvironment(c, c.workspaceID, ref, "environment")
	if err != nil {
		return e, err
	}
	locked, err := c.LockEnvironment(c.workspaceID, e.ID)
	switch {
	case errors.Is(err, model.ErrNotFound):
		return locked, apierr.Missing("environment", "environment", ref, "It was deleted.")
	case err != nil:
		return locked, fmt.Errorf("lock environment %s: %w", e.ID, err)
	}
	return locked, nil
}

// visibleWorkspace returns the workspace that ref names if the caller may see it: its own workspace, or for an
// operator any workspace. An empty ref means the caller's own.
func (a *server) visibleWorkspace(tx Tx, by caller, ref string) (model.Workspace, error) {
	if by.IsOperator() {
		if ref == "" {
			return model.Workspace{}, apierr.Invalid("workspace", "an operator belongs to no workspace: set workspace")
		}
		return a.findWorkspace(tx, ref, "workspace")
	}
	w, err := tx.GetWorkspace(by.WorkspaceID)
	if err != nil {
		return w, fmt.Errorf("read workspace %s: %w", by.WorkspaceID, err)
	}
	if ref != "" && ref != w.ID && ref != w.Name {
		return w, apierr.Missing("workspace", "workspace", ref, "A key sees its own workspace: leave workspace out.")
	}
	return w, nil
}

// findWorkspace finds a workspace by id or name.
func (a *server) findWorkspace(tx Tx, ref, field string) (w model.Workspace, err error) {
	switch {
	case ident.Valid("ws", ref):
		w, err = tx.GetWorkspace(ref)
	case ident.ValidName(ref):
		w, err = tx.GetWorkspaceByName(ref)
	default:
		return w, apierr.Missing(field, "workspace", ref, "Name it by its id or its name.")
	}
	switch {
	case errors.Is(err, model.ErrNotFound):
		return w, apierr.Missing(field, "workspace", ref, "`windlass workspace list` shows the workspaces.")
	case err != nil:
		return w, fmt.Errorf("read workspace %s: %w", ref, err)
	}
	return w, nil
}

// requireNotDeleted fails for an app that is being deleted.
func requireNotDeleted(app model.App) error {
	if app.DeletingSince == 0 {
		return nil
	}
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_APP_DELETING, Field: "app",
		Fix: "Wait until it is gone, or use another name.",
	}, fmt.Sprintf("app %s is being deleted: nothing new starts", app.Name))
}
