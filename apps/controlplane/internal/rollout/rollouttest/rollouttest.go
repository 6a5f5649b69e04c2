// Package rollouttest is the contract of a rollout.Driver, as tests that every
// driver passes. What it asks for is little, because the wake-up rows do the
// rest: wake-ups may be lost, doubled, late and out of order, and processes may
// die at any moment; in the end every app has been looked at after the last thing
// that happened to it, and when it asked to be.
package rollouttest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
)

// Process is one life of a program that runs a driver.
type Process struct {
	Driver rollout.Driver
	// Crash ends it as kill -9 would: what runs is cut off, what it would have
	// answered is lost. The driver sends nothing any more.
	Crash func()
}

// Harness starts processes, one after the other, over whatever the driver keeps
// elsewhere. The last one is ended by the harness when the test ends.
type Harness interface {
	Start(step rollout.Step) Process
}

// patience is how long anything may take. Real drivers share a busy machine, and
// wait for seconds before they try again what failed on it.
const patience = 2 * time.Minute

func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.DiscardHandler).With("test", t.Name())
}

// Run runs the contract. newHarness is called once for each part; wrap runs a part,
// in a synctest bubble perhaps.
func Run(t *testing.T, newHarness func(t testing.TB) Harness, wrap func(t *testing.T, part func(t *testing.T))) {
	for _, part := range []struct {
		name string
		run  func(t *testing.T, harness Harness)
	}{
		{"AWakeIsFollowedByAStep", wakeIsFollowedByAStep},
		{"StepsOfAnAppNeverOverlapAndThoseOfOthersDo", stepsNeverOverlap},
		{"AWakeDuringAStepIsFollowedByAnother", wakeDuringAStep},
		{"TheNextLookComesWhenItIsDue", nextLookComesWhenDue},
		{"ALaterDecisionReplacesTheLook", laterDecisionReplacesLook},
		{"AFailingStepIsTriedAgain", failingStepIsTriedAgain},
		{"ALostWakeIsFoundBySweeping", lostWakeIsFound},
		{"ACrashBeforeTheScheduleLosesNoLook", crashBeforeSchedule},
		{"ACrashLeavesNoAppBehind", crashLeavesNoAppBehind},
		{"AnyDisorderEndsInOrder", disorder},
	} {
		t.Run(part.name, func(t *testing.T) {
			wrap(t, func(t *testing.T) { part.run(t, newHarness(t)) })
		})
	}
}

// id is unique, so that parts may share what is behind their drivers.
func id(name string) string { return fmt.Sprintf("app_%s_%08x", name, rand.Uint32()) }

func wakeAll(t testing.TB, d rollout.Driver, ids ...string) {
	t.Helper()
	require.NoError(t, d.Wake(context.Background(), ids))
}

func wakeIsFollowedByAStep(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	a, b := id("a"), id("b")
	w.happen(a)
	w.happen(b)
	wakeAll(t, p.Driver, a, b)
	w.await("both apps see what happened", patience, w.quiet)
	w.happen(a)
	wakeAll(t, p.Driver, a)
	w.await("the app sees what happened next", patience, w.quiet)
}

func stepsNeverOverlap(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	held, other := id("held"), id("other")
	release, reached := make(chan struct{}), make(chan struct{})
	w.with(held, func(a *app) { a.hold, a.held = release, reached })
	w.happen(held)
	wakeAll(t, p.Driver, held)
	awaitSignal(t, reached)
	for range 20 {
		w.happen(held)
		wakeAll(t, p.Driver, held)
	}
	w.happen(other)
	wakeAll(t, p.Driver, other)
	w.awaitApp("another app does not wait for the one that is held", other, patience, func(a *app) bool { return a.seen == a.events })
	close(release)
	w.await("the held app sees all", patience, w.quiet)
	ofOne, ofAll := w.overlap()
	require.Equal(t, 1, ofOne)
	require.GreaterOrEqual(t, ofAll, 2)
}

func awaitSignal(t testing.TB, ch chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatal("no step came")
	}
}

func wakeDuringAStep(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	a := id("a")
	release, reached := make(chan struct{}), make(chan struct{})
	w.with(a, func(a *app) { a.hold, a.held = release, reached })
	w.happen(a)
	wakeAll(t, p.Driver, a)
	awaitSignal(t, reached)
	w.happen(a) // after the step has read, before it has answered
	wakeAll(t, p.Driver, a)
	close(release)
	w.await("the second event is seen", patience, w.quiet)
}

