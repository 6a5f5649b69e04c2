package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (h *harness) deployBy(app string, policy *windlassv1.RolloutPolicy, edit ...func(*windlassv1.DeploymentSpec)) (*windlassv1.DeployResponse, error) {
	h.t.Helper()
	return h.apps(h.deployer).Deploy(h.t.Context(), &windlassv1.DeployRequest{App: app, Spec: echo(edit...), Rollout: policy})
}

// rollingOut returns a harness with an app whose v2 has moved to the first of two regions, and bakes there.
func rollingOut(t *testing.T) *harness {
	w := setup(t)
	policy := &windlassv1.RolloutPolicy{MaxSurge: "1", Waves: []*windlassv1.Wave{
		{Name: "canary", Regions: []string{"eu-west-1"}, BakeTime: durationpb.New(time.Hour)}, {},
	}}
	_, err := w.deployBy("chat", policy, args("a"))
	require.NoError(t, err)
	require.Equal(t, int32(1), w.settle("chat").GetLiveVersion(), "a first deployment goes to all regions at once")
	_, err = w.deployBy("chat", policy, args("b"))
	require.NoError(t, err)
	w.settle("chat")
	return w
}

func (h *harness) progress(app string) (*windlassv1.Rollout, *windlassv1.RolloutProgress) {
	h.t.Helper()
	res, err := h.rollouts(h.viewer).GetRollout(h.t.Context(), &windlassv1.GetRolloutRequest{Rollout: h.app(app).GetRolloutId()})
	require.NoError(h.t, err)
	return res.GetRollout(), res.GetRollout().GetProgress()
}

func TestRollout_MovesWaveByWave(t *testing.T) {
	w := rollingOut(t)
	app := w.app("chat")
	require.Equal(t, int32(1), app.GetLiveVersion())
	require.Equal(t, []int32{4, 4}, []int32{app.GetReplicas(), app.GetReadyReplicas()})
	require.Contains(t, app.GetMessage(), "wave canary")
	_, p := w.progress("chat")
	require.Equal(t, windlassv1.WaveProgress_STATE_BAKING, p.GetWaves()[0].GetState())
	require.NotZero(t, p.GetWaves()[0].GetBakingUntil())
	eu := p.GetWaves()[0].GetRegions()[0]
	require.Equal(t, "eu-west-1", eu.GetRegion())
	require.Equal(t, []int32{1, 0, 2, 100}, []int32{eu.GetOld().GetReplicas(), eu.GetOld().GetWeight(), eu.GetNew().GetReady(), eu.GetNew().GetWeight()})
	require.Equal(t, windlassv1.WaveProgress_STATE_WAITING, p.GetWaves()[1].GetState())

	_, err := w.rollouts(w.deployer).SkipBake(t.Context(), &windlassv1.SkipBakeRequest{App: "chat", Why: "it is fine"})
	require.NoError(t, err)
	app = w.settle("chat")
	require.Equal(t, []int32{2, 1}, []int32{app.GetLiveVersion(), app.GetPreviousVersion()})
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus())
	require.Contains(t, w.said("chat"), "BakeSkipped")
	_, err = w.rollouts(w.deployer).SkipBake(t.Context(), &windlassv1.SkipBakeRequest{App: "chat"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
}

func TestControl_MayBeRepeated(t *testing.T) {
	w := rollingOut(t)
	ctx, c := t.Context(), w.rollouts(w.deployer)
	for range 2 {
		_, err := c.PauseRollout(ctx, &windlassv1.PauseRolloutRequest{App: "chat", Why: "lunch"})
		require.NoError(t, err)
	}
	_, p := w.progress("chat")
	require.True(t, p.GetPaused())
	require.NotEmpty(t, p.GetPausedBy())
	require.Equal(t, "lunch", p.GetPausedWhy())
	_, err := c.SkipBake(ctx, &windlassv1.SkipBakeRequest{App: "chat"})
	require.NoError(t, err)
	w.settle("chat")
	require.Equal(t, int32(1), w.app("chat").GetLiveVersion(), "a paused rollout does not move")
	for range 2 {
		_, err := c.ResumeRollout(ctx, &windlassv1.ResumeRolloutRequest{App: "chat"})
		require.NoError(t, err)
	}
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
	var paused int
	for _, what := range w.said("chat") {
		if what == "RolloutPaused" || what == "RolloutResumed" {
			paused++
		}
	}
	require.Equal(t, 2, paused, "a repeated command is not in the history")
}

func TestCancel_ReturnsEveryRegionOfAStagedRollout(t *testing.T) {
	w := rollingOut(t)
	id := w.app("chat").GetRolloutId()
	_, err := w.apps(w.deployer).Cancel(t.Context(), &windlassv1.CancelRequest{App: "chat", Why: "second thoughts"})
	require.NoError(t, err)
	app := w.settle("chat")
	require.Equal(t, int32(1), app.GetLiveVersion())
	require.Equal(t, []int32{4, 4}, []int32{app.GetReplicas(), app.GetReadyReplicas()})
	res, err := w.rollouts(w.viewer).GetRollout(t.Context(), &windlassv1.GetRolloutRequest{Rollout: id})
	require.NoError(t, err)
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED, res.GetRollout().GetStatus())
	require.Equal(t, windlassv1.RegionProgress_STATE_BACK, res.GetRollout().GetProgress().GetWaves()[0].GetRegions()[0].GetState())
}

