package freeze

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func at(t require.TestingT, text string) int64 {
	m, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return m.UnixMilli()
}

func weekly(zone string, windows ...string) model.Freeze {
	f := model.Freeze{TimeZone: zone}
	for i := 0; i < len(windows); i += 2 {
		f.Weekly = append(f.Weekly, model.FreezeWindow{Start: windows[i], End: windows[i+1]})
	}
	return f
}

func TestWindow_UsesTheClockOfItsTimeZone(t *testing.T) {
	weekend := weekly("Europe/London", "Fri 16:00", "Mon 08:00")
	nights := weekly("America/New_York", "22:00", "06:00")
	wrapped := weekly("UTC", "Mon 09:00", "Mon 08:00")
	meeting := weekly("UTC", "Fri 16:00", "Sat 00:00", "Sat 00:00", "Mon 08:00")
	bounded := weekly("UTC", "00:00", "12:00")
	bounded.From, bounded.Until = at(t, "2026-11-22T06:00:00Z"), at(t, "2026-11-24T09:00:00Z")
	for name, c := range map[string]struct {
		f           model.Freeze
		now         string
		until, next string // the end of a freeze that is in force, or else its next start
	}{
		"before":                         {weekend, "2026-11-20T15:59:59Z", "", "2026-11-20T16:00:00Z"},
		"its first moment":               {weekend, "2026-11-20T16:00:00Z", "2026-11-23T08:00:00Z", ""},
		"its last moment":                {weekend, "2026-11-23T07:59:59Z", "2026-11-23T08:00:00Z", ""},
		"its end":                        {weekend, "2026-11-23T08:00:00Z", "", "2026-11-27T16:00:00Z"},
		"in summer":                      {weekend, "2026-07-03T15:00:00Z", "2026-07-06T07:00:00Z", ""},
		"over a change of clocks":        {weekend, "2026-03-28T00:00:00Z", "2026-03-30T07:00:00Z", ""},
		"a night, before midnight":       {nights, "2026-11-22T03:00:00Z", "2026-11-22T11:00:00Z", ""},
		"a night, after midnight":        {nights, "2026-11-22T10:59:59Z", "2026-11-22T11:00:00Z", ""},
		"a day":                          {nights, "2026-11-22T11:00:00Z", "", "2026-11-23T03:00:00Z"},
		"all week but an hour":           {wrapped, "2026-11-22T00:00:00Z", "2026-11-23T08:00:00Z", ""},
		"that hour":                      {wrapped, "2026-11-23T08:30:00Z", "", "2026-11-23T09:00:00Z"},
		"windows that meet are one":      {meeting, "2026-11-20T17:00:00Z", "2026-11-23T08:00:00Z", ""},
		"before its bounds":              {bounded, "2026-11-22T01:00:00Z", "", "2026-11-22T06:00:00Z"},
		"its end ends the window":        {bounded, "2026-11-24T01:00:00Z", "2026-11-24T09:00:00Z", ""},
		"nothing is left":                {bounded, "2026-11-24T09:00:00Z", "", ""},
		"without windows and end":        {model.Freeze{}, "2026-11-24T09:00:00Z", "never", ""},
		"no gap has no end":              {weekly("UTC", "Mon 00:00", "Mon 00:00"), "2026-11-24T09:00:00Z", "never", ""},
		"days without a gap have no end": {weekly("UTC", "12:00", "12:00"), "2026-11-24T09:00:00Z", "never", ""},
	} {
		t.Run(name, func(t *testing.T) {
			now := at(t, c.now)
			until, in := InForce(c.f, now)
			require.Equal(t, c.until != "", in)
			switch {
			case c.until == "never":
				require.Zero(t, until)
			case in:
				require.Equal(t, at(t, c.until), until, time.UnixMilli(until).UTC())
			case c.next == "":
				require.Zero(t, NextAt(c.f, now))
			default:
				require.Equal(t, at(t, c.next), NextAt(c.f, now), time.UnixMilli(NextAt(c.f, now)).UTC())
			}
		})
	}
}

func TestWindow_IsLongestWhereClocksChange(t *testing.T) {
	for name, c := range map[string]struct{ start, end, from, until string }{
		// 2026-10-25: 02:00 comes at 00:00 and again at 01:00 UTC, in Berlin.
		"put back, the first start": {"02:30", "05:00", "2026-10-25T00:30:00Z", "2026-10-25T04:00:00Z"},
		"put back, the second end":  {"00:00", "02:30", "2026-10-24T22:00:00Z", "2026-10-25T01:30:00Z"},
		// 2026-03-29: there is no 02:30 in Berlin.
		"put forward, before the gap": {"02:30", "05:00", "2026-03-29T00:30:00Z", "2026-03-29T03:00:00Z"},
		"put forward, after the gap":  {"00:00", "02:30", "2026-03-28T23:00:00Z", "2026-03-29T01:30:00Z"},
		"an ordinary night":           {"02:30", "05:00", "2026-11-22T01:30:00Z", "2026-11-22T04:00:00Z"},
		"the morning before is kept":  {"20:00", "21:00", "2026-10-24T18:00:00Z", "2026-10-24T19:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			f := weekly("Europe/Berlin", c.start, c.end)
			from, until := at(t, c.from), at(t, c.until)
			_, in := InForce(f, from-1)
			require.False(t, in)
			end, in := InForce(f, from)
			require.True(t, in)
			require.Equal(t, until, end, time.UnixMilli(end).UTC())
			_, in = InForce(f, until)
			require.False(t, in)
		})
	}
}

