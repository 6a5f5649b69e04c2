package ingest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/batch"
)

// lane is express or bulk, so that small reports do not wait behind large ones.
type lane int

const (
	// express is for reports with few instances: edges, counts and states.
	express lane = iota
	// bulk is for reports with more instances.
	bulk
	lanes
)

// expressInstances is the maximum number of instances of a report on the express lane. A few replicas that become
// ready together fit, but a part of a large inventory does not.
const expressInstances = 50

func laneOf(p *pending) lane {
	if len(p.req.Instances) > expressInstances {
		return bulk
	}
	return express
}

// maxWaiting is the maximum number of waiting reports of a region. An agent has one report in flight, and a second
// one when it reconnects after a lost connection. More reports would take the place of other regions' reports.
const maxWaiting = 2

// patience is how long a batch of the express lane may run before the next batch begins concurrently. Until then,
// reports wait and form one batch, because a larger batch has fewer statements per report.
const patience = 50 * time.Millisecond

// queue batches reports and learns how fast they are stored. A batch has at most one report of each region, and
// reports of a region are stored one after the other.
type queue struct {
	*batch.Group[lane, *pending, error]

	mu     sync.Mutex // is locked last
	meter  meter
	steady smooth // delay
}

// newQueue returns a queue. commit stores a batch, and returns for each report nil or the error with which it is
// refused.
func newQueue(commit func(context.Context, []*pending) ([]error, error), observe func(batch.Outcome)) *queue {
	q := &queue{}
	q.Group = batch.New(batch.Config[lane, *pending, error]{
		Commit: func(ctx context.Context, reports []*pending) ([]error, error) {
			start, rows := time.Now(), 0
			for _, p := range reports {
				rows += p.rowCount()
			}
			q.batchBegan(start, rows)
			defer func() { q.batchEnded(time.Now(), rows, time.Since(start)) }()
			return commit(ctx, reports)
		},
		Lane:   laneOf,
		Limits: q.laneLimits,
		Key:    func(p *pending) string { return p.region },
		Weight: (*pending).rowCount,
		Admit:  func(p *pending, w batch.Waiting[lane]) error { return q.admitReport(p, w, time.Now()) },
		// If a call ends, the agent sends its report again, and a report that is stored twice counts once.
		Detached: true,
		Split:    batch.Singly,
		Timeout:  batchTimeout,
		// One commit is reserved for small reports, so that they do not wait for a large batch.
		MaxCommits: bulkBatches + 1,
		Observe:    observe,
	})
	return q
}

func (q *queue) laneLimits(l lane) batch.Limits {
	q.mu.Lock()
	defer q.mu.Unlock()
	limits := batch.Limits{Size: maxBatchReports, Weight: q.meter.batchSize()}
	if l == express {
		limits.Patience = patience
	} else {
		limits.Commits = bulkBatches
	}
	return limits
}

// refusal is the error for a report that may not wait.
type refusal struct {
	// full means that the queue has no room. crowded means that too many reports of the region wait. If both are
	// false, the store is behind.
	full, crowded bool
	retryAfter    time.Duration
}

func (r *refusal) Error() string {
	return fmt.Sprintf("too many reports wait: try again after %s", r.retryAfter)
}

// admitReport returns a refusal or nil.
func (q *queue) admitReport(p *pending, w batch.Waiting[lane], now time.Time) error {
	load := q.load(w, now)
	small, large := w.Lane(express), w.Lane(bulk)
	switch retryAfter, behind := load.refusesAt(large.Weight); {
	case small.Weight+large.Weight > maxQueuedRows, small.Requests+large.Requests >= queueLength:
		return &refusal{full: true, retryAfter: min(max(retryAfter, time.Second), maxPause)}
	case w.Key(p.region) >= maxWaiting:
		return &refusal{crowded: true, retryAfter: min(max(load.delay, time.Second), maxPause)}
	case laneOf(p) == bulk && behind:
		return &refusal{retryAfter: retryAfter}
	}
	return nil
}

// load returns how far the store is behind the waiting reports.
func (q *queue) load(w batch.Waiting[lane], now time.Time) load {
	q.mu.Lock()
	defer q.mu.Unlock()
	rows, oldest := 0, time.Duration(0)
	for l := range lanes {
		waits := w.Lane(l)
		rows += waits.Weight
		if waits.Requests > 0 {
			oldest = max(oldest, now.Sub(waits.Since))
		}
	}
	out := load{
		commit: q.meter.commit,
		delay:  max(time.Duration(float64(rows)/q.meter.perSecond()*float64(time.Second)), oldest),
	}
	out.steady = time.Duration(q.steady.followValue(float64(out.delay), now))
	return out
}

func (q *queue) loadAt(now time.Time) (l load) {
	q.Look(func(w batch.Waiting[lane]) { l = q.load(w, now) })
	return l
}

// batchBegan and ended measure the rate at which batches are stored.
func (q *queue) batchBegan(now time.Time, rows int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meter.begin(now, rows)
}

func (q *queue) batchEnded(now time.Time, rows int, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meter.endBatch(now, rows, took)
}
