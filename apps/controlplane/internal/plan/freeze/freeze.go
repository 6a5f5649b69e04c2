// Package freeze computes when a freeze is in force, and which freeze decides about a start of an app. It is pure.
//
// Weekly windows follow local clocks. When clocks are put back, a time comes twice. When clocks are put forward, some
// times never come. A window is then as long as it can be: it starts when its start comes first, and ends when its end
// comes last. So no rollout starts at a time that may be meant as frozen.
package freeze

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a container need not have the time zone database

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scopes of a freeze, as people read them.
const (
	ScopeWorkspace = "workspace"
	ScopeProject   = "project"
	ScopeApp       = "app"
)

// Scope returns the scope of the freeze.
func Scope(f model.Freeze) string {
	switch {
	case f.AppID != "":
		return ScopeApp
	case f.ProjectID != "":
		return ScopeProject
	}
	return ScopeWorkspace
}

// Covers reports whether the app is in the freeze's scope.
func Covers(f model.Freeze, app model.App) bool {
	return f.WorkspaceID == app.WorkspaceID &&
		(f.ProjectID == "" || f.ProjectID == app.ProjectID) && (f.AppID == "" || f.AppID == app.ID)
}

// Found is a freeze in force.
type Found struct {
	model.Freeze
	// End is when the freeze ends, unix ms, unless it is changed. 0: it has no end.
	End int64
}

// Of returns the freeze that decides about a start of the app. A freeze that refuses comes before a freeze that holds.
// Of several freezes of the same kind, the freeze that ends last decides.
func Of(freezes []model.Freeze, app model.App, now int64) (found Found, frozen bool) {
	for _, f := range freezes {
		if !Covers(f, app) {
			continue
		}
		end, in := InForce(f, now)
		if in && (!frozen || endsBefore(f, end, found)) {
			found, frozen = Found{f, end}, true
		}
	}
	return found, frozen
}

// endsBefore reports whether f, which ends at end, comes before other.
func endsBefore(f model.Freeze, end int64, other Found) bool {
	if a, b := Refuses(f), Refuses(other.Freeze); a != b {
		return a
	}
	if end == 0 || other.End == 0 {
		return end == 0 && other.End != 0
	}
	return end > other.End
}

// Longest is Of without regard to refusals and holds: it returns the freeze that keeps the app's rollouts waiting
// longest.
func Longest(freezes []model.Freeze, app model.App, now int64) (found Found, frozen bool) {
	alike := make([]model.Freeze, 0, len(freezes))
	for _, f := range freezes {
		f.OnStart = windlassv1.Freeze_ON_START_HOLD
		alike = append(alike, f)
	}
	return Of(alike, app, now)
}

// Refuses reports whether the freeze refuses a start, instead of holding it.
func Refuses(f model.Freeze) bool { return f.OnStart != windlassv1.Freeze_ON_START_HOLD }

// InForce reports whether the freeze is in force now. until is its end in unix ms, or 0 if it has no end.
func InForce(f model.Freeze, now int64) (until int64, in bool) {
	if now < f.From || f.Until != 0 && now >= f.Until {
		return 0, false
	}
	if len(f.Weekly) == 0 {
		return f.Until, true
	}
	until, in = windowEnd(f, now)
	if !in {
		return 0, false
	}
	// Windows without a gap between them count as one window.
	for {
		later, on := windowEnd(f, until)
		if !on {
			break
		}
		if until = later; until-now > longest {
			until = 0 // the windows leave no gap
			break
		}
	}
	if f.Until != 0 && (until == 0 || f.Until < until) {
		until = f.Until
	}
	return until, true
}

// longest is the maximum duration, in ms, of windows without a gap between them if each week has a gap. It is two
// weeks, because a change of clocks may skip one gap, and one more day, because the change also makes a window longer.
const longest = int64(15*24*time.Hour) / int64(time.Millisecond)

// NextAt returns when a freeze that is not in force will be in force next, 0 for never.
func NextAt(f model.Freeze, now int64) int64 {
	from := max(f.From, now)
	if f.Until != 0 && from >= f.Until {
		return 0
	}
	if _, in := InForce(f, from); in {
		return from
	}
	next := int64(0)
	for _, w := range windowsAround(f, from, 1, 8) {
		if w.start > from && (next == 0 || w.start < next) {
			next = w.start
		}
	}
	if f.Until != 0 && next >= f.Until {
		return 0
	}
	return next
}

