package upstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

func weightedApp(states ...State) Spec {
	return app(1, 0, states, nil, func(p *Policy) { p.Strategy = balance.Weighted })
}

// ask makes n requests, one after the other, and calls do before each of them ends. by is the number of requests of
// each instance.
func ask(t *testing.T, r *Route, n int, do func(l *Lease)) (by map[string]int) {
	t.Helper()
	by = map[string]int{}
	for range n {
		l, err := r.Acquire(context.Background(), want())
		require.NoError(t, err)
		require.True(t, l.Observed())
		by[l.InstanceID()]++
		do(l)
		l.End()
	}
	return by
}

// serves makes "old-0" take 3 ms, and other instances a third of that.
func serves(l *Lease) {
	takes := 3 * time.Millisecond
	if l.InstanceID() != "old-0" {
		takes /= 3
	}
	time.Sleep(takes)
	l.RecordOutcome(health.Success)
	l.Fared(balance.Served)
}

func TestWeighted_IsTheOnlyStrategyThatReadsLoads(t *testing.T) {
	for _, name := range balance.Names() {
		r, _ := newRoute(t, app(1, 0, []State{Ready}, nil, func(p *Policy) { p.Strategy = name }))
		l, err := r.Acquire(t.Context(), want())
		require.NoError(t, err)
		require.Equal(t, name == balance.Weighted, l.Observed(), name)
		l.End()
	}
}

// An instance keeps its weight when the route or other instances change. It loses the weight when it becomes ready
// again.
func TestWeighted_AnInstanceKeepsItsWeightUntilItRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRoute(t, weightedApp(Ready, Ready))
		ask(t, r, 2000, serves)
		by := ask(t, r, 1000, serves)
		require.InDelta(t, 250, by["old-0"], 20)

		require.NoError(t, r.Update(weightedApp(Ready, Ready, Ready)))
		parts := r.Parts()
		require.Len(t, parts, 3)
		require.InDelta(t, 3, parts[1].Part/parts[0].Part, 0.2, "Parts shows the weights")
		require.InDelta(t, 2, parts[2].Part/parts[0].Part, 0.2, "a new instance has the mean of the known weights")
		by = ask(t, r, 100, serves)
		require.InDelta(t, 14, by["old-0"], 8, "the weight of the slow instance is still known: %v", by)

		require.NoError(t, r.Update(weightedApp(NotReady, Ready)))
		require.NoError(t, r.Update(weightedApp(Ready, Ready)))
		time.Sleep(2 * time.Second)
		by = ask(t, r, 10, func(l *Lease) { l.Fared(balance.Ignored) })
		require.InDelta(t, 5, by["old-0"], 1, "a new process has no weight yet: %v", by)
	})
}

// An attempt that was recorded as failed stays failed, even if Fared reports its answer as served.
func TestWeighted_FailedRequestIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRoute(t, weightedApp(Ready, Ready))
		failing := 0
		share := func() int {
			return ask(t, r, 2000, func(l *Lease) {
				time.Sleep(time.Millisecond)
				if l.InstanceID() == "old-0" {
					if failing++; failing%3 == 0 {
						l.RecordOutcome(health.Success)
						l.Fared(balance.Served)
						return
					}
					l.RecordOutcome(health.Failure)
				}
				l.Fared(balance.Served)
			})["old-0"]
		}
		share()
		require.InDelta(t, 2000/5, share(), 120)
	})
}

func TestWeighted_FollowsLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRoute(t, weightedApp(Ready, Ready))
		says := func(l *Lease) {
			load := orca.Load{Requests: 10, Application: 0.2}
			if l.InstanceID() == "old-0" {
				load.Application = 0.8
			}
			time.Sleep(10 * time.Millisecond)
			l.Reported(load, false)
			l.Fared(balance.Served)
		}
		require.InDelta(t, 500, ask(t, r, 1000, says)["old-0"], 2, "in the blackout")
		ask(t, r, 200, says)
		require.InDelta(t, 200, ask(t, r, 1000, says)["old-0"], 2)
	})
}
