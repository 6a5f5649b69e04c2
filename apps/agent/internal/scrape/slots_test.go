package scrape

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestSlots_LeaveAShareToOtherWorkspaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(12)
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			for _, workspace := range []string{"ws_a", "ws_b"} {
				go func() { _ = s.acquire(ctx, workspace) }()
			}
		}
		synctest.Wait()
		require.InDelta(t, 4, s.by["ws_a"], 1, "about a third each")
		require.InDelta(t, 4, s.by["ws_b"], 1)
		require.LessOrEqual(t, s.used, 9, "and the rest is free")
		require.NoError(t, s.acquire(t.Context(), "ws_good"), "it does not wait behind them")
		s.release("ws_good")
		synctest.Wait()

		for range s.by["ws_a"] {
			s.release("ws_a")
		}
		synctest.Wait()
		require.InDelta(t, 4, s.by["ws_a"], 1, "waiters have the slots")

		cancel()
		synctest.Wait()
		require.Empty(t, s.waiting)
		for workspace, n := range s.by {
			for range n {
				s.release(workspace)
			}
		}
		require.Zero(t, s.used)
		require.Empty(t, s.by)
	})
}
