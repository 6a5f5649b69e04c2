package mysql

import (
	"database/sql"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func presetFromRow(r gen.Preset) (model.Preset, error) {
	p := model.Preset{
		WorkspaceID: r.WorkspaceID, Name: r.Name, Version: r.Version, Definition: &windlassv1.PresetDefinition{}, SetBy: r.SetBy, SetAt: r.SetAt,
	}
	if err := proto.Unmarshal(r.Definition, p.Definition); err != nil {
		return p, fmt.Errorf("definition of preset %q version %d: %w", r.Name, r.Version, err)
	}
	return p, nil
}

func (t *tx) InsertPreset(p model.Preset) error {
	definition, err := proto.Marshal(p.Definition)
	if err != nil {
		return fmt.Errorf("store: definition of preset %q: %w", p.Name, err)
	}
	return t.queryError(t.q.InsertPreset(t.ctx, gen.InsertPresetParams{
		WorkspaceID: p.WorkspaceID, Name: p.Name, Version: p.Version, Definition: notNull(definition), SetBy: clipText(p.SetBy, maxName), SetAt: p.SetAt,
	}), "insert preset", p.Name)
}

// GetPreset reads the primary, because a deploy must use the version that was set before it.
func (t *tx) GetPreset(workspaceID, name string, version int32) (model.Preset, error) {
	read := get(t, "get preset", name, presetFromRow)
	if version == 0 {
		return read(t.primary.GetNewestPreset(t.ctx, gen.GetNewestPresetParams{WorkspaceID: workspaceID, Name: name}))
	}
	return read(t.primary.GetPreset(t.ctx, gen.GetPresetParams{WorkspaceID: workspaceID, Name: name, Version: version}))
}

func (t *tx) ListPresets(workspaceID string) ([]model.Preset, error) {
	return list(t, "list presets of", workspaceID, presetFromRow)(t.q.ListPresets(t.ctx, workspaceID))
}

func (t *tx) ListPresetVersions(workspaceID, name string) ([]model.Preset, error) {
	return list(t, "list versions of preset", name, func(r gen.ListPresetVersionsRow) (model.Preset, error) {
		return model.Preset{WorkspaceID: workspaceID, Name: name, Version: r.Version, SetBy: r.SetBy, SetAt: r.SetAt}, nil
	})(t.q.ListPresetVersions(t.ctx, gen.ListPresetVersionsParams{WorkspaceID: workspaceID, Name: name}))
}

func (t *tx) ForgetPresetVersions(workspaceID, name string, newest int32) error {
	return t.queryError(t.q.ForgetPresetVersions(t.ctx, gen.ForgetPresetVersionsParams{WorkspaceID: workspaceID, Name: name, Newest: newest}), "forget versions of preset", name)
}

func (t *tx) DeletePreset(workspaceID, name string) error {
	if err := t.q.RaisePresetFloor(t.ctx, gen.RaisePresetFloorParams{WorkspaceID: workspaceID, Name: name}); err != nil {
		return t.queryError(err, "delete preset", name)
	}
	n, err := t.q.DeletePreset(t.ctx, gen.DeletePresetParams{WorkspaceID: workspaceID, Name: name})
	return t.requireFound(n, err, "delete preset", name)
}

// PresetFloor reads the primary, because the caller writes a version that follows from it.
func (t *tx) PresetFloor(workspaceID string) (int32, error) {
	version, err := t.primary.GetPresetFloor(t.ctx, workspaceID)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return version, t.queryError(err, "read preset floor of", workspaceID)
}
