package scenario

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// deliveries are the assignments that agents passed to their runtimes.
type deliveries struct {
	mu    sync.Mutex
	byKey map[deliveryKey][]delivery
}

type deliveryKey struct{ region, deployment string }

type delivery struct {
	generation int64
	at         time.Time
}

func newDeliveries() *deliveries { return &deliveries{byKey: map[deliveryKey][]delivery{}} }

func (d *deliveries) recordApplied(region, deployment string, _, generation int64) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	k := deliveryKey{region, deployment}
	d.byKey[k] = append(d.byKey[k], delivery{generation, now})
}

// firstArrival returns when a generation, or a newer one, arrived.
func (d *deliveries) firstArrival(k deliveryKey, generation int64) (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.byKey[k] {
		if e.generation >= generation {
			return e.at, true
		}
	}
	return time.Time{}, false
}

// feed observes the changes from one moment on, in the database and at the agents.
type feed struct {
	w     *testbed.Testbed
	seen  *deliveries
	heads map[string]int64
	names map[string]string // of regions, by id
}

func watchFeed(ctx context.Context, w *testbed.Testbed, seen *deliveries) (*feed, error) {
	f := &feed{w: w, seen: seen, names: map[string]string{}}
	regions, err := w.DB.Regions(ctx)
	if err != nil {
		return nil, err
	}
	for name, id := range regions {
		f.names[id] = name
	}
	f.heads, err = w.DB.Heads(ctx)
	return f, err
}

// arrival is one change and when it arrived.
type arrival struct {
	bare.Change
	region string // name
	at     time.Time
}

func (a arrival) latencyOf() time.Duration { return a.at.Sub(a.At) }

// grace is how long after the last commit a change may take before it counts as lost. It is longer than every
// reconnect and retry of an agent.
const grace = time.Minute

// waitArrivals waits until every change of a deployment since heads has arrived at its agent, and returns them in the
// order of their commits. A change that does not arrive is an error, and so is a hole in the feed.
func (f *feed) waitArrivals(ctx context.Context) ([]arrival, error) {
	changes, err := f.w.DB.ChangesSince(ctx, f.heads)
	if err != nil {
		return nil, err
	}
	at := maps.Clone(f.heads)
	var wanted []arrival
	for _, c := range changes {
		if at[c.Region]++; c.Revision != at[c.Region] {
			return nil, fmt.Errorf("the feed of region %s has revision %d after %d", f.names[c.Region], c.Revision, at[c.Region]-1)
		}
		if c.Kind == bare.KindDeployment {
			wanted = append(wanted, arrival{Change: c, region: f.names[c.Region]})
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, grace, fmt.Errorf("changes did not arrive within %s of the last commit", grace))
	defer cancel()
	missing := 0
	err = testbed.Until(ctx, 5*time.Millisecond, func() (bool, error) {
		missing = 0
		for i := range wanted {
			a := &wanted[i]
			if !a.at.IsZero() {
				continue
			}
			var ok bool
			if a.at, ok = f.seen.firstArrival(deliveryKey{a.region, a.Key}, a.Generation); !ok {
				missing++
			}
		}
		return missing == 0, nil
	}, func() string { return fmt.Sprintf("%d of %d changes are missing", missing, len(wanted)) })
	slices.SortFunc(wanted, func(a, b arrival) int { return a.At.Compare(b.At) })
	return wanted, err
}

func latenciesOf(arrivals []arrival) *measure.Durations {
	var d measure.Durations
	for _, a := range arrivals {
		d.Add(a.latencyOf())
	}
	return &d
}

// spanOf returns the time from the first commit to the last commit, and to the last arrival.
func spanOf(arrivals []arrival) (committed, arrived time.Duration) {
	for _, a := range arrivals {
		committed = max(committed, a.At.Sub(arrivals[0].At))
		arrived = max(arrived, a.at.Sub(arrivals[0].At))
	}
	return committed, arrived
}
