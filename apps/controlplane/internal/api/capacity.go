package api

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/preview"
)

// checkCapacity fails if the deployment, which the transaction has written, cannot begin with what regions
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
