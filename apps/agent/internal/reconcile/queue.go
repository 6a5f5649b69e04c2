package reconcile

import (
	"context"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
)

// queue hands out keys, each key to one worker at a time. A key that is added while a worker has it
// comes again afterwards. A waiting key is in the queue once, however often it was added.
type queue struct {
	mu      sync.Mutex
	ready   chan struct{} // buffer of one; a signal means that the queue may have a key
	waiting []inbox.Key
	queued  map[inbox.Key]bool
	running map[inbox.Key]bool
	again   map[inbox.Key]bool
	timers  map[inbox.Key]*time.Timer
}

func newQueue() *queue {
	return &queue{
		ready:   make(chan struct{}, 1),
		queued:  map[inbox.Key]bool{},
		running: map[inbox.Key]bool{},
		again:   map[inbox.Key]bool{},
		timers:  map[inbox.Key]*time.Timer{},
	}
}

func (q *queue) add(keys ...inbox.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range keys {
		if t := q.timers[k]; t != nil {
			t.Stop()
			delete(q.timers, k)
		}
		switch {
		case q.running[k]:
			q.again[k] = true
		case !q.queued[k]:
			q.queued[k] = true
			q.waiting = append(q.waiting, k)
		}
	}
	q.signalWork()
}

// addAfter adds the key after d. A call of add before then adds the key at once and cancels the
// later addition.
func (q *queue) addAfter(k inbox.Key, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.timers[k]; t != nil {
		t.Stop()
	}
	q.timers[k] = time.AfterFunc(d, func() { q.add(k) })
}

// next waits for a key. ok is false when ctx ended. The caller must call done with the key.
func (q *queue) next(ctx context.Context) (inbox.Key, bool) {
	for {
		q.mu.Lock()
		if len(q.waiting) > 0 {
			k := q.waiting[0]
			q.waiting = q.waiting[1:]
			delete(q.queued, k)
			q.running[k] = true
			if len(q.waiting) > 0 {
				q.signalWork()
			}
			q.mu.Unlock()
			return k, true
		}
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return inbox.Key{}, false
		case <-q.ready:
		}
	}
}

func (q *queue) done(k inbox.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.running, k)
	if q.again[k] {
		delete(q.again, k)
		if !q.queued[k] {
			q.queued[k] = true
			q.waiting = append(q.waiting, k)
		}
		q.signalWork()
	}
}

// stopTimers ends the timers.
func (q *queue) stopTimers() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for k, t := range q.timers {
		t.Stop()
		delete(q.timers, k)
	}
}

func (q *queue) signalWork() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
