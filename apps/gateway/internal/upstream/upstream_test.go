package upstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
)

type told struct{ ejected, drained atomic.Int64 }

func newRoute(t require.TestingT, spec Spec) (*Route, *told) {
	seen := &told{}
	r := New(Config{
		Now: time.Now, Random: rand.Uint64,
		Ejected: func(Ejection) { seen.ejected.Add(1) }, Drained: func(string) { seen.drained.Add(1) },
	})
	require.NoError(t, r.Update(spec))
	return r, seen
}

// app has two targets, "old" and "new", with the states of their instances.
func app(weightOld, weightNew int32, before, after []State, change func(*Policy)) Spec {
	policy := DefaultPolicy()
	policy.Strategy = balance.RoundRobin
	policy.QueueWait = 5 * time.Second
	if change != nil {
		change(&policy)
	}
	instances := func(name string, states []State) []InstanceSpec {
		var out []InstanceSpec
		for i, s := range states {
			out = append(out, InstanceSpec{ID: fmt.Sprintf("%s-%d", name, i), Address: fmt.Sprintf("%s:%d", name, 1000+i), State: s})
		}
		return out
	}
	return Spec{
		AppID: "app_1", AppName: "echo", Hosts: []string{"echo.local"}, Policy: policy,
		Previews: []Preview{{Host: "new.echo.local", DeploymentID: "new"}},
		Targets: []TargetSpec{
			{DeploymentID: "old", Version: 1, Weight: weightOld, Instances: instances("old", before)},
			{DeploymentID: "new", Version: 2, Weight: weightNew, Instances: instances("new", after)},
		},
	}
}

func want() *Want { return &Want{Host: "echo.local", Until: time.Now().Add(5 * time.Second)} }

func take(t require.TestingT, r *Route, n int) (by map[string]int) {
	by = map[string]int{}
	for range n {
		l, err := r.Acquire(context.Background(), want())
		require.NoError(t, err)
		by[l.InstanceID()]++
		l.RecordOutcome(health.Success)
		l.End()
	}
	return by
}

func TestWeights_HoldAndInstancesShareThem(t *testing.T) {
	r, _ := newRoute(t, app(90, 10, []State{Ready, Ready, Ready}, []State{Ready}, nil))
	by := take(t, r, 10_000)
	require.InDelta(t, 1000, by["new-0"], 100)
	for i := range 3 {
		require.InDelta(t, 3000, by[fmt.Sprintf("old-%d", i)], 100)
	}
}

// A session keeps its version, because other versions do not have its caches. In a canary it changes versions once.
// Requests without a key go to the versions in turn.
func TestSession_KeepsItsVersionWhileWeightsStay(t *testing.T) {
	sticky := func(old, next int32, after []State) Spec {
		return app(old, next, []State{Ready, Ready, Ready}, after, func(p *Policy) { p.Strategy = balance.Affinity })
	}
	r, _ := newRoute(t, sticky(90, 10, []State{Ready, Ready}))
	const sessions = 1000
	where := func() (ids [sessions]string) {
		for i := range ids {
			w := want()
			w.Affinity = fmt.Sprint("session-", i)
			l, err := r.Acquire(context.Background(), w)
			require.NoError(t, err)
			ids[i] = l.InstanceID()
			l.RecordOutcome(health.Success)
			l.End()
		}
		return ids
	}
	isNew := func(id string) bool { return strings.HasPrefix(id, "new") }
	changes := func(before, after [sessions]string) (toNew, toOld, within int) {
		for i := range before {
			switch {
			case before[i] == after[i]:
			case !isNew(before[i]) && isNew(after[i]):
				toNew++
			case isNew(before[i]) && !isNew(after[i]):
				toOld++
			default:
				within++
			}
		}
		return toNew, toOld, within
	}
	tenth := where()
	require.Equal(t, tenth, where())

	require.NoError(t, r.Update(sticky(60, 40, []State{Ready, Ready})))
	more := where()
	toNew, toOld, within := changes(tenth, more)
	require.InDelta(t, 300, toNew, 50)
	require.Zero(t, toOld)
	require.Zero(t, within, "sessions that keep their version keep their instance")

	// While the new version has no instance, its sessions go to the old version. Then they return.
	require.NoError(t, r.Update(sticky(60, 40, []State{NotReady, NotReady})))
	_, toOld, within = changes(more, where())
	require.InDelta(t, 400, toOld, 60)
	require.Zero(t, within)
	require.NoError(t, r.Update(sticky(60, 40, []State{Ready, Ready})))
	require.Equal(t, more, where())

	by := take(t, r, 10_000)
	require.InDelta(t, 4000, by["new-0"]+by["new-1"], 100, "without a key: %v", by)
}

