// Package rollouttest is the contract of a rollout.Driver, as tests that every
// driver passes. The contract is small, because the wake-up rows do the rest.
// Wake-ups may be lost, doubled, late and out of order, and processes may die at any
// moment. Even so, a step of every app runs after the last event of the app, and when
// an earlier step asked for it.
//
// A look is a step for which an earlier step asked.
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
	// Crash ends the process like kill -9: running steps end, and their answers are
	// lost. After Crash, the driver sends nothing.
	Crash func()
}

// Harness starts processes, one after the other, that share the driver's external state.
// The harness ends the last process when the test ends.
type Harness interface {
	Start(step rollout.Step) Process
}

// patience bounds every wait. Real drivers share a busy machine, and wait for seconds
// before they repeat a failed call.
const patience = 2 * time.Minute

func testLogger(t testing.TB) *slog.Logger {
	return slog.New(slog.DiscardHandler).With("test", t.Name())
}

// Run runs the contract. newHarness is called once for each part. wrap runs a part, for
// example in a synctest bubble.
func Run(t *testing.T, newHarness func(t testing.TB) Harness, wrap func(t *testing.T, part func(t *testing.T))) {
	for _, part := range []struct {
		name string
		run  func(t *testing.T, harness Harness)
	}{
		{"AWakeIsFollowedByAStep", wakeIsFollowedByAStep},
		{"OnlyStepsOfDifferentAppsOverlap", stepsNeverOverlap},
		{"AWakeDuringAStepIsFollowedByAnotherStep", wakeDuringAStep},
		{"ALookComesWhenItIsDue", nextLookComesWhenDue},
		{"ALaterLookReplacesTheEarlierOne", laterLookReplacesEarlier},
		{"AFailingStepIsTriedAgain", failingStepIsTriedAgain},
		{"ALostWakeIsFoundBySweeping", lostWakeIsFound},
		{"ACrashBeforeTheScheduleLosesNoLook", crashBeforeSchedule},
		{"ACrashLeavesNoAppBehind", crashLeavesNoAppBehind},
		{"AppsSettleAfterDisorderedWakes", testDisorder},
	} {
		t.Run(part.name, func(t *testing.T) {
			wrap(t, func(t *testing.T) { part.run(t, newHarness(t)) })
		})
	}
}

// uniqueID returns a unique id, so that parts may share the external state of their drivers.
func uniqueID(name string) string { return fmt.Sprintf("app_%s_%08x", name, rand.Uint32()) }

func wakeAll(t testing.TB, d rollout.Driver, ids ...string) {
	t.Helper()
	require.NoError(t, d.Wake(context.Background(), ids))
}

func wakeIsFollowedByAStep(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	a, b := uniqueID("a"), uniqueID("b")
	w.addEvent(a)
	w.addEvent(b)
	wakeAll(t, p.Driver, a, b)
	w.awaitCondition("both apps see what happened", patience, w.isQuiet)
	w.addEvent(a)
	wakeAll(t, p.Driver, a)
	w.awaitCondition("the app sees what happened next", patience, w.isQuiet)
}

func stepsNeverOverlap(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	held, other := uniqueID("held"), uniqueID("other")
	release, reached := make(chan struct{}), make(chan struct{})
	w.withApp(held, func(a *app) { a.hold, a.held = release, reached })
	w.addEvent(held)
	wakeAll(t, p.Driver, held)
	awaitSignal(t, reached)
	for range 20 {
		w.addEvent(held)
		wakeAll(t, p.Driver, held)
	}
	w.addEvent(other)
	wakeAll(t, p.Driver, other)
	w.awaitApp("another app does not wait for the one that is held", other, patience, func(a *app) bool { return a.seen == a.events })
	close(release)
	w.awaitCondition("the held app sees all", patience, w.isQuiet)
	ofOne, ofAll := w.highestOverlap()
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
	p := harness.Start(w.runStep)
	a := uniqueID("a")
	release, reached := make(chan struct{}), make(chan struct{})
	w.withApp(a, func(a *app) { a.hold, a.held = release, reached })
	w.addEvent(a)
	wakeAll(t, p.Driver, a)
	awaitSignal(t, reached)
	w.addEvent(a) // after the step has read, before it has answered
	wakeAll(t, p.Driver, a)
	close(release)
	w.awaitCondition("the second event is seen", patience, w.isQuiet)
}

func nextLookComesWhenDue(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	a := uniqueID("a")
	w.runSweeper(p.Driver)
	w.withApp(a, func(a *app) { a.looks = []time.Duration{300 * time.Millisecond, 400 * time.Millisecond} })
	w.addEvent(a)
	wakeAll(t, p.Driver, a)
	w.awaitCondition("two more steps ran", patience, w.isQuiet)
	w.withApp(a, func(a *app) {
		require.Len(t, a.steps, 3)
		for i, due := range a.dues {
			require.False(t, a.steps[i+1].Before(due.Add(-time.Millisecond)), "look %d came %s early", i+1, due.Sub(a.steps[i+1]))
		}
	})
}

