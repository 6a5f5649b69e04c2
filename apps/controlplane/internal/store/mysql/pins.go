package mysql

import (
	"cmp"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

func pinFromRow(r gen.AppPin) (model.Pin, error) {
	p := model.Pin{
		WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, Version: r.Version, Weight: r.Weight,
		Removing: r.Removing, By: r.PinnedBy, Why: r.Why, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		// A replica of an earlier release writes none. Both change with each change that a caller makes.
		ResourceVersion: cmp.Or(r.ResourceVersion, r.UpdatedAt),
	}
	var err error
	if p.Regions, err = model.DecodePinRegions(r.Regions); err != nil {
		return p, fmt.Errorf("pin of %q: %w", r.DeploymentID, err)
	}
	return p, nil
}

func (t *tx) ListPins(appIDs []string) ([]model.Pin, error) {
	return list(t, "list pins", "", pinFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.AppPin, error) {
		return t.q.ListPins(t.ctx, ids)
	}))
}

func (t *tx) PutPin(p model.Pin) error {
	regions, err := model.EncodePinRegions(p.Regions)
	if err != nil {
		return fmt.Errorf("store: pin of %q: %w", p.DeploymentID, err)
	}
	t.touchApp(p.AppID)
	return t.queryError(t.q.PutPin(t.ctx, gen.PutPinParams{
		AppID: p.AppID, DeploymentID: p.DeploymentID, WorkspaceID: p.WorkspaceID, Version: p.Version, Weight: p.Weight,
		Removing: p.Removing, PinnedBy: clipText(p.By, maxName), Why: clipText(p.Why, maxWhy), Regions: regions,
		CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, ResourceVersion: p.ResourceVersion,
	}), "put pin of", p.DeploymentID)
}

func (t *tx) DeletePin(appID, deploymentID string) error {
	t.touchApp(appID)
	return t.queryError(t.q.DeletePin(t.ctx, gen.DeletePinParams{AppID: appID, DeploymentID: deploymentID}), "delete pin of", deploymentID)
}
