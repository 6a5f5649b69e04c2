package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// PresetTx has the queries of workspaces' presets. Call methods that write with the workspace's row locked.
type PresetTx interface {
	// InsertPreset stores a version. It returns model.ErrExists if the preset has the version.
	InsertPreset(model.Preset) error
	// GetPreset returns a version of a preset, or the newest one for version 0.
	GetPreset(workspaceID, name string, version int32) (model.Preset, error)
	// ListPresets returns the newest version of each preset, by name.
	ListPresets(workspaceID string) ([]model.Preset, error)
	// ListPresetVersions returns all versions without their definitions, newest first.
	ListPresetVersions(workspaceID, name string) ([]model.Preset, error)
	// ForgetPresetVersions deletes the versions of a preset up to the version newest.
	ForgetPresetVersions(workspaceID, name string, newest int32) error
	// DeletePreset deletes a preset with all its versions, and keeps its highest version for PresetFloor.
	DeletePreset(workspaceID, name string) error
	// PresetFloor returns the highest version of any deleted preset of the workspace, or 0. The first version of
	// a new preset is higher, so that the name of a version means one definition for ever.
	PresetFloor(workspaceID string) (int32, error)
}
