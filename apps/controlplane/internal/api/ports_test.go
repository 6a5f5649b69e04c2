package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// joined makes agents with the runtime join all regions.
func (h *harness) joined(runtime string) {
	h.t.Helper()
	h.runtime = runtime
	h.update(func(tx store.Tx) error {
		for _, id := range h.regions {
			if _, _, err := tx.StartSession(id, "session-"+id, 60_000, model.Region{AgentRuntime: runtime}); err != nil {
				return err
			}
		}
		return nil
	})
}

func fixed(port int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Ports = []*windlassv1.Port{{Name: "admin"}, {Name: "http", Port: port}}
	}
}

const portField = "spec.ports[1].port"

func TestFixedPort_OfAHostHasOneOwner(t *testing.T) {
	w := setup(t)
	w.joined("process")
	policy := func(strategy windlassv1.RolloutPolicy_Strategy, surge string) *windlassv1.RolloutPolicy {
		return &windlassv1.RolloutPolicy{Strategy: strategy, MaxSurge: surge}
	}
	rolling := policy(windlassv1.RolloutPolicy_STRATEGY_ROLLING, "")
	refusedWith := func(policy *windlassv1.RolloutPolicy, text, fix string, edit ...func(*windlassv1.DeploymentSpec)) {
		t.Helper()
		plan := w.planned("chat", policy, edit...)
		require.False(t, plan.GetWouldRun())
		require.Equal(t, []string{"NO_CAPACITY " + portField}, reasons(plan))
		require.Equal(t, text, plan.GetFindings()[0].GetMessage())
		require.Contains(t, plan.GetFindings()[0].GetFix(), fix)
		_, err := w.deployBy("chat", policy, edit...)
		refused(t, err, connect.CodeFailedPrecondition, noCapacity, portField)
		require.ErrorContains(t, err, text)
	}
	has := "port 8000 is fixed, and region us-east-1 is one host, on which only one instance can use it: "

	refusedWith(rolling, has+"2 instances would run there", "or run 1 replica there", fixed(8000), replicas(2))
	refusedWith(rolling, has+"2 instances would run there", "its own port.", fixed(8000), replicas(1), func(s *windlassv1.DeploymentSpec) {
		s.Roles = []*windlassv1.RoleSpec{{Name: "leader", Instances: 2}}
	})
	_, err := w.deployBy("chat", rolling, fixed(8000), replicas(1), args("a"))
	require.NoError(t, err, "only the first version uses the port")
	w.settle("chat")

	text := has + "with strategy rolling the new version starts while v1 uses it"
	refusedWith(rolling, text, "or rollout.maxSurge 0", fixed(8000), replicas(1), args("b"))
	refusedWith(nil, text, "rollout.strategy recreate or inPlace", fixed(8000), replicas(1), args("b"))
	refusedWith(policy(windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, ""), has+"with strategy blue-green the new version starts while v1 uses it",
		"recreate or inPlace", fixed(8000), replicas(1), args("b"))
	for _, fits := range []*windlassv1.RolloutPolicy{
		policy(windlassv1.RolloutPolicy_STRATEGY_RECREATE, ""), policy(windlassv1.RolloutPolicy_STRATEGY_IN_PLACE, ""),
		{MaxSurge: "0", MaxUnavailable: "1"},
	} {
		require.Empty(t, reasons(w.planned("chat", fits, fixed(8000), replicas(1), args("b"))))
	}
	require.Empty(t, reasons(w.planned("chat", rolling, fixed(8001), replicas(1), args("b"))), "another port is free")
	require.Empty(t, reasons(w.planned("chat", rolling, fixed(0), replicas(3), args("b"))), "each instance gets its own port")
	require.Empty(t, reasons(w.planned("chat", rolling, fixed(8000), replicas(1), args("a"), func(s *windlassv1.DeploymentSpec) {
		s.Routing = &windlassv1.RoutingPolicy{QueueSize: new(int32(3))}
	})), "the instances stay")

	// Other calls that make versions, and scaling, are checked in the same way.
	_, err = w.apps(w.deployer).SetEnvironment(t.Context(), &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "1"}})
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, portField)
	w.setSecret("token", "one")
	_, err = w.deployBy("other", rolling, fixed(8001), replicas(1), withSecret("token"))
	require.NoError(t, err)
	w.settle("other")
	rotated := w.setSecret("token", "two")
	require.Empty(t, rotated.GetAppIds())
	require.Contains(t, rotated.GetWarnings()[0], "app other is left out, and keeps its current value: port 8001 is fixed")
	require.Equal(t, int32(1), w.app("other").GetLatestVersion())
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 2})
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, "replicas")
	refusedWith(rolling, has+"3 instances would run there", "or run 1 replica there", fixed(8000), replicas(3), args("a"))
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
	require.NoError(t, err)
	w.settle("chat")
	require.Empty(t, reasons(w.planned("chat", rolling, fixed(8000), replicas(1), args("b"))), "no instance of the live version runs")
}

func TestFixedPort_RefusesAPin(t *testing.T) {
	w := setup(t)
	w.joined("process")
	recreate := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE}
	for _, v := range []struct {
		name string
		port int32
	}{{"a", 8000}, {"b", 8000}, {"c", 8001}} {
		_, err := w.deployBy("chat", recreate, fixed(v.port), replicas(1), args(v.name))
		require.NoError(t, err)
		w.settle("chat")
	}
	_, err := w.pin(1, 10, pinnedWith(2, "us-east-1"))
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, "replicas")
	_, err = w.pin(1, 10)
	require.NoError(t, err)
	w.settle("chat")
	_, err = w.pin(2, 10)
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, "version")
	require.ErrorContains(t, err, "v1 uses it there")
	_, err = w.deployBy("chat", recreate, fixed(8000), replicas(1), args("d"))
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, portField)
	require.ErrorContains(t, err, "v1, which is pinned there, uses it")
}

func TestFixedPort_IsFreeWhereInstancesHaveAddresses(t *testing.T) {
	w := setup(t)
	for _, runtime := range []string{"", "kubernetes"} {
		w.joined(runtime)
		w.deploy("chat", fixed(8000), replicas(2), args("of "+runtime))
		w.settle("chat")
	}
	require.Equal(t, int32(2), w.app("chat").GetLiveVersion())
}
