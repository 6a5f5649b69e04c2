package api

import (
	"context"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CheckPreset returns the findings that SetPreset would return for a definition.
func (a presetService) CheckPreset(ctx context.Context, req *windlassv1.CheckPresetRequest) (*windlassv1.CheckPresetResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	var version int32
	err = a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		version, _, err = nextPresetVersion(tx, by.WorkspaceID, req.GetName())
		return err
	})
	if err != nil {
		return nil, err
	}
	p, findings, err := a.checkDefinition(ctx, by.WorkspaceID, req.GetName(), version, req.GetDefinition())
	if err != nil {
		return nil, err
	}
	res := &windlassv1.CheckPresetResponse{Findings: presetFindings(findings)}
	if p != nil {
		res.Preset = presetView(p, "")
	}
	return res, nil
}