func TestDeployment_WithoutReadyInstancesLeavesItsShare(t *testing.T) {
	r, _ := newRoute(t, app(50, 50, []State{Ready}, []State{NotReady, Draining}, nil))
	require.Equal(t, map[string]int{"old-0": 100}, take(t, r, 100))
}

func TestPreview_LeadsToItsDeploymentWithAnyWeight(t *testing.T) {
	r, _ := newRoute(t, app(100, 0, []State{Ready}, []State{Ready}, nil))
	require.Equal(t, map[string]int{"old-0": 10}, take(t, r, 10))
	l, err := r.Acquire(t.Context(), &Want{Host: "new.echo.local", Until: time.Now()})
	require.NoError(t, err)
	require.Equal(t, "new-0", l.InstanceID())
	require.Equal(t, int32(2), l.Version)
}

func TestDrain_KeepsRequestsAndGetsNoMore(t *testing.T) {
	r, seen := newRoute(t, app(1, 0, []State{Ready}, nil, nil))
	held, err := r.Acquire(t.Context(), want())
	require.NoError(t, err)
	spec := app(1, 0, []State{Draining, Ready}, nil, nil)
	require.NoError(t, r.Update(spec))
	require.Equal(t, map[string]int{"old-1": 50}, take(t, r, 50))
	require.Equal(t, []Health{{InstanceID: "old-0", InFlight: 1}}, r.Health())

	// The instance is no longer listed, but its request is still reported.
	spec.Targets[0].Instances = spec.Targets[0].Instances[1:]
	require.NoError(t, r.Update(spec))
	require.NoError(t, r.Update(spec))
	require.Equal(t, []Health{{InstanceID: "old-0", InFlight: 1}}, r.Health())
	require.Zero(t, seen.drained.Load())
	held.End()
	held.End()
	require.Empty(t, r.Health())
	require.Equal(t, int64(1), seen.drained.Load())
}

func TestRoute_RemovedReportsItsRequests(t *testing.T) {
	r, seen := newRoute(t, app(1, 0, []State{Ready}, nil, nil))
	held, err := r.Acquire(t.Context(), want())
	require.NoError(t, err)
	r.Remove()
	_, err = r.Acquire(t.Context(), want())
	var refused *Refused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, Removed, refused.Reason)
	require.Equal(t, []Health{{InstanceID: "old-0", InFlight: 1}}, r.Health())
	held.End()
	require.Empty(t, r.Health())
	require.Equal(t, int64(1), seen.drained.Load())
}

func TestEjection_EndsByOneTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, seen := newRoute(t, app(1, 0, []State{Ready, Ready, Ready}, nil, nil))
		for broken := 0; broken < 2; {
			l, err := r.Acquire(t.Context(), want())
			require.NoError(t, err)
			if l.InstanceID() == "old-0" {
				l.RecordOutcome(health.Refusal)
				broken++
			}
			l.End()
		}
		require.Equal(t, int64(1), seen.ejected.Load())
		require.Equal(t, []Health{{InstanceID: "old-0", Ejected: true, Reason: "ConnectError"}}, r.Health())
		require.NotContains(t, take(t, r, 100), "old-0")

		time.Sleep(time.Second)
		var trial *Lease
		for range 20 {
			l, err := r.Acquire(t.Context(), want())
			require.NoError(t, err)
			if l.InstanceID() == "old-0" {
				require.Nil(t, trial, "only one request at a time is a trial")
				trial = l
				continue
			}
			l.RecordOutcome(health.Success)
			l.End()
		}
		require.NotNil(t, trial)
		trial.End() // the client of the trial went away, so the next request may be the trial
		by := take(t, r, 99)
		require.Equal(t, 33, by["old-0"], "%v", by)
		require.Empty(t, r.Health())
	})
}

