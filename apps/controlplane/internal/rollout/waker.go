package rollout

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// sendTimeout bounds one hand-over to the driver.
const sendTimeout = 10 * time.Second

// sendBatch is how many apps are handed over at once.
const sendBatch = 500

// Two sends of one app are spaced out. What its regions say within a moment, ten of
// them that become ready one after the other, is one decision and not ten: the first
// word is acted on at once, or when it is due, and the others together. The moment is as long
// as two steps take, so that a machine that is busy with steps has fewer of them to do; not
// longer, since most of what a step takes on a busy machine is shared with others.
const (
	minSpacing = 40 * time.Millisecond
	maxSpacing = time.Second
	stepsApart = 2
)

// beat is the grid on which apps are sent that may wait: those of a moment have their steps
// together, which share their statements then, behind what somebody waits for.
const beat = 200 * time.Millisecond

// Waker hands apps that a commit woke to the driver at once, and again when that
// fails. What it forgets the Sweeper finds.
type Waker struct {
	log    *slog.Logger
	signal chan struct{}

	mu sync.Mutex
	// pending is when each app that waits may be sent, sent when those were that may
	// still hold up their next one.
	pending, sent map[string]time.Time
	// took is how long steps took of late, on average.
	took time.Duration
}

// NewWaker returns a Waker that sends once it runs.
func NewWaker(log *slog.Logger) *Waker {
	return &Waker{
		log: log, signal: make(chan struct{}, 1),
		pending: map[string]time.Time{}, sent: map[string]time.Time{},
	}
}

// Took says that a step, of whichever app, took so long.
func (w *Waker) Took(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// One that waits for somebody else's registry says little about all.
	w.took += (min(d, maxSpacing/stepsApart) - w.took) / 16
}

// spacing is for the holder of the mutex.
func (w *Waker) spacing() time.Duration {
	return min(max(stepsApart*w.took, minSpacing), maxSpacing)
}

// Notify takes note of apps to wake, and in how long at the earliest. It never blocks.
func (w *Waker) Notify(apps map[string]time.Duration) {
	if len(apps) == 0 {
		return
	}
	now := time.Now()
	w.mu.Lock()
	spacing := w.spacing()
	for id, in := range apps {
		at := now.Add(in)
		if in > 0 {
			at = at.Truncate(beat).Add(beat)
		}
		if sent, ok := w.sent[id]; ok && sent.Add(spacing).After(at) {
			at = sent.Add(spacing)
		}
		if earlier, waits := w.pending[id]; waits && !at.Before(earlier) || !waits && len(w.pending) == maxPending {
			continue
		}
		w.pending[id] = at
	}
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// maxPending bounds what waits for a driver that is away; the Sweeper finds the
// rest.
const maxPending = 10_000

// Run sends until ctx ends.
func (w *Waker) Run(ctx context.Context, driver Driver) error {
	for failures := 0; w.await(ctx); {
		err := w.send(ctx, driver)
		if err == nil {
			failures = 0
			continue
		}
		// Once for each outage.
		if failures == 0 && ctx.Err() == nil {
			w.log.Warn("apps were not woken, will be tried again", "error", err)
		}
		if !pause(ctx, retryWakes.Delay(failures, nil)) {
			return nil
		}
		failures++
	}
	return nil
}

// await returns true when some app may be sent, and false when ctx has ended.
func (w *Waker) await(ctx context.Context) bool {
	for {
		var due <-chan time.Time
		if at, waits := w.earliest(); waits {
			wait := time.Until(at)
			if wait <= 0 {
				return ctx.Err() == nil
			}
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.signal:
		case <-due:
		}
	}
}

func (w *Waker) earliest() (at time.Time, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.pending {
		if !waits || t.Before(at) {
			at, waits = t, true
		}
	}
	return at, waits
}

// retryWakes is short at first: a driver that has just started is not registered
// for a moment. It stays so, being one call for all apps that wait.
var retryWakes = backoff.Policy{Min: 100 * time.Millisecond, Max: time.Second}

func (w *Waker) send(ctx context.Context, driver Driver) error {
	for {
		ids := w.take()
		if len(ids) == 0 {
			return nil
		}
		if err := wake(ctx, driver, ids); err != nil {
			again := make(map[string]time.Duration, len(ids))
			for _, id := range ids {
				again[id] = 0
			}
			w.Notify(again)
			return err
		}
	}
}

func (w *Waker) take() []string {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.sent, func(_ string, at time.Time) bool { return now.Sub(at) >= maxSpacing })
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(w.pending)) {
		if len(ids) < sendBatch && !w.pending[id].After(now) {
			ids = append(ids, id)
			delete(w.pending, id)
			w.sent[id] = now
		}
	}
	return ids
}

func wake(ctx context.Context, driver Driver, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return driver.Wake(ctx, ids)
}
