package proxy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func newTestMemory(t *testing.T, most int64) *pairMemory {
	t.Helper()
	m, err := newPairMemory(most, prometheus.NewRegistry())
	require.NoError(t, err)
	return m
}

func TestPairMemory_LeavesAShareToOtherApps(t *testing.T) {
	t.Parallel()
	m := newTestMemory(t, 100)
	now := time.Now()
	for range 5 {
		require.NoError(t, m.take(t.Context(), "greedy", 10, 9, now))
	}
	require.ErrorIs(t, m.take(t.Context(), "greedy", 10, 9, now), failPairMemory)
	require.NoError(t, m.take(t.Context(), "another", 25, 9, now))
	require.Empty(t, m.waiting)
	for range 5 {
		m.giveBack("greedy", 10)
	}
	m.giveBack("another", 25)
	require.Zero(t, m.used)
	require.Empty(t, m.by)
}

func TestPairMemory_RequestsWaitInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestMemory(t, 100)
		until := time.Now().Add(time.Minute)
		require.NoError(t, m.take(t.Context(), "a", 40, 9, until))
		var order []string
		got := make(chan string)
		for n, bytes := range []int64{30, 10, 10} {
			go func() {
				if err := m.take(t.Context(), "a", bytes, 9, until); err != nil {
					got <- err.Error()
					return
				}
				got <- fmt.Sprint(n)
			}()
			synctest.Wait()
		}
		require.NoError(t, m.take(t.Context(), "b", 20, 9, until), "another app does not wait for them")
		synctest.Wait()
		require.Len(t, m.waiting, 3, "a small request does not overtake a large one of its app")
		m.giveBack("a", 40)
		for range 2 {
			order = append(order, <-got)
		}
		require.ElementsMatch(t, []string{"0", "1"}, order, "another 10 would be more than what is left free")
		begun := time.Now()
		require.Equal(t, failPairMemory.Error(), <-got)
		require.Equal(t, time.Minute, time.Since(begun))
		require.Empty(t, m.waiting)
	})
}

func TestPairMemory_ClientThatGoesAwayDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestMemory(t, 100)
		until := time.Now().Add(time.Minute)
		require.NoError(t, m.take(t.Context(), "a", 50, 9, until))
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := make(chan error)
		go func() { got <- m.take(ctx, "a", 50, 9, until) }()
		synctest.Wait()
		cancel(gone)
		require.ErrorIs(t, <-got, gone)
		m.giveBack("a", 50)
		require.Zero(t, m.used)
		require.Empty(t, m.waiting)
	})
}

// Requests that wait for memory hold connections, and each of them makes all others slower to grant.
func TestPairMemory_NoMoreRequestsOfAnAppWaitThanItsQueueHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newTestMemory(t, 100)
		until := time.Now().Add(time.Minute)
		require.NoError(t, m.take(t.Context(), "a", 50, 2, until))
		got := make(chan error)
		for range 2 {
			go func() { got <- m.take(t.Context(), "a", 10, 2, until) }()
		}
		synctest.Wait()
		begun := time.Now()
		require.ErrorIs(t, m.take(t.Context(), "a", 10, 2, until), failPairMemory)
		require.ErrorIs(t, m.take(t.Context(), "b", 60, 0, until), failPairMemory)
		require.Zero(t, time.Since(begun))
		require.Len(t, m.waiting, 2)
		require.NoError(t, m.take(t.Context(), "b", 10, 0, until), "it need not wait")
		m.giveBack("a", 50)
		for range 2 {
			require.NoError(t, <-got)
		}
	})
}
