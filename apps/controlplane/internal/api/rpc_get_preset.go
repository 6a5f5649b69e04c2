package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GetPreset returns a preset by its name, or one version of it.
func (a presetService) GetPreset(ctx context.Context, req *windlassv1.GetPresetRequest) (*windlassv1.GetPresetResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	name, version, custom := preset.SplitCustom(req.GetName())
	if !custom {
		p, ok := a.cfg.Presets.Find(req.GetName())
		if !ok {
			return nil, unknownPreset(a.cfg.Presets, "name", req.GetName())
		}
		return &windlassv1.GetPresetResponse{Preset: presetView(p, req.GetEngineVersion())}, nil
	}
	var row model.Preset
	err = a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		row, err = tx.GetPreset(by.WorkspaceID, name, version)
		return err
	})
	if errors.Is(err, model.ErrNotFound) {
		return nil, unknownPreset(a.cfg.Presets, "name", req.GetName())
	}
	if err != nil {
		return nil, fmt.Errorf("read preset %s: %w", req.GetName(), err)
	}
	return &windlassv1.GetPresetResponse{Preset: storedView(row, req.GetEngineVersion())}, nil
}
