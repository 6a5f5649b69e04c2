package api_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pooled makes the spec a pool with the roles prefill and decode. A role with 0 instances keeps the current number.
func pooled(prefill, decode int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Layout = windlassv1.Layout_LAYOUT_POOLED
		s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: prefill}, {Name: "decode", Instances: decode, Entry: true}}
	}
}

// pool returns the wanted instances of each role of a version, by region.
func (h *harness) pool(version int32) map[string]string {
	h.t.Helper()
	out := map[string]string{}
	for _, region := range h.version("chat", version).GetRegions() {
		text := ""
		for _, r := range region.GetRoles() {
			text += fmt.Sprintf("%d %s ", r.GetWanted(), r.GetRole())
		}
		out[region.GetRegion()] = text
	}
	return out
}

func (h *harness) scaleRole(role string, n int32, region string, edit ...func(*windlassv1.ScaleRequest)) (*windlassv1.ScaleResponse, error) {
	req := &windlassv1.ScaleRequest{App: "chat", Role: role, Replicas: n, Region: region}
	for _, f := range edit {
		f(req)
	}
	return h.apps(h.deployer).Scale(h.t.Context(), req)
}

func TestPool_CountsMakeNoVersion(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		w.deploy("chat", pooled(4, 0))
		w.settle("chat")
		require.Equal(t, map[string]string{"us-east-1": "4 prefill 1 decode ", "eu-west-1": "4 prefill 1 decode "}, w.pool(1))
		for n := range int32(20) {
			_, err := w.scaleRole("decode", n+2, "")
			require.NoError(t, err)
		}
		_, err := w.scaleRole("prefill", 8, "us-east-1")
		require.NoError(t, err)
		require.EqualValues(t, 1, w.app("chat").GetLatestVersion())
		require.Equal(t, map[string]string{"us-east-1": "8 prefill 21 decode ", "eu-west-1": "4 prefill 21 decode "}, w.pool(1))
		scales := 0
		for _, what := range w.said("chat") {
			if what == "Scaled" {
				scales++
			}
		}
		require.Equal(t, 21, scales)
		same, err := w.scaleRole("prefill", 8, "us-east-1")
		require.NoError(t, err)
		require.True(t, same.GetUnchanged())
		w.settle("chat")

		// A file sets the counts that it has, and keeps other counts.
		res := w.deploy("chat", pooled(0, 3))
		require.True(t, res.GetScaled())
		require.EqualValues(t, 1, res.GetVersion())
		require.Equal(t, map[string]string{"us-east-1": "8 prefill 3 decode ", "eu-west-1": "4 prefill 3 decode "}, w.pool(1))
		require.True(t, w.deploy("chat", pooled(0, 3)).GetUnchanged())

		// New versions keep the counts.
		w.deploy("chat", pooled(0, 0), args("b"))
		w.settle("chat")
		require.Equal(t, map[string]string{"us-east-1": "8 prefill 3 decode ", "eu-west-1": "4 prefill 3 decode "}, w.pool(2))
		_, err = w.scaleRole("decode", 5, "")
		require.NoError(t, err)
		_, err = w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat", Version: 1})
		require.NoError(t, err)
		w.settle("chat")
		require.Equal(t, map[string]string{"us-east-1": "8 prefill 5 decode ", "eu-west-1": "4 prefill 5 decode "}, w.pool(3))
	})
}

func TestPool_DeployAfterAFirstVersionThatFailedSetsItsOwnCounts(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		w.deploy("chat", pooled(2, 1))
		require.NoError(t, w.stepper.Step(t.Context(), w.app("chat").GetId()))
		_, err := w.apps(w.deployer).Cancel(t.Context(), &windlassv1.CancelRequest{App: "chat"})
		require.NoError(t, err)
		w.deploy("chat", pooled(3, 2))
		w.settle("chat")
		require.Equal(t, map[string]string{"us-east-1": "3 prefill 2 decode ", "eu-west-1": "3 prefill 2 decode "}, w.pool(2))
	})
}