func nextLookComesWhenDue(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	a := id("a")
	w.sweep(p.Driver)
	w.with(a, func(a *app) { a.looks = []time.Duration{300 * time.Millisecond, 400 * time.Millisecond} })
	w.happen(a)
	wakeAll(t, p.Driver, a)
	w.await("it looked twice more", patience, w.quiet)
	w.with(a, func(a *app) {
		require.Len(t, a.steps, 3)
		for i, due := range a.dues {
			require.False(t, a.steps[i+1].Before(due.Add(-time.Millisecond)), "look %d came %s early", i+1, due.Sub(a.steps[i+1]))
		}
	})
}

// laterDecisionReplacesLook: each of several steps asks for a look; only the last
// one's is owed. Looks that were replaced must not pile up steps.
func laterDecisionReplacesLook(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	w.sweep(p.Driver)
	a := id("a")
	const wakes = 5
	w.with(a, func(a *app) {
		for range wakes {
			a.looks = append(a.looks, 1500*time.Millisecond)
		}
	})
	for i := range wakes {
		w.happen(a)
		wakeAll(t, p.Driver, a)
		w.awaitApp("it is stepped", a, patience, func(a *app) bool { return len(a.steps) > i && a.running == 0 })
	}
	w.await("it looks once more", patience, w.quiet)
	var last time.Time
	w.with(a, func(a *app) { last = a.dues[len(a.dues)-1] })
	w.await("all looks have passed", patience, func() bool { return time.Since(last) > 300*time.Millisecond })
	w.with(a, func(a *app) {
		require.Len(t, a.steps, wakes+1, "one look for the last decision, none for those it replaced")
	})
}

func failingStepIsTriedAgain(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	a := id("a")
	w.with(a, func(a *app) { a.fail = 4 })
	w.happen(a)
	wakeAll(t, p.Driver, a)
	w.await("it passes in the end", patience, w.quiet)
}

func lostWakeIsFound(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	w.sweep(p.Driver)
	for range 10 {
		w.happen(id("lost")) // and the driver gets no signal
	}
	w.await("the sweeper finds them", patience, w.quiet)
}

func crashBeforeSchedule(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	a := id("a")
	release, reached := make(chan struct{}), make(chan struct{})
	w.with(a, func(a *app) {
		a.looks = []time.Duration{200 * time.Millisecond, 200 * time.Millisecond}
		a.hold, a.held = release, reached
	})
	w.happen(a)
	wakeAll(t, p.Driver, a)
	awaitSignal(t, reached)
	p.Crash() // it has committed, and sent no answer
	p = harness.Start(w.step)
	w.sweep(p.Driver)
	w.await("it looked as often as it wanted", patience, w.quiet)
}

func crashLeavesNoAppBehind(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.step)
	var ids []string
	for i := range 60 {
		ids = append(ids, id("a"))
		w.with(ids[i], func(a *app) { a.looks = []time.Duration{100 * time.Millisecond, 300 * time.Millisecond} })
		w.happen(ids[i])
	}
	wakeAll(t, p.Driver, ids...)
	w.await("some have stepped", patience, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := 0
		for _, a := range w.apps {
			n += len(a.steps)
		}
		return n > 20
	})
	p.Crash()
	for _, id := range ids {
		w.happen(id)
	}
	p = harness.Start(w.step)
	w.sweep(p.Driver)
	w.await("all are done", patience, w.quiet)
	ofOne, _ := w.overlap()
	require.Equal(t, 1, ofOne)
}

// disorder: many writers make things happen, and lose, double and delay the
// wake-ups.
func disorder(t *testing.T, harness Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newFixture(t)
	p := harness.Start(w.step)
	w.sweep(p.Driver)
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = id("a")
		w.with(ids[i], func(a *app) { a.looks = []time.Duration{150 * time.Millisecond, 50 * time.Millisecond} })
		w.happen(ids[i]) // the writers may leave one out, which would then never look
	}
	var wg sync.WaitGroup
	for writer := range uint64(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, writer))
			for range 30 {
				app := ids[rnd.IntN(len(ids))]
				w.happen(app)
				switch rnd.IntN(4) {
				case 0: // lost
				case 1: // late
					time.Sleep(time.Duration(rnd.IntN(40)) * time.Millisecond)
					w.wake(p.Driver, app)
				default: // doubled
					w.wake(p.Driver, app, app)
					w.wake(p.Driver, app)
				}
			}
		})
	}
	wg.Wait()
	w.await("all is seen", patience, w.quiet)
	ofOne, _ := w.overlap()
	require.Equal(t, 1, ofOne)
}

func (w *fixture) wake(d rollout.Driver, ids ...string) {
	if err := d.Wake(context.Background(), ids); err != nil {
		w.t.Errorf("wake: %v", err)
	}
}
