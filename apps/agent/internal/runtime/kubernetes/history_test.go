package kubernetes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
)

func TestRepair_OpposedWaitsEverLonger(t *testing.T) {
	r := newHistory(backoff.Policy{Min: time.Second, Max: time.Minute})
	w := render.NewRef(render.KindWorkload, "ns", "chat")
	now := time.Unix(10000, 0)
	var waits []time.Duration
	for range 8 {
		wait := r.wait(w, now)
		waits = append(waits, wait)
		now = now.Add(wait)
		r.done(w, now)
	}
	require.Zero(t, waits[0])
	require.IsIncreasing(t, waits[1:6])
	require.LessOrEqual(t, waits[7], time.Minute)
	require.Zero(t, r.wait(w, now.Add(calmAfter+time.Second)))
}
