package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
)

// flaky is a driver that is away for its first calls.
type flaky struct {
	mu    sync.Mutex
	away  int
	woken map[string]int
}

func (f *flaky) Wake(_ context.Context, ids []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away > 0 {
		f.away--
		return errors.New("away")
	}
	for _, id := range ids {
		f.woken[id]++
	}
	return nil
}

// now is for apps that must be woken at once.
func now(apps ...string) map[string]time.Duration {
	in := map[string]time.Duration{}
	for _, id := range apps {
		in[id] = 0
	}
	return in
}

func TestWaker_SendsEachAppOnceAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &flaky{away: 5, woken: map[string]int{}}
		w := rollout.NewWaker(discard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx, d) }()
		for i := range 3000 {
			w.Notify(now(fmt.Sprint(i % 1000)))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		d.mu.Lock()
		require.Len(t, d.woken, 1000)
		for id, n := range d.woken {
			require.LessOrEqual(t, n, 2, id)
		}
		d.mu.Unlock()
		cancel()
		require.NoError(t, <-done)
	})
}

func TestWaker_FirstIsAtOnceAndOthersTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &flaky{woken: map[string]int{}}
		w := rollout.NewWaker(discard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx, d) }()
		count := func() int {
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.woken["app"]
		}
		w.Notify(now("app"))
		require.Equal(t, 1, count(), "at once")
		for range 10 {
			time.Sleep(3 * time.Millisecond)
			w.Notify(now("app", "other"))
		}
		require.Equal(t, 1, count())
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, 2, count(), "the others together")
		time.Sleep(time.Minute)
		require.Equal(t, 2, count(), "and nothing after them")
		w.Notify(now("app"))
		require.Equal(t, 3, count(), "at once again")
		cancel()
		require.NoError(t, <-done)
	})
}

func TestWaker_BatchesAppsThatMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &flaky{woken: map[string]int{}}
		w := rollout.NewWaker(discard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx, d) }()
		soon := func(apps ...string) {
			for _, id := range apps {
				w.Notify(map[string]time.Duration{id: 200 * time.Millisecond})
			}
		}
		sent := func(after time.Duration) map[string]int {
			time.Sleep(after)
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			return maps.Clone(d.woken)
		}
		time.Sleep(50 * time.Millisecond) // from a full second on
		soon("a")
		sent(100 * time.Millisecond)
		soon("a", "b")
		require.Empty(t, sent(249*time.Millisecond))
		require.Equal(t, map[string]int{"a": 1, "b": 1}, sent(time.Millisecond))
		require.Equal(t, map[string]int{"a": 1, "b": 1}, sent(time.Minute), "each once")

		soon("a", "b")
		w.Notify(now("a"))
		require.Equal(t, map[string]int{"a": 2, "b": 1}, sent(0), "one of the two wake-ups must not wait")
		require.Equal(t, map[string]int{"a": 2, "b": 2}, sent(time.Minute))
		cancel()
		require.NoError(t, <-done)
	})
}

func TestWaker_WaitsLongerWhileStepsAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &flaky{woken: map[string]int{}}
		w := rollout.NewWaker(discard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx, d) }()
		// sends counts the sends of an app that is woken every 10 ms, for a second.
		sends := func() int {
			d.mu.Lock()
			before := d.woken["app"]
			d.mu.Unlock()
			for range 100 {
				w.Notify(now("app"))
				time.Sleep(10 * time.Millisecond)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.woken["app"] - before
		}
		require.InDelta(t, 25, sends(), 1)
		for range 100 {
			w.Took(100 * time.Millisecond)
		}
		require.InDelta(t, 5, sends(), 1)
		for range 100 {
			w.Took(time.Hour)
		}
		require.InDelta(t, 1, sends(), 1, "never longer than a second")
		for range 100 {
			w.Took(time.Millisecond)
		}
		time.Sleep(time.Second)
		require.InDelta(t, 25, sends(), 1)
		cancel()
		require.NoError(t, <-done)
	})
}
