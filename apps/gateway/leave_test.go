package gateway_test

import (
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
)

// A gateway that stops waits until the agent knows it. Otherwise the agent would wait for the gateway as for a crashed
// one.
func TestLeave_EndsOnceTheAgentKnows(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo())
		var heard atomic.Bool
		r.mu.Lock() // reports wait for this lock
		r.stop()
		time.AfterFunc(300*time.Millisecond, func() {
			heard.Store(true)
			r.mu.Unlock()
		})
		r.wait(t)
		require.True(t, heard.Load(), "the gateway did not wait for the answer to its last report")
		r.mu.Lock()
		defer r.mu.Unlock()
		require.Len(t, r.leaving, 1)
		for id, leaves := range r.leaving {
			require.True(t, leaves, id)
		}
	})
}

// A gateway keeps its id if a late retry of its own Watch replaced its stream.
func TestLeave_SuccessorKeepsTheID(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo())
		r.mu.Lock()
		r.replaced = connect.CodeUnavailable
		require.Len(t, r.watches, 1)
		for id := range r.watches {
			r.watches[id]++ // as a late Watch of the same process does
		}
		r.signal()
		r.mu.Unlock()
		r.until(t, func() bool {
			require.Len(t, r.watches, 1, "the gateway took another id")
			for _, n := range r.watches {
				return n == 3
			}
			return false
		})
	})
}

// Two gateways with the same id would take the agent's stream from each other without end.
func TestLeave_TakenIDIsReplaced(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo())
		r.mu.Lock()
		for id := range r.watches {
			r.watches[id]++ // as a Watch of another process does
		}
		r.signal()
		r.mu.Unlock()
		r.until(t, func() bool { return len(r.watches) == 2 && len(r.leaving) == 2 })
	})
}
