package ingest

import (
	"slices"
	"sync"
	"time"
)

// lane is one of two: what is small does not wait behind what is large.
type lane int

const (
	// express is for reports with few instances: edges, counts, states.
	express lane = iota
	// bulk is for the others.
	bulk
	lanes
)

// expressInstances is how many instances a report on the express lane may have: some
// replicas that became ready together, and fewer than a part of anything large has.
const expressInstances = 50

func laneOf(p *pending) lane {
	if len(p.req.Instances) > expressInstances {
		return bulk
	}
	return express
}

// maxWaiting is how many reports of a region may wait: an agent has one in flight,
// and a second one when it was cut off and is back. More is a region that is loud,
// whose reports would take the place of the others'.
const maxWaiting = 2

// queue holds what waits to be stored, in order, a lane each. Reports of one region
// are stored one after the other, and a batch has one of each at the most: regions
// take turns.
type queue struct {
	mu    sync.Mutex
	lanes [lanes][]*pending
	rows  [lanes]int
	// waiting counts a region's reports; busy has those of which one is being stored.
	waiting map[string]int
	busy    map[string]bool
	// ready is signalled when there may be something to take.
	ready  [lanes]chan struct{}
	meter  meter
	steady smooth // delay
	// small are batches of the express lane that are being stored, smallSince when the last
	// of them began.
	small      int
	smallSince time.Time
}

// patience is how long a batch of the express lane may take before the next one begins beside
// it. Until then what comes waits and is one batch: a report's part of the statements is
// the smaller the more of them come at once.
const patience = 50 * time.Millisecond

func newQueue() *queue {
	q := &queue{waiting: map[string]int{}, busy: map[string]bool{}}
	for l := range q.ready {
		q.ready[l] = make(chan struct{}, 1)
	}
	return q
}

// verdict on a report that came.
type verdict struct {
	ok bool
	// full: whatever it was, there is no more room; otherwise that the store is
	// behind, or crowded: that the region has too many reports waiting.
	full, crowded bool
	retryAfter    time.Duration
}

func (q *queue) push(p *pending, now time.Time) verdict {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, load := laneOf(p), q.load(now)
	all := q.rows[express] + q.rows[bulk]
	switch retryAfter, behind := load.refuses(q.rows[bulk]); {
	case all > maxQueuedRows, len(q.lanes[express])+len(q.lanes[bulk]) >= queueLength:
		return verdict{full: true, retryAfter: min(max(retryAfter, time.Second), maxPause)}
	case q.waiting[p.region] >= maxWaiting:
		return verdict{crowded: true, retryAfter: min(max(load.delay, time.Second), maxPause)}
	case l == bulk && behind:
		return verdict{retryAfter: retryAfter}
	}
	p.lane, p.at, p.queued = l, now, true
	q.lanes[l] = append(q.lanes[l], p)
	q.rows[l] += p.rows()
	q.waiting[p.region]++
	q.signal(l)
	return verdict{ok: true}
}

// leave takes a report out that still waits; its caller has gone.
func (q *queue) leave(p *pending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.queued {
		i := slices.Index(q.lanes[p.lane], p)
		q.lanes[p.lane] = slices.Delete(q.lanes[p.lane], i, i+1)
		q.left(p)
	}
}

func (q *queue) left(p *pending) {
	p.queued = false
	q.rows[p.lane] -= p.rows()
	if q.waiting[p.region]--; q.waiting[p.region] == 0 {
		delete(q.waiting, p.region)
	}
}

// take a batch of a lane: one report of each region, in order, as many as go into
// one transaction. Their regions are busy until done. Of the express lane there is one
// at a time, unless it takes long.
func (q *queue) take(l lane, now time.Time) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l == express && q.small > 0 && now.Sub(q.smallSince) < patience {
		return nil
	}
	var batch []*pending
	rows, most := 0, q.meter.batch()
	rest := q.lanes[l][:0]
	for i, p := range q.lanes[l] {
		if len(batch) == maxBatchReports || rows >= most {
			rest = append(rest, q.lanes[l][i:]...)
			break
		}
		if q.busy[p.region] {
			rest = append(rest, p)
			continue
		}
		q.left(p)
		if p.ctx.Err() != nil {
			continue // its caller has gone: it is sent again
		}
		q.busy[p.region] = true
		batch = append(batch, p)
		rows += p.rows()
	}
	clear(q.lanes[l][len(rest):])
	q.lanes[l] = rest
	switch {
	case len(batch) == 0:
	case l == express:
		q.small++
		q.smallSince = now
		time.AfterFunc(patience, func() { q.signal(express) })
	case len(rest) > 0:
		q.signal(l) // for another worker
	}
	return batch
}

// done with a batch: the regions' next reports may be taken.
func (q *queue) done(batch []*pending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range batch {
		delete(q.busy, p.region)
	}
	if len(batch) > 0 && batch[0].lane == express {
		q.small--
	}
	for l := range lanes {
		if len(q.lanes[l]) > 0 {
			q.signal(l)
		}
	}
}

func (q *queue) signal(l lane) {
	select {
	case q.ready[l] <- struct{}{}:
	default:
	}
}

// load is read under the lock.
func (q *queue) load(now time.Time) load {
	out := load{
		commit: q.meter.commit,
		delay:  time.Duration(float64(q.rows[express]+q.rows[bulk]) / q.meter.perSecond() * float64(time.Second)),
	}
	for l := range lanes {
		if len(q.lanes[l]) > 0 {
			out.delay = max(out.delay, now.Sub(q.lanes[l][0].at))
		}
	}
	out.steady = time.Duration(q.steady.follow(float64(out.delay), now))
	return out
}

func (q *queue) loadAt(now time.Time) load {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.load(now)
}

// began and ended tell of batches, for what the queue believes of the store.
func (q *queue) began(now time.Time, rows int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meter.begin(now, rows)
}

func (q *queue) ended(now time.Time, rows int, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meter.end(now, rows, took)
}
