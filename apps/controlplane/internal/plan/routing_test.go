package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func routed(queue int32, regions ...string) *windlassv1.DeploymentSpec {
	return &windlassv1.DeploymentSpec{
		Command: []string{"serve"}, Replicas: new(int32(2)), Regions: regions,
		Routing: &windlassv1.RoutingPolicy{QueueSize: new(queue)},
	}
}

// requireRouting checks every route against the policy of the live version.
func (w *simulation) requireRouting(live string) {
	want := w.deps[w.index(live)].Spec.GetRouting()
	for region, r := range w.rts {
		if len(r.Hosts) == 0 {
			require.Empty(w.t, r.Policy, region)
			continue
		}
		require.True(w.t, r.Routes(want), "%s is routed as %q, and %s is live", region, r.Policy, live)
	}
}

func TestRouting_LivePolicyCountsUntilTheNewVersionIsLive(t *testing.T) {
	w := newSimulation(t, "eu", "us")
	w.policy(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY,
		Steps:    []*windlassv1.CanaryStep{{Weight: 10, Pause: "1m"}},
	})
	w.deploy(routed(1, "eu", "us"))
	w.step()
	w.settle()
	require.Equal(t, "v1", w.app.LiveDeploymentID)
	w.requireRouting("v1")
	var shared bool
	w.deploy(routed(2, "eu", "us"))
	for range 400 {
		w.step()
		live := w.app.LiveDeploymentID
		w.requireRouting(live)
		shared = shared || live == "v1" && w.rows[rowKey{"v1", "eu"}].Weight > 0 && w.rows[rowKey{"v2", "eu"}].Weight > 0
		for region := range w.regs {
			w.obey(region)
		}
		w.now += 5000
	}
	require.True(t, shared, "the two shared the hosts")
	require.Equal(t, "v2", w.app.LiveDeploymentID)
	w.requireRouting("v2")

	// Without a policy, the routes are the same as if there had never been a policy.
	w.policy(nil)
	w.deploy(&windlassv1.DeploymentSpec{Command: []string{"serve"}, Replicas: new(int32(2)), Regions: []string{"eu", "us"}})
	w.settle()
	require.Equal(t, "v3", w.app.LiveDeploymentID)
	for region, r := range w.rts {
		require.Empty(t, r.Policy, region)
	}
}

// A version that keeps the instances differs only in its policy. The policy is in force region by region, from the
// first step that gives the version traffic.
func TestRouting_KeptInstancesTryTheNewPolicy(t *testing.T) {
	queue := func(w *simulation, region string) int32 {
		p, err := w.rts[region].Routing()
		require.NoError(t, err)
		return p.GetQueueSize()
	}
	begin := func(policy *windlassv1.RolloutPolicy) *simulation {
		w := newSimulation(t, "eu", "us")
		w.policy(policy)
		w.deploy(routed(1, "eu", "us"))
		w.settle()
		require.Equal(t, "v1", w.app.LiveDeploymentID)
		w.deployAlike(routed(2, "eu", "us"))
		w.settle()
		require.Equal(t, "v1", w.app.LiveDeploymentID)
		require.EqualValues(t, 2, w.rows[rowKey{"v2", "eu"}].Replicas)
		require.EqualValues(t, 100, w.rows[rowKey{"v2", "eu"}].Weight)
		require.NotContains(t, w.rows, rowKey{"v2", "us"})
		require.EqualValues(t, 1, queue(w, "us"))
		return w
	}
	promote := func(w *simulation) {
		_, err := Promote(w.rolloutState.Progress, "ada", false, w.now)
		require.NoError(t, err)
		w.settle()
	}
	canary := &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, Steps: []*windlassv1.CanaryStep{{Weight: 10, Pause: strategy.Manual}},
	}
	t.Run("canary", func(t *testing.T) {
		w := begin(canary)
		require.EqualValues(t, 2, queue(w, "eu"), "the version waits at its step, and its policy is in force")
		promote(w)
		require.EqualValues(t, 2, queue(w, "us"))
		generation := w.rts["eu"].Generation
		promote(w)
		require.Equal(t, "v2", w.app.LiveDeploymentID)
		w.requireRouting("v2")
		require.Equal(t, generation, w.rts["eu"].Generation, "to go live changes no route")
	})
	t.Run("back", func(t *testing.T) {
		w := begin(canary)
		w.rol[1].CancelRequested, w.rol[1].CancelledBy = true, "ada"
		w.settle()
		w.requireRouting("v1")
		require.EqualValues(t, 2, w.rows[rowKey{"v1", "eu"}].Replicas)
		require.Equal(t, "v1", w.rows[rowKey{"v1", "eu"}].WorkloadKey())
	})
	t.Run("blue-green", func(t *testing.T) {
		w := begin(&windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Promotion: strategy.Manual, Retain: durationpb.New(time.Minute),
		})
		require.EqualValues(t, 1, queue(w, "eu"), "the new version has no traffic before it is promoted")
		promote(w)
		require.EqualValues(t, 2, queue(w, "eu"))
		require.EqualValues(t, 1, queue(w, "us"))
		promote(w)
		require.Equal(t, "v2", w.app.LiveDeploymentID)
		w.requireRouting("v2")
		require.Empty(t, w.rolloutState.Progress.Retained(), "moving the live pointer alone could not make the old version live again")
	})
	t.Run("pinned next to it", func(t *testing.T) {
		w := newSimulation(t, "eu")
		w.policy(canary)
		w.deploy(routed(1, "eu"))
		w.settle()
		w.deploy(routed(2, "eu"))
		w.settle()
		promote(w)
		require.Equal(t, "v2", w.app.LiveDeploymentID)
		require.NotContains(t, w.pin("v1", 20, 1, "eu"), "refused")
		w.settle()
		w.deployAlike(routed(3, "eu"))
		w.settle()
		require.EqualValues(t, 3, queue(w, "eu"))
		promote(w)
		w.requireRouting("v3")
		require.EqualValues(t, 20, w.rows[rowKey{"v1", "eu"}].Weight)
	})
}