func TestDeploy_OfTheLiveVersionAbortsARollout(t *testing.T) {
	w := rollingOut(t)
	res, err := w.deployBy("chat", nil, args("a"))
	require.NoError(t, err)
	require.True(t, res.GetUnchanged())
	app := w.settle("chat")
	require.Equal(t, []int32{1, 2, 4}, []int32{app.GetLiveVersion(), app.GetLatestVersion(), app.GetReadyReplicas()})
	require.Empty(t, app.GetRolloutId())
	require.Nil(t, app.GetRolloutPolicy(), "a file without the block removes the policy")
}

func TestScale_DuringAStagedRollout(t *testing.T) {
	w := rollingOut(t)
	_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 4})
	require.NoError(t, err)
	app := w.settle("chat")
	require.Equal(t, []int32{8, 1}, []int32{app.GetReplicas(), app.GetLiveVersion()})
	_, err = w.rollouts(w.deployer).SkipBake(t.Context(), &windlassv1.SkipBakeRequest{App: "chat"})
	require.NoError(t, err)
	app = w.settle("chat")
	require.Equal(t, []int32{8, 8, 2}, []int32{app.GetReplicas(), app.GetReadyReplicas(), app.GetLiveVersion()})
}

func TestRollout_NewerVersionSupersedesIt(t *testing.T) {
	w := rollingOut(t)
	_, err := w.deployBy("chat", nil, args("c"))
	require.NoError(t, err)
	app := w.settle("chat")
	require.Equal(t, int32(1), app.GetLiveVersion(), "the policy of the superseded rollout applies until its regions have gone back")
	_, err = w.rollouts(w.deployer).SkipBake(t.Context(), &windlassv1.SkipBakeRequest{App: "chat"})
	require.NoError(t, err)
	app = w.settle("chat")
	require.Equal(t, []int32{3, 1, 4}, []int32{app.GetLiveVersion(), app.GetPreviousVersion(), app.GetReadyReplicas()})
}

func TestPolicy_AloneMakesNoVersion(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	w.settle("chat")
	res, err := w.deployBy("chat", &windlassv1.RolloutPolicy{})
	require.NoError(t, err)
	require.True(t, res.GetUnchanged())
	require.Equal(t, windlassv1.RolloutPolicy_STRATEGY_ROLLING, w.app("chat").GetRolloutPolicy().GetStrategy())
	require.Contains(t, w.said("chat"), "RolloutPolicyChanged")
	again, err := w.deployBy("chat", &windlassv1.RolloutPolicy{})
	require.NoError(t, err)
	require.True(t, again.GetUnchanged())
	require.Equal(t, "RolloutPolicyChanged", w.said("chat")[0])
	require.NotEqual(t, "RolloutPolicyChanged", w.said("chat")[1])
}

