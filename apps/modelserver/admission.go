package modelserver

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

var errQueueFull = errors.New("the queue is full")

// admission gives a fixed number of slots to requests in order of arrival. At most queue requests wait. A
// freed slot passes directly to the oldest waiter, so that no later request can overtake it.
type admission struct {
	mu      sync.Mutex
	slots   int
	queue   int
	running int
	waiters list.List // of chan struct{}, each closed when its request gets a slot
}

// acquire waits for a slot until ctx ends. The caller must call release once.
func (a *admission) acquire(ctx context.Context) (release func(), err error) {
	a.mu.Lock()
	if a.running < a.slots {
		a.running++
		a.mu.Unlock()
		return a.release, nil
	}
	if a.waiters.Len() >= a.queue {
		a.mu.Unlock()
		return nil, errQueueFull
	}
	granted := make(chan struct{})
	place := a.waiters.PushBack(granted)
	a.mu.Unlock()

	select {
	case <-granted:
		return a.release, nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	select {
	case <-granted:
		// ctx ended before the slot was free: pass the slot to the next waiter.
		a.mu.Unlock()
		a.release()
	default:
		a.waiters.Remove(place)
		a.mu.Unlock()
	}
	return nil, context.Cause(ctx)
}

func (a *admission) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	oldest := a.waiters.Front()
	if oldest == nil {
		a.running--
		return
	}
	close(a.waiters.Remove(oldest).(chan struct{}))
}

func (a *admission) countRequests() (running, waiting int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running, a.waiters.Len()
}
