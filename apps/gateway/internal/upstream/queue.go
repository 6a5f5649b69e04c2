package upstream

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
)

// Reason is why a request got no instance.
type Reason int

const (
	// NoInstance: no instance is ready.
	NoInstance Reason = iota
	// AtLimit: all ready instances are at their limit of requests.
	AtLimit
	// Removed: the route was removed.
	Removed
	// Held: the app is at zero in the region.
	Held
)

// Refused is the error of Acquire when the request got no instance.
type Refused struct {
	Reason Reason
	// Full is whether the queue had no place left. Otherwise the request waited until Want.Until.
	Full bool
}

func (e *Refused) Error() string {
	switch e.Reason {
	case AtLimit:
		return "all instances are at their limit of requests"
	case Removed:
		return "the route was removed"
	case Held:
		return "the app is at zero in this region"
	case NoInstance:
		return "no instance is ready"
	}
	return "no instance"
}

// queue has the requests that wait. Only the first request looks for an instance. Each event that may have
// freed an instance wakes it. When it leaves the queue, the next request is first.
//
// Requests for an app at zero wait in the same line, so that they continue in the order in which they came.
// Package hold limits their number.
type queue struct {
	size atomic.Int64
	mu   sync.Mutex
	line list.List // of *waiter
	// held is the number of requests in line that came while the app was at zero.
	held int
}

type waiter struct{ wake chan struct{} }

func (q *queue) len() int { return int(q.size.Load()) }

// wakeFirst is called at the end of every request. While no request waits, it costs one atomic load.
func (q *queue) wakeFirst() {
	if q.size.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeFront()
}

func (q *queue) wakeFront() {
	if first := q.line.Front(); first != nil {
		first.Value.(*waiter).signalTurn()
	}
}

func (q *queue) wakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := q.line.Front(); e != nil; e = e.Next() {
		e.Value.(*waiter).signalTurn()
	}
}

func (w *waiter) signalTurn() {
	select {
	case w.wake <- struct{}{}:
	default: // the waiter has a signal already
	}
}

// joinQueue adds a request to the queue. The function that it returns removes the request. The waiter is nil if the
// queue has no place. A held request always has a place, because package hold limits held requests. The number of
// places for other requests is size or the number of held requests, whichever is larger, because other requests also
// come while the held requests leave.
func (q *queue) joinQueue(size int, held bool) (*waiter, func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !held && q.line.Len()-q.held >= max(size, q.held) {
		return nil, nil
	}
	w := &waiter{wake: make(chan struct{}, 1)}
	e := q.line.PushBack(w)
	if held {
		q.held++
	}
	q.size.Add(1)
	// An instance that became free before size was incremented did not wake this waiter.
	w.signalTurn()
	return w, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.line.Remove(e)
		if held {
			q.held--
		}
		q.size.Add(-1)
		q.wakeFront()
	}
}

func (q *queue) isFirst(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	front := q.line.Front()
	return front != nil && front.Value.(*waiter) == w
}

// again is the time after which instances that the request could not reach are tried once more. A process that
// restarts quickly listens again within this time.
const again = 100 * time.Millisecond

// Try is Acquire without a wait. It returns the reason if other requests wait already, or if no instance can
// take the request at once.
func (r *Route) Try(w *Want) (*Lease, *Refused) {
	v := r.now.Load()
	if v == nil {
		return nil, &Refused{Reason: Removed}
	}
	if v.holdsRequest(w) {
		return nil, &Refused{Reason: Held}
	}
	if r.queue.len() > 0 {
		t, _, why := r.chooseCandidates(v, w, r.cfg.Now())
		if t != nil {
			why.reason = AtLimit // requests that came before get the free instance
		}
		return nil, &Refused{Reason: why.reason, Full: true}
	}
	l, why := r.chooseInstance(v, w, r.cfg.Now())
	if l == nil {
		return nil, &Refused{Reason: why.reason, Full: true}
	}
	return l, nil
}

// Acquire returns a lease on an instance. The caller must call End. If no instance is free, Acquire waits in the
// queue until w.Until at most. While the app is at zero, it waits only if w.Held is set. The error is a *Refused or
// the cause of ctx.
func (r *Route) Acquire(ctx context.Context, w *Want) (*Lease, error) {
	v := r.now.Load()
	if v == nil {
		return nil, &Refused{Reason: Removed}
	}
	if r.queue.len() == 0 && !v.holdsRequest(w) {
		if l, _ := r.chooseInstance(v, w, r.cfg.Now()); l != nil {
			return l, nil
		}
	}
	return r.waitInQueue(ctx, w)
}

func (r *Route) waitInQueue(ctx context.Context, w *Want) (*Lease, error) {
	policy := r.Policy()
	me, leave := r.queue.joinQueue(policy.QueueSize, w.Held)
	if me == nil {
		return nil, &Refused{Reason: r.whyNot(w), Full: true}
	}
	defer leave()
	end := time.NewTimer(w.Until.Sub(r.cfg.Now()))
	defer end.Stop()
	soon := time.NewTimer(time.Hour)
	defer soon.Stop()
	for {
		v := r.now.Load()
		if v == nil {
			return nil, &Refused{Reason: Removed}
		}
		soon.Stop()
		switch held := v.holdsRequest(w); {
		case held && !w.Held:
			return nil, &Refused{Reason: Held}
		case held:
		case r.queue.isFirst(me):
			now := r.cfg.Now()
			l, why := r.chooseInstance(v, w, now)
			if l != nil {
				return l, nil
			}
			if len(w.tried) > 0 {
				w.tried = nil
				soon.Reset(again)
			} else if !why.again.IsZero() {
				soon.Reset(max(why.again.Sub(now), time.Millisecond))
			}
		}
		select {
		case <-me.wake:
		case <-soon.C:
		case <-end.C:
			return nil, &Refused{Reason: r.whyNot(w)}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// whyNot returns the reason why the request gets no instance. It ignores an instance that became free just now.
func (r *Route) whyNot(w *Want) Reason {
	v := r.now.Load()
	if v == nil {
		return Removed
	}
	if v.holdsRequest(w) {
		return Held
	}
	_, _, why := r.chooseCandidates(v, w, r.cfg.Now())
	return why.reason
}

// holdsRequest reports whether the request must wait because the app is at zero. Requests for previews never wait
// for that reason.
func (v *view) holdsRequest(w *Want) bool { return v.Hold != nil && v.hosts[w.Host] == "" }

// Hold returns how requests wait while the app is at zero. Nil: the app is not at zero now.
func (r *Route) Hold() *hold.Policy {
	if v := r.now.Load(); v != nil {
		return v.Hold
	}
	return nil
}
