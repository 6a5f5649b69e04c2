package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// edges crashes single replicas. It measures the times until the counts in the database show such a replica
// as not ready, and as ready again.
type edges struct {
	deployments []string // of one replica each

	mu      sync.Mutex
	ready   map[place]time.Time // when the executor last reported ready
	stored  map[place]counted
	changed chan struct{} // closed when ready or stored changed
	failed  error
}

// place is a deployment in a region.
type place struct{ region, deployment string }

// counted is the number of ready replicas in the database, and when it was first seen.
type counted struct {
	ready int
	at    time.Time
}

func newEdges() *edges {
	return &edges{ready: map[place]time.Time{}, stored: map[place]counted{}, changed: make(chan struct{})}
}

// replicaReady is called by executors when a replica is ready.
func (e *edges) replicaReady(p place) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready[p] = now
	e.wakeWaiters()
}

func (e *edges) wakeWaiters() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// lookEvery is the interval between queries of the database. The measured times are longer by half of it, and
// by the time of a query.
const lookEvery = 10 * time.Millisecond

// watchCounts reads the counts until ctx ends.
func (e *edges) watchCounts(ctx context.Context, w *testbed.Testbed) {
	err := func() error {
		regions, err := w.DB.Regions(ctx)
		if err != nil {
			return err
		}
		names := map[string]string{}
		for name, id := range regions {
			names[id] = name
		}
		query := "SELECT deployment_id, region, ready_replicas FROM deployment_observed WHERE deployment_id IN (?" +
			strings.Repeat(", ?", len(e.deployments)-1) + ")"
		var args []any
		for _, id := range e.deployments {
			args = append(args, id)
		}
		for {
			if err := e.readCounts(ctx, w, names, query, args); err != nil {
				return err
			}
			if err := waitFor(ctx, lookEvery); err != nil {
				return err
			}
		}
	}()
	if ctx.Err() == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.failed = fmt.Errorf("watch the counts: %w", err)
		e.wakeWaiters()
	}
}

func (e *edges) readCounts(ctx context.Context, w *testbed.Testbed, names map[string]string, query string, args []any) (err error) {
	rows, err := w.DB.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	seen := map[place]int{}
	for rows.Next() {
		var p place
		var region string
		var ready int
		if err := rows.Scan(&p.deployment, &region, &ready); err != nil {
			return err
		}
		p.region = names[region]
		seen[p] = ready
	}
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for p, ready := range seen {
		if was, ok := e.stored[p]; !ok || was.ready != ready {
			e.stored[p] = counted{ready, now}
			e.wakeWaiters()
		}
	}
	return rows.Err()
}

// waitUntil waits until done returns a time. It calls done whenever something changed.
func (e *edges) waitUntil(ctx context.Context, done func() (time.Time, bool)) (time.Time, error) {
	for {
		e.mu.Lock()
		at, ok := done()
		changed, failed := e.changed, e.failed
		e.mu.Unlock()
		if ok || failed != nil {
			return at, failed
		}
		select {
		case <-ctx.Done():
			return at, context.Cause(ctx)
		case <-changed:
		}
	}
}

// crashReplicas crashes every replica again and again for the window. It returns the times until the counts
// in the database showed the replica as not ready, and as ready again.
func (e *edges) crashReplicas(ctx context.Context, w *testbed.Testbed, window time.Duration) (*measure.Durations, error) {
	end := time.Now().Add(window)
	var mu sync.Mutex
	var all measure.Durations
	var failed error
	var wg sync.WaitGroup
	for n, m := range w.Fleet.Members() {
		for k, id := range e.deployments {
			p := place{m.Region, id}
			// The offsets are spread over one second, so that replicas do not crash together.
			offset := time.Duration(n*len(e.deployments)+k) * time.Second / time.Duration(len(w.Regions)*len(e.deployments))
			wg.Go(func() {
				err := waitFor(ctx, offset)
				for err == nil && time.Now().Before(end) {
					var took []time.Duration
					took, err = e.crashOnce(ctx, w, p)
					mu.Lock()
					for _, d := range took {
						all.Add(d)
					}
					mu.Unlock()
				}
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = errors.Join(failed, fmt.Errorf("crash in region %s: %w", p.region, err))
				}
			})
		}
	}
	wg.Wait()
	if failed == nil && all.Len() == 0 {
		failed = errors.New("no replica crashed")
	}
	return &all, failed
}

// crashOnce crashes a replica, and waits until the database shows the loss (the first edge) and then the
// recovery (the second edge). If the replica was ready again before the loss was stored, the first edge is
// never seen. Then only the time until the replica was ready counts.
func (e *edges) crashOnce(ctx context.Context, w *testbed.Testbed, p place) (took []time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wedged, fmt.Errorf("the counts of %s did not follow within %s", p.deployment, wedged))
	defer cancel()
	begin := time.Now()
	if err := w.Fleet.Member(p.region).Runtime.Crash(p.deployment); err != nil {
		return nil, err
	}
	seen := false
	at, err := e.waitUntil(ctx, func() (time.Time, bool) {
		if is := e.stored[p]; is.ready == 0 && is.at.After(begin) {
			seen = true
			return is.at, true
		}
		return e.ready[p], e.ready[p].After(begin)
	})
	if err != nil {
		return nil, err
	}
	took = append(took, at.Sub(begin))
	var ready time.Time
	at, err = e.waitUntil(ctx, func() (time.Time, bool) {
		ready = e.ready[p]
		is := e.stored[p]
		return is.at, ready.After(begin) && is.ready == 1
	})
	if seen && err == nil {
		took = append(took, max(at.Sub(ready), 0))
	}
	return took, err
}
