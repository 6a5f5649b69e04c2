package model

import (
	"slices"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// SourceRollback is the Source of deployments that are ways back: no freeze is about them.
const SourceRollback = "rollback"

// SourceSecret is the Source of deployments that are made for a secret's new value.
const SourceSecret = "secret"

// MaxFreezes that a workspace may have besides those of apps' files, of which each app has
// one: a step that could start something reads them all, and that of its app.
const MaxFreezes = 100

// Freeze is a time, or times, in which no rollout of the workspace starts; with a project
// or an app, none of that.
type Freeze struct {
	ID, WorkspaceID, Name string
	ProjectID, AppID      string
	Reason                string
	OnStart               windlassv1.Freeze_OnStart
	// From and Until, unix ms, are its bounds; Until 0: it has no end.
	From, Until int64
	// Weekly windows in which alone it is in force, by the clocks of TimeZone; none: it
	// always is, within its bounds.
	Weekly   []FreezeWindow
	TimeZone string
	SetBy    string
	SetAt    int64
	// FromFile: it is what the app's file says, and changes and goes with it.
	FromFile bool
}

// FreezeWindow comes back every week, "Fri 16:00" to "Mon 08:00", or every day, "22:00" to
// "06:00". Windows are kept as JSON: fields are only ever added.
type FreezeWindow struct{ Start, End string }

// Clone shares nothing with f.
func (f Freeze) Clone() Freeze {
	f.Weekly = slices.Clone(f.Weekly)
	return f
}
