package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/simulated"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// spy is a simulated runtime. A test can count its calls and make them fail.
type spy struct {
	*simulated.Runtime
	mu      sync.Mutex
	applies int
	inside  map[string]bool
	fail    func(id string) error
	slow    time.Duration
	// serving has the number of targets of each app's route. routed has the apps that still had
	// targets when their deployment was removed.
	serving map[string]int
	routed  []string
}

func (s *spy) Apply(ctx context.Context, a runtime.Assignment) error {
	s.mu.Lock()
	s.applies++
	id := a.Deployment.Id
	if s.inside[id] {
		panic("two calls for one deployment at a time")
	}
	s.inside[id] = true
	fail := s.fail
	s.mu.Unlock()
	time.Sleep(s.slow)
	s.mu.Lock()
	delete(s.inside, id)
	s.mu.Unlock()
	if fail != nil {
		if err := fail(id); err != nil {
			return err
		}
	}
	return s.Runtime.Apply(ctx, a)
}

func (s *spy) failWith(fail func(id string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// calls returns how often Apply was called, and sets the count back to zero.
func (s *spy) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.applies
	s.applies = 0
	return n
}

// served records the routes that the region serves.
type served struct {
	noGateways
	spy *spy
}

func (g served) Route(r *agentv1.Routes, _, _ int64) {
	s := g.spy
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving == nil {
		s.serving = map[string]int{}
	}
	s.serving[r.AppId] = len(r.Targets)
}

func (s *spy) Remove(ctx context.Context, id string) error {
	s.mu.Lock()
	if app := "app_" + id; s.serving[app] > 0 {
		s.routed = append(s.routed, app)
	}
	s.mu.Unlock()
	return s.Runtime.Remove(ctx, id)
}

// harness is a reconciler with a real inbox and a simulated runtime. An instance takes 10 s to
// stop.
type harness struct {
	t        *testing.T
	in       *inbox.Inbox
	rt       *spy
	r        *Reconciler
	revision int64
}

func start(t *testing.T, rt *spy) *harness { return startWith(t, rt, rt) }

// startWith starts a harness. Its reconciler uses over, a runtime that wraps rt.
func startWith(t *testing.T, rt *spy, over runtime.Runtime) *harness {
	in, err := inbox.Open(filepath.Join(t.TempDir(), "inbox.db"), true)
	require.NoError(t, err)
	r, err := New(Config{
		Inbox: in, Runtime: over,
		Secrets:       func(context.Context, *agentv1.Deployment, int64) (map[string]string, error) { return nil, nil },
		ForgetSecrets: func(string) error { return nil },
		Gateways:      served{spy: rt},
		Log:           slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer(""),
		Region: func() string { return "us-east-1" }, Rand: func() float64 { return 0.5 },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, in.Close())
	})
	return &harness{t: t, in: in, rt: rt, r: r}
}

func simulate() *spy {
	return &spy{inside: map[string]bool{}, Runtime: simulated.New(simulated.Config{Stop: func() time.Duration { return 10 * time.Second }})}
}

func item(key string, epoch, generation int64, action agentv1.DeploymentState_Action) *agentv1.Item {
	return &agentv1.Item{
		Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: key, Epoch: epoch, Generation: generation,
		Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
			Action: action, Deployment: &agentv1.Deployment{Id: key, Replicas: int32(generation), Spec: &windlassv1.DeploymentSpec{}},
		}},
	}
}

const (
	apply  = agentv1.DeploymentState_ACTION_APPLY
	remove = agentv1.DeploymentState_ACTION_DELETE
)

// snapshot sends a snapshot with all items of the region, in an epoch.
func (h *harness) snapshot(epoch int64, items ...*agentv1.Item) {
	h.t.Helper()
	h.revision = 1
	changed, err := h.in.Snapshot(&agentv1.SnapshotBegin{Epoch: epoch, Revision: 1, Count: int64(len(items))}, items)
	require.NoError(h.t, err)
	h.r.Enqueue(changed...)
}

func (h *harness) delta(items ...*agentv1.Item) {
	h.t.Helper()
	changed, err := h.in.Delta(&agentv1.Delta{Epoch: h.in.Cursor().Epoch, After: h.revision, Upto: h.revision + 1, Items: items})
	require.NoError(h.t, err)
	h.revision++
	h.r.Enqueue(changed...)
}

func (h *harness) state(key string) *agentv1.AppliedState {
	for _, a := range h.r.Applied() {
		if a.Key == key {
			return a
		}
	}
	return nil
}

func (h *harness) requireState(key string, epoch, generation int64, phase agentv1.AppliedState_Phase, deleted bool) {
	h.t.Helper()
	s := h.state(key)
	require.NotNil(h.t, s)
	require.Equal(h.t, []any{epoch, generation, phase, deleted}, []any{s.Epoch, s.Generation, s.Phase, s.Deleted})
}

