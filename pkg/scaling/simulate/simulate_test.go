package simulate_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/scaling"
	"github.com/windlass-run/windlass/pkg/scaling/simulate"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// crowdPolicy is the policy of deployments/examples/traces/crowd.yaml.
func crowdPolicy() *windlassv1.ScalingPolicy {
	return &windlassv1.ScalingPolicy{
		Min: new(int32(2)), Max: 100, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "24"}},
		Down: &windlassv1.ScalingPace{Window: durationpb.New(time.Minute), Step: "50%", Every: durationpb.New(15 * time.Second)},
	}
}

func runExample(t *testing.T, policy *windlassv1.ScalingPolicy, name string, service time.Duration) map[string]simulate.Outcome {
	t.Helper()
	p, fault := scaling.New(policy, "")
	require.Nil(t, fault)
	data, err := os.ReadFile(filepath.Join("../../../deployments/examples/traces", name+".csv"))
	require.NoError(t, err)
	trace, err := simulate.ParseTrace(data)
	require.NoError(t, err)
	outcomes, err := simulate.Run(&p, trace, simulate.Model{Start: 45 * time.Second, Service: service, Concurrency: 32, Objective: time.Second})
	require.NoError(t, err)
	out := map[string]simulate.Outcome{}
	for _, o := range outcomes {
		t.Logf("%s %s: %.2f replica-hours, %.2f%% over, longest %.0f s, peak %d, turns %d", name, o.Algorithm, o.ReplicaHours, 100*o.OverObjective, o.LongestWait, o.Peak, o.Turns)
		out[o.Algorithm] = o
	}
	return out
}

// The test checks the statements of docs/guides/scaling.md about the example traces.
func TestRun_ExampleTraces(t *testing.T) {
	t.Parallel()
	flash := runExample(t, crowdPolicy(), "flash-crowd", 2*time.Second)
	require.Less(t, flash["windlass"].ReplicaHours, flash["hpa"].ReplicaHours)
	require.Less(t, flash["windlass"].OverObjective, flash["hpa"].OverObjective)
	require.Less(t, flash["windlass"].OverObjective, flash["kpa"].OverObjective)
	require.Equal(t, 1, flash["windlass"].Turns, "it scales up once and down once")
	day := runExample(t, crowdPolicy(), "diurnal", 10*time.Second)
	require.Less(t, day["windlass"].ReplicaHours, day["hpa"].ReplicaHours)
	require.LessOrEqual(t, day["windlass"].OverObjective, day["hpa"].OverObjective)
	require.Less(t, 10*day["windlass"].Turns, day["kpa"].Turns)
	public := runExample(t, crowdPolicy(), "azure-code-day", 10*time.Second)
	require.Less(t, public["windlass"].ReplicaHours, public["hpa"].ReplicaHours)
	require.Less(t, public["windlass"].OverObjective, public["hpa"].OverObjective)
	require.LessOrEqual(t, public["windlass"].Turns, 5)
	careful := crowdPolicy()
	careful.Down = nil
	slow := runExample(t, careful, "flash-crowd", 2*time.Second)
	require.Greater(t, slow["windlass"].ReplicaHours, slow["hpa"].ReplicaHours, "the guide warns of slow scaling down")
}

func TestRun_RequestsShorterThanATick(t *testing.T) {
	t.Parallel()
	p, fault := scaling.New(&windlassv1.ScalingPolicy{
		Min: new(int32(1)), Max: 4, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"}},
	}, "")
	require.Nil(t, fault)
	run := func(rate float64) simulate.Outcome {
		trace := []simulate.Point{{At: 0, Rate: rate}, {At: 10 * time.Minute}}
		out, err := simulate.Run(&p, trace, simulate.Model{Start: time.Second, Service: 50 * time.Millisecond, Concurrency: 8, Objective: time.Second})
		require.NoError(t, err)
		return out[0]
	}
	one := run(140) // a replica serves 160 a second, and has 7 of them at a time
	require.Equal(t, 1, one.Peak)
	require.Zero(t, one.OverObjective)
	three := run(400)
	require.Equal(t, 4, three.Peak, "requests that wait at first are load")
	require.Less(t, three.OverObjective, 0.2)
}

func TestParseTrace(t *testing.T) {
	t.Parallel()
	want := []simulate.Point{{At: 0, Rate: 1}, {At: 90 * time.Second, Rate: 2.5}}
	for name, text := range map[string]string{
		"CSV": "0,1\n90,2.5\n", "CSV with a header": "# a trace\nseconds,requests_per_second\n0, 1\n90, 2.5\n",
		"JSON": `[{"seconds":0,"requestsPerSecond":1},{"seconds":90,"requestsPerSecond":2.5}]`,
	} {
		got, err := simulate.ParseTrace([]byte(text))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for text, message := range map[string]string{
		"0,1\nx,2\n": "line 2: want seconds", "0,1o\n90,2\n": "line 1: want seconds", "O,1\n90,2\n": "line 1: want seconds", "0,1,2\n": "read CSV", "-5,1\n": "point 1", "[{}]": "point 1", `[{"rps":1}]`: "unknown field", "0,1\n1e300,2\n": "point 2",
	} {
		_, err := simulate.ParseTrace([]byte(text))
		require.ErrorContains(t, err, message)
	}
	p, fault := scaling.New(crowdPolicy(), "")
	require.Nil(t, fault)
	for _, trace := range [][]simulate.Point{nil, {{}}, {{At: 1}, {At: 1}}, {{}, {At: 1, Rate: -1}}} {
		_, err := simulate.Run(&p, trace, simulate.Model{Service: time.Second, Concurrency: 1})
		require.Error(t, err)
	}
}
