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

// half replaces the random numbers of delays.
func half() float64 { return 0.5 }

func TestBook(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	at := begin.Add
	policy := Policy{Wait: time.Minute, Most: 2}
	atZero := func(string) bool { return true }
	t.Run("only the first request wakes the app, and a request above the limit is refused", func(t *testing.T) {
		b := newBook(100)
		refused, wake := b.takePermit("a", "chat", policy, at(0))
		require.Nil(t, refused)
		require.True(t, wake)
		refused, wake = b.takePermit("a", "chat", policy, at(time.Second))
		require.Nil(t, refused)
		require.False(t, wake)
		refused, _ = b.takePermit("a", "chat", policy, at(2*time.Second))
		require.Equal(t, &Refusal{RetryAfter: 58 * time.Second}, refused, "the duration of a start is unknown, so Retry-After is the rest of the policy's wait")
		require.Equal(t, []count{{"a", "chat", 2}}, b.countsOf())
	})
	t.Run("all apps of a process have a limit together", func(t *testing.T) {
		b := newBook(1)
		b.takePermit("a", "chat", policy, at(0))
		refused, wake := b.takePermit("b", "echo", policy, at(0))
		require.True(t, refused.Process)
		require.True(t, wake, "a refused request wakes the app, too")
		ids, _ := b.dueWakes(at(0), atZero)
		require.Equal(t, []string{"a", "b"}, ids)
	})
	t.Run("flooded apps leave permits for other apps", func(t *testing.T) {
		for _, flooded := range []int{1, 2, 7} {
			b := newBook(DefaultMost)
			greedy := Policy{Wait: time.Hour, Most: 1_000_000}
			for range 10_000 {
				for i := range flooded {
					b.takePermit(fmt.Sprint("flooded", i), "flooded", greedy, at(0))
				}
			}
			for range DefaultMost / (flooded + 1) / 2 {
				refused, _ := b.takePermit("b", "echo", greedy, at(0))
				require.Nil(t, refused, "next to %d flooded apps", flooded)
			}
			for i := range flooded {
				held := b.permits.Held(fmt.Sprint("flooded", i))
				require.InDelta(t, DefaultMost/(flooded+1), held, 1, "an even share")
				for range held {
					b.freePermit(fmt.Sprint("flooded", i), false, at(time.Hour))
				}
			}
			require.Equal(t, DefaultMost-b.permits.Held("b"), b.permits.Free())
		}
	})
	t.Run("Retry-After counts down from the time of a start, and never below a second", func(t *testing.T) {
		b := newBook(100)
		known := policy
		known.Start = 45 * time.Second
		b.takePermit("a", "chat", known, at(0))
		require.Equal(t, 35*time.Second, b.retryAfter("a", known, at(10*time.Second)))
		require.Equal(t, time.Second, b.retryAfter("a", known, at(2*time.Minute)))
		_, start := b.freePermit("a", true, at(20*time.Second))
		require.Equal(t, 20*time.Second, start)
		b.takePermit("a", "chat", policy, at(time.Hour))
		require.Equal(t, 15*time.Second, b.retryAfter("a", policy, at(time.Hour+5*time.Second)), "the last start took 20 seconds")
	})
	t.Run("a start is measured once, and not by requests whose clients left", func(t *testing.T) {
		b := newBook(100)
		b.takePermit("a", "chat", policy, at(0))
		b.takePermit("a", "chat", policy, at(0))
		_, start := b.freePermit("a", false, at(time.Second))
		require.Zero(t, start)
		_, start = b.freePermit("a", true, at(9*time.Second))
		require.Equal(t, 9*time.Second, start)
		b.takePermit("a", "chat", policy, at(10*time.Second))
		_, start = b.freePermit("a", true, at(11*time.Second))
		require.Equal(t, time.Second, start)
	})
	t.Run("the agent is called again while requests wait, and sooner after a failure", func(t *testing.T) {
		b := newBook(100)
		b.takePermit("a", "chat", policy, at(0))
		ids, _ := b.dueWakes(at(0), atZero)
		require.Equal(t, []string{"a"}, ids)
		ids, _ = b.dueWakes(at(0), atZero)
		require.Empty(t, ids, "a call is under way")
		require.Equal(t, 1, b.recordAnswer("a", 0, false, at(0), half))
		_, next := b.dueWakes(at(0), atZero)
		require.Less(t, next, 100*time.Millisecond)
		b.dueWakes(at(time.Second), atZero)
		require.Zero(t, b.recordAnswer("a", 30*time.Second, true, at(time.Second), half))
		ids, next = b.dueWakes(at(time.Second), atZero)
		require.Empty(t, ids)
		require.Equal(t, wakeInterval, next)
		ids, _ = b.dueWakes(at(2*time.Second), func(string) bool { return false })
		require.Empty(t, ids, "the app is not at zero any more")
		ids, _ = b.dueWakes(at(3*time.Second), atZero)
		require.Equal(t, []string{"a"}, ids, "the app is at zero again, and the request still waits")
		b.recordAnswer("a", 0, true, at(3*time.Second), half)
		b.freePermit("a", true, at(3*time.Second))
		ids, _ = b.dueWakes(at(time.Hour), atZero)
		require.Empty(t, ids)
	})
	t.Run("refused requests and clients that leave do not call the agent more often", func(t *testing.T) {
		for name, request := range map[string]func(b *book, now time.Time){
			"refused": func(b *book, now time.Time) { b.takePermit("a", "chat", Policy{Wait: time.Minute}, now) },
			"leaves":  func(b *book, now time.Time) { b.takePermit("a", "chat", policy, now); b.freePermit("a", false, now) },
		} {
			t.Run(name, func(t *testing.T) {
				b := newBook(100)
				calls, failures := 0, 0
				for now := at(0); now.Before(at(10 * time.Second)); now = now.Add(10 * time.Millisecond) {
					request(b, now)
					if ids, _ := b.dueWakes(now, atZero); len(ids) > 0 {
						calls++
						failures = b.recordAnswer("a", 0, false, now, half)
					}
				}
				require.Equal(t, calls, failures, "a request does not reset the count of failures")
				require.Less(t, calls, 50)
				ids, next := b.dueWakes(at(10*time.Second), atZero)
				require.Empty(t, ids)
				require.LessOrEqual(t, next, time.Second, "the next call is due soon, for the requests that came since the last one")
				ids, _ = b.dueWakes(at(11*time.Second), atZero)
				require.Equal(t, []string{"a"}, ids)
				b.recordAnswer("a", 0, true, at(11*time.Second), half)
				ids, _ = b.dueWakes(at(time.Hour), atZero)
				require.Empty(t, ids, "no request came since the last call")
			})
		}
	})
	t.Run("an app that is not routed any more is forgotten", func(t *testing.T) {
		b := newBook(100)
		b.takePermit("a", "chat", policy, at(0))
		require.Empty(t, b.forgetApps(func(string) bool { return false }))
		b.freePermit("a", false, at(0))
		require.Equal(t, []string{"a"}, b.forgetApps(func(string) bool { return false }))
		require.Empty(t, b.countsOf())
	})
}

func TestHolds_CallTheAgentUntilTheAppIsReady(t *testing.T) {
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
					return 0, errors.New("the agent does not answer")
				}
				return 45 * time.Second, nil
			},
			AtZero: func(string) bool {
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
		permit, refused := h.Enter("a", "chat", Default())
		require.Nil(t, refused)
		synctest.Wait()
		require.Equal(t, []time.Duration{0}, called(), "the agent is called at once")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.GreaterOrEqual(t, len(called()), 6)
		require.Less(t, called()[2], 200*time.Millisecond, "an agent that does not answer is called again soon")
		require.Equal(t, 40*time.Second, h.RetryAfter("a", Default()).Round(time.Second))
		mu.Lock()
		ready = true
		mu.Unlock()
		n := len(called())
		require.Equal(t, 5*time.Second, permit.Leave(true))
		require.Zero(t, permit.Leave(true))
		time.Sleep(time.Hour)
		require.Len(t, called(), n)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}
