package share

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestPermits_StayFreeForAnotherTenant(t *testing.T) {
	t.Parallel()
	for _, greedy := range []int{1, 2, 4, 16} {
		p := NewPermits(64)
		for range 64 {
			for i := range greedy {
				p.Take(fmt.Sprint("greedy", i))
			}
		}
		even := 64 / (greedy + 1)
		require.GreaterOrEqual(t, p.Free(), even-1, "with %d greedy tenants", greedy)
		for i := range greedy {
			require.InDelta(t, even, p.Held(fmt.Sprint("greedy", i)), 1)
		}
		require.True(t, p.Take("another"))
	}
}

func TestPermits_EvenOutAsTheyAreGivenBack(t *testing.T) {
	t.Parallel()
	p := NewPermits(64)
	tenants := []string{"a", "b", "c", "d"}
	for _, tenant := range tenants { // one after the other
		for p.Take(tenant) {
		}
	}
	require.Equal(t, []int{32, 16, 8, 4}, []int{p.Held("a"), p.Held("b"), p.Held("c"), p.Held("d")})
	for range 64 {
		for _, tenant := range tenants {
			if p.Held(tenant) > 0 {
				p.GiveBack(tenant)
			}
			for _, other := range tenants {
				p.Take(other)
			}
		}
	}
	for _, tenant := range tenants {
		require.InDelta(t, 64/5, p.Held(tenant), 2)
	}
	for _, tenant := range tenants {
		for p.Held(tenant) > 0 {
			p.GiveBack(tenant)
		}
	}
	require.Equal(t, 64, p.Free())
	require.Empty(t, p.by)
}

func TestSlots_LeaveAShareToOtherTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(12)
		gone := errors.New("the caller is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error, 200)
		for range 100 {
			for _, tenant := range []string{"a", "b"} {
				go func() {
					if err := s.Acquire(ctx, tenant); err != nil {
						failed <- err
					}
				}()
				synctest.Wait() // the tenants come in turn, because a tenant that comes first may take half
			}
		}
		require.Equal(t, 4, s.permits.Held("a"), "a third each")
		require.Equal(t, 4, s.permits.Held("b"))
		require.Equal(t, 4, s.permits.Free(), "and the rest is free")
		require.NoError(t, s.Acquire(t.Context(), "good"), "the tenant does not wait for the greedy tenants")
		s.Release("good")
		synctest.Wait()

		for range s.permits.Held("a") {
			s.Release("a")
		}
		synctest.Wait()
		require.Equal(t, 4, s.permits.Held("a"), "waiters got the slots")

		cancel(gone)
		synctest.Wait()
		require.Empty(t, s.waiting)
		require.ErrorIs(t, <-failed, gone)
		for _, tenant := range []string{"a", "b"} {
			for range s.permits.Held(tenant) {
				s.Release(tenant)
			}
		}
		require.Equal(t, 12, s.permits.Free())
	})
}
