package rollouttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
)

// fixture is a database of wake-up rows with a minimal workflow: an app counts events,
// and a step sees all events before it.
type fixture struct {
	t testing.TB

	mu   sync.Mutex
	apps map[string]*app
	// most is the highest number of steps of one app that ran at once, and parallel is the highest
	// number of steps of all apps. running is the number of running steps.
	most, running, parallel int
}

type app struct {
	events, seen int
	// looks are the delays for which the next steps ask.
	looks []time.Duration
	// steps are the times at which steps began.
	steps []time.Time
	// dues are the times for which steps asked for the next step.
	dues    []time.Time
	running int
	due     int64 // of the wake-up row, 0 for none
	sent    int64
	fail    int           // the number of next steps that fail
	hold    chan struct{} // the next step waits, after its commit, until this is closed
	held    chan struct{} // closed when the step waits
}

func newFixture(t testing.TB) *fixture { return &fixture{t: t, apps: map[string]*app{}} }

func (w *fixture) appOf(id string) *app {
	if w.apps[id] == nil {
		w.apps[id] = &app{}
	}
	return w.apps[id]
}

// highestOverlap returns the highest number of steps of one app, and of all apps, that ran at once.
func (w *fixture) highestOverlap() (ofOne, ofAll int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most, w.parallel
}

// withApp runs f on the app, under the lock.
func (w *fixture) withApp(id string, f func(*app)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.appOf(id))
}

// addEvent is a transaction that adds an event to the app and writes its wake-up row.
func (w *fixture) addEvent(id string) {
	w.withApp(id, func(a *app) {
		a.events++
		a.due = time.Now().UnixMilli()
		a.sent = a.due
	})
}

// runStep is a rollout.Step. Its transaction is one critical section.
func (w *fixture) runStep(ctx context.Context, id string) error {
	w.mu.Lock()
	a := w.appOf(id)
	a.running++
	w.running++
	w.most, w.parallel = max(w.most, a.running), max(w.parallel, w.running)
	a.steps = append(a.steps, time.Now())
	defer func() {
		w.mu.Lock()
		a.running--
		w.running--
		w.mu.Unlock()
	}()
	if a.fail > 0 {
		a.fail--
		w.mu.Unlock()
		return errors.New("the database is down")
	}
	a.due, a.sent = 0, 0
	a.seen = a.events
	if len(a.looks) > 0 {
		a.due = time.Now().Add(a.looks[0]).UnixMilli()
		a.looks = a.looks[1:]
		a.dues = append(a.dues, time.UnixMilli(a.due))
	}
	hold, held := a.hold, a.held
	a.hold, a.held = nil, nil
	w.mu.Unlock()
	if hold != nil {
		close(held)
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// isSettled reports whether the app has seen all events, and no look is still to come.
func (a *app) isSettled() bool {
	return a.seen == a.events && len(a.looks) == 0 && a.due == 0 && a.running == 0
}

// isQuiet reports whether every app is settled.
func (w *fixture) isQuiet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.apps {
		if !a.isSettled() {
			return false
		}
	}
	return true
}

// unsettledText describes the apps that are not settled.
func (w *fixture) unsettledText() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out strings.Builder
	for id, a := range w.apps {
		if !a.isSettled() {
			fmt.Fprintf(&out, "\n%s: %d of %d events seen in %d steps, %d looks to come, due %d, sent %d, %d running",
				id, a.seen, a.events, len(a.steps), len(a.looks), a.due, a.sent, a.running)
		}
	}
	return out.String()
}

// DueWakes implements rollout.SweepTx.
func (w *fixture) DueWakes(lostAfter, againAfter int64, limit int) ([]model.Wake, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now().UnixMilli()
	var rows []model.Wake
	for id, a := range w.apps {
		if a.due != 0 && a.due <= now && len(rows) < limit &&
			(a.sent == 0 || a.sent == a.due && a.sent <= now-lostAfter || a.sent <= now-againAfter) {
			rows = append(rows, model.Wake{AppID: id, Due: a.due, SentAt: a.sent})
		}
	}
	return rows, nil
}

// MarkWakesSent implements rollout.SweepTx.
func (w *fixture) MarkWakesSent(ids []string, dueBy int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if a := w.appOf(id); a.due != 0 && a.due <= dueBy {
			a.sent = time.Now().UnixMilli()
		}
	}
	return nil
}

// UnsendWakes implements rollout.SweepTx.
func (w *fixture) UnsendWakes() (n int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.apps {
		if a.sent != 0 {
			a.sent = 0
			n++
		}
	}
	return n, nil
}

// Update implements rollout.SweepStore.
func (w *fixture) Update(_ context.Context, fn func(rollout.SweepTx) error) error { return fn(w) }

// View implements rollout.SweepStore.
func (w *fixture) View(_ context.Context, fn func(rollout.SweepTx) error) error { return fn(w) }

// runSweeper runs a Sweeper next to the driver until the test ends.
func (w *fixture) runSweeper(driver rollout.Driver) {
	s, err := rollout.NewSweeper(rollout.SweeperConfig{
		Store: w, Log: testLogger(w.t), Registerer: prometheus.NewRegistry(),
		Interval: 50 * time.Millisecond, Grace: 200 * time.Millisecond, Resend: 500 * time.Millisecond,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx, driver); err != nil {
			w.t.Error(err)
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// awaitCondition waits until the condition holds.
func (w *fixture) awaitCondition(what string, within time.Duration, condition func() bool) {
	w.t.Helper()
	for end := time.Now().Add(within); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: not within %s%s", what, within, w.unsettledText())
		}
	}
}

func (w *fixture) awaitApp(what, id string, within time.Duration, condition func(*app) bool) {
	w.t.Helper()
	w.awaitCondition(what, within, func() (ok bool) {
		w.withApp(id, func(a *app) { ok = condition(a) })
		return ok
	})
}
