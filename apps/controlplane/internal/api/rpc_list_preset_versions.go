package api

import (
	"context"
	"fmt"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListPresetVersions returns the stored versions of a preset of the workspace, newest first.
func (a presetService) ListPresetVersions(ctx context.Context, req *windlassv1.ListPresetVersionsRequest) (*windlassv1.ListPresetVersionsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListPresetVersionsResponse{}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err := tx.ListPresetVersions(by.WorkspaceID, req.GetName())
		if err != nil {
			return fmt.Errorf("list versions of preset %s: %w", req.GetName(), err)
		}
		for _, row := range rows {
			res.Versions = append(res.Versions, &windlassv1.PresetVersion{Version: row.Version, SetBy: row.SetBy, SetAt: row.SetAt})
		}
		return nil
	})
	if err == nil && len(res.GetVersions()) == 0 {
		err = missingPreset("name", req.GetName())
	}
	return res, err
}