func TestPolicy_ContradictionNamesItsField(t *testing.T) {
	w := setup(t)
	for name, c := range map[string]struct {
		policy *windlassv1.RolloutPolicy
		field  string
	}{
		"in place without unavailable": {&windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE, MaxUnavailable: "0"}, "rollout.maxUnavailable"},
		"a surge in place":             {&windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE, MaxSurge: "1"}, "rollout.maxSurge"},
		"no surge and no unavailable":  {&windlassv1.RolloutPolicy{MaxSurge: "0", MaxUnavailable: "0%"}, "rollout.maxUnavailable"},
		"surge with recreate":          {&windlassv1.RolloutPolicy{Strategy: 2, MaxSurge: "1"}, "rollout.maxSurge"},
		"more than all":                {&windlassv1.RolloutPolicy{MaxUnavailable: "101%"}, "rollout.maxUnavailable"},
		"not the app's region":         {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Regions: []string{"mars"}}}}, "rollout.waves[0].regions[0]"},
		"a region twice":               {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Regions: []string{"eu-west-1"}}, {Regions: []string{"us-east-1", "eu-west-1"}}}}, "rollout.waves[1].regions[1]"},
		"a region in no wave":          {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Regions: []string{"eu-west-1"}}}}, "rollout.waves"},
		"no region for a later wave":   {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{}, {Regions: []string{"eu-west-1"}}}}, "rollout.waves[0]"},
		"names and labels":             {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Regions: []string{"eu-west-1"}, Labels: map[string]string{"a": "b"}}, {}}}, "rollout.waves[0].labels"},
		"labels without a region":      {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Labels: map[string]string{"a": "b"}}, {}}}, "rollout.waves[0].labels"},
		"two waves of one name":        {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Name: "a", Regions: []string{"eu-west-1"}}, {Name: "a"}}}, "rollout.waves[1].name"},
		"not a number":                 {&windlassv1.RolloutPolicy{MaxSurge: "many"}, "rollout.maxSurge"},
		"a canary's steps":             {&windlassv1.RolloutPolicy{Steps: []*windlassv1.CanaryStep{{Weight: 1}}}, "rollout.steps"},
		"a canary without steps":       {&windlassv1.RolloutPolicy{Strategy: 3}, "rollout.steps"},
		"a step without a weight":      {canary(&windlassv1.CanaryStep{}), "rollout.steps[0].weight"},
		"a step of two kinds":          {canary(&windlassv1.CanaryStep{Weight: 1, Replicas: 1}), "rollout.steps[0].replicas"},
		"a step back":                  {canary(&windlassv1.CanaryStep{Weight: 20}, &windlassv1.CanaryStep{Replicas: 3}, &windlassv1.CanaryStep{Weight: 20}), "rollout.steps[2].weight"},
		"replicas back":                {canary(&windlassv1.CanaryStep{Replicas: 3}, &windlassv1.CanaryStep{Replicas: 2}), "rollout.steps[1].replicas"},
		"a weight above 100":           {canary(&windlassv1.CanaryStep{Weight: 101}), "rollout.steps[0].weight"},
		"a pause without unit":         {canary(&windlassv1.CanaryStep{Weight: 1, Pause: "10"}), "rollout.steps[0].pause"},
		"a pause of a month":           {canary(&windlassv1.CanaryStep{Weight: 1, Pause: "720h"}), "rollout.steps[0].pause"},
		"surge with blue-green":        {&windlassv1.RolloutPolicy{Strategy: 4, MaxSurge: "1"}, "rollout.maxSurge"},
		"retain with canary":           {&windlassv1.RolloutPolicy{Strategy: 3, Retain: durationpb.New(0)}, "rollout.retain"},
		"no promotion":                 {&windlassv1.RolloutPolicy{Strategy: 4, Promotion: "auto after lunch"}, "rollout.promotion"},
		"a promotion too late":         {&windlassv1.RolloutPolicy{Strategy: 4, Promotion: "auto after 720h"}, "rollout.promotion"},
		"an initial weight of 100":     {&windlassv1.RolloutPolicy{Strategy: 4, InitialWeight: 100}, "rollout.initialWeight"},
		"an unknown strategy":          {&windlassv1.RolloutPolicy{Strategy: 77}, "rollout.strategy"},
		"off, with conditions": {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{
			Enabled: new(false), Conditions: []windlassv1.AutoRollback_Condition{windlassv1.AutoRollback_CONDITION_CRASH},
		}}, "rollout.autoRollback.conditions"},
		"off, and a wave that goes back": {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{Enabled: new(false)}, Waves: []*windlassv1.Wave{
			{OnFailure: windlassv1.Wave_ON_FAILURE_ROLLBACK_REGION},
		}}, "rollout.waves[0].onFailure"},
		"a condition that is no failure": {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{
			Conditions: []windlassv1.AutoRollback_Condition{windlassv1.AutoRollback_CONDITION_UNREACHABLE},
		}, Waves: []*windlassv1.Wave{{}}}, "rollout.waves[0].onUnreachable"},
		"an unknown condition":            {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{Conditions: []windlassv1.AutoRollback_Condition{77}}}, "rollout.autoRollback.conditions[0]"},
		"a limit of 0%":                   {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{FailedInstances: "0%"}}, "rollout.autoRollback.failedInstances"},
		"more instances than all":         {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{FailedInstances: "101%"}}, "rollout.autoRollback.failedInstances"},
		"instances that are not a number": {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{FailedInstances: "some"}}, "rollout.autoRollback.failedInstances"},
		"more replicas than all":          {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{Unhealthy: "200%"}}, "rollout.autoRollback.unhealthy"},
		"unhealthyFor without unhealthy":  {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{UnhealthyFor: durationpb.New(time.Minute)}}, "rollout.autoRollback.unhealthyFor"},
		"condition health without unhealthy": {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{
			Conditions: []windlassv1.AutoRollback_Condition{windlassv1.AutoRollback_CONDITION_HEALTH},
		}}, "rollout.autoRollback.conditions"},
		"unhealthyFor of 0": {&windlassv1.RolloutPolicy{AutoRollback: &windlassv1.AutoRollback{Unhealthy: "1", UnhealthyFor: durationpb.New(0)}}, "rollout.autoRollback.unhealthyFor"},
		"two waits for room": {&windlassv1.RolloutPolicy{
			WaitForCapacity: durationpb.New(time.Hour), Deadlines: &windlassv1.Deadlines{Unschedulable: durationpb.New(time.Minute)},
		}, "rollout.deadlines.unschedulable"},
		"a deadline of 0":        {&windlassv1.RolloutPolicy{Deadlines: &windlassv1.Deadlines{Progress: durationpb.New(0)}}, "rollout.deadlines.progress"},
		"a bake time of a month": {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{BakeTime: durationpb.New(31 * 24 * time.Hour)}}}, "rollout.waves[0].bakeTime"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.deployBy("chat", c.policy)
			refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, c.field)
		})
	}
}

