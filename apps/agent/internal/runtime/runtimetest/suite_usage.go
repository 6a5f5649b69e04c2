package runtimetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// testUsage measures two instances: one uses the CPU, and the other is idle.
func testUsage(t *testing.T, s *suite) {
	meter, ok := s.rt.(runtime.Meter)
	require.True(t, ok, "the runtime is a Meter, because apps are scaled by the usage of instances")
	s.apply(t, s.newAssignment("dep_1", 2))
	all := s.awaitReady(t, "dep_1", 2)
	ids := []string{all[0].ID, all[1].ID}
	got, err := meter.Usage(t.Context(), append(ids, "ins_unknown"))
	require.NoError(t, err)
	require.NotContains(t, got, "ins_unknown")
	const least = 1 << 20 // every Go program uses more
	tellInstance(t, all[0], "/busy")
	require.Eventually(t, func() bool {
		got, err := meter.Usage(t.Context(), ids)
		busy, idle := got[all[0].ID], got[all[1].ID]
		return err == nil && busy.HasCPU && idle.HasCPU && busy.CPUMillicores > 2*idle.CPUMillicores && busy.CPUMillicores > 5 &&
			min(busy.MemoryBytes, idle.MemoryBytes) > least
	}, patience, 200*time.Millisecond)
	got, err = meter.Usage(t.Context(), ids[:1])
	require.NoError(t, err)
	require.Len(t, got, 1, "only the requested instance is measured")
}