func TestPool_RefusalsHaveFieldAndFix(t *testing.T) {
	w := setup(t)
	w.deploy("chat", pooled(2, 1))
	w.settle("chat")
	const invalid = windlassv1.ErrorReason_ERROR_REASON_VALIDATION
	for field, try := range map[string]func() error{
		"role":     func() error { _, err := w.scaleRole("router", 1, ""); return err },
		"replicas": func() error { _, err := w.scaleRole("decode", 0, ""); return err },
	} {
		refused(t, try(), connect.CodeInvalidArgument, invalid, field)
	}
	_, err := w.scaleRole("decode", 300, "")
	refused(t, err, connect.CodeInvalidArgument, invalid, "replicas")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 3})
	refused(t, err, connect.CodeInvalidArgument, invalid, "replicas")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
	require.NoError(t, err, "a pool can be stopped")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 100})
	require.NoError(t, err)
	_, err = w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(args("a"))})
	refused(t, err, connect.CodeInvalidArgument, invalid, "spec.layout")
	w.deploy("other", args("a"))
	w.settle("other")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "other", Role: "decode", Replicas: 3})
	refused(t, err, connect.CodeInvalidArgument, invalid, "role")
}

func TestPool_PlanOfAScaleShowsMoreGPUs(t *testing.T) {
	w := setup(t)
	gpus := func(s *windlassv1.DeploymentSpec) {
		for _, r := range s.Roles {
			r.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1}}
		}
	}
	w.connected(16)
	w.deploy("chat", pooled(4, 2), gpus)
	w.settle("chat")
	w.connected(3)
	shown := func(prefill, decode int32, edit ...func(*windlassv1.DeploymentSpec)) (*windlassv1.PlanDeployResponse, []int32) {
		p := w.planned("chat", nil, append([]func(*windlassv1.DeploymentSpec){pooled(prefill, decode), gpus}, edit...)...)
		r := p.GetRegions()[0]
		return p, []int32{r.GetGpusNow(), r.GetGpusPeak(), r.GetGpusAfter(), r.GetGpusNeeded(), r.GetGpusFree()}
	}
	p, numbers := shown(0, 5)
	require.Equal(t, windlassv1.PlanDeployResponse_OUTCOME_SCALED, p.GetOutcome())
	require.Equal(t, []int32{6, 9, 9, 3, 3}, numbers)
	require.True(t, p.GetWouldRun())
	p, numbers = shown(0, 6)
	require.Equal(t, []int32{6, 10, 10, 4, 3}, numbers)
	require.Contains(t, reasons(p), "NO_CAPACITY spec.roles[0].resources.gpu")
	_, numbers = shown(3, 2)
	require.Equal(t, []int32{6, 6, 5, 0, 3}, numbers)

	// A version that also scales up has no capacity to begin.
	_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(pooled(0, 6), gpus, args("b"))})
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.roles[0].resources.gpu")
}

func TestPool_HistoryDescribesAWholePool(t *testing.T) {
	w := setup(t)
	said := func(what string) string {
		t.Helper()
		res, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: "chat", Page: &windlassv1.PageRequest{Size: 200}})
		require.NoError(t, err)
		for _, h := range res.GetEntries() {
			if h.GetWhat() == what {
				return h.GetWhy()
			}
		}
		return ""
	}
	w.deploy("chat", pooled(4, 0))
	require.Equal(t, "a new configuration was deployed; a whole pool in each of us-east-1, eu-west-1; a whole pool is 4 prefill and 1 decode", said("DeploymentCreated"))
	w.settle("chat")
	require.Equal(t, "100% of the pool ready at generation 1", said("RegionReady"))
	list, err := w.apps(w.viewer).ListApps(t.Context(), &windlassv1.ListAppsRequest{})
	require.NoError(t, err)
	require.True(t, list.GetApps()[0].GetPooled())
	for _, text := range []string{said("DeploymentCreated"), said("RegionsStarting")} {
		require.NotContains(t, text, "100")
	}
	_, err = w.scaleRole("decode", 3, "us-east-1")
	require.NoError(t, err)
	w.deploy("chat", pooled(0, 0), args("b"))
	require.Contains(t, said("DeploymentCreated"), "a whole pool is 4 prefill and 1 to 3 decode; v1 is live")
	w.settle("chat")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
	require.NoError(t, err)
	require.Contains(t, said("Scaled"), "gets no pool in")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 100})
	require.NoError(t, err)
	require.Contains(t, said("Scaled"), "gets a whole pool in")
}