const (
	isApplied  = agentv1.AppliedState_PHASE_APPLIED
	isPending  = agentv1.AppliedState_PHASE_PENDING
	isRejected = agentv1.AppliedState_PHASE_REJECTED
)

func TestDelete_IsConfirmedOnceNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		g.snapshot(1, item("dep_1", 1, 2, apply))
		time.Sleep(time.Second)
		g.requireState("dep_1", 1, 2, isApplied, false)
		g.delta(item("dep_1", 1, 3, remove))
		time.Sleep(9 * time.Second)
		g.requireState("dep_1", 1, 3, isPending, false)
		time.Sleep(2 * time.Second)
		g.requireState("dep_1", 1, 3, isApplied, true)
		require.Empty(t, g.rt.Running())
	})
}

func TestApply_LastOfApplyDeleteApplyWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		rt.slow = 3 * time.Second
		g := start(t, rt)
		g.snapshot(1, item("dep_1", 1, 1, apply))
		time.Sleep(time.Second) // the first apply is running
		g.delta(item("dep_1", 1, 2, remove))
		g.delta(item("dep_1", 1, 3, apply))
		time.Sleep(time.Minute)
		g.requireState("dep_1", 1, 3, isApplied, false)
		require.Equal(t, map[string]int{"dep_1": 3}, g.rt.Running())

		g.delta(item("dep_1", 1, 4, remove))
		time.Sleep(time.Second)
		g.delta(item("dep_1", 1, 5, apply))
		time.Sleep(time.Minute)
		g.requireState("dep_1", 1, 5, isApplied, false)
		require.Equal(t, map[string]int{"dep_1": 5}, g.rt.Running())
	})
}

func TestFork_HigherEpochWinsWithALowerGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		g.snapshot(1, item("dep_1", 1, 5, apply))
		time.Sleep(time.Second)
		require.Equal(t, map[string]int{"dep_1": 5}, g.rt.Running())
		g.snapshot(2, item("dep_1", 2, 3, apply))
		time.Sleep(time.Minute)
		g.requireState("dep_1", 2, 3, isApplied, false)
		require.Equal(t, map[string]int{"dep_1": 3}, g.rt.Running())
		seen, _ := g.r.Observation()
		require.EqualValues(t, 3, seen.Deployments[0].Generation)
	})
}

func TestRaise_RunsMoreReplicasUntilTheNextGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		g := start(t, rt)
		runs := func() int {
			time.Sleep(20 * time.Second)
			seen, err := rt.Observe(t.Context())
			require.NoError(t, err)
			require.Len(t, seen.Deployments, 1)
			return len(seen.Deployments[0].Instances)
		}
		g.snapshot(1, item("dep_1", 1, 2, apply))
		require.Equal(t, 2, runs())
		g.r.cfg.Zero.Raise("dep_1", zero.Raise{Epoch: 1, Generation: 2, Replicas: 5})
		g.r.Enqueue(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: "dep_1"})
		require.Equal(t, 5, runs())
		g.requireState("dep_1", 1, 2, isApplied, false)
		require.Empty(t, g.state("dep_1").GetCode(), "a raise is not a wake")
		g.delta(item("dep_1", 1, 3, apply))
		require.Equal(t, 3, runs())
		require.Zero(t, g.r.cfg.Zero.Raised("dep_1", 1, 2))
	})
}

func TestRejection_FinalWaitsForAnotherGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		rt.fail = func(string) error { return &runtime.Rejection{Code: runtime.ReasonInvalidSpec, Message: "no"} }
		g := start(t, rt)
		g.snapshot(1, item("dep_1", 1, 1, apply))
		time.Sleep(time.Hour)
		g.requireState("dep_1", 1, 1, isRejected, false)
		require.Equal(t, 1, rt.applies, "resynchronisations try no rejected key")
		rt.failWith(nil)
		g.delta(item("dep_1", 1, 2, apply))
		time.Sleep(time.Second)
		g.requireState("dep_1", 1, 2, isApplied, false)
	})
}

func TestRetry_BacksOffAndDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		rt.fail = func(string) error {
			return &runtime.Rejection{Code: runtime.ReasonUnschedulable, Message: "full", Retryable: true}
		}
		g := start(t, rt)
		g.snapshot(1, item("dep_1", 1, 1, apply))
		time.Sleep(4 * time.Minute)
		g.requireState("dep_1", 1, 1, isRejected, false)
		require.Greater(t, rt.applies, 6)
		require.Less(t, rt.applies, 20)
		rt.failWith(func(string) error { return errors.New("not now \xff") })
		g.delta(&agentv1.Item{
			Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1", Epoch: 1, Generation: 1,
			Content: &agentv1.Item_Routes{Routes: &agentv1.Routes{AppId: "app_1"}},
		})
		time.Sleep(2 * time.Minute)
		g.requireState("dep_1", 1, 1, isPending, false)
		g.requireState("app_1", 1, 1, isApplied, true)
	})
}

