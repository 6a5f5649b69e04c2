package process_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestDrain_ContinuesWithoutAnAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	const drain = 3 * time.Second
	a := assignment("dep_1", 1, self(t))
	a.Deployment.Spec.DrainDelay = durationpb.New(drain)
	require.NoError(t, rt.Apply(t.Context(), a))
	in := until(t, rt, "dep_1", allReady(1))[0]
	pid := pidOf(t, in)

	told := time.Now()
	require.NoError(t, rt.Remove(t.Context(), "dep_1"))
	until(t, rt, "dep_1", func(all []runtime.Instance) bool {
		return len(all) == 1 && all[0].Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	})
	h.shut(t)
	for time.Since(told) < drain/2 {
		require.Equal(t, pid, pidOf(t, in))
	}
	require.Eventually(t, func() bool { return len(processesBelow(h.cfg.DataDir)) == 0 }, patience, 10*time.Millisecond,
		"the drain ends in time although no agent runs")
	require.GreaterOrEqual(t, time.Since(told), drain)
}

func TestDrain_IsSkippedForInstancesThatNeverServed(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	a := assignment("dep_1", 1, self(t))
	a.Deployment.Spec.DrainDelay = durationpb.New(10 * time.Minute)
	a.Deployment.Spec.HealthCheck.Path = "/nowhere"
	require.NoError(t, rt.Apply(t.Context(), a))
	until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Reason == runtime.ReasonNotReady })
	require.NoError(t, rt.Remove(t.Context(), "dep_1"))
	require.Eventually(t, func() bool { return len(h.leftovers(t)) == 0 }, patience, 10*time.Millisecond)
}

func isDraining(all []runtime.Instance) bool {
	return len(all) == 1 && all[0].Status == windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
}

func TestDrain_StopsOnceGatewaysReleaseAlsoForTheNextAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var released atomic.Bool
	h.released, h.patience = func(string) bool { return released.Load() }, 10*time.Minute
	rt := h.open(t)
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 1, self(t))))
	first := until(t, rt, "dep_1", allReady(1))[0]
	pid := pidOf(t, first)
	require.NoError(t, rt.Restart(t.Context(), first.ID))
	until(t, rt, "dep_1", isDraining)

	rt = h.open(t)
	until(t, rt, "dep_1", isDraining)
	require.Equal(t, pid, pidOf(t, first), "the next agent also holds the order back")
	released.Store(true)
	h.again()
	again := until(t, rt, "dep_1", allReady(1))[0]
	require.Equal(t, first.ID, again.ID)
	require.NotEqual(t, pid, pidOf(t, again))
}

func TestDrain_UnreleasedInstanceStopsAtItsDeadline(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const patience = 700 * time.Millisecond
	h.released, h.patience = func(string) bool { return false }, patience
	rt := h.open(t)
	a := assignment("dep_1", 1, self(t))
	require.NoError(t, rt.Apply(t.Context(), a))
	until(t, rt, "dep_1", allReady(1))
	told := time.Now()
	a.Generation, a.Deployment.Replicas = 2, 0
	require.NoError(t, rt.Apply(t.Context(), a))
	require.Eventually(t, func() bool { return len(processesBelow(h.cfg.DataDir)) == 0 }, patience+30*time.Second, 10*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(told), patience)
}

func TestDrain_IsSkippedByRemovalAndAgentStop(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.released, h.patience = func(string) bool { return false }, 10*time.Minute
	h.cfg.StopInstancesOnExit = true
	rt := h.open(t)
	for _, id := range []string{"dep_1", "dep_2"} {
		require.NoError(t, rt.Apply(t.Context(), assignment(id, 1, self(t))))
	}
	one := until(t, rt, "dep_1", allReady(1))[0]
	until(t, rt, "dep_2", allReady(1))
	require.NoError(t, rt.Remove(t.Context(), "dep_2"))
	until(t, rt, "dep_2", func(all []runtime.Instance) bool { return len(all) == 0 })
	require.NoError(t, rt.Restart(t.Context(), one.ID))
	until(t, rt, "dep_1", isDraining)
	h.shut(t)
	require.Empty(t, processesBelow(h.cfg.DataDir))
}
