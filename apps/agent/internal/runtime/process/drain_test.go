package process_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestAnInstanceInServiceGoesOnServingWhileItDrainsAlsoWithoutAnAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	const drain = 1500 * time.Millisecond
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
		"the drain ends in time though no agent is there")
	require.GreaterOrEqual(t, time.Since(told), drain)
}

func TestAnInstanceThatNeverServedIsNotDrained(t *testing.T) {
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
