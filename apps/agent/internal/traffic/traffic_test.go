package traffic_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/traffic"
	"github.com/windlass-run/windlass/pkg/histogram"
)

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func countsOf(requests, errors uint64) traffic.Counts {
	c := traffic.Counts{Requests: requests, Errors: errors}
	c.Latency[histogram.Bucket(20*time.Millisecond)] = requests
	return c
}

func TestHistory_WindowIsExactToOneSlot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := traffic.New()
		h.Joined("gw")
		window := time.Duration(rapid.Int64Range(int64(time.Second), int64(traffic.Reach)).Draw(t, "window"))
		now, total := begin, uint64(0)
		type report struct {
			at time.Time
			n  uint64
		}
		var all []report
		for range rapid.IntRange(1, 60).Draw(t, "reports") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(window/8)).Draw(t, "pause")))
			n := rapid.Uint64Range(0, 9).Draw(t, "requests")
			total += n
			all = append(all, report{now, n})
			h.Tell("gw", map[string]traffic.Counts{"dep": countsOf(total, total/2)}, now)
		}
		most, least := uint64(0), uint64(0)
		for _, one := range all {
			age := now.Sub(one.at)
			if age <= window {
				most += one.n
			}
			if age <= window-max(window/10, time.Second) {
				least += one.n
			}
		}
		got := h.Look("dep", window, now)
		require.LessOrEqual(t, got.Requests, most)
		require.GreaterOrEqual(t, got.Requests, least)
		require.Equal(t, got.Requests, got.Latency.Total())
	})
}

func TestHistory_AddsUpGatewaysAndCountsNothingTwice(t *testing.T) {
	t.Parallel()
	h := traffic.New()
	look := func() uint64 { c := h.Look("dep", time.Minute, begin); return c.Requests }
	tell := func(gateway string, n uint64) {
		h.Tell(gateway, map[string]traffic.Counts{"dep": countsOf(n, 0)}, begin)
	}
	h.Joined("new")
	tell("new", 5)
	tell("new", 5)
	require.EqualValues(t, 5, look(), "a report that arrives twice counts once")
	tell("older than the agent", 1000)
	require.EqualValues(t, 5, look(), "it is not known when these requests came")
	tell("older than the agent", 1003)
	require.EqualValues(t, 8, look())
	tell("new", 2)
	require.EqualValues(t, 10, look(), "the counter has restarted at 0")
	h.Joined("new")
	tell("new", 3)
	require.EqualValues(t, 11, look(), "a gateway that joins again continues from its last report")
	h.Left("new")
	tell("new", 4)
	require.EqualValues(t, 11, look())

	h.Forget(func(string) bool { return true })
	require.EqualValues(t, 11, look())
	h.Forget(func(string) bool { return false })
	require.Zero(t, look())
}
