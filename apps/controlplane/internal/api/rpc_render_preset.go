package api

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RenderPreset returns the spec that the preset makes from a spec's serve.
func (a presetService) RenderPreset(ctx context.Context, req *windlassv1.RenderPresetRequest) (*windlassv1.RenderPresetResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetSpec().GetServe() == nil {
		return nil, apierr.InvalidFix("spec.serve", "the spec has no engine and model", "Set serve, for example {engine: vllm, model: hf://org/model}.")
	}
	presets, err := a.presetsFor(ctx, by.WorkspaceID, req.GetSpec().GetServe().GetEngine())
	if err != nil {
		return nil, err
	}
	spec, findings := appspec.Expand(req.GetSpec(), presets)
	res := &windlassv1.RenderPresetResponse{Findings: presetFindings(findings)}
	if !preset.HasErrors(findings) {
		res.Spec = spec
	}
	return res, nil
}
