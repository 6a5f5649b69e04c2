package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestColdStart_AVersionThatNoRequestWouldStartStarts(t *testing.T) {
	const warning = "the app is at zero in us-east-1, and without routing.coldStart no request would start it: it gets "
	scaleTo := func(w *harness, region string, n int32) {
		w.t.Helper()
		_, err := w.apps(w.deployer).Scale(w.t.Context(), &windlassv1.ScaleRequest{App: "chat", Region: region, Replicas: n})
		require.NoError(w.t, err)
		w.settle("chat")
	}
	deploy := func(w *harness, p *windlassv1.ScalingPolicy, edit ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeployResponse {
		w.t.Helper()
		res, err := w.apps(w.deployer).Deploy(w.t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(edit...), Scaling: p})
		require.NoError(w.t, err)
		w.settle("chat")
		return res
	}
	canWake := func(w *harness) bool { return w.scaledApp().Regions[w.regions["us-east-1"]].CanWake }
	zeroed := rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Zero = &windlassv1.ScaleToZero{} })
	t.Run("a pool that is rolled back", func(t *testing.T) {
		onBoth(t, func(t *testing.T, w *harness) {
			deploy(w, nil, pooled(2, 1))
			deploy(w, zeroed, pooled(0, 0), coldStart)
			require.True(t, canWake(w))
			r := w.roleDecision("us-east-1")
			r.Pool, r.Writes = new(int32(0)), true
			require.NoError(t, w.api.Rescale(t.Context(), r))
			require.Equal(t, map[string]int32{"us-east-1": 0, "eu-west-1": 100}, w.sizes("chat", 2))
			w.settle("chat")
			res := w.rollback(&windlassv1.RollbackRequest{})
			require.Contains(t, res.GetWarnings(), warning+"a whole pool there")
			require.False(t, canWake(w), "also not during the rollout")
			w.settle("chat")
			require.Equal(t, map[string]int32{"us-east-1": 100, "eu-west-1": 100}, w.sizes("chat", 3))
			require.False(t, canWake(w))
		})
	})
	t.Run("a pool whose file loses zero and coldStart", func(t *testing.T) {
		w := setup(t)
		deploy(w, zeroed, pooled(0, 0), coldStart)
		scaleTo(w, "us-east-1", 0)
		res := deploy(w, rolesPolicy(), pooled(0, 0))
		require.Contains(t, res.GetWarnings(), warning+"a whole pool there")
		require.Equal(t, map[string]int32{"us-east-1": 100, "eu-west-1": 100}, w.sizes("chat", 2))
		require.Contains(t, w.historyOf("chat")["Scaled"], warning)
	})
	t.Run("an app of one role, in one region and in all", func(t *testing.T) {
		w := setup(t)
		deploy(w, nil, replicas(2), coldStart)
		scaleTo(w, "us-east-1", 0)
		plan, err := w.apps(w.deployer).PlanDeploy(t.Context(), &windlassv1.PlanDeployRequest{App: "chat", Spec: echo()})
		require.NoError(t, err)
		require.Len(t, plan.GetFindings(), 1)
		finding := plan.GetFindings()[0]
		require.Equal(t, []string{"spec.routing.coldStart", warning + "1 replica there"}, []string{finding.GetField(), finding.GetMessage()})
		require.False(t, finding.GetBlocks())
		res := deploy(w, nil)
		require.Equal(t, []string{warning + "1 replica there"}, res.GetWarnings())
		require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 2}, w.sizes("chat", 2))
		deploy(w, nil, coldStart)
		scaleTo(w, "", 0)
		require.Len(t, deploy(w, nil).GetWarnings(), 2)
		require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 1}, w.sizes("chat", 4))
	})
	t.Run("not where the file sets replicas, nor where the app was stopped", func(t *testing.T) {
		w := setup(t)
		deploy(w, nil, replicas(2), coldStart)
		scaleTo(w, "", 0)
		require.Empty(t, deploy(w, nil, replicas(0)).GetWarnings())
		require.Equal(t, map[string]int32{"us-east-1": 0, "eu-west-1": 0}, w.sizes("chat", 2))
		require.Empty(t, deploy(w, nil, args("b")).GetWarnings())
		require.Equal(t, map[string]int32{"us-east-1": 0, "eu-west-1": 0}, w.sizes("chat", 3))
	})
	t.Run("a retained version", func(t *testing.T) {
		w := setup(t)
		_, err := w.deployBy("chat", &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN}, replicas(2))
		require.NoError(t, err)
		w.settle("chat")
		_, err = w.deployBy("chat", &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN}, coldStart)
		require.NoError(t, err)
		w.settle("chat")
		scaleTo(w, "us-east-1", 0)
		res := w.rollback(&windlassv1.RollbackRequest{})
		require.False(t, res.GetRetained(), "no request could start it where the app is at zero")
		require.Contains(t, res.GetWarnings(), warning+"1 replica there")
		w.settle("chat")
		require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 2}, w.sizes("chat", 3))
	})
}