func TestPolicy_RegionInNoWaveIsNamed(t *testing.T) {
	w := setup(t)
	_, err := w.deployBy("chat", &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Regions: []string{"eu-west-1"}}}})
	require.ErrorContains(t, err, "region us-east-1 is in no wave, so it would never move")
	require.NotContains(t, err.Error(), "spec.")
}

func TestCanary_IsRefusedIfTheLiveVersionWouldStop(t *testing.T) {
	w := setup(t)
	policy := canary(&windlassv1.CanaryStep{Weight: 10})
	one := func(s *windlassv1.DeploymentSpec) { s.Replicas = new(int32(1)) }
	oneInAmerica := func(s *windlassv1.DeploymentSpec) {
		s.Replicas = new(int32(3))
		s.Overrides = []*windlassv1.Override{{Regions: []string{"us-east-1"}, Replicas: new(int32(1))}}
	}
	_, err := w.deployBy("chat", policy, one)
	require.NoError(t, err, "with a surge there is room for both")
	for _, policy.MaxSurge = range []string{"0", "0%"} {
		_, err = w.deployBy("chat", policy, one, args("b"))
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "rollout.maxSurge")
		_, err = w.deployBy("chat", policy, oneInAmerica, args("b"))
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "rollout.maxSurge")
		require.ErrorContains(t, err, "us-east-1 has 1 replica and maxSurge 0")
	}
}

