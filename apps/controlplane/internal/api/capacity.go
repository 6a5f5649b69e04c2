package api

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
)

// roomToBegin refuses a rollout that a call made if what it begins with does not fit in a
// region that tells what it has, unless its policy has it wait for room.
func (c versionMutation) roomToBegin(app model.App, made outcome) error {
	if c.dry != nil || made.Unchanged || made.Scaled || !slices.ContainsFunc(override.Any(made.Deployment.Spec), preview.HasGPU) {
		return nil // a dry run tells of more than the beginning
	}
	return c.checkCapacity(app.ID, made.Deployment.ID)
}

// checkCapacity refuses what was written for the app if its deployment cannot begin with what regions
// have.
func (c versionMutation) checkCapacity(appID, deploymentID string) error {
	app, err := c.GetApp(c.workspaceID, appID)
	if err != nil {
		return fmt.Errorf("read app %s: %w", appID, err)
	}
	p, err := preview.Read(c.Tx, app, deploymentID, nil)
	if err != nil {
		return err
	}
	return p.RoomToBegin(c.at)
}
