package series

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/traffic"
	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var begin = time.UnixMilli(1_800_000_000_000).Truncate(Step)

func requests(n, errors uint64, took time.Duration) *traffic.Counts {
	c := &traffic.Counts{Requests: n, Errors: errors}
	c.Latency[histogram.Bucket(took)] = n
	return c
}

func ask(r *Recorder, now time.Time) []*windlassv1.SeriesSample {
	return r.answerRequest(&agentv1.SeriesRequest{AppId: "app"}, now).GetSamples()
}

func TestRecorder_KeepsOneSampleForEachStep(t *testing.T) {
	r := New(begin)
	waiting := 3.0
	r.Count("app", requests(10, 1, 20*time.Millisecond), begin.Add(time.Second))
	r.Note(map[string]State{"app": {Wanted: 2, Ready: 1, Replicas: true, Queued: &waiting}}, true, begin.Add(5*time.Second))
	waiting = 1
	r.Count("app", requests(4, 0, 20*time.Millisecond), begin.Add(7*time.Second))
	r.Note(map[string]State{"app": {Wanted: 2, Ready: 2, Replicas: true, Queued: &waiting}}, true, begin.Add(10*time.Second))

	got := ask(r, begin.Add(12*time.Second))
	require.Len(t, got, 1)
	require.Equal(t, begin.UnixMilli(), got[0].GetAt())
	require.EqualValues(t, 12_000, got[0].GetSpanMs())
	require.EqualValues(t, 14, got[0].GetRequests())
	require.EqualValues(t, 1, got[0].GetErrors())
	require.InDelta(t, 0.024, got[0].GetLatencyP95(), 0.01)
	require.Nil(t, got[0].FirstTokenP95, "no answer was streamed")
	require.InDelta(t, 3, got[0].GetQueued(), 0, "Queued is the highest number of the step")
	require.EqualValues(t, 2, got[0].GetReady(), "Ready is the last number of the step")

	r.Note(map[string]State{"app": {}}, true, begin.Add(Step))
	got = ask(r, begin.Add(Step+time.Second))
	require.Len(t, got, 2)
	require.Equal(t, Step.Milliseconds(), got[0].GetSpanMs())
	require.InDelta(t, 0.024, got[0].GetLatencyP95(), 0.01, "the percentile stays after the step has ended")
	require.EqualValues(t, 0, *got[1].Requests)
	require.Nil(t, got[1].LatencyP95)
	require.Nil(t, got[1].Queued)
	require.Nil(t, got[1].Wanted)

	since := r.answerRequest(&agentv1.SeriesRequest{AppId: "app", Since: begin.Add(Step).UnixMilli()}, begin.Add(Step+time.Second))
	require.Len(t, since.GetSamples(), 1)
	require.Equal(t, begin.UnixMilli(), since.GetKeptSince())
	require.Empty(t, r.answerRequest(&agentv1.SeriesRequest{AppId: "other"}, begin).GetSamples())
}

func TestRecorder_UnknownIsNotZero(t *testing.T) {
	r := New(begin)
	r.Note(map[string]State{"app": {Wanted: 1, Replicas: true}}, false, begin)
	got := ask(r, begin)
	require.Len(t, got, 1)
	require.Nil(t, got[0].Requests, "no gateway is connected")
	require.EqualValues(t, 1, *got[0].Wanted)
	require.EqualValues(t, 0, *got[0].Ready)
}

func TestRecorder_MemoryIsBounded(t *testing.T) {
	r := New(begin)
	now := begin
	for range 3 * maxSamples {
		r.Count("app", requests(1, 0, time.Millisecond), now)
		now = now.Add(Step)
	}
	require.Len(t, r.apps["app"].samples, maxSamples)
	require.LessOrEqual(t, cap(r.apps["app"].samples), 2*maxSamples)
	got := ask(r, now)
	require.Len(t, got, maxSamples-1, "no sample older than an hour is sent")
	for i := range got[1:] {
		require.Equal(t, Step.Milliseconds(), got[i+1].GetAt()-got[i].GetAt())
	}

	// An app that is gone is forgotten after an hour, and too many apps are refused.
	r.Note(nil, true, now.Add(Kept+Step))
	require.Empty(t, r.apps)
	all := map[string]State{}
	for i := range MaxApps + 10 {
		all[string(rune('a'+i%26))+time.Duration(i).String()] = State{}
	}
	r.Note(all, true, now)
	require.Len(t, r.apps, MaxApps)
}

func TestRecorder_ClockThatGoesBack(t *testing.T) {
	r := New(begin)
	r.Count("app", requests(1, 0, time.Millisecond), begin.Add(Kept))
	r.Count("app", requests(1, 0, time.Millisecond), begin)
	require.Len(t, r.apps["app"].samples, 1, "no sample begins before the last one")
	r.Count("app", requests(1, 0, time.Millisecond), begin.Add(-24*time.Hour))
	require.Equal(t, stepOf(begin.Add(-24*time.Hour)), r.apps["app"].samples[0].step, "a wrong clock does not stop the series for a day")
}
