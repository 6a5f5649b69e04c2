package simulated

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func assignment(id string, replicas int, generation int64, template string) runtime.Assignment {
	return runtime.Assignment{
		Deployment: &agentv1.Deployment{Id: id, AppName: "app", Replicas: int32(replicas)},
		Generation: generation, TemplateHash: template,
	}
}

func observe(t *testing.T, r *Runtime) runtime.Observation {
	t.Helper()
	seen, err := r.Observe(t.Context())
	require.NoError(t, err)
	return seen
}

func TestInstances_BecomeReadyAfterTheDrawnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		draws := []time.Duration{3 * time.Second, time.Second, 2 * time.Second}
		r := New(Config{Start: func() time.Duration { d := draws[0]; draws = draws[1:]; return d }})
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 3, 1, "a")))
		for after, ready := range []int{0, 1, 2, 3} {
			got := 0
			for _, i := range observe(t, r).Deployments[0].Instances {
				if i.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
					got++
				}
			}
			require.Equal(t, ready, got, "after %d s", after)
			time.Sleep(time.Second + time.Millisecond)
		}
	})
}

func TestApply_ReplacesAnotherTemplateAndStopsSurplusReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Stop: func() time.Duration { return time.Second }})
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 3, 1, "a")))
		before := r.Ready()["dep_1"]
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 2, 2, "a")))
		require.Equal(t, before[:2], r.Ready()["dep_1"])
		require.Equal(t, 3, r.Running()["dep_1"], "one instance is still stopping")
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 2, 3, "b")))
		require.NotContains(t, r.Ready()["dep_1"], before[0])
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, r.Running()["dep_1"])
		require.NoError(t, r.Remove(t.Context(), "dep_1"))
		require.Len(t, observe(t, r).Deployments, 1, "a deployment whose instances are stopping is observed")
		time.Sleep(2 * time.Second)
		require.Empty(t, observe(t, r).Deployments)
		require.Equal(t, 5, r.Starts())
	})
}

func TestReplacement_IgnoresEventsOfItsPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Start: func() time.Duration { return 10 * time.Second }})
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 1, 1, "a")))
		time.Sleep(9 * time.Second)
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 1, 2, "b")))
		time.Sleep(2 * time.Second)
		require.Empty(t, r.Ready()["dep_1"])
		time.Sleep(9 * time.Second)
		require.Len(t, r.Ready()["dep_1"], 1)
	})
}

func TestCrashLoop_IsThreeFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := map[string]int{"dep_ok": 2, "dep_bad": Doomed}
		r := New(Config{
			Start:    func() time.Duration { return time.Second },
			Failures: func(d *agentv1.Deployment) int { return failures[d.Id] },
		})
		require.NoError(t, r.Apply(t.Context(), assignment("dep_ok", 1, 1, "a")))
		require.NoError(t, r.Apply(t.Context(), assignment("dep_bad", 1, 1, "a")))
		time.Sleep(1500 * time.Millisecond)
		seen := observe(t, r).Deployments
		require.True(t, seen[0].Instances[0].Doomed)
		require.Equal(t, runtime.ReasonCrashLoop, seen[0].Instances[0].Reason)
		require.False(t, seen[1].Instances[0].Doomed)
		require.Equal(t, windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, seen[1].Instances[0].Status)
		time.Sleep(2 * time.Second)
		seen = observe(t, r).Deployments
		require.Equal(t, windlassv1.InstanceStatus_INSTANCE_STATUS_READY, seen[1].Instances[0].Status)
		require.Equal(t, 2, seen[1].Instances[0].Restarts)
	})
}

func TestUsage_IsSharedByTheInstancesInTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{CPU: func(string, string) (float64, bool) { return 600, true }})
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 2, 1, "a")))
		require.NoError(t, r.Apply(t.Context(), assignment("dep_unwanted", 1, 1, "a")))
		time.Sleep(time.Second)
		asked := r.Ready()["dep_1"]
		used, err := r.Usage(t.Context(), append(asked, "ins_none"))
		require.NoError(t, err)
		half := runtime.Usage{CPUMillicores: 300, HasCPU: true}
		require.Equal(t, map[string]runtime.Usage{asked[0]: half, asked[1]: half}, used)
	})
}

func TestObservation_IsImmutable(t *testing.T) {
	r := New(Config{})
	require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 2, 1, "a")))
	before := observe(t, r)
	require.Equal(t, 2, r.Churn())
	after := observe(t, r)
	require.Equal(t, 0, before.Deployments[0].Instances[0].Restarts)
	require.Equal(t, 1, after.Deployments[0].Instances[0].Restarts)
	require.NoError(t, r.Restart(t.Context(), after.Deployments[0].Instances[1].ID))
	require.Equal(t, 2, observe(t, r).Deployments[0].Instances[1].Restarts)
	require.ErrorIs(t, r.Restart(t.Context(), "ins_none"), runtime.ErrUnknownInstance)
}

func TestSilence_FailsCallsWhileInstancesStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Start: func() time.Duration { return time.Second }})
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 2, 1, "a")))
		r.Silence(true)
		_, err := r.Observe(t.Context())
		for _, err := range []error{err, r.Apply(t.Context(), assignment("dep_1", 0, 2, "a")), r.Remove(t.Context(), "dep_1")} {
			var rejection *runtime.Rejection
			require.ErrorAs(t, err, &rejection)
			require.True(t, rejection.Retryable)
		}
		time.Sleep(2 * time.Second)
		require.Len(t, r.Ready()["dep_1"], 2)
		r.Silence(false)
		require.EqualValues(t, 1, observe(t, r).Deployments[0].Generation)
	})
}

// BenchmarkLargeRegion measures the start of 200 deployments with 1,000 instances each, within 100 ms.
func BenchmarkLargeRegion(b *testing.B) {
	for range b.N {
		r := New(Config{Start: func() time.Duration { return time.Duration(rand.IntN(int(100 * time.Millisecond))) }})
		for i := range 200 {
			if err := r.Apply(context.Background(), assignment(fmt.Sprintf("dep_%03d", i), 1000, 1, "a")); err != nil {
				b.Fatal(err)
			}
		}
		for ready := 0; ready < 200_000; {
			<-r.Changes()
			if _, err := r.Observe(context.Background()); err != nil {
				b.Fatal(err)
			}
			ready = 0
			for _, ids := range r.Ready() {
				ready += len(ids)
			}
		}
	}
	b.ReportAllocs()
}
