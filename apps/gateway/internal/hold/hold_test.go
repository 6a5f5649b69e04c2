package hold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func half() float64 { return 0.5 }

func TestBook(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	at := begin.Add
	policy := Policy{Wait: time.Minute, Most: 2}
	held := func(string) bool { return true }
	t.Run("only the first request wakes, and one beyond the limit is refused", func(t *testing.T) {
		b := newBook(100)
		refused, wake := b.takePlace("a", "chat", policy, at(0))
		require.Nil(t, refused)
		require.True(t, wake)
		refused, wake = b.takePlace("a", "chat", policy, at(time.Second))
		require.Nil(t, refused)
		require.False(t, wake)
		refused, _ = b.takePlace("a", "chat", policy, at(2*time.Second))
		require.Equal(t, &Refusal{RetryAfter: 58 * time.Second}, refused, "what a start takes is not known: the time that requests wait")
		require.Equal(t, []count{{"a", "chat", 2}}, b.counts())
	})
	t.Run("a process has a limit of its own", func(t *testing.T) {
		b := newBook(1)
		b.takePlace("a", "chat", policy, at(0))
		refused, wake := b.takePlace("b", "echo", policy, at(0))
		require.True(t, refused.Process)
		require.True(t, wake, "it wakes the app all the same")
		ids, _ := b.dueWakes(at(0), held)
		require.Equal(t, []string{"a", "b"}, ids)
	})
	t.Run("apps that are flooded leave places to others", func(t *testing.T) {
		for _, flooded := range []int{1, 2, 7} {
			b := newBook(DefaultMost)
			greedy := Policy{Wait: time.Hour, Most: 1_000_000}
			for range 10_000 {
				for i := range flooded {
					b.takePlace(fmt.Sprint("flooded", i), "flooded", greedy, at(0))
				}
			}
			for range DefaultMost / (flooded + 1) / 2 {
				refused, _ := b.takePlace("b", "echo", greedy, at(0))
				require.Nil(t, refused, "beside %d", flooded)
			}
			for i := range flooded {
				held := b.places.Held(fmt.Sprint("flooded", i))
				require.InDelta(t, DefaultMost/(flooded+1), held, 1, "an even share")
				for range held {
					b.freePlace(fmt.Sprint("flooded", i), false, at(time.Hour))
				}
			}
			require.Equal(t, DefaultMost-b.places.Held("b"), b.places.Free())
		}
	})
	t.Run("Retry-After counts down from what starts took, and never below a second", func(t *testing.T) {
		b := newBook(100)
		known := policy
		known.Start = 45 * time.Second
		b.takePlace("a", "chat", known, at(0))
		require.Equal(t, 35*time.Second, b.retryAfter("a", known, at(10*time.Second)))
		require.Equal(t, time.Second, b.retryAfter("a", known, at(2*time.Minute)))
		_, start := b.freePlace("a", true, at(20*time.Second))
		require.Equal(t, 20*time.Second, start)
		b.takePlace("a", "chat", policy, at(time.Hour))
		require.Equal(t, 15*time.Second, b.retryAfter("a", policy, at(time.Hour+5*time.Second)), "as the last start here took")
	})
	t.Run("a start is measured once, and not by requests that gave up", func(t *testing.T) {
		b := newBook(100)
		b.takePlace("a", "chat", policy, at(0))
		b.takePlace("a", "chat", policy, at(0))
		_, start := b.freePlace("a", false, at(time.Second))
		require.Zero(t, start)
		_, start = b.freePlace("a", true, at(9*time.Second))
		require.Equal(t, 9*time.Second, start)
		b.takePlace("a", "chat", policy, at(10*time.Second))
		_, start = b.freePlace("a", true, at(11*time.Second))
		require.Equal(t, time.Second, start)
	})
	t.Run("the agent is asked again while requests wait, and sooner after a failure", func(t *testing.T) {
		b := newBook(100)
		b.takePlace("a", "chat", policy, at(0))
		ids, _ := b.dueWakes(at(0), held)
		require.Equal(t, []string{"a"}, ids)
		ids, _ = b.dueWakes(at(0), held)
		require.Empty(t, ids, "it is being asked")
		require.Equal(t, 1, b.noteAnswer("a", 0, false, at(0), half))
		_, next := b.dueWakes(at(0), held)
		require.Less(t, next, 100*time.Millisecond)
		b.dueWakes(at(time.Second), held)
		require.Zero(t, b.noteAnswer("a", 30*time.Second, true, at(time.Second), half))
		ids, next = b.dueWakes(at(time.Second), held)
		require.Empty(t, ids)
		require.Equal(t, again, next)
		ids, _ = b.dueWakes(at(2*time.Second), func(string) bool { return false })
		require.Empty(t, ids, "it is not at zero any more")
		ids, _ = b.dueWakes(at(3*time.Second), held)
		require.Equal(t, []string{"a"}, ids, "it is at zero again, and the request waits still")
		b.noteAnswer("a", 0, true, at(3*time.Second), half)
		b.freePlace("a", true, at(3*time.Second))
		ids, _ = b.dueWakes(at(time.Hour), held)
		require.Empty(t, ids)
	})
	t.Run("refused requests and clients that leave do not call the agent more often", func(t *testing.T) {
		for name, request := range map[string]func(b *book, now time.Time){
			"refused": func(b *book, now time.Time) { b.takePlace("a", "chat", Policy{Wait: time.Minute}, now) },
			"leaves":  func(b *book, now time.Time) { b.takePlace("a", "chat", policy, now); b.freePlace("a", false, now) },
		} {
			t.Run(name, func(t *testing.T) {
				b := newBook(100)
				calls, failures := 0, 0
				for now := at(0); now.Before(at(10 * time.Second)); now = now.Add(10 * time.Millisecond) {
					request(b, now)
					if ids, _ := b.dueWakes(now, held); len(ids) > 0 {
						calls++
						failures = b.noteAnswer("a", 0, false, now, half)
					}
				}
				require.Equal(t, calls, failures, "of failures, one request does not make those before it forgotten")
				require.Less(t, calls, 50)
				ids, next := b.dueWakes(at(10*time.Second), held)
				require.Empty(t, ids)
				require.LessOrEqual(t, next, time.Second, "a request that came while the call was not due is told with the next one")
				ids, _ = b.dueWakes(at(11*time.Second), held)
				require.Equal(t, []string{"a"}, ids)
				b.noteAnswer("a", 0, true, at(11*time.Second), half)
				ids, _ = b.dueWakes(at(time.Hour), held)
				require.Empty(t, ids, "no request came since")
			})
		}
	})
	t.Run("an app that is not routed any more is forgotten", func(t *testing.T) {
		b := newBook(100)
		b.takePlace("a", "chat", policy, at(0))
		require.Empty(t, b.forgetApps(func(string) bool { return false }))
		b.freePlace("a", false, at(0))
		require.Equal(t, []string{"a"}, b.forgetApps(func(string) bool { return false }))
		require.Empty(t, b.counts())
	})
}

func TestHolds_WakeUntilTheAppIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var calls []time.Duration
		called := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(calls)
		}
		begin, ready := time.Now(), false
		h, err := New(Config{
			Wake: func(context.Context, string) (time.Duration, error) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, time.Since(begin))
				if len(calls) < 3 {
					return 0, errors.New("away")
				}
				return 45 * time.Second, nil
			},
			Held: func(string) bool {
				mu.Lock()
				defer mu.Unlock()
				return !ready
			},
			Now: time.Now, Rand: half, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		synctest.Wait()
		place, refused := h.Enter("a", "chat", Default())
		require.Nil(t, refused)
		synctest.Wait()
		require.Equal(t, []time.Duration{0}, called(), "at once")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.GreaterOrEqual(t, len(called()), 6)
		require.Less(t, called()[2], 200*time.Millisecond, "an agent that is away is asked again soon")
		require.Equal(t, 40*time.Second, h.RetryAfter("a", Default()).Round(time.Second))
		mu.Lock()
		ready = true
		mu.Unlock()
		n := len(called())
		require.Equal(t, 5*time.Second, place.Leave(true))
		require.Zero(t, place.Leave(true))
		time.Sleep(time.Hour)
		require.Len(t, called(), n)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}
