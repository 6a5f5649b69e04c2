package memory

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertDeployment(d model.Deployment) error {
	if err := deploymentTable.overlayIn(t).insert(d); err != nil {
		return err
	}
	t.touchApp(d.AppID)
	return nil
}

func (t *tx) GetDeployment(workspaceID, id string) (model.Deployment, error) {
	d, ok := deploymentTable.overlayIn(t).get(id)
	return oneRow(d, ok && d.WorkspaceID == workspaceID, "deployment", id)
}

func (t *tx) GetDeploymentByVersion(workspaceID, appID string, version int32) (model.Deployment, error) {
	d, ok := deploymentTable.overlayIn(t).find(0, versionName(appID, version))
	return oneRow(d, ok && d.WorkspaceID == workspaceID, "deployment of app", appID)
}

func (t *tx) GetNewestDeployments(appIDs []string) ([]model.Deployment, error) {
	var rows []model.Deployment
	for _, id := range sortDistinct(appIDs) {
		a, ok := appTable.overlayIn(t).get(id)
		if !ok {
			continue
		}
		if d, ok := deploymentTable.overlayIn(t).find(0, versionName(id, a.LatestVersion)); ok {
			rows = append(rows, d)
		}
	}
	return rows, nil
}

func (t *tx) GetDeployments(ids []string) ([]model.Deployment, error) {
	var rows []model.Deployment
	for _, id := range sortDistinct(ids) {
		if d, ok := deploymentTable.overlayIn(t).get(id); ok {
			rows = append(rows, d)
		}
	}
	return rows, nil
}

func (t *tx) UpdateDeployment(deployments ...model.Deployment) error {
	for _, d := range deployments {
		if err := t.updateDeployment(d); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) updateDeployment(d model.Deployment) error {
	stored, ok, err := deploymentTable.overlayIn(t).lock(d.ID)
	if err != nil {
		return err
	}
	if !ok || stored.WorkspaceID != d.WorkspaceID {
		return notFound("deployment", d.ID)
	}
	stored.Status, stored.Reason, stored.Message = d.Status, d.Reason, d.Message
	stored.ResolvedImage, stored.Stable = d.ResolvedImage, d.Stable
	stored.ReadyAt, stored.EndedAt = d.ReadyAt, d.EndedAt
	t.touchApp(stored.AppID)
	return deploymentTable.overlayIn(t).put(stored)
}

func (t *tx) ListDeployments(workspaceID, appID string, p store.Page) ([]model.Deployment, error) {
	rows := deploymentTable.overlayIn(t).list(func(d model.Deployment) bool {
		return d.WorkspaceID == workspaceID && (appID == "" || d.AppID == appID)
	})
	return pageDown(rows, p, func(d model.Deployment) string { return d.ID }), nil
}
