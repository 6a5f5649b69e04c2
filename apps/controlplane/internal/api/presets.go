package api

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A workspace's presets are rows with a definition. They are compiled when a call needs them: presets that are built
// in, and those of the workspace that the call names, are the registry of that call.

// presetsFor returns the presets that a spec of the workspace may use.
func (a *server) presetsFor(ctx context.Context, workspaceID string, spec *windlassv1.DeploymentSpec) (presets *preset.Registry, err error) {
	if _, _, custom := preset.SplitCustom(spec.GetServe().GetEngine()); !custom {
		return a.cfg.Presets, nil
	}
	err = a.cfg.Store.View(ctx, func(tx Tx) error {
		presets, err = a.presetsOf(tx, workspaceID, spec.GetServe().GetEngine())
		return err
	})
	return presets, err
}

// presetsOf returns the built-in presets, and those of the workspace's that the engines name. Engines that do not
// exist are left out.
func (a *server) presetsOf(tx Tx, workspaceID string, engines ...string) (*preset.Registry, error) {
	presets := a.cfg.Presets
	for _, engine := range engines {
		name, version, custom := preset.SplitCustom(engine)
		if !custom {
			continue
		}
		row, err := tx.GetPreset(workspaceID, name, version)
		if errors.Is(err, model.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read preset %s: %w", engine, err)
		}
		p, err := compilePreset(row)
		if err != nil {
			return nil, err
		}
		presets = presets.With(p)
	}
	return presets, nil
}

// compilePreset returns the preset of a stored version. It fails if a later release of Windlass refuses what an
// earlier one accepted.
func compilePreset(row model.Preset) (*preset.Preset, error) {
	p, findings := preset.Define(row.Name, int(row.Version), row.Definition)
	if p == nil {
		return nil, apierr.InvalidFix("spec.serve.engine", fmt.Sprintf("preset %s%s/%d: %s: %s", preset.CustomPrefix, row.Name, row.Version, appspec.FileField(findings[0]), findings[0].Text),
			"Set the preset again: `windlass preset set` says what to mend.")
	}
	return p, nil
}

// maxDefinition is the most bytes of a stored definition.
const maxDefinition = 64 << 10

// checkDefinition returns the preset of a definition, and what is wrong with it or its examples. With an error among
// the findings, there is no preset.
func checkDefinition(name string, version int32, def *windlassv1.PresetDefinition) (*preset.Preset, []preset.Finding) {
	if size := proto.Size(def); size > maxDefinition {
		return nil, []preset.Finding{{
			Severity: preset.Error, Code: "DefinitionInvalid", Field: "/args", Text: fmt.Sprintf("the definition has %d bytes, and %d are the most", size, maxDefinition), Fix: "write a shorter one",
		}}
	}
	p, findings := preset.Define(name, int(version), def)
	if p == nil {
		return nil, findings
	}
	if findings = appspec.CheckExamples(p, def.GetExamples()); preset.HasErrors(findings) {
		return nil, findings
	}
	return p, findings
}

// nextPresetVersion returns the version that the preset gets when it is set, and its newest one, nil for none.
func nextPresetVersion(tx Tx, workspaceID, name string) (next int32, newest *model.Preset, err error) {
	row, err := tx.GetPreset(workspaceID, name, 0)
	if err == nil {
		return row.Version + 1, &row, nil
	}
	if !errors.Is(err, model.ErrNotFound) {
		return 0, nil, fmt.Errorf("read preset %s: %w", name, err)
	}
	floor, err := tx.PresetFloor(workspaceID)
	if err != nil {
		return 0, nil, fmt.Errorf("read floor of presets: %w", err)
	}
	return floor + 1, nil, nil
}

// customView returns a preset of a workspace as the API shows it.
func customView(p *preset.Preset, row model.Preset, engine string) *windlassv1.Preset {
	v := presetView(p, engine)
	v.SetBy, v.SetAt = row.SetBy, row.SetAt
	return v
}

// missingPreset refuses the name of a preset that the workspace does not have.
func missingPreset(field, name string) error {
	return apierr.Missing(field, "preset", preset.CustomPrefix+name, "`windlass preset list --remote` shows the presets of the workspace.")
}