func TestEjection_OfAnInstanceWhoseAnswersStop(t *testing.T) {
	const limit = time.Minute
	acquire := func(t *testing.T, r *Route) *Lease {
		l, err := r.Acquire(t.Context(), want())
		require.NoError(t, err)
		return l
	}
	stopped := func(t *testing.T, r *Route, other func(*testing.T, *Route)) {
		var streams []*Lease
		for range 10 { // twice the failures that eject
			l := acquire(t, r)
			l.RecordOutcome(health.Success)
			streams = append(streams, l)
		}
		time.Sleep(limit / 4)
		other(t, r)
		time.Sleep(limit * 3 / 4)
		for _, l := range streams {
			l.RecordStall(limit)
			l.End()
		}
	}
	for name, test := range map[string]struct {
		other   func(*testing.T, *Route)
		ejected int64
	}{
		"no other request":            {func(*testing.T, *Route) {}, 0},
		"a request that was answered": {func(t *testing.T, r *Route) { l := acquire(t, r); l.RecordOutcome(health.Success); l.End() }, 0},
		"a request whose client left": {func(t *testing.T, r *Route) { acquire(t, r).End() }, 0},
		"a request that waits":        {func(t *testing.T, r *Route) { acquire(t, r) }, 1},
		"a request that began just now": {func(t *testing.T, r *Route) {
			time.AfterFunc(limit*3/4-time.Second, func() { acquire(t, r) })
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, seen := newRoute(t, app(1, 0, []State{Ready}, nil, nil))
				stopped(t, r, test.other)
				require.Equal(t, test.ejected, seen.ejected.Load())
			})
		})
	}
}

func TestQueue_IsInOrderAndEndsAtTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := func(p *Policy) { p.MaxInFlight, p.QueueSize = 1, 3 }
		r, _ := newRoute(t, app(1, 0, []State{Ready}, nil, limit))
		first, err := r.Acquire(t.Context(), want())
		require.NoError(t, err)
		order := make(chan int, 3)
		leases := make(chan *Lease, 3)
		for i := range 3 {
			go func() {
				l, err := r.Acquire(t.Context(), want())
				if err == nil {
					order <- i
					leases <- l
				}
			}()
			synctest.Wait()
		}
		require.Equal(t, 3, r.Waiting())
		_, err = r.Acquire(t.Context(), want())
		var refused *Refused
		require.ErrorAs(t, err, &refused)
		require.Equal(t, Refused{Reason: AtLimit, Full: true}, *refused)

		first.End()
		for i := range 2 {
			require.Equal(t, i, <-order)
			l := <-leases
			synctest.Wait()
			require.Empty(t, order, "one request at a time gets a lease")
			if i == 0 {
				l.End()
			}
		}
		// The last request waits for a lease that does not end.
		begin := time.Now()
		_, err = r.Acquire(t.Context(), want())
		require.ErrorAs(t, err, &refused)
		require.Equal(t, Refused{Reason: AtLimit}, *refused)
		require.Equal(t, 5*time.Second, time.Since(begin))
		synctest.Wait() // the request before it has waited for the same time
		require.Zero(t, r.Waiting())
	})
}

func TestQueue_ServesAsSoonAsAnInstanceIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newRoute(t, app(1, 0, []State{NotReady}, nil, nil))
		got := make(chan *Lease, 40)
		for range 40 {
			go func() {
				if l, err := r.Acquire(t.Context(), want()); err == nil {
					got <- l
				}
			}()
		}
		gone, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := r.Acquire(gone, want())
			failed <- err
		}()
		synctest.Wait()
		require.Equal(t, 41, r.Waiting())
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		begin := time.Now()
		require.NoError(t, r.Update(app(1, 0, []State{Ready}, nil, nil)))
		synctest.Wait()
		require.Len(t, got, 40)
		require.Zero(t, time.Since(begin))
	})
}

