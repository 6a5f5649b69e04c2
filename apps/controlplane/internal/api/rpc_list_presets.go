package api

import (
	"context"
	"fmt"

	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListPresets returns the newest version of each preset: the built-in ones, and then the workspace's.
func (a presetService) ListPresets(ctx context.Context, _ *windlassv1.ListPresetsRequest) (*windlassv1.ListPresetsResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	res := &windlassv1.ListPresetsResponse{}
	for _, p := range a.cfg.Presets.All() {
		res.Presets = append(res.Presets, presetView(p, ""))
	}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		rows, err := tx.ListPresets(by.WorkspaceID)
		if err != nil {
			return fmt.Errorf("list presets: %w", err)
		}
		for _, row := range rows {
			p, err := compilePreset(row)
			if err != nil {
				// The others are shown all the same, and GetPreset says what is wrong with this one.
				name := preset.CustomPrefix + row.Name
				res.Presets = append(res.Presets, &windlassv1.Preset{Name: name, Id: fmt.Sprintf("%s/%d", name, row.Version), SetBy: row.SetBy, SetAt: row.SetAt})
				continue
			}
			res.Presets = append(res.Presets, customView(p, row, ""))
		}
		return nil
	})
	return res, err
}
