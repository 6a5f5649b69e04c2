package report

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHeld_InventoryWaitsForTheDesiredState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1", "ins_2")
		held := make(chan struct{})
		s := first
		s.Held = held
		stop := p.run(s)
		p.set(running, "ins_1")
		require.Empty(t, p.take())

		close(held)
		got := p.take()
		require.Len(t, got, 1)
		require.True(t, got[0].InventoryBegin)
		require.True(t, got[0].InventoryEnd)
		require.Len(t, got[0].Instances, 2)
		require.NoError(t, stop())
	})
}

func TestHeld_InventoryWaitsForLongestHeldAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		held := make(chan struct{})
		s := first
		s.Held, s.LeaseTTL = held, 3*time.Second
		stop := p.run(s)
		time.Sleep(longestHeld - time.Millisecond)
		got := p.take()
		require.NotEmpty(t, got, "the session sends signs of life")
		for _, r := range got {
			require.False(t, saysMoreThanAlive(r))
			require.False(t, r.InventoryBegin)
		}

		time.Sleep(time.Millisecond)
		got = p.take()
		require.Len(t, got, 1)
		require.True(t, got[0].InventoryBegin)
		require.True(t, got[0].InventoryEnd)
		require.Len(t, got[0].Instances, 1)

		close(held)
		require.Empty(t, p.take())
		require.NoError(t, stop())
	})
}
