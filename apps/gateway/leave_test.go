package gateway_test

import (
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
)

// An agent that has not heard it waits for the gateway as for one that crashed.
func TestLeave_EndsOnceTheAgentKnows(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo())
		var heard atomic.Bool
		r.mu.Lock() // which reports wait for
		r.stop()
		time.AfterFunc(300*time.Millisecond, func() {
			heard.Store(true)
			r.mu.Unlock()
		})
		r.wait(t)
		require.True(t, heard.Load(), "it did not wait for the answer to its last report")
		r.mu.Lock()
		defer r.mu.Unlock()
		require.Len(t, r.leaving, 1)
		for id, leaves := range r.leaving {
			require.True(t, leaves, id)
		}
	})
}

// A late retry of its own took the place of its stream.
func TestLeave_SuccessorKeepsTheID(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo())
		r.mu.Lock()
		r.replaced = connect.CodeUnavailable
		require.Len(t, r.watches, 1)
		for id := range r.watches {
			r.watches[id]++ // as its own late Watch would
		}
		r.signal()
		r.mu.Unlock()
		r.until(t, func() bool {
			require.Len(t, r.watches, 1, "it took another id")
			for _, n := range r.watches {
				return n == 3
			}
			return false
		})
	})
}

// Two that had one id would take the agent's stream from each other without end.
func TestLeave_TakenIDIsReplaced(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo())
		r.mu.Lock()
		for id := range r.watches {
			r.watches[id]++ // as another's Watch would
		}
		r.signal()
		r.mu.Unlock()
		r.until(t, func() bool { return len(r.watches) == 2 && len(r.leaving) == 2 })
	})
}
