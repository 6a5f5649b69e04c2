package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListPresets returns the newest version of each preset: the built-in presets, then the workspace's presets.
func (a presetService) ListPresets(ctx context.Context, _ *windlassv1.ListPresetsRequest) (*windlassv1.ListPresetsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListPresetsResponse{}
	for _, p := range a.cfg.Presets.All() {
		res.Presets = append(res.Presets, presetView(p, ""))
	}
	var rows []model.Preset
	err = a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		rows, err = tx.ListPresets(by.WorkspaceID)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list presets: %w", err)
	}
	for _, row := range rows {
		res.Presets = append(res.Presets, rowView(row, ""))
	}
	return res, nil
}
