package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// requireWhole requires that the weights of all versions in each region add up to 100, or to 0 where nothing serves.
// It reads and returns the current answer of WatchApp.
func (h *harness) requireWhole(app string) *windlassv1.WatchAppResponse {
	h.t.Helper()
	x := h.watch(h.viewer, app)
	defer x.cancel()
	r := x.until(func(*windlassv1.WatchAppResponse) bool { return true })
	sums := map[string]int32{}
	for _, d := range r.GetDeployments() {
		for _, t := range d.GetRegions() {
			sums[t.GetRegion()] += t.GetWeight()
		}
	}
	for region, sum := range sums {
		require.Contains(h.t, []int32{0, 100}, sum, "weights of versions in %s", region)
	}
	p := r.GetRollout().GetProgress()
	for _, wave := range append(p.GetWaves(), p.GetBehind()...) {
		for _, g := range wave.GetRegions() {
			sum := g.GetOld().GetWeight() + g.GetNew().GetWeight()
			for _, v := range g.GetOthers() {
				sum += v.GetWeight()
			}
			require.Contains(h.t, []int32{0, 100}, sum, "weights of the rollout in %s: %v", g.GetRegion(), g)
		}
	}
	return r
}

// settleWhole is settle, with requireWhole after each step.
func (h *harness) settleWhole(app string) *windlassv1.WatchAppResponse {
	h.t.Helper()
	id := h.app(app).GetId()
	for range 15 {
		require.NoError(h.t, h.stepper.Step(h.t.Context(), id))
		h.requireWhole(app)
		h.report(id)
		h.requireWhole(app)
	}
	return h.requireWhole(app)
}

func TestRegion_ViewAddsUp(t *testing.T) {
	w := setup(t)
	canary := &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1",
		Steps: []*windlassv1.CanaryStep{{Weight: 50, Pause: "manual"}},
		Waves: []*windlassv1.Wave{{MaxParallel: 2}},
	}
	deploy := func(version string, n int32) *windlassv1.WatchAppResponse {
		_, err := w.deployBy("chat", canary, args(version), replicas(n))
		require.NoError(t, err)
		return w.requireWhole("chat")
	}
	deploy("a", 4)
	w.settleWhole("chat")
	require.Equal(t, "v2: about to start", deploy("b", 4).GetApp().GetMessage())
	require.Contains(t, w.settleWhole("chat").GetApp().GetMessage(), "v2: wave 1")

	superseding := deploy("c", 4)
	require.Equal(t, "v3: about to start", superseding.GetApp().GetMessage(), "the message is not about v2")
	require.Len(t, superseding.GetDeployments(), 3, "v2 still serves")
	require.NoError(t, w.stepper.Step(t.Context(), w.app("chat").GetId()))
	eu := w.requireWhole("chat").GetRollout().GetProgress().GetWaves()[0].GetRegions()[0]
	require.Len(t, eu.GetOthers(), 1)
	require.Equal(t, []int32{2, 2, 2}, []int32{eu.GetOthers()[0].GetVersion(), eu.GetOthers()[0].GetReplicas(), eu.GetOthers()[0].GetReady()})
	require.NotZero(t, eu.GetOthers()[0].GetWeight())
	w.settleWhole("chat")

	deploy("d", 2)
	w.settleWhole("chat")
	_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
	require.NoError(t, err)
	w.settleWhole("chat")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 3})
	require.NoError(t, err)
	w.settleWhole("chat")
	_, err = w.rollouts(w.deployer).Promote(t.Context(), &windlassv1.PromoteRequest{App: "chat", Full: true})
	require.NoError(t, err)
	last := w.settleWhole("chat")
	require.Equal(t, int32(4), last.GetApp().GetLiveVersion())
	require.Len(t, last.GetDeployments(), 1, "only the live version is left")

	// After the rollout, scaling changes the wanted replicas that are shown.
	for _, n := range []int32{0, 2} {
		_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: n})
		require.NoError(t, err)
		eu = w.settleWhole("chat").GetRollout().GetProgress().GetWaves()[0].GetRegions()[0]
		require.Equal(t, []int32{n, n}, []int32{eu.GetReplicas(), eu.GetNew().GetReady()})
	}
}