func canary(steps ...*windlassv1.CanaryStep) *windlassv1.RolloutPolicy {
	return &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1", Steps: steps}
}

func TestCanary_WaitsForPromotionRegionByRegion(t *testing.T) {
	w := setup(t)
	ctx, c := t.Context(), w.rollouts(w.deployer)
	policy := canary(&windlassv1.CanaryStep{Weight: 20, Pause: "manual"})
	_, err := w.deployBy("chat", policy, args("a"))
	require.NoError(t, err)
	w.settle("chat")
	_, err = w.deployBy("chat", policy, args("b"))
	require.NoError(t, err)
	for _, wait := range []string{"us-east-1", "eu-west-1"} {
		require.Contains(t, w.settle("chat").GetMessage(), "waits for promotion")
		_, p := w.progress("chat")
		var waits []string
		for _, g := range p.GetWaves()[0].GetRegions() {
			if g.GetWaitsForPromotion() {
				require.Equal(t, []int32{1, 1, 80, 20}, []int32{g.GetStep(), g.GetSteps(), g.GetOld().GetWeight(), g.GetNew().GetWeight()})
				waits = append(waits, g.GetRegion())
			}
		}
		require.Equal(t, []string{wait}, waits)
		for range 2 {
			_, err = c.Promote(ctx, &windlassv1.PromoteRequest{App: "chat", Why: "it is better"})
			require.NoError(t, err)
		}
	}
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
	var promoted int
	for _, what := range w.said("chat") {
		if what == "Promoted" {
			promoted++
		}
	}
	require.Equal(t, 2, promoted, "a repeated command is not in the history")
	_, err = c.Promote(ctx, &windlassv1.PromoteRequest{App: "chat"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	_, err = w.rollouts(w.viewer).Promote(ctx, &windlassv1.PromoteRequest{App: "chat"})
	require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
}

func TestRollback_PausesAutomaticPromotion(t *testing.T) {
	w := setup(t)
	ctx, c := t.Context(), w.rollouts(w.deployer)
	policy := canary(&windlassv1.CanaryStep{Weight: 20})
	deploy := func(arg string) {
		_, err := w.deployBy("chat", policy, args(arg))
		require.NoError(t, err)
		w.settle("chat")
	}
	deploy("a")
	deploy("b")
	_, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
	policy.Steps[0].Pause = "1h"
	deploy("c")
	_, p := w.progress("chat")
	require.True(t, p.GetPromotionHeld())
	require.True(t, p.GetWaves()[0].GetRegions()[0].GetWaitsForPromotion())
	_, err = c.Promote(ctx, &windlassv1.PromoteRequest{App: "chat"})
	require.NoError(t, err)
	w.settle("chat")
	_, p = w.progress("chat")
	require.False(t, p.GetPromotionHeld())
	second := p.GetWaves()[0].GetRegions()[1]
	require.False(t, second.GetWaitsForPromotion(), "after Promote, promotions are automatic again")
	require.NotZero(t, second.GetStepUntil())
}

// switched returns a harness with an app whose v2 replaced v1 by blue-green. v1 is retained.
func switched(t *testing.T) *harness {
	w := setup(t)
	policy := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN}
	for _, arg := range []string{"a", "b"} {
		_, err := w.deployBy("chat", policy, args(arg))
		require.NoError(t, err)
		w.settle("chat")
	}
	require.Equal(t, []int32{2, 1}, []int32{w.app("chat").GetLiveVersion(), w.app("chat").GetPreviousVersion()})
	return w
}

// rowsOf returns the replicas, weight and generation of a version's rows, by region.
func (h *harness) rowsOf(app string, version int32) map[string][]int32 {
	h.t.Helper()
	res, err := h.deployments(h.viewer).GetDeployment(h.t.Context(), &windlassv1.GetDeploymentRequest{App: app, Version: version})
	require.NoError(h.t, err)
	out := map[string][]int32{}
	for _, r := range res.GetDeployment().GetRegions() {
		if r.GetStatus() != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			out[r.GetRegion()] = []int32{r.GetReplicas(), r.GetWeight(), int32(r.GetGeneration())}
		}
	}
	return out
}

