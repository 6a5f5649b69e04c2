package model

import (
	"slices"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SourceRollback is the Source of deployments that go back. No freeze stops them.
const SourceRollback = "rollback"

// SourceSecret is the Source of deployments that give instances a secret's new value.
const SourceSecret = "secret"

// MaxFreezes is how many freezes a workspace may have. Freezes of apps' files do not count: each app has at most one.
// A step that could start a rollout reads all freezes of the workspace, and the freeze of its app's file.
const MaxFreezes = 100

// Freeze is a time in which no rollout starts in the workspace, or in the project or app if one is set. It may recur.
type Freeze struct {
	ID, WorkspaceID, Name string
	ProjectID, AppID      string
	Reason                string
	OnStart               windlassv1.Freeze_OnStart
	// From and Until are its bounds in unix ms. Until is 0 if it has no end.
	From, Until int64
	// Weekly are the windows, by the clocks of TimeZone, in which it is in force within its bounds. Without
	// windows it always is.
	Weekly   []FreezeWindow
	TimeZone string
	SetBy    string
	SetAt    int64
	// FromFile is true for the freeze of an app's file, which changes and ends with the file.
	FromFile bool
}

// FreezeWindow recurs every week, as "Fri 16:00" to "Mon 08:00", or every day, as "22:00" to "06:00". Windows
// are stored as JSON: fields are only ever added.
type FreezeWindow struct{ Start, End string }

// Clone returns a copy that shares nothing with f.
func (f Freeze) Clone() Freeze {
	f.Weekly = slices.Clone(f.Weekly)
	return f
}
