package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DeletePreset deletes a preset of the workspace with all its versions.
func (a presetService) DeletePreset(ctx context.Context, req *windlassv1.DeletePresetRequest) (*windlassv1.DeletePresetResponse, error) {
	res, _, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.DeletePresetResponse, error) {
		if _, err := c.LockAdmission(c.workspaceID); err != nil { // the lock of the workspace
			return nil, fmt.Errorf("lock workspace %s: %w", c.workspaceID, err)
		}
		row, err := c.GetPreset(c.workspaceID, req.GetName(), 0)
		if errors.Is(err, model.ErrNotFound) {
			return nil, missingPreset("name", req.GetName())
		}
		if err != nil {
			return nil, fmt.Errorf("read preset %s: %w", req.GetName(), err)
		}
		if err := c.DeletePreset(c.workspaceID, row.Name); err != nil {
			return nil, fmt.Errorf("delete preset %s: %w", row.Name, err)
		}
		return &windlassv1.DeletePresetResponse{}, c.auditChange("preset", auditID(row.Name), storedView(row, ""), nil)
	})
	return res, err
}
