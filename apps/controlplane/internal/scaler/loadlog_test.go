package scaler

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/scaling"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// stored returns the stored samples of a role in the order of time.
func (h *harness) stored(t *testing.T, role string) (out []*windlassv1.LoadSample) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.loads {
		if c.Role != role {
			continue
		}
		samples, err := model.DecodeLoads(c.Samples)
		require.NoError(t, err)
		require.Equal(t, c.BeganAt, samples[0].GetAt())
		require.LessOrEqual(t, len(samples), 2*chunkMinutes)
		out = append(out, samples...)
	}
	for i := 1; i < len(out); i++ {
		require.Greater(t, out[i].GetAt(), out[i-1].GetAt())
	}
	return out
}

func TestLoadLog_StoresMeansOfMinutes(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		begin := time.Now() // a bubble begins with a minute
		f.report(30*time.Second, 4)
		f.report(30*time.Second, 8)
		f.report(time.Minute, 0)
		f.report(15*time.Second, 0)
		first := f.stored(t, "")
		require.NotEmpty(t, first, "the first minute is stored soon")
		soon := len(first)
		f.report(3*time.Minute, 0) // two, if the first two minutes were stored at once, and the time between two rounds
		require.Greater(t, len(f.stored(t, "")), soon, "the next minutes are stored soon, too")
		require.Equal(t, begin.UnixMilli(), first[0].GetAt())
		require.InDelta(t, 60_000, first[0].GetSpanMs(), 500)
		require.InDelta(t, 6, first[0].GetInFlight(), 0.5)
		require.EqualValues(t, 2, first[0].GetReady())
		require.EqualValues(t, 2, first[0].GetDesired())
		require.Nil(t, first[0].Rate, "the agent did not report it")
		require.Empty(t, first[0].GetLevels())

		f.report(2*time.Hour, 4)
		all := f.stored(t, "")
		require.InDelta(t, 125, len(all), 6, "the newest may be missing")
		f.mu.Lock()
		defer f.mu.Unlock()
		require.InDelta(t, 5, len(f.loads), 1, "a chunk has half an hour")
		require.InDelta(t, 30, f.stores, 8, "a target is stored every 5 min, and more often while its chunk is short")
	})
}

func TestLoadLog_IsStoredWhenTheProcessStops(t *testing.T) {
	t.Parallel()
	var f *harness
	play(t, 2, func(_ *testing.T, h *harness) {
		f = h
		f.report(4*time.Minute+30*time.Second, 4)
	})
	require.GreaterOrEqual(t, len(f.stored(t, "")), 4)
}

func TestLoadLog_SurvivesFailedStores(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.set(func() { f.storeErr = errors.New("the database is away") })
		f.report(3*time.Hour, 4)
		require.NotContains(t, f.entries(), "error")
		f.set(func() { f.storeErr = nil })
		f.report(10*time.Minute, 4)
		got := len(f.stored(t, ""))
		require.GreaterOrEqual(t, got, chunkMinutes, "the samples that fit into memory are stored later")
		require.LessOrEqual(t, got, 2*chunkMinutes+11, "memory is bounded")
		f.report(time.Hour, 4)
		require.Greater(t, len(f.stored(t, "")), got)
	})
}

func TestLoadLog_GapsAreNotFilled(t *testing.T) {
	t.Parallel()
	var log loadLog
	sample := func(at time.Time) *scaling.Sample { return &scaling.Sample{At: at, InFlight: new(3.0), Ready: 1} }
	begin := time.Unix(0, 0)
	log.add(sample(begin), 1, begin)
	later := begin.Add(10 * time.Minute)
	log.add(sample(later), 1, later)
	log.add(sample(later.Add(time.Minute)), 1, later.Add(time.Minute))
	require.Len(t, log.chunk, 2)
	require.EqualValues(t, 0, log.chunk[0].minute)
	require.Equal(t, scaling.Fresh, log.chunk[0].span)
	require.EqualValues(t, 10, log.chunk[1].minute)
	require.Equal(t, scaling.Fresh, log.chunk[1].span)
}

func TestLoadLog_HasLevelsTimesAndResults(t *testing.T) {
	t.Parallel()
	play(t, 1, func(t *testing.T, f *harness) {
		f.byQuery("jobs", windlassv1.ScalingMetric_KIND_TOTAL)
		f.figures = nil
		for end := time.Now().Add(8 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Second) {
			f.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_1", Queued: new(2.0), Deployments: []*agentv1.DeploymentLoad{{
				DeploymentId: "dep_1", Ready: 1, Starting: 1, InFlight: new(4.0), Rate: new(1.5), Levels: map[string]float64{"kvCache": 0.5, "other": 1},
			}}}})
		}
		got := f.stored(t, "")[1]
		require.EqualValues(t, 1.5, got.GetRate())
		require.EqualValues(t, 2, got.GetQueued())
		require.EqualValues(t, 1, got.GetStarting())
		require.Equal(t, map[string]float32{"kvCache": 0.5}, got.GetLevels())
		require.Nil(t, got.LatencyP95)
	})
}

func TestLoadLog_OfThePoolsRoles(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.reportPool(3*time.Minute, 4, 0.5)
		require.NotEmpty(t, f.stored(t, "decode"))
		require.NotEmpty(t, f.stored(t, "prefill"))
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, c := range f.loads {
			require.NotEmpty(t, c.Role, "the pool itself has no log")
		}
	})
}
