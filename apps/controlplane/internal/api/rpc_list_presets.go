package api

import (
	"context"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ListPresets returns the newest version of each preset, by name.
func (a presetService) ListPresets(context.Context, *windlassv1.ListPresetsRequest) (*windlassv1.ListPresetsResponse, error) {
	res := &windlassv1.ListPresetsResponse{}
	for _, p := range a.cfg.Presets.All() {
		res.Presets = append(res.Presets, presetView(p, ""))
	}
	return res, nil
}
