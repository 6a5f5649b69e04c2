package upstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/health"
)

func eject(r *Route, ids ...string) {
	for _, t := range r.now.Load().targets {
		for _, id := range ids {
			if m, ok := t.all[id]; ok {
				m.recordOutcome(health.Refusal, health.Default())
				m.recordOutcome(health.Refusal, health.Default())
			}
		}
	}
}

func TestEjection_IsIgnoredWhenTooFewAreLeft(t *testing.T) {
	r, _ := newRoute(t, app(1, 0, []State{Ready, Ready, Ready, Ready}, nil, nil))
	eject(r, "old-0", "old-1")
	require.Len(t, take(t, r, 100), 2, "half of the instances are enough")
	eject(r, "old-2")
	require.Len(t, take(t, r, 100), 4, "a quarter is not enough, so all instances get requests")
}

// Each letter is an instance. w: healthy. e: ready, but ejected. l: was ready, but is not ready now. n: was never
// ready. d: was ready, and drains now.
func TestChoose_UsesAllInstancesThatWereReadyIfFewAreHealthy(t *testing.T) {
	for _, c := range []struct{ have, served string }{
		{"w", "w"},
		{"wl", "w"}, // exactly half
		{"we", "w"},
		{"wwl", "ww"},
		{"wll", "wll"},
		{"wel", "wel"}, // e and l count together
		{"wwel", "ww"},
		{"wwell", "wwell"},
		{"wlllllllll", "wlllllllll"},
		{"l", "l"},
		{"ll", "ll"},
		{"el", "el"},
		{"ee", "ee"},
		{"wn", "w"}, // an instance that starts does not count
		{"wnnnn", "w"},
		{"wlnnn", "w"},
		{"wllnd", "wll"},
		{"lnd", "l"},
		{"wdd", "w"}, // an instance that drains does not count
		{"wldd", "w"},
		{"n", ""},
		{"nd", ""},
		{"d", ""},
		{"", ""},
	} {
		for _, restarted := range []bool{false, true} {
			before, after := make([]State, len(c.have)), make([]State, len(c.have))
			var served, ejected []string
			for i, kind := range c.have {
				id := fmt.Sprintf("old-%d", i)
				switch kind {
				case 'e':
					ejected = append(ejected, id)
					fallthrough
				case 'w':
					before[i], after[i] = Ready, Ready
				case 'l':
					before[i], after[i] = Ready, NotReady
				case 'd':
					before[i], after[i] = Ready, Draining
				}
				if strings.ContainsRune(c.served, kind) {
					served = append(served, id)
				}
			}
			noQueue := func(p *Policy) { p.QueueSize = 0 }
			spec := app(1, 0, after, nil, noQueue)
			var r *Route
			if restarted { // the gateway knows only from the agent which instances were ready
				for i, kind := range c.have {
					was := kind == 'l'
					spec.Targets[0].Instances[i].WasReady = &was
				}
				r, _ = newRoute(t, spec)
			} else {
				r, _ = newRoute(t, app(1, 0, before, nil, noQueue))
				require.NoError(t, r.Update(spec))
			}
			eject(r, ejected...)
			name := fmt.Sprintf("%q restarted=%t", c.have, restarted)
			if c.served == "" {
				_, why := r.Try(want())
				require.NotNil(t, why, name)
				continue
			}
			by := take(t, r, 100)
			require.ElementsMatch(t, served, slices.Collect(maps.Keys(by)), name)
		}
	}
}

func TestChoose_RetryPrefersAHealthyInstance(t *testing.T) {
	r, _ := newRoute(t, app(1, 0, []State{Ready, Ready, Ready, Ready, Ready}, nil, nil))
	require.NoError(t, r.Update(app(1, 0, []State{NotReady, NotReady, Ready, NotReady, Ready}, nil, nil)))
	eject(r, "old-4")
	for range 20 {
		w := want()
		first, err := r.Acquire(t.Context(), w)
		require.NoError(t, err)
		first.End()
		w.Tried(first)
		second, err := r.Acquire(t.Context(), w)
		require.NoError(t, err)
		second.End()
		require.NotEqual(t, first.InstanceID(), second.InstanceID())
		if first.InstanceID() != "old-2" {
			require.Equal(t, "old-2", second.InstanceID())
		}
	}
}

func TestEjection_EndsByATrialWhereAllGetTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRoute(t, app(1, 0, []State{Ready, Ready, Ready, Ready, Ready}, nil, nil))
		require.NoError(t, r.Update(app(1, 0, []State{Ready, Ready, NotReady, NotReady, NotReady}, nil, nil)))
		eject(r, "old-0")
		require.Len(t, take(t, r, 100), 5)
		require.Len(t, r.Health(), 1, "old-0 is ejected for a second")
		time.Sleep(time.Second)
		require.Len(t, take(t, r, 100), 5)
		require.Empty(t, r.Health())
	})
}

func TestChoose_DeploymentWithoutReadyInstancesLosesItsShare(t *testing.T) {
	r, _ := newRoute(t, app(50, 50, []State{Ready}, []State{Ready, Ready}, nil))
	require.NoError(t, r.Update(app(50, 50, []State{Ready}, []State{NotReady, NotReady}, nil)))
	require.Equal(t, map[string]int{"old-0": 100}, take(t, r, 100))
	require.NoError(t, r.Update(app(75, 25, []State{NotReady}, []State{NotReady, NotReady}, nil)))
	by := take(t, r, 1000)
	require.InDelta(t, 750, by["old-0"], 10, "%v", by)
	require.Len(t, by, 3)
}

func TestChoose_TriesOnlyInstancesThatWereReady(t *testing.T) {
	r, _ := newRoute(t, app(1, 0, []State{Ready, NotReady, Ready}, nil, nil))
	require.NoError(t, r.Update(app(1, 0, []State{NotReady, NotReady, Ready}, nil, nil)))
	require.Equal(t, map[string]int{"old-2": 10}, take(t, r, 10))
	require.NoError(t, r.Update(app(1, 0, []State{NotReady, NotReady, Draining}, nil, nil)))
	require.Equal(t, map[string]int{"old-0": 10}, take(t, r, 10))

	// The instance has a new process. It gets no requests, although its earlier process was ready.
	spec, was := app(1, 0, []State{NotReady, NotReady, Draining}, nil, func(p *Policy) { p.QueueSize = 0 }), false
	spec.Targets[0].Instances[0].WasReady = &was
	require.NoError(t, r.Update(spec))
	_, why := r.Try(want())
	require.NotNil(t, why)
}
