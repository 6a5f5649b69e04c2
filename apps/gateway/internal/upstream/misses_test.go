package upstream

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRoute_PausesOnlyRequestsForTheMissedModel(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	r := New(Config{Now: func() time.Time { return now }, Random: func() uint64 { return 0 }})
	require.True(t, r.LooksElsewhere(7))
	r.NoteMissed(7)
	require.False(t, r.LooksElsewhere(7))
	require.True(t, r.LooksElsewhere(8))
	require.True(t, r.LooksElsewhere(7+missSlots), "another model with the same slot")
	require.True(t, r.LooksElsewhere(0))
	for key := range uint64(10 * missSlots) {
		r.NoteMissed(1000 + key)
	}
	require.Len(t, r.misses.last, missSlots)
	now = now.Add(missPause)
	require.True(t, r.LooksElsewhere(1000+10*missSlots-1))
}