func TestQuarantine_BeginsAfterAWholeSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		require.NoError(t, rt.Apply(t.Context(), runtime.Assignment{Deployment: &agentv1.Deployment{Id: "dep_lost", Replicas: 2}, Generation: 4}))
		g := start(t, rt)
		time.Sleep(time.Second)
		_, ok := g.r.Quarantined()
		require.False(t, ok, "a lost inbox says nothing about which deployments should run")

		g.snapshot(1, item("dep_1", 1, 1, apply))
		time.Sleep(time.Hour)
		keys, ok := g.r.Quarantined()
		require.True(t, ok)
		require.Len(t, keys, 1)
		require.Equal(t, "dep_lost", keys[0].Key)
		require.EqualValues(t, 2, keys[0].Instances)
		require.Equal(t, 2, rt.Running()["dep_lost"], "dep_lost keeps running")

		g.delta(item("dep_lost", 1, 5, remove)) // a person approves the removal
		time.Sleep(time.Minute)
		g.requireState("dep_lost", 1, 5, isApplied, true)
		keys, _ = g.r.Quarantined()
		require.Empty(t, keys)
		require.NotContains(t, rt.Running(), "dep_lost")
	})
}

func TestInbox_DeploymentOfAForgottenKeyKeepsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		g.snapshot(1, item("dep_1", 1, 1, apply))
		time.Sleep(time.Second)
		g.snapshot(2)
		time.Sleep(time.Second)
		require.Empty(t, g.r.Applied())
		require.Equal(t, map[string]int{"dep_1": 1}, g.rt.Running())
		keys, ok := g.r.Quarantined()
		require.True(t, ok)
		require.Len(t, keys, 1)
	})
}

func TestFeatures_RefuseOnlyWhatTheAgentDoesNotUnderstand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		empty := &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: "dep_empty", Epoch: 1, Generation: 1}
		future := &agentv1.Item{Kind: 9, Key: "new_1", Epoch: 1, Generation: 1}
		other := item("dep_other", 1, 1, apply)
		other.GetDeployment().Deployment.Id = "dep_1"
		needs := item("dep_needs", 1, 1, apply)
		needs.GetDeployment().RequiredFeatures = []string{"teleport"}
		g.snapshot(1, empty, future, other, needs)
		time.Sleep(time.Minute)
		for _, key := range []string{"dep_empty", "new_1", "dep_other", "dep_needs"} {
			g.requireState(key, 1, 1, isRejected, false)
			require.Equal(t, runtime.ReasonUnsupported, g.state(key).Code, key)
		}
		require.Empty(t, g.rt.Running())
	})
}

func TestPools_AreRefusedByAnOlderAgentThatKeepsItsInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate()) // announces no features
		g.snapshot(1, item("dep_1", 1, 1, apply))
		time.Sleep(time.Second)
		pooled := item("dep_1", 1, 2, apply)
		pooled.GetDeployment().RequiredFeatures = []string{agentv1.Feature_FEATURE_GPU_POOL.String()}
		g.snapshot(2, pooled)
		time.Sleep(time.Minute)
		g.requireState("dep_1", 1, 2, isRejected, false)
		require.Equal(t, runtime.ReasonUnsupported, g.state("dep_1").Code)
		require.Contains(t, g.state("dep_1").Message, "FEATURE_GPU_POOL")
		require.Equal(t, map[string]int{"dep_1": 1}, g.rt.Running())
	})
}

func TestRemoval_ComesAfterNewRoutesThatArriveWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		g := start(t, rt)
		const apps = 50
		var before, after []*agentv1.Item
		for i := range apps {
			dep := fmt.Sprint(i)
			app := "app_" + dep
			routes := func(generation int64, targets ...*agentv1.RouteTarget) *agentv1.Item {
				return &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: app, Epoch: 1, Generation: generation, Content: &agentv1.Item_Routes{
					Routes: &agentv1.Routes{AppId: app, Targets: targets},
				}}
			}
			gone := item(dep, 1, 2, remove)
			gone.GetDeployment().Deployment.AppId = app
			before = append(before, item(dep, 1, 1, apply), routes(1, &agentv1.RouteTarget{DeploymentId: dep, Weight: 100}))
			after = append(after, routes(2), gone)
		}
		g.snapshot(1, before...)
		time.Sleep(time.Second)
		g.snapshot(1, after...)
		time.Sleep(time.Minute)
		rt.mu.Lock()
		defer rt.mu.Unlock()
		require.Len(t, rt.serving, apps)
		require.Empty(t, rt.routed)
		require.Empty(t, rt.Running())
	})
}
