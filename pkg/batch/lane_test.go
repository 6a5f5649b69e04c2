package batch

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLane_IdleIsDropped(t *testing.T) {
	g := New(Config[int, int, int]{
		Commit: func(_ context.Context, requests []int) ([]int, error) { return requests, nil },
		Limits: func(int) Limits { return Limits{Size: 4} },
		Lane:   func(r int) int { return r },
		Key:    strconv.Itoa,
	})
	for r := range 10 * keptLanes {
		_, err := g.Do(t.Context(), r)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.lanes) <= keptLanes && len(g.keys) == 0 && g.running == 0 && g.waiting == 0
	}, time.Minute, time.Millisecond)
}
