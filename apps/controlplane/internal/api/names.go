package api

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// readNames reads the environments and projects of the apps into f, with two queries for each workspace. Environments
// and projects of deleted apps may no longer exist, and are left out.
func readNames(tx Tx, f facts, apps []model.App) error {
	environments, projects := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, app := range apps {
		if environments[app.WorkspaceID] == nil {
			environments[app.WorkspaceID], projects[app.WorkspaceID] = map[string]bool{}, map[string]bool{}
		}
		environments[app.WorkspaceID][app.EnvironmentID] = true
		projects[app.WorkspaceID][app.ProjectID] = true
	}
	for workspaceID, ids := range environments {
		if err := readEnvironments(tx, f, workspaceID, ids); err != nil {
			return err
		}
		if err := readProjects(tx, f, workspaceID, projects[workspaceID]); err != nil {
			return err
		}
	}
	return nil
}

// readScopes reads the workspace's projects and environments with the ids into f, and also the projects of the
// environments.
func readScopes(tx Tx, f facts, workspaceID string, ids map[string]bool) error {
	if err := readEnvironments(tx, f, workspaceID, ids); err != nil {
		return err
	}
	projects := map[string]bool{}
	for id := range ids {
		if e, ok := f.environments[id]; ok {
			projects[e.ProjectID] = true
		} else {
			projects[id] = true
		}
	}
	return readProjects(tx, f, workspaceID, projects)
}

func readEnvironments(tx Tx, f facts, workspaceID string, ids map[string]bool) error {
	rows, err := tx.GetEnvironments(workspaceID, keysOf(ids))
	if err != nil {
		return fmt.Errorf("read environments of workspace %s: %w", workspaceID, err)
	}
	for _, e := range rows {
		f.environments[e.ID] = e
	}
	return nil
}

func readProjects(tx Tx, f facts, workspaceID string, ids map[string]bool) error {
	rows, err := tx.GetProjects(workspaceID, keysOf(ids))
	if err != nil {
		return fmt.Errorf("read projects of workspace %s: %w", workspaceID, err)
	}
	for _, p := range rows {
		f.projects[p.ID] = p
	}
	return nil
}

// noNames returns facts without apps, for views that need only names.
func noNames() facts {
	return facts{projects: map[string]model.Project{}, environments: map[string]model.Environment{}}
}
