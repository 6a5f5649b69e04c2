package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// setupConcurrency is how many calls prepare a testbed at the same time.
const setupConcurrency = 16

// deployApps deploys apps and waits until they are ready. Each app is in regionsEach regions.
func deployApps(ctx context.Context, w *testbed.Testbed, count, regionsEach int) ([]testbed.App, error) {
	regions := w.Regions[:len(w.Fleet.Members())]
	if regionsEach > len(regions) {
		return nil, fmt.Errorf("%d regions for each app, and there are %d", regionsEach, len(regions))
	}
	apps := make([]testbed.App, count)
	for i := range apps {
		a := testbed.App{Name: testbed.AppName(i), Replicas: 1, Version: "v1"}
		for r := range regionsEach {
			// The factors spread the apps over the whole fleet, so that a few apps do not all get the first
			// regions.
			a.Regions = append(a.Regions, regions[(i*max(len(regions)/count, 1)+r*max(len(regions)/regionsEach, 1))%len(regions)])
		}
		apps[i] = a
	}
	w.Progressf("deploying %d apps to %d region(s) each", count, regionsEach)
	begin := time.Now()
	if _, err := w.DeployAll(ctx, apps, setupConcurrency); err != nil {
		return nil, err
	}
	if err := w.WaitReady(ctx, 1, count); err != nil {
		return nil, err
	}
	w.Progressf("all ready after %s", time.Since(begin).Round(time.Millisecond))
	return apps, nil
}

// scaler scales apps up and down again.
type scaler struct {
	w *testbed.Testbed
	// least is the number of replicas in a region before a change up.
	least int
	mu    sync.Mutex
	at    map[string]*flips
}

// flips makes the changes of one app one after the other, because two calls in the wrong order would change
// nothing.
type flips struct {
	mu sync.Mutex
	n  int
}

func newScaler(w *testbed.Testbed, least int) *scaler {
	return &scaler{w: w, least: least, at: map[string]*flips{}}
}

// flipReplicas makes one change in each region of the app: one replica more, and one less with the next call.
func (s *scaler) flipReplicas(ctx context.Context, app testbed.App) error {
	s.mu.Lock()
	f := s.at[app.Name]
	if f == nil {
		f = &flips{}
		s.at[app.Name] = f
	}
	s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return s.w.Scale(ctx, app.Name, "", s.least+f.n%2)
}

// maxInFlight bounds the unanswered calls of a trickle: when they reach it, the control plane
// is slower than the requested rate.
const maxInFlight = 64

// makeChanges changes one app after the other at random times, with a mean of rate changes per second. It
// returns once all calls were answered.
func makeChanges(ctx context.Context, w *testbed.Testbed, apps []testbed.App, changes int, rate float64) error {
	return makeChangesWith(ctx, w, newScaler(w, 1), apps, changes, rate)
}

// makeChangesWith is makeChanges with a scaler that may have made earlier changes.
func makeChangesWith(ctx context.Context, w *testbed.Testbed, flips *scaler, apps []testbed.App, changes int, rate float64) error {
	order := w.Rand.Perm(len(apps))
	begin := time.Now()
	due := time.Duration(0)
	times := rand.New(rand.NewPCG(w.Rand.Uint64(), 0))
	var mu sync.Mutex
	// InParallel starts the calls in order, and each waits for its time.
	return testbed.InParallel(changes, maxInFlight, func(i int) error {
		mu.Lock()
		due += time.Duration(times.ExpFloat64() / rate * float64(time.Second))
		wait := due - time.Since(begin)
		mu.Unlock()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		return flips.flipReplicas(ctx, apps[order[i%len(apps)]])
	})
}
