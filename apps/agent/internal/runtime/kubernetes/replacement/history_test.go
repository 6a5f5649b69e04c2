package replacement

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
)

func TestRepair_ThatIsUndoneWaitsLongerEachTime(t *testing.T) {
	r := NewHistory(backoff.Policy{Min: time.Second, Max: time.Minute})
	w := render.NewRef(render.KindWorkload, "ns", "chat")
	now := time.Unix(10000, 0)
	var waits []time.Duration
	for range 8 {
		wait := r.Wait(w, now)
		waits = append(waits, wait)
		now = now.Add(wait)
		r.Done(w, now)
	}
	require.Zero(t, waits[0])
	require.IsIncreasing(t, waits[1:6])
	require.LessOrEqual(t, waits[7], time.Minute)
	require.Zero(t, r.Wait(w, now.Add(calmAfter+time.Second)))
}
