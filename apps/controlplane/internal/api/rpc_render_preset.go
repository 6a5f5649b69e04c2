package api

import (
	"context"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RenderPreset returns what the preset makes of a spec's serve.
func (a presetService) RenderPreset(_ context.Context, req *windlassv1.RenderPresetRequest) (*windlassv1.RenderPresetResponse, error) {
	if req.GetSpec().GetServe() == nil {
		return nil, apierr.InvalidFix("spec.serve", "the spec names no engine and model", "Set serve, for example {engine: vllm, model: hf://org/model}.")
	}
	spec, findings := appspec.Expand(req.GetSpec(), a.cfg.Presets)
	res := &windlassv1.RenderPresetResponse{Findings: presetFindings(findings)}
	if !preset.HasErrors(findings) {
		res.Spec = spec
	}
	return res, nil
}
