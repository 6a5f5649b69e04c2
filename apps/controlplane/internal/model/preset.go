package model

import (
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// MaxPresets is how many presets a workspace may have.
	MaxPresets = 100
	// KeptPresetVersions is how many versions of a preset are kept: the newest ones.
	KeptPresetVersions = 50
)

// Preset is one version of a preset of a workspace. A version is never changed.
type Preset struct {
	WorkspaceID, Name string
	Version           int32
	// Definition is nil in lists of versions.
	Definition *windlassv1.PresetDefinition
	SetBy      string
	SetAt      int64
}

// Clone returns a copy that shares nothing with p.
func (p Preset) Clone() Preset {
	p.Definition = proto.CloneOf(p.Definition)
	return p
}
