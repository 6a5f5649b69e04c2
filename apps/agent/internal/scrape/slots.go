package scrape

import (
	"context"
	"slices"
	"sync"
)

// slots bound scrapes at a time, of all workspaces together. A workspace holds no more slots than it leaves free,
// because its instances decide how long a scrape takes. So one whose instances do not answer gets half of all
// slots, two get a third each, and another workspace still finds a slot.
type slots struct {
	most int

	mu   sync.Mutex
	used int
	by   map[string]int
	// waiting is ordered by arrival.
	waiting []*waiter
}

type waiter struct {
	workspace string
	// granted is closed once the waiter has a slot.
	granted chan struct{}
}

func newSlots(most int) *slots { return &slots{most: most, by: map[string]int{}} }

// acquire waits for a slot of the workspace, until ctx ends. Without an error the caller must release it.
func (s *slots) acquire(ctx context.Context, workspace string) error {
	w := &waiter{workspace: workspace, granted: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.grant()
	s.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted:
		s.free(workspace)
	default:
		s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == w })
	}
	return ctx.Err()
}

// release gives back a slot.
func (s *slots) release(workspace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free(workspace)
}

func (s *slots) free(workspace string) {
	s.used--
	if s.by[workspace]--; s.by[workspace] == 0 {
		delete(s.by, workspace)
	}
	s.grant()
}

// grant gives the free slots to waiters in their order. Called with mu held.
func (s *slots) grant() {
	for i := 0; i < len(s.waiting) && s.used < s.most; {
		w := s.waiting[i]
		if s.by[w.workspace] >= s.most-s.used {
			i++
			continue
		}
		s.used++
		s.by[w.workspace]++
		close(w.granted)
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
}