func TestRetained_RollbackChangesOnlyPointerAndWeights(t *testing.T) {
	w := switched(t)
	require.Equal(t, map[string][]int32{"us-east-1": {2, 0, 1}, "eu-west-1": {2, 0, 1}}, w.rowsOf("chat", 1))
	res, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat", Message: "it forgets"})
	require.NoError(t, err)
	require.True(t, res.GetRetained())
	require.Equal(t, []int32{1, 1}, []int32{res.GetVersion(), res.GetFromVersion()})
	require.Empty(t, res.GetRolloutId())
	app := w.settle("chat")
	require.Equal(t, []int32{1, 2, 2, 4}, []int32{app.GetLiveVersion(), app.GetPreviousVersion(), app.GetLatestVersion(), app.GetReadyReplicas()})
	require.Equal(t, map[string][]int32{"us-east-1": {2, 100, 1}, "eu-west-1": {2, 100, 1}}, w.rowsOf("chat", 1), "no instance started or stopped")
	require.Empty(t, w.rowsOf("chat", 2))
	require.Contains(t, w.said("chat"), "LiveReturned")

	// v2 is not retained, so a rollback to it makes a version.
	res, err = w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	require.False(t, res.GetRetained())
	require.Equal(t, []int32{3, 2}, []int32{res.GetVersion(), res.GetFromVersion()})
}

func TestRetained_UnreadyVersionIsNotRestored(t *testing.T) {
	w := switched(t)
	v1 := w.version("chat", 1)
	w.update(func(tx store.Tx) error {
		said, err := tx.ListObserved([]string{v1.GetAppId()})
		if err != nil {
			return err
		}
		for _, o := range said {
			if o.DeploymentID == v1.GetId() {
				o.Guard, o.Ready, o.ReadyReplicas, o.Running = model.NewGuard(1, guards.Add(1)), 1, 1, 1
				return tx.PutObserved([]model.Observed{o})
			}
		}
		return nil
	})
	res, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	require.False(t, res.GetRetained(), "a replica of it is not ready")
	require.Equal(t, []int32{3, 1}, []int32{res.GetVersion(), res.GetFromVersion()})
	require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
}

func TestProgress_CountsHowOftenARegionBecameUnready(t *testing.T) {
	w := rollingOut(t)
	app := w.app("chat")
	_, p := w.progress("chat")
	require.Zero(t, p.GetWaves()[0].GetRegions()[0].GetRelapseLimit())
	w.update(func(tx store.Tx) error {
		rows, err := tx.ListTopology([]string{app.GetId()})
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.DeploymentID == app.GetLiveDeploymentId() || row.Replicas == 0 {
				continue
			}
			observed, err := tx.GetObserved(map[string][]string{row.RegionID: {row.DeploymentID}})
			if err != nil {
				return err
			}
			o := observed[0]
			o.Guard, o.Ready, o.ReadyReplicas, o.Running = model.NewGuard(1, guards.Add(1)), 0, 0, row.Replicas
			if err := tx.PutObserved([]model.Observed{o}); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, w.stepper.Step(t.Context(), app.GetId()))
	_, p = w.progress("chat")
	g := p.GetWaves()[0].GetRegions()[0]
	require.Equal(t, []int32{1, 5}, []int32{g.GetRelapses(), g.GetRelapseLimit()})
}

func TestRetained_IsScaled(t *testing.T) {
	w := switched(t)
	_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 3})
	require.NoError(t, err)
	w.settle("chat")
	require.Equal(t, map[string][]int32{"us-east-1": {3, 0, 2}, "eu-west-1": {3, 0, 2}}, w.rowsOf("chat", 1))
	res, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	require.True(t, res.GetRetained())
	require.Equal(t, int32(6), w.settle("chat").GetReadyReplicas())
}

func TestControl_AppliesOnlyToStagedRollouts(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	_, err := w.rollouts(w.deployer).PauseRollout(t.Context(), &windlassv1.PauseRolloutRequest{App: "chat"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	_, err = w.rollouts(w.viewer).PauseRollout(t.Context(), &windlassv1.PauseRolloutRequest{App: "chat"})
	require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
}