func TestRouting_PolicyChangeIsOneGeneration(t *testing.T) {
	w := newSimulation(t, "eu")
	w.deploy(routed(1, "eu"))
	w.settle()
	before := w.rts["eu"]
	require.False(t, Next(w.input(), w.now).Changed())

	// A route of an earlier release, which had no policies.
	old := before
	old.Policy = nil
	w.rts["eu"] = old
	out := w.step()
	require.Len(t, out.Routes, 1)
	require.Equal(t, before.Generation+1, out.Routes[0].Generation)
	require.Equal(t, before.Policy, out.Routes[0].Policy)
	require.Empty(t, out.Topology, "no row changes")
	w.settle()
	require.Equal(t, before.Generation+1, w.rts["eu"].Generation)
}

func TestRouting_PinMovesKeepThePolicy(t *testing.T) {
	w := newSimulation(t, "eu", "us")
	w.deploy(routed(1, "eu", "us"))
	w.settle()
	w.deploy(routed(2, "eu", "us"))
	w.settle()
	require.Equal(t, "v2", w.app.LiveDeploymentID)
	before := w.rts["eu"].Generation
	require.NotContains(t, w.pin("v1", 20, 1, "eu"), "refused")
	w.settle()
	require.Positive(t, w.rows[rowKey{"v1", "eu"}].Weight)
	require.Greater(t, w.rts["eu"].Generation, before)
	w.requireRouting("v2")
}

func TestRouting_PolicyEncodingDoesNotMatter(t *testing.T) {
	p := &windlassv1.RoutingPolicy{QueueWait: durationpb.New(1), Retries: new(int32(0))}
	one, err := proto.Marshal(&windlassv1.RoutingPolicy{Retries: new(int32(0))})
	require.NoError(t, err)
	other, err := proto.Marshal(&windlassv1.RoutingPolicy{QueueWait: durationpb.New(1)})
	require.NoError(t, err)
	for _, b := range [][]byte{append(append([]byte(nil), one...), other...), append(append([]byte(nil), other...), one...), model.EncodeRouting(p)} {
		require.True(t, model.Route{Policy: b}.Routes(p))
	}
	require.True(t, model.Route{}.Routes(nil))
	require.True(t, model.Route{}.Routes(&windlassv1.RoutingPolicy{}))
	require.False(t, model.Route{}.Routes(p))
	require.False(t, model.Route{Policy: one}.Routes(nil))
	require.False(t, model.Route{Policy: []byte{0xff}}.Routes(nil), "a policy that cannot be read is written again")
}

// Keys belong to the app, and not to a version. A change of keys is exactly one generation of each region's routes,
// whatever else happens.
func TestRouting_HasKeysWithTheNextGeneration(t *testing.T) {
	w := newSimulation(t, "eu", "us")
	w.keys = []byte("a")
	w.deploy(routed(1, "eu", "us"))
	w.settle()
	require.Equal(t, "v1", w.app.LiveDeploymentID)
	for region, r := range w.rts {
		require.Equal(t, "a", string(r.Keys), region)
	}
	require.False(t, Next(w.input(), w.now).Changed())

	before := w.rts["eu"].Generation
	w.keys = []byte("b")
	w.settle()
	for region, r := range w.rts {
		require.Equal(t, "b", string(r.Keys), region)
	}
	require.Equal(t, before+1, w.rts["eu"].Generation)
	require.False(t, Next(w.input(), w.now).Changed())

	// The app's keys change during a rollout, and then the last key is removed.
	w.deploy(routed(2, "eu", "us"))
	w.step()
	w.keys = nil
	w.settle()
	require.Equal(t, "v2", w.app.LiveDeploymentID)
	for region, r := range w.rts {
		require.Empty(t, r.Keys, region)
	}
	require.False(t, Next(w.input(), w.now).Changed())
}

// In a region where only pins serve, the rollout's layer has no route that it could change with the policy, hosts or
// keys. So a revoked key would stay valid there until another change of the route.
func TestRouting_ChangeUnderPinsAloneIsSentAtOnce(t *testing.T) {
	w := newSimulation(t, "eu", "us")
	w.keys = []byte("a")
	w.deploy(routed(1, "eu", "us"))
	w.settle()
	w.deploy(routed(2, "eu"))
	w.settle()
	require.Equal(t, "v2", w.app.LiveDeploymentID)
	require.NotContains(t, w.pin("v1", 20, 1, "us"), "refused")
	w.settle()
	require.Positive(t, w.rows[rowKey{"v1", "us"}].Weight)
	require.Zero(t, w.rows[rowKey{"v2", "us"}].Weight)
	w.requireRouting("v2")

	before := w.rts["us"].Generation
	w.keys = []byte("b")
	out := w.step()
	require.Empty(t, out.Topology, "no row changes")
	require.Len(t, out.Routes, 2)
	w.settle()
	for region, r := range w.rts {
		require.Equal(t, "b", string(r.Keys), region)
	}
	require.Equal(t, before+1, w.rts["us"].Generation)
	require.False(t, Next(w.input(), w.now).Changed())

	w.deploy(routed(3, "eu"))
	for range 100 {
		w.step()
		w.requireRouting(w.app.LiveDeploymentID)
		for region := range w.regs {
			w.obey(region)
		}
		w.now += 5000
	}
	require.Equal(t, "v3", w.app.LiveDeploymentID)
	require.Equal(t, before+2, w.rts["us"].Generation)
	require.False(t, Next(w.input(), w.now).Changed())
}