// windowEnd returns the end of the open window that lasts longest.
func windowEnd(f model.Freeze, now int64) (end int64, in bool) {
	for _, w := range windowsAround(f, now, 9, 1) {
		if w.start <= now && now < w.end {
			end, in = max(end, w.end), true
		}
	}
	return end, in
}

type occurrence struct{ start, end int64 }

// windowsAround returns the windows that start at most before days ago and at most after days from now. It skips a
// window that cannot be parsed, because Check refuses such windows. If a window's time zone no longer exists, the
// window is in UTC.
func windowsAround(f model.Freeze, now int64, before, after int) (out []occurrence) {
	zone, err := Zone(f.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	today := time.UnixMilli(now).In(zone)
	for _, w := range f.Weekly {
		start, end, err := parse(w)
		if err != nil {
			continue
		}
		days := end.daysAfter(start)
		for d := -before; d <= after; d++ {
			date := time.Date(today.Year(), today.Month(), today.Day()+d, 0, 0, 0, 0, time.UTC)
			if start.weekly && date.Weekday() != start.day {
				continue
			}
			first, _ := momentsOf(date, start.minute, zone)
			_, last := momentsOf(date.AddDate(0, 0, days), end.minute, zone)
			out = append(out, occurrence{first, last})
		}
	}
	return out
}

// momentsOf returns the first and the last moment that the minute of the date may mean in the zone. They differ where
// clocks are changed. Only year, month and day of date count.
func momentsOf(date time.Time, minute int, zone *time.Location) (first, last int64) {
	wall := date.Add(time.Duration(minute) * time.Minute)
	var meant, around []int64
	for _, at := range []time.Time{wall.Add(-24 * time.Hour), wall.Add(24 * time.Hour)} {
		_, offset := at.In(zone).Zone()
		moment := wall.Add(-time.Duration(offset) * time.Second)
		around = append(around, moment.UnixMilli())
		if _, is := moment.In(zone).Zone(); is == offset {
			meant = append(meant, moment.UnixMilli())
		}
	}
	if len(meant) == 0 {
		meant = around // clocks skip it
	}
	return min(meant[0], meant[len(meant)-1]), max(meant[0], meant[len(meant)-1])
}

// Zone finds a time zone by its name.
func Zone(name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, fmt.Errorf("%q names no time zone", name)
	}
	return time.LoadLocation(name)
}

// moment is a time of a week or of a day.
type moment struct {
	weekly bool
	day    time.Weekday
	minute int
}

// daysAfter returns the number of days from start until the moment m comes next.
func (m moment) daysAfter(start moment) int {
	if !m.weekly {
		if m.minute <= start.minute {
			return 1
		}
		return 0
	}
	days := (int(m.day) - int(start.day) + 7) % 7
	if days == 0 && m.minute <= start.minute {
		return 7
	}
	return days
}

func parse(w model.FreezeWindow) (start, end moment, err error) {
	if start, err = parseMoment(w.Start); err != nil {
		return start, end, err
	}
	if end, err = parseMoment(w.End); err != nil {
		return start, end, err
	}
	if start.weekly != end.weekly {
		return start, end, fmt.Errorf("%q to %q: both name a weekday, or neither does", w.Start, w.End)
	}
	return start, end, nil
}

// weekdays are the names of weekdays, by time.Weekday.
var weekdays = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

func parseMoment(text string) (m moment, err error) {
	clock := text
	if day, rest, ok := strings.Cut(text, " "); ok {
		i := slices.Index(weekdays, day)
		if i < 0 {
			return m, fmt.Errorf("%q is not a weekday: use Mon, Tue, Wed, Thu, Fri, Sat or Sun", day)
		}
		m.weekly, m.day, clock = true, time.Weekday(i), rest
	}
	at, err := time.Parse("15:04", clock)
	if err != nil {
		return m, fmt.Errorf("%q is not a time of day: write it as in 16:00", clock)
	}
	m.minute = at.Hour()*60 + at.Minute()
	return m, nil
}

// Check returns an error if the windows are not valid. at is the index of the wrong window, or -1 if all windows
// together are wrong.
func Check(f model.Freeze, now int64) (at int, err error) {
	for i, w := range f.Weekly {
		if _, _, err := parse(w); err != nil {
			return i, err
		}
	}
	open := f
	open.From, open.Until = 0, 0
	if until, in := InForce(open, now); in && until == 0 && len(f.Weekly) > 0 {
		return -1, errors.New("the windows leave no time at which anything could start")
	}
	return 0, nil
}
