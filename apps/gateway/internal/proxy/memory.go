package proxy

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
)

const (
	// pairCopies is the number of copies of a paired request's body in memory: the body as it came, its fields, and
	// both legs.
	pairCopies = 4
	// MinPairMemory is the least memory for such bodies, in bytes. It is enough for two apps that send the largest
	// body.
	MinPairMemory = 2 * pairCopies * pairing.MaxBody
	// DefaultPairMemory is the default of Config.PairMemory.
	DefaultPairMemory = 256 << 20
)

// pairMemory limits the memory for the bodies of requests to pairs, of all apps together. An app takes memory only
// while it holds no more than is free, as package share describes. Further requests wait, those of an app in the order
// in which they came. It is safe for concurrent use.
type pairMemory struct {
	most  int64
	waits prometheus.Counter

	mu   sync.Mutex
	used int64
	by   map[string]int64 // by app
	// waiting is ordered by arrival.
	waiting []*memoryWaiter
}

type memoryWaiter struct {
	app   string
	bytes int64
	// granted is closed once the waiter has its memory.
	granted chan struct{}
}

func newPairMemory(most int64, r prometheus.Registerer) (m *pairMemory, err error) {
	m = &pairMemory{most: most, by: map[string]int64{}}
	m.waits, err = newPairMemoryMetrics(r, func() float64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return float64(m.used)
	})
	return m, err
}

// take takes n bytes of memory for the app. If there is none, it waits until the given time at most, and only if fewer
// than places requests of the app wait. Otherwise it returns failPairMemory. If ctx ends before, it returns the cause of
// ctx.
func (m *pairMemory) take(ctx context.Context, app string, n int64, places int, until time.Time) error {
	w := &memoryWaiter{app: app, bytes: n, granted: make(chan struct{})}
	m.mu.Lock()
	m.waiting = append(m.waiting, w)
	m.grant()
	var granted bool
	select {
	case <-w.granted:
		granted = true
	default:
	}
	full := !granted && m.countWaiting(app) > places
	if full {
		m.waiting = slices.Delete(m.waiting, len(m.waiting)-1, len(m.waiting)) // w is the last one
	}
	m.mu.Unlock()
	switch {
	case granted:
		return nil
	case full:
		return failPairMemory
	}
	m.waits.Inc()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	var err error
	select {
	case <-w.granted:
		return nil
	case <-timer.C:
		err = failPairMemory
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-w.granted: // at the same time
		return nil
	default:
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(other *memoryWaiter) bool { return other == w })
	m.grant()
	return err
}

// countWaiting returns how many requests of the app wait. The caller holds mu.
func (m *pairMemory) countWaiting(app string) int {
	n := 0
	for _, w := range m.waiting {
		if w.app == app {
			n++
		}
	}
	return n
}

// giveBack returns memory that take gave.
func (m *pairMemory) giveBack(app string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	if m.by[app] -= n; m.by[app] == 0 {
		delete(m.by, app)
	}
	m.grant()
}

// grant gives memory to waiters in their order. A request waits for the earlier requests of its app. The caller holds
// mu.
func (m *pairMemory) grant() {
	var passed map[string]bool
	for i := 0; i < len(m.waiting) && m.used < m.most; {
		w := m.waiting[i]
		if passed[w.app] || m.by[w.app]+w.bytes > m.most-m.used {
			if passed == nil {
				passed = map[string]bool{}
			}
			passed[w.app] = true
			i++
			continue
		}
		m.used += w.bytes
		m.by[w.app] += w.bytes
		close(w.granted)
		m.waiting = slices.Delete(m.waiting, i, i+1)
	}
}

// holdMemory makes the trip hold memory for a body of n bytes, until dropBodies. If the trip needs more memory than
// it holds, it first gives back all that it holds. So no request waits while it holds memory.
func (c *trip) holdMemory(ctx context.Context, n int64, until time.Time) error {
	n *= pairCopies
	switch held := c.memory; {
	case n < held:
		c.memory = n
		c.t.pairMemory.giveBack(c.x.spec.AppID, held-n)
	case n > held:
		c.returnMemory()
		if err := c.t.pairMemory.take(ctx, c.x.spec.AppID, n, c.x.policy.QueueSize, until); err != nil {
			return err
		}
		c.memory = n
	}
	return nil
}

func (c *trip) returnMemory() {
	if held := c.memory; held > 0 {
		c.memory = 0
		c.t.pairMemory.giveBack(c.x.spec.AppID, held)
	}
}

// dropBodies drops the bodies of a request to a pair that has its answer or will get no answer.
func (c *trip) dropBodies() {
	if c.request == nil {
		return
	}
	c.body, c.request = nil, nil
	c.returnMemory()
}

// sentBody is a body in memory. It is dropped after it was read, because net/http keeps a request until its answer
// ends.
type sentBody struct{ rest *bytes.Reader }

func (b *sentBody) Read(p []byte) (int, error) {
	if b.rest == nil {
		return 0, io.EOF
	}
	n, err := b.rest.Read(p)
	if b.rest.Len() == 0 {
		b.rest = nil
	}
	return n, err
}

func (b *sentBody) Close() error { return nil }
