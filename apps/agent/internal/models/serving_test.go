package models

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/modelstate"
)

// callers send requests for models in a closed loop, as clients behind a gateway. A request goes to a server to which the
// gateway routes any version of the model. If none of these servers has the model, the request waits.
type callers struct {
	h *harness

	mu sync.Mutex
	// answered counts requests. waited is the longest wait of a request since the last call of longest.
	answered int
	waited   time.Duration
}

// queueWait is how long a gateway lets requests wait.
const queueWait = 10 * time.Second

func (c *callers) call(ctx context.Context, name string) {
	for ctx.Err() == nil {
		began := time.Now()
		for !c.try(name) && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		c.mu.Lock()
		c.answered++
		c.waited = max(c.waited, time.Since(began))
		c.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

// try reports whether a server answers.
func (c *callers) try(name string) bool {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	for _, version := range []string{name, next(name)} {
		if slices.ContainsFunc(c.h.view[version], func(id string) bool { return c.h.servers[id] != nil && c.h.servers[id].has[name] }) {
			return true
		}
	}
	return false
}

// longest returns the longest wait since the last call.
func (c *callers) longest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	waited := c.waited
	c.waited = 0
	return waited
}

// next returns the id of the next version of a model.
func next(name string) string { return name + "/next" }

// TestManager_ServesThroughEveryChange calls 50 models while their replicas, versions, servers and agents change.
func TestManager_ServesThroughEveryChange(t *testing.T) {
	const models, servers = 50, 5
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		claims := sync.Map{}
		h.claim = func(server, name, model string) error { claims.Store(server+"/"+name, model); return nil }
		h.claimed = func(server, name string) string {
			id, _ := claims.Load(server + "/" + name)
			text, _ := id.(string)
			return text
		}
		h.restartAgent()
		for i := range servers {
			h.add(fmt.Sprint("s", i), "shared", 2*models)
		}
		h.show()
		wanted := func(replicas int, version func(name string) string, change func(*Model)) (all []Model) {
			for i := range models {
				m := model(fmt.Sprint("m", i), replicas)
				m.ID = version(m.Name)
				if change != nil {
					change(&m)
				}
				all = append(all, m)
			}
			return all
		}
		same := func(name string) string { return name }
		deleted := func(m *Model) { m.Deleted = true }
		newer := func(m *Model) { m.Order = 1 }
		available := func(replicas int, version func(string) string) {
			for i := range models {
				s := h.status(version(fmt.Sprint("m", i)))
				require.Equal(t, modelstate.ModelAvailable, s.State, "%+v", s)
				require.Equal(t, replicas, s.Available)
			}
		}
		h.set(wanted(1, same, nil)...)
		h.settle()
		available(1, same)

		ctx, cancel := context.WithCancel(t.Context())
		c := &callers{h: h}
		var calling sync.WaitGroup
		for i := range models {
			calling.Go(func() { c.call(ctx, fmt.Sprint("m", i)) })
		}
		defer func() {
			cancel()
			calling.Wait()
			h.stop()
			synctest.Wait()
		}()
		act := func(what string, most time.Duration, do func()) {
			c.longest()
			do()
			h.settle()
			waited := c.longest()
			require.LessOrEqual(t, waited, most, what)
			t.Logf("%s: the longest wait was %v", what, waited)
		}
		act("one replica to three", 0, func() { h.set(wanted(3, same, nil)...) })
		available(3, same)
		act("three replicas to one", 0, func() { h.set(wanted(1, same, nil)...) })
		available(1, same)

		act("a new version next to the old one", 0, func() {
			h.set(append(wanted(1, same, nil), wanted(1, next, newer)...)...)
			h.settle()
			available(1, next)
			h.set(append(wanted(0, same, deleted), wanted(1, next, newer)...)...)
		})
		h.set(wanted(1, next, newer)...)
		available(1, next)
		act("a new version in place of the old one", queueWait, func() {
			h.set(append(wanted(1, same, func(m *Model) { m.Order = 2 }), wanted(0, next, deleted)...)...)
		})
		h.set(wanted(1, same, func(m *Model) { m.Order = 2 })...)
		available(1, same)

		act("a server drains", 0, func() {
			h.change("s1", func(s *fakeServer) { s.Draining = true })
			h.settle()
			h.update(func() { require.Empty(t, h.servers["s1"].has) })
			h.kill("s1")
			require.True(t, h.addIfMissing("s1", 2*models))
		})
		available(1, same)
		act("a server is killed", time.Second, func() { h.kill("s2") })
		available(1, same)
		require.True(t, h.addIfMissing("s2", 2*models))
		// Unlike a gateway, the harness takes the first observation of an agent, which has no models yet.
		act("the agent starts again", 100*time.Millisecond, func() {
			h.stop()
			h.settle()
			h.start()
			h.set(wanted(1, same, func(m *Model) { m.Order = 2 })...)
			h.show()
		})
		available(1, same)
		act("everything starts again", queueWait, func() {
			h.stop()
			for i := range servers {
				h.update(func() {
					s := h.servers[fmt.Sprint("s", i)]
					s.Incarnation += "1"
					s.has = map[string]bool{}
				})
			}
			h.start()
			h.set(wanted(1, same, func(m *Model) { m.Order = 2 })...)
			h.show()
		})
		available(1, same)
		c.mu.Lock()
		defer c.mu.Unlock()
		t.Logf("%d requests were answered", c.answered)
	})
}
