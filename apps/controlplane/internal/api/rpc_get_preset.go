package api

import (
	"context"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetPreset returns a preset by its name, or one version of it.
func (a presetService) GetPreset(_ context.Context, req *windlassv1.GetPresetRequest) (*windlassv1.GetPresetResponse, error) {
	p, ok := a.cfg.Presets.Find(req.GetName())
	if !ok {
		return nil, unknownPreset(a.cfg.Presets, "name", req.GetName())
	}
	return &windlassv1.GetPresetResponse{Preset: presetView(p, req.GetEngineVersion())}, nil
}