func TestPool_RoleDoesNotGrowWhereTheGrantIsRevoked(t *testing.T) {
	w := setup(t)
	w.shared("shared-1")
	both := regions("us-east-1", "shared-1")
	w.deploy("chat", pooled(2, 2), both)
	w.settle("chat")
	w.ungrant("shared-1")
	for _, region := range []string{"shared-1", ""} {
		_, err := w.scaleRole("decode", 3, region)
		requireClosed(t, err)
	}
	_, err := w.scaleRole("decode", 3, "us-east-1")
	require.NoError(t, err)
	_, err = w.scaleRole("decode", 1, "shared-1")
	require.NoError(t, err)
	_, err = w.scaleRole("decode", 2, "shared-1")
	requireClosed(t, err)
	require.Equal(t, map[string]string{"us-east-1": "2 prefill 3 decode ", "shared-1": "2 prefill 1 decode "}, w.pool(1))
}

func TestPool_GrowsOnlyWithinTheQuota(t *testing.T) {
	w := setup(t, limited(model.Limits{Instances: 12}))
	whole := func(n int32) error {
		_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: n})
		return err
	}
	w.deploy("chat", pooled(2, 2))
	w.settle("chat")
	require.EqualValues(t, 8, w.usage().Instances)
	_, err := w.scaleRole("decode", 4, "")
	require.NoError(t, err)
	_, err = w.scaleRole("decode", 5, "us-east-1")
	limitOf(t, err, overQuota, "instances")
	_, err = w.tryDeploy("chat", "", pooled(2, 5))
	limitOf(t, err, overQuota, "instances")

	// A stopped pool uses no quota. It starts only if the quota has room for its counts.
	require.NoError(t, whole(0))
	w.settle("chat")
	require.Zero(t, w.usage().Instances)
	_, err = w.scaleRole("decode", 256, "")
	require.NoError(t, err)
	limitOf(t, whole(100), overQuota, "instances")
	_, err = w.scaleRole("decode", 4, "")
	require.NoError(t, err)
	require.NoError(t, whole(100))
	require.EqualValues(t, 12, w.usage().Instances)

	// Also during a rollout.
	w.deploy("chat", pooled(0, 0), args("b"))
	_, err = w.scaleRole("prefill", 3, "")
	limitOf(t, err, overQuota, "instances")
	w.settle("chat")
	_, err = w.scaleRole("prefill", 3, "")
	limitOf(t, err, overQuota, "instances")
}

func TestPool_PlanWarnsIfARegionHasNoPair(t *testing.T) {
	w := setup(t)
	pairs := func(s *windlassv1.DeploymentSpec) {
		s.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL}
	}
	w.deploy("chat", pooled(4, 2), pairs)
	w.settle("chat")
	warned := func(strategy windlassv1.RolloutPolicy_Strategy) (fields []string) {
		p := w.planned("chat", &windlassv1.RolloutPolicy{Strategy: strategy}, pooled(0, 0), pairs, args("b"))
		require.True(t, p.GetWouldRun())
		require.NotEmpty(t, p.GetRegions()[0].GetSetCapacity())
		for _, f := range p.GetFindings() {
			fields = append(fields, f.GetField()+" "+f.GetRegion())
		}
		return fields
	}
	require.Empty(t, warned(windlassv1.RolloutPolicy_STRATEGY_ROLLING))
	require.Equal(t, []string{"spec.pairing eu-west-1", "spec.pairing us-east-1"}, warned(windlassv1.RolloutPolicy_STRATEGY_RECREATE))

	// A change of the pairing alone keeps all instances, and so all pairs.
	p := w.planned("chat", nil, pooled(0, 0))
	require.Equal(t, []string{"pairing.engine: ENGINE_NIXL -> "}, paths(p.GetChanges()))
	require.Equal(t, "100 % at worst, in 1 step", p.GetRegions()[0].GetSetCapacity())
	for _, s := range p.GetSteps() {
		require.True(t, s.GetKind() != windlassv1.PlanStep_KIND_MOVE || s.GetKeepsInstances())
	}
}