// laterLookReplacesEarlier requires that only the last look happens if each of several steps asks for a
// look.
func laterLookReplacesEarlier(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	w.runSweeper(p.Driver)
	a := uniqueID("a")
	const wakes = 5
	w.withApp(a, func(a *app) {
		for range wakes {
			a.looks = append(a.looks, 1500*time.Millisecond)
		}
	})
	for i := range wakes {
		w.addEvent(a)
		wakeAll(t, p.Driver, a)
		w.awaitApp("a step ran", a, patience, func(a *app) bool { return len(a.steps) > i && a.running == 0 })
	}
	w.awaitCondition("one more step ran", patience, w.isQuiet)
	var last time.Time
	w.withApp(a, func(a *app) { last = a.dues[len(a.dues)-1] })
	w.awaitCondition("all looks have passed", patience, func() bool { return time.Since(last) > 300*time.Millisecond })
	w.withApp(a, func(a *app) {
		require.Len(t, a.steps, wakes+1, "one look for the last step, none for the steps before it")
	})
}

func failingStepIsTriedAgain(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	a := uniqueID("a")
	w.withApp(a, func(a *app) { a.fail = 4 })
	w.addEvent(a)
	wakeAll(t, p.Driver, a)
	w.awaitCondition("the step passes", patience, w.isQuiet)
}

func lostWakeIsFound(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	w.runSweeper(p.Driver)
	for range 10 {
		w.addEvent(uniqueID("lost")) // the driver gets no signal
	}
	w.awaitCondition("the sweeper finds them", patience, w.isQuiet)
}

func crashBeforeSchedule(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	a := uniqueID("a")
	release, reached := make(chan struct{}), make(chan struct{})
	w.withApp(a, func(a *app) {
		a.looks = []time.Duration{200 * time.Millisecond, 200 * time.Millisecond}
		a.hold, a.held = release, reached
	})
	w.addEvent(a)
	wakeAll(t, p.Driver, a)
	awaitSignal(t, reached)
	p.Crash() // the step has committed, but has sent no answer
	p = harness.Start(w.runStep)
	w.runSweeper(p.Driver)
	w.awaitCondition("the app has had all its looks", patience, w.isQuiet)
}

func crashLeavesNoAppBehind(t *testing.T, harness Harness) {
	w := newFixture(t)
	p := harness.Start(w.runStep)
	var ids []string
	for i := range 60 {
		ids = append(ids, uniqueID("a"))
		w.withApp(ids[i], func(a *app) { a.looks = []time.Duration{100 * time.Millisecond, 300 * time.Millisecond} })
		w.addEvent(ids[i])
	}
	wakeAll(t, p.Driver, ids...)
	w.awaitCondition("some have stepped", patience, func() bool {
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
		w.addEvent(id)
	}
	p = harness.Start(w.runStep)
	w.runSweeper(p.Driver)
	w.awaitCondition("all apps are settled", patience, w.isQuiet)
	ofOne, _ := w.highestOverlap()
	require.Equal(t, 1, ofOne)
}

// testDisorder requires that all events are seen if several writers add events, and wake-ups are lost, doubled and late.
func testDisorder(t *testing.T, harness Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newFixture(t)
	p := harness.Start(w.runStep)
	w.runSweeper(p.Driver)
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = uniqueID("a")
		w.withApp(ids[i], func(a *app) { a.looks = []time.Duration{150 * time.Millisecond, 50 * time.Millisecond} })
		w.addEvent(ids[i]) // the writers may choose some app never, and it still needs a first step
	}
	var wg sync.WaitGroup
	for writer := range uint64(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, writer))
			for range 30 {
				app := ids[rnd.IntN(len(ids))]
				w.addEvent(app)
				switch rnd.IntN(4) {
				case 0: // lost
				case 1: // late
					time.Sleep(time.Duration(rnd.IntN(40)) * time.Millisecond)
					w.wakeApps(p.Driver, app)
				default: // doubled
					w.wakeApps(p.Driver, app, app)
					w.wakeApps(p.Driver, app)
				}
			}
		})
	}
	wg.Wait()
	w.awaitCondition("all is seen", patience, w.isQuiet)
	ofOne, _ := w.highestOverlap()
	require.Equal(t, 1, ofOne)
}

func (w *fixture) wakeApps(d rollout.Driver, ids ...string) {
	if err := d.Wake(context.Background(), ids); err != nil {
		w.t.Errorf("wake: %v", err)
	}
}
