package api

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
)

// checkCapacity fails if regions lack the capacity to begin the deployment, which the transaction has written. was
// has the app's rows before the call, nil if the call changed no rows.
func (c versionMutation) checkCapacity(appID, deploymentID string, was []model.Topology) error {
	app, err := c.GetApp(c.workspaceID, appID)
	if err != nil {
		return fmt.Errorf("read app %s: %w", appID, err)
	}
	p, err := preview.Read(c.Tx, app, deploymentID, was)
	if err != nil {
		return err
	}
	return p.RoomToBegin(c.at)
}
