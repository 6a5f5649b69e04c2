package api

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A workspace's presets are rows with a definition. A definition is compiled when a call needs its output. The
// registry of a call has the built-in presets and the workspace's presets that the call names. Views are made from
// rows without compilation, so that a definition that this release refuses can be read, corrected and deleted.

// presetsFor returns the built-in presets, and the workspace's presets that the engines name, for the request of ctx.
// Engines that do not exist are left out.
func (a *server) presetsFor(ctx context.Context, workspaceID string, engines ...string) (*preset.Registry, error) {
	if !slices.ContainsFunc(engines, isCustom) {
		return a.cfg.Presets, nil
	}
	var rows []model.Preset
	err := a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		rows, err = presetRows(tx, workspaceID, engines...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return a.compiledPresets(ctx, workspaceID, rows)
}

func isCustom(engine string) bool {
	_, _, custom := preset.SplitCustom(engine)
	return custom
}

// presetRows reads the workspace's presets that the engines name. Engines that do not exist are left out.
func presetRows(tx Tx, workspaceID string, engines ...string) (rows []model.Preset, err error) {
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
		rows = append(rows, row)
	}
	return rows, nil
}

// compiledPresets returns the built-in presets and the presets of the rows, for the request of ctx. It must not be called in
// a transaction, because it can take seconds. It fails if this release refuses a definition that an earlier release
// accepted.
func (a *server) compiledPresets(ctx context.Context, workspaceID string, rows []model.Preset) (*preset.Registry, error) {
	if err := a.compilers.Acquire(ctx, workspaceID); err != nil {
		return nil, fmt.Errorf("wait to compile presets: %w", err)
	}
	defer a.compilers.Release(workspaceID)
	presets := a.cfg.Presets
	for _, row := range rows {
		p, findings := preset.Define(ctx, row.Name, int(row.Version), row.Definition)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if p == nil {
			return nil, apierr.InvalidFix("spec.serve.engine", fmt.Sprintf("preset %s%s/%d: %s: %s", preset.CustomPrefix, row.Name, row.Version, appspec.FileField(findings[0]), findings[0].Text),
				"Set the preset again: `windlass preset set` reports the errors.")
		}
		presets = presets.With(p)
	}
	return presets.Within(ctx), nil
}

// maxCompilers is the maximum number of requests that compile definitions at the same time. A definition can take a
// second of processor time, and each key of role viewer may request checks as often as it may read. One workspace may
// have at most half of these requests.
const maxCompilers = 4

// maxDefinition is the maximum size of a stored definition, in bytes.
const maxDefinition = 64 << 10

// checkDefinition returns the preset of a definition, and findings about the definition and its examples, errors
// first. If a finding is an error, it returns no preset. It fails if ctx ends.
func (a *server) checkDefinition(ctx context.Context, workspaceID, name string, version int32, def *windlassv1.PresetDefinition) (*preset.Preset, []preset.Finding, error) {
	if size := proto.Size(def); size > maxDefinition {
		return nil, []preset.Finding{{
			Severity: preset.Error, Code: "DefinitionInvalid", Field: "/args", Text: fmt.Sprintf("the definition has %d bytes, but at most %d are allowed", size, maxDefinition), Fix: "write a shorter definition",
		}}, nil
	}
	if err := a.compilers.Acquire(ctx, workspaceID); err != nil {
		return nil, nil, fmt.Errorf("wait to check preset %s: %w", name, err)
	}
	defer a.compilers.Release(workspaceID)
	p, findings := preset.Define(ctx, name, int(version), def)
	if p != nil {
		findings = appspec.CheckExamples(ctx, p, def.GetExamples())
	}
	if preset.HasErrors(findings) {
		p = nil
	}
	return p, findings, ctx.Err()
}

// nextPresetVersion returns the version number for the next set of the preset, and its newest version, nil for none.
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

// rowView returns a stored version as the API shows it, without its definition. engine is the version of the engine
// whose metrics are shown, or "".
func rowView(row model.Preset, engine string) *windlassv1.Preset {
	v := presetView(preset.Describe(row.Name, int(row.Version), row.Definition), engine)
	v.SetBy, v.SetAt = row.SetBy, row.SetAt
	return v
}

// storedView is rowView with the definition.
func storedView(row model.Preset, engine string) *windlassv1.Preset {
	v := rowView(row, engine)
	v.Definition = row.Definition
	return v
}

// missingPreset returns the error for the name of a preset that the workspace does not have.
func missingPreset(field, name string) error {
	return apierr.Missing(field, "preset", preset.CustomPrefix+name, "`windlass preset list --remote` shows the presets of the workspace.")
}
