package api

import (
	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// presetView returns a preset in the form of the API, with the metrics of one engine version. Empty: the default
// version.
func presetView(p *preset.Preset, engine string) *windlassv1.Preset {
	v := &windlassv1.Preset{
		Name: p.Name, Id: p.ID(), Title: p.Title, DefaultEngineVersion: p.DefaultEngine, EngineFrom: p.From, EngineBefore: p.Before,
		ModelSchemes: p.Schemes, Metrics: appspec.EngineMetrics(p.Metrics(engine)), Aliases: p.Aliases,
	}
	for _, s := range p.Sources {
		v.Sources = append(v.Sources, &windlassv1.PresetSource{About: s.About, Page: s.Page, Version: s.Version})
	}
	return v
}

var severities = map[preset.Severity]windlassv1.PresetFinding_Severity{
	preset.Error:   windlassv1.PresetFinding_SEVERITY_ERROR,
	preset.Warning: windlassv1.PresetFinding_SEVERITY_WARNING,
	preset.Note:    windlassv1.PresetFinding_SEVERITY_NOTE,
}

func presetFindings(findings []preset.Finding) (out []*windlassv1.PresetFinding) {
	for _, f := range findings {
		out = append(out, &windlassv1.PresetFinding{Severity: severities[f.Severity], Code: f.Code, Field: appspec.FileField(f), Message: f.Text, Fix: f.Fix})
	}
	return out
}

// unknownPreset returns the error for the name of a preset that does not exist.
func unknownPreset(presets *preset.Registry, field, name string) error {
	text, fix := presets.Unknown(name)
	return rpc.ErrorWith(connect.CodeNotFound, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_ENGINE, Field: field, Fix: appspec.Sentence(fix),
	}, text)
}
