package share

import (
	"context"
	"slices"
	"sync"
)

// Slots are permits for which callers can wait. They are safe for concurrent use.
type Slots struct {
	mu      sync.Mutex
	permits *Permits
	// waiting is ordered by arrival.
	waiting []*waiter
}

type waiter struct {
	tenant string
	// granted is closed once the waiter has a slot.
	granted chan struct{}
}

// NewSlots returns this number of slots. All are free.
func NewSlots(total int) *Slots { return &Slots{permits: NewPermits(total)} }

// Acquire waits for a slot for the tenant, until ctx ends. If it returns nil, the caller must call Release.
func (s *Slots) Acquire(ctx context.Context, tenant string) error {
	w := &waiter{tenant: tenant, granted: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.grantFree()
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
		s.permits.GiveBack(tenant)
		s.grantFree()
	default:
		s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == w })
	}
	return context.Cause(ctx)
}

// Release returns one of the tenant's slots.
func (s *Slots) Release(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permits.GiveBack(tenant)
	s.grantFree()
}

// grantFree gives free slots to waiters in their order. mu must be held.
func (s *Slots) grantFree() {
	for i := 0; i < len(s.waiting) && s.permits.Free() > 0; {
		w := s.waiting[i]
		if !s.permits.Take(w.tenant) {
			i++
			continue
		}
		close(w.granted)
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
}