func TestQueue_OfSizeZeroRefusesAtOnce(t *testing.T) {
	r, _ := newRoute(t, app(1, 0, []State{NotReady}, nil, func(p *Policy) { p.QueueSize = 0 }))
	_, err := r.Acquire(t.Context(), want())
	var refused *Refused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, Refused{Reason: NoInstance, Full: true}, *refused)
}

// The test draws states of instances and checks these rules:
//   - An instance that drains, was never ready or is not listed gets no request.
//   - An instance that is not ready gets no request while half of the instances are healthy.
//   - The limit of requests is never exceeded.
//   - Requests that have ended do not count.
func TestHistory_KeepsTheRulesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := rapid.SliceOfN(rapid.SampledFrom([]State{NotReady, Ready, Ready, Draining}), 0, 4)
		limit := rapid.Int64Range(0, 3).Draw(t, "limit")
		policy := func(p *Policy) { p.MaxInFlight, p.QueueSize = limit, 0 }
		spec := app(1, 1, states.Draw(t, "old"), states.Draw(t, "new"), policy)
		r, _ := newRoute(t, spec)
		// was has the listed instances. The value is whether an instance was ready since it is listed.
		was := map[string]bool{}
		remember := func() {
			before := was
			was = map[string]bool{}
			for _, target := range spec.Targets {
				for _, i := range target.Instances {
					was[i.ID] = before[i.ID] || i.State == Ready
				}
			}
		}
		remember()
		var under []*Lease
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				spec = app(rapid.Int32Range(0, 5).Draw(t, "weight"), rapid.Int32Range(0, 5).Draw(t, "weight"), states.Draw(t, "old"), states.Draw(t, "new"), policy)
				require.NoError(t, r.Update(spec))
				remember()
			case 1:
				if len(under) > 0 {
					l := under[0]
					under = under[1:]
					l.RecordOutcome(rapid.SampledFrom([]health.Outcome{health.Success, health.Failure, health.Refusal}).Draw(t, "outcome"))
					l.End()
				}
			default:
				ready, all := map[string]State{}, 0
				for _, target := range spec.Targets {
					for _, i := range target.Instances {
						if target.Weight > 0 {
							ready[i.ID] = i.State
							if i.State == Ready {
								all++
							}
						}
					}
				}
				l, err := r.Acquire(context.Background(), want())
				if err != nil {
					require.True(t, all == 0 || limit > 0, "%d are ready", all)
					continue
				}
				state, listed := ready[l.InstanceID()]
				require.True(t, listed)
				require.NotEqual(t, Draining, state)
				if state == NotReady {
					require.True(t, was[l.InstanceID()], "the instance was never ready")
					well, known := 0, 0
					for _, target := range spec.Targets {
						if target.DeploymentID != l.DeploymentID {
							continue
						}
						for _, i := range target.Instances {
							if i.State == Ready || i.State == NotReady && was[i.ID] {
								known++
							}
							if i.State == Ready && !slices.ContainsFunc(r.Health(), func(h Health) bool { return h.InstanceID == i.ID && h.Ejected }) {
								well++
							}
						}
					}
					require.Less(t, 2*well, known)
				}
				if limit > 0 {
					require.LessOrEqual(t, l.instance.InFlight(), limit)
				}
				under = append(under, l)
			}
		}
		for _, l := range under {
			l.End()
		}
		for _, d := range r.InFlight() {
			require.Zero(t, d.Requests, d.DeploymentID)
		}
	})
}

func BenchmarkAcquire(b *testing.B) {
	for _, name := range balance.Names() {
		r, _ := newRoute(b, app(90, 10, []State{Ready, Ready, Ready, Ready}, []State{Ready, Ready}, func(p *Policy) { p.Strategy = name }))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			w := want()
			for b.Loop() {
				l, err := r.Acquire(context.Background(), w)
				if err != nil {
					b.Fatal(err)
				}
				l.RecordOutcome(health.Success)
				l.End()
			}
		})
	}
}
