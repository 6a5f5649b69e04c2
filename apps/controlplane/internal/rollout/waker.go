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

// sendTimeout bounds one call of the driver's Wake.
const sendTimeout = 10 * time.Second

// sendBatch is how many apps one call of Wake has.
const sendBatch = 500

// Two sends of one app are spaced out. Several reports of its regions within a moment then become one
// decision: the first report leads to a step at once, or when it is due, and the others share the next step.
// The moment is as long as two steps take, so that a machine that is busy with steps has fewer of them to
// run. It is not longer, because steps on a busy machine share most of their cost.
const (
	minSpacing = 40 * time.Millisecond
	maxSpacing = time.Second
	stepsApart = 2
)

// beat is the grid on which apps that may wait are sent. Their steps then run together and share statements,
// behind the steps that a request waits for.
const beat = 200 * time.Millisecond

// Waker sends apps that a commit woke to the driver at once, and again if that fails. The Sweeper finds the
// apps that the Waker forgets.
type Waker struct {
	log    *slog.Logger
	signal chan struct{}

	mu sync.Mutex
	// pending has when each waiting app may be sent. sent has when apps were last sent, if that can still delay
	// their next send.
	pending, sent map[string]time.Time
	// took is the recent average duration of a step.
	took time.Duration
}

// NewWaker returns a Waker that sends once it runs.
func NewWaker(log *slog.Logger) *Waker {
	return &Waker{
		log: log, signal: make(chan struct{}, 1),
		pending: map[string]time.Time{}, sent: map[string]time.Time{},
	}
}

// Took records the duration of a step of any app.
func (w *Waker) Took(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A step that waits for a foreign registry says little about other steps, so d is capped.
	w.took += (min(d, maxSpacing/stepsApart) - w.took) / 16
}

// spacingOf returns the least time between two sends of one app. The caller holds mu.
func (w *Waker) spacingOf() time.Duration {
	return min(max(stepsApart*w.took, minSpacing), maxSpacing)
}

// Notify adds apps to wake, each with the earliest time from now. It never blocks.
func (w *Waker) Notify(apps map[string]time.Duration) {
	if len(apps) == 0 {
		return
	}
	now := time.Now()
	w.mu.Lock()
	spacing := w.spacingOf()
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

// maxPending bounds the apps that wait for an unreachable driver. The Sweeper finds the rest.
const maxPending = 10_000

// Run sends until ctx ends.
func (w *Waker) Run(ctx context.Context, driver Driver) error {
	for failures := 0; w.awaitTurn(ctx); {
		err := w.send(ctx, driver)
		if err == nil {
			failures = 0
			continue
		}
		// Only the first failure of an outage is logged.
		if failures == 0 && ctx.Err() == nil {
			w.log.Warn("apps were not woken, will be tried again", "error", err)
		}
		if !pauseFor(ctx, retryWakes.Delay(failures, nil)) {
			return nil
		}
		failures++
	}
	return nil
}

// awaitTurn returns true when an app may be sent, and false when ctx has ended.
func (w *Waker) awaitTurn(ctx context.Context) bool {
	for {
		var due <-chan time.Time
		if at, waits := w.earliestTurn(); waits {
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

func (w *Waker) earliestTurn() (at time.Time, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.pending {
		if !waits || t.Before(at) {
			at, waits = t, true
		}
	}
	return at, waits
}

// retryWakes is short at first, because a driver that just started is not registered at once. It stays short,
// because one call serves all waiting apps.
var retryWakes = backoff.Policy{Min: 100 * time.Millisecond, Max: time.Second}

func (w *Waker) send(ctx context.Context, driver Driver) error {
	for {
		ids := w.take()
		if len(ids) == 0 {
			return nil
		}
		if err := wakeApps(ctx, driver, ids); err != nil {
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

func wakeApps(ctx context.Context, driver Driver, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return driver.Wake(ctx, ids)
}
