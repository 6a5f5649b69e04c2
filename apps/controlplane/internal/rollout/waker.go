package rollout

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// sendTimeout bounds one hand-over to the driver.
const sendTimeout = 10 * time.Second

// sendBatch is how many apps are handed over at once.
const sendBatch = 500

// Waker hands apps that a commit woke to the driver at once, and again when that
// fails. What it forgets the Sweeper finds.
type Waker struct {
	driver Driver
	log    *slog.Logger
	signal chan struct{}

	mu      sync.Mutex
	pending map[string]struct{}
}

// NewWaker returns a Waker that sends once it runs.
func NewWaker(driver Driver, log *slog.Logger) *Waker {
	return &Waker{driver: driver, log: log, signal: make(chan struct{}, 1), pending: map[string]struct{}{}}
}

// Notify takes note of apps to wake. It never blocks.
func (w *Waker) Notify(appIDs []string) {
	if len(appIDs) == 0 {
		return
	}
	w.mu.Lock()
	for _, id := range appIDs {
		if len(w.pending) < maxPending {
			w.pending[id] = struct{}{}
		}
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
func (w *Waker) Run(ctx context.Context) error {
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-w.signal:
		}
		err := w.send(ctx)
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
}

// retryWakes is short at first: a driver that has just started is not registered
// for a moment.
var retryWakes = backoff.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}

func (w *Waker) send(ctx context.Context) error {
	for {
		ids := w.take()
		if len(ids) == 0 {
			return nil
		}
		if err := wake(ctx, w.driver, ids); err != nil {
			w.Notify(ids)
			return err
		}
	}
}

func (w *Waker) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, min(len(w.pending), sendBatch))
	for id := range w.pending {
		if len(ids) == sendBatch {
			break
		}
		ids = append(ids, id)
		delete(w.pending, id)
	}
	return ids
}

func wake(ctx context.Context, driver Driver, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return driver.Wake(ctx, ids)
}
