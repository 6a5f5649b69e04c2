package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func keyOfPreset(p model.Preset) versionKey {
	return versionKey{pair{p.WorkspaceID, p.Name}, p.Version}
}

// presetFloor is the highest version of the deleted presets of a workspace.
type presetFloor struct {
	workspaceID string
	version     int32
}

func (t *tx) InsertPreset(p model.Preset) error { return presetTable.overlayIn(t).insert(p) }

// versionsOf returns the versions of a preset, newest first.
func (t *tx) versionsOf(workspaceID, name string) []model.Preset {
	rows := presetTable.overlayIn(t).list(func(p model.Preset) bool { return p.WorkspaceID == workspaceID && p.Name == name })
	slices.SortFunc(rows, func(a, b model.Preset) int { return cmp.Compare(b.Version, a.Version) })
	return rows
}

func (t *tx) GetPreset(workspaceID, name string, version int32) (model.Preset, error) {
	for _, p := range t.versionsOf(workspaceID, name) {
		if version == 0 || p.Version == version {
			return p, nil
		}
	}
	return model.Preset{}, notFound("preset", name)
}

func (t *tx) ListPresets(workspaceID string) ([]model.Preset, error) {
	newest := map[string]model.Preset{}
	for _, p := range presetTable.overlayIn(t).list(func(p model.Preset) bool { return p.WorkspaceID == workspaceID }) {
		if have, ok := newest[p.Name]; !ok || have.Version < p.Version {
			newest[p.Name] = p
		}
	}
	var rows []model.Preset
	for _, p := range newest {
		rows = append(rows, p)
	}
	slices.SortFunc(rows, func(a, b model.Preset) int { return cmp.Compare(a.Name, b.Name) })
	return rows, nil
}

func (t *tx) ListPresetVersions(workspaceID, name string) ([]model.Preset, error) {
	rows := t.versionsOf(workspaceID, name)
	for i := range rows {
		rows[i].Definition = nil
	}
	return rows, nil
}

func (t *tx) ForgetPresetVersions(workspaceID, name string, newest int32) error {
	return t.deletePresets(func(p model.Preset) bool {
		return p.WorkspaceID == workspaceID && p.Name == name && p.Version <= newest
	})
}

func (t *tx) DeletePreset(workspaceID, name string) error {
	versions := t.versionsOf(workspaceID, name)
	if len(versions) == 0 {
		return notFound("preset", name)
	}
	floor, err := t.PresetFloor(workspaceID)
	if err != nil {
		return err
	}
	if err := presetFloorTable.overlayIn(t).put(presetFloor{workspaceID, max(floor, versions[0].Version)}); err != nil {
		return err
	}
	return t.ForgetPresetVersions(workspaceID, name, versions[0].Version)
}

func (t *tx) deletePresets(which func(model.Preset) bool) error {
	for _, p := range presetTable.overlayIn(t).list(which) {
		if err := presetTable.overlayIn(t).delete(keyOfPreset(p)); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) PresetFloor(workspaceID string) (int32, error) {
	f, _ := presetFloorTable.overlayIn(t).get(workspaceID)
	return f.version, nil
}
