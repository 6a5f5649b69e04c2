package simulate_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/scaling"
	"github.com/windlass-run/windlass/pkg/scaling/simulate"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var monday = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

// recordedDay is a day with two hours of 40 requests a second and otherwise 4, each for 4 s, served by 8 replicas all day.
func recordedDay() (load []simulate.Recorded) {
	for minute := range 24 * 60 {
		rate := 4.0
		if hour := minute / 60; hour == 10 || hour == 15 {
			rate = 40
		}
		load = append(load, simulate.Recorded{
			At: monday.Add(time.Duration(minute) * time.Minute), Span: time.Minute, Rate: &rate, InFlight: new(4 * rate), Queued: new(0.0), Ready: 8, Desired: 8,
			FirstToken: new(0.2), Latency: new(4.0), Levels: map[string]float64{"cpu": rate * 1.5}, Results: map[string]float64{"jobs": 4 * rate},
		})
	}
	return load
}

func policyOf(t *testing.T, metrics ...*windlassv1.ScalingMetric) *scaling.Policy {
	t.Helper()
	p, fault := scaling.New(&windlassv1.ScalingPolicy{Min: new(int32(1)), Max: 20, Metrics: metrics}, "")
	require.Nil(t, fault)
	return &p
}

func metric(kind windlassv1.ScalingMetric_Type, target string) *windlassv1.ScalingMetric {
	return &windlassv1.ScalingMetric{Type: kind, Target: target}
}

func TestRunRecorded_SaysWhatThePolicyWouldHaveSaved(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*windlassv1.ScalingMetric{
		"in flight": metric(windlassv1.ScalingMetric_TYPE_IN_FLIGHT, "20"),
		"rate":      metric(windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND, "5"),
		"cpu":       metric(windlassv1.ScalingMetric_TYPE_CPU, "60"),
		"query":     {Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Target: "20", Query: "jobs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := simulate.RunRecorded(policyOf(t, m), recordedDay(), simulate.Model{Start: 45 * time.Second, Concurrency: 32, Objective: time.Second})
			require.NoError(t, err)
			require.Equal(t, 24*time.Hour, out.Covered)
			require.Equal(t, monday, out.From)
			require.Equal(t, monday.Add(24*time.Hour), out.To)
			ran, ours := out.Outcomes[0], out.Outcomes[1]
			require.Equal(t, "ran", ran.Algorithm)
			require.InDelta(t, 8*24, ran.ReplicaHours, 0.001)
			require.InDelta(t, 22*3600*4+2*3600*40, ran.Requests, 1)
			require.InDelta(t, ran.Requests, ours.Requests, 1)
			require.Equal(t, "windlass", ours.Algorithm)
			// One replica serves 4 requests a second, and eight serve 40. After a step up, requests wait and are load as well.
			require.InDelta(t, 22+2*8, ours.ReplicaHours, 9)
			require.GreaterOrEqual(t, ours.Peak, 8)
			require.Equal(t, 4, ours.Turns, "down from what ran, and twice up and down")
			require.Less(t, ours.OverObjective, 0.05)
		})
	}
}

func TestRunRecorded_ReplicaServesWhatWasSeenOrAimedAt(t *testing.T) {
	t.Parallel()
	run := func(target string) int {
		out, err := simulate.RunRecorded(policyOf(t, metric(windlassv1.ScalingMetric_TYPE_IN_FLIGHT, target)), recordedDay(), simulate.Model{Objective: time.Second})
		require.NoError(t, err)
		return out.Concurrency
	}
	require.Equal(t, 20, run("5"), "160 requests on 8 replicas")
	require.Equal(t, 50, run("50"))
}

func TestRunRecorded_WaitThatReallyWas(t *testing.T) {
	t.Parallel()
	load := recordedDay()
	for minute := 600; minute < 610; minute++ {
		load[minute].Queued = new(80.0)
		load[minute].Levels["queue"] = 5 // in each of 8 engines
	}
	out, err := simulate.RunRecorded(policyOf(t, metric(windlassv1.ScalingMetric_TYPE_QUEUE, "4")), load, simulate.Model{Objective: time.Second})
	require.NoError(t, err)
	require.InDelta(t, 3, out.Outcomes[0].LongestWait, 0.001, "120 requests wait at 40 a second")
	require.InDelta(t, 600*40/out.Outcomes[0].Requests, out.Outcomes[0].OverObjective, 0.0001)
}

func TestRunRecorded_LeavesOutWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	load := recordedDay()
	for minute := 60; minute < 120; minute++ {
		load[minute].Rate = nil // no gateway was connected
	}
	load = append(load[:700], load[760:]...)
	out, err := simulate.RunRecorded(policyOf(t, metric(windlassv1.ScalingMetric_TYPE_IN_FLIGHT, "20")), load, simulate.Model{Start: 45 * time.Second, Objective: time.Second})
	require.NoError(t, err)
	require.Equal(t, 22*time.Hour, out.Covered)
	require.InDelta(t, 8*22, out.Outcomes[0].ReplicaHours, 0.001)
	require.Less(t, out.Outcomes[1].ReplicaHours, 60.0)
	require.False(t, math.IsNaN(out.Outcomes[1].OverObjective))
}

func TestRunRecorded_Refuses(t *testing.T) {
	t.Parallel()
	_, err := simulate.RunRecorded(policyOf(t, metric(windlassv1.ScalingMetric_TYPE_IN_FLIGHT, "20")), nil, simulate.Model{})
	require.ErrorContains(t, err, "the stored load covers 0s: wait until it covers 1m0s")
	for want, m := range map[string]*windlassv1.ScalingMetric{
		"no value of kvCache: deploy the app with this metric and mode: advise":      metric(windlassv1.ScalingMetric_TYPE_KV_CACHE, "0.8"),
		"no value of prometheus: deploy the app with this query":                     {Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Target: "1", Query: "other"},
		"the 95th percentile of latency is stored, not the 99th: use percentile: 95": {Type: windlassv1.ScalingMetric_TYPE_LATENCY, Target: "1s", Percentile: 99},
	} {
		_, err := simulate.RunRecorded(policyOf(t, metric(windlassv1.ScalingMetric_TYPE_CPU, "50"), m), recordedDay(), simulate.Model{})
		var lacks *simulate.LackError
		require.ErrorAs(t, err, &lacks)
		require.Equal(t, 1, lacks.Metric)
		require.ErrorContains(t, err, want)
	}
}