// TestWindow_IsInForceUntilItsEndAndFromItsNextStart checks the end and the next start that the package returns.
func TestWindow_IsInForceUntilItsEndAndFromItsNextStart(t *testing.T) {
	zones := []string{"UTC", "Europe/London", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"}
	clock := rapid.Custom(func(t *rapid.T) string {
		return time.Date(0, 1, 1, 0, rapid.IntRange(0, 1439).Draw(t, "minute"), 0, 0, time.UTC).Format("15:04")
	})
	rapid.Check(t, func(t *rapid.T) {
		f := weekly(rapid.SampledFrom(zones).Draw(t, "zone"))
		for range rapid.IntRange(1, 4).Draw(t, "windows") {
			w := model.FreezeWindow{Start: clock.Draw(t, "start"), End: clock.Draw(t, "end")}
			if rapid.Bool().Draw(t, "weekly") {
				w.Start = rapid.SampledFrom(weekdays).Draw(t, "day") + " " + w.Start
				w.End = rapid.SampledFrom(weekdays).Draw(t, "day") + " " + w.End
			}
			f.Weekly = append(f.Weekly, w)
		}
		now := at(t, "2026-01-01T00:00:00Z") + rapid.Int64Range(0, 365*24*3600_000).Draw(t, "now")
		until, in := InForce(f, now)
		if in {
			if until == 0 {
				return
			}
			require.Greater(t, until, now)
			_, still := InForce(f, until)
			require.False(t, still, "the freeze ends at its end")
			middle := now + (until-now)/2
			end, within := InForce(f, middle)
			require.True(t, within)
			require.Equal(t, until, end, "at each moment of the freeze, its end is the same")
			return
		}
		next := NextAt(f, now)
		require.Greater(t, next, now)
		_, in = InForce(f, next)
		require.True(t, in)
		_, in = InForce(f, now+(next-1-now)/2)
		require.False(t, in, "nothing is frozen before the next start")
	})
}

func TestWindows_RefusalCountsFirstThenTheLatestEnd(t *testing.T) {
	app := model.App{ID: "app", ProjectID: "prj", WorkspaceID: "ws"}
	freeze := func(name string, on windlassv1.Freeze_OnStart, until int64, edit ...func(*model.Freeze)) model.Freeze {
		f := model.Freeze{Name: name, WorkspaceID: "ws", OnStart: on, Until: until}
		for _, e := range edit {
			e(&f)
		}
		return f
	}
	hold, refuse := windlassv1.Freeze_ON_START_HOLD, windlassv1.Freeze_ON_START_UNSPECIFIED
	all := []model.Freeze{
		freeze("short", hold, 20),
		freeze("elsewhere", refuse, 0, func(f *model.Freeze) { f.ProjectID = "other" }),
		freeze("other app", refuse, 0, func(f *model.Freeze) { f.AppID = "other" }),
		freeze("other workspace", refuse, 0, func(f *model.Freeze) { f.WorkspaceID = "other" }),
		freeze("over", refuse, 5),
		freeze("long", hold, 30, func(f *model.Freeze) { f.ProjectID = "prj" }),
	}
	found, frozen := Of(all, app, 10)
	require.True(t, frozen)
	require.Equal(t, "long", found.Name)
	require.Equal(t, int64(30), found.End)
	require.Equal(t, ScopeProject, Scope(found.Freeze))
	all = append(all, freeze("refuses", refuse, 15, func(f *model.Freeze) { f.AppID = "app" }), freeze("endless", hold, 0))
	found, _ = Of(all, app, 10)
	require.Equal(t, "refuses", found.Name)
	found, _ = Longest(all, app, 10)
	require.Equal(t, "endless", found.Name)
	_, frozen = Of(all[:5], app, 20)
	require.False(t, frozen)
}

func TestWindow_InvalidIsRefused(t *testing.T) {
	now := at(t, "2026-11-22T00:00:00Z")
	for text, f := range map[string]model.Freeze{
		"not a weekday":     weekly("UTC", "Fry 16:00", "Mon 08:00"),
		"not a time of day": weekly("UTC", "Fri 24:00", "Mon 08:00"),
		"both name":         weekly("UTC", "Fri 16:00", "08:00"),
		"leave no time":     weekly("UTC", "Fri 16:00", "Mon 08:00", "Mon 08:00", "Fri 16:00"),
	} {
		_, err := Check(f, now)
		require.ErrorContains(t, err, text)
	}
	_, err := Check(weekly("UTC", "Fri 16:00", "Mon 08:00"), now)
	require.NoError(t, err)
	for _, name := range []string{"", "Local", "Europe/Atlantis"} {
		_, err := Zone(name)
		require.Error(t, err, name)
	}
}
