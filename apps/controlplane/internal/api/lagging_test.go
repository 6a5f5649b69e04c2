package api_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// withLagging returns a harness with an app whose v2 is live. The region eu-west-1 is out of reach and lags.
func withLagging(t *testing.T) *harness {
	w := setup(t)
	policy := &windlassv1.RolloutPolicy{MaxSurge: "1", Waves: []*windlassv1.Wave{
		{Name: "canary", Regions: []string{"eu-west-1"}, OnUnreachable: windlassv1.Wave_ON_UNREACHABLE_SKIP}, {Name: "rest"},
	}}
	_, err := w.deployBy("chat", policy, args("a"))
	require.NoError(t, err)
	w.settle("chat")
	w.lose("eu-west-1")
	_, err = w.deployBy("chat", policy, args("b"))
	require.NoError(t, err)
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
	return w
}

func (h *harness) lastRollout(app string) *windlassv1.Rollout {
	h.t.Helper()
	res, err := h.rollouts(h.viewer).ListRollouts(h.t.Context(), &windlassv1.ListRolloutsRequest{App: app})
	require.NoError(h.t, err)
	got, err := h.rollouts(h.viewer).GetRollout(h.t.Context(), &windlassv1.GetRolloutRequest{Rollout: res.GetRollouts()[0].GetId()})
	require.NoError(h.t, err)
	return got.GetRollout()
}

func TestLaggingRegion_IsShownUntilItHasCaughtUp(t *testing.T) {
	w := withLagging(t)
	app := w.app("chat")
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_DEGRADED, app.GetStatus())
	require.Equal(t, "eu-west-1 is out of reach and has yet to catch up with v2", app.GetMessage())
	require.Equal(t, []int32{4, 4}, []int32{app.GetReplicas(), app.GetReadyReplicas()})
	require.Len(t, app.GetRegions(), 2)
	r := w.lastRollout("chat")
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, r.GetStatus())
	require.Equal(t, windlassv1.RegionProgress_STATE_SKIPPED, r.GetProgress().GetWaves()[0].GetRegions()[0].GetState())
	require.Len(t, r.GetProgress().GetBehind(), 1)
	eu := r.GetProgress().GetBehind()[0].GetRegions()[0]
	require.Equal(t, "eu-west-1", eu.GetRegion())
	require.Equal(t, windlassv1.RegionProgress_STATE_SKIPPED, eu.GetState())
	require.Equal(t, "RegionUnreachable", eu.GetReason())
	require.Equal(t, []int32{1, 2, 100, 2, 0}, []int32{
		eu.GetOld().GetVersion(), eu.GetOld().GetReady(), eu.GetOld().GetWeight(), eu.GetNew().GetVersion(), eu.GetNew().GetReplicas(),
	})
	_, err := w.rollouts(w.deployer).RetryRollout(t.Context(), &windlassv1.RetryRolloutRequest{App: "chat"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")

	w.find()
	app = w.settle("chat")
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus(), app.GetMessage())
	require.Equal(t, []int32{4, 4, 2}, []int32{app.GetReplicas(), app.GetReadyReplicas(), app.GetLiveVersion()})
	r = w.lastRollout("chat")
	require.Empty(t, r.GetProgress().GetBehind())
	require.Equal(t, windlassv1.RegionProgress_STATE_MOVED, r.GetProgress().GetWaves()[0].GetRegions()[0].GetState())
	said := w.said("chat")
	require.Subset(t, said, []string{"RegionSkipped", "RegionLeftBehind", "RegionCaughtUp"})
	require.Empty(t, w.rowsOf("chat", 1), "v1 is gone there")
}

func TestLaggingRegion_IsScaled(t *testing.T) {
	w := withLagging(t)
	used := w.usage().Instances
	_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 5, Region: "eu-west-1"})
	require.NoError(t, err)
	require.Equal(t, used+3, w.usage().Instances, "replicas count before they run")
	require.Equal(t, int32(7), w.app("chat").GetReplicas())
	w.find()
	app := w.settle("chat")
	require.Equal(t, []int32{7, 7, 2}, []int32{app.GetReplicas(), app.GetReadyReplicas(), app.GetLiveVersion()})
	require.Equal(t, []int32{5, 100}, w.rowsOf("chat", 2)["eu-west-1"][:2])
}

func TestLaggingRegion_RollbackEndsWithOneVersion(t *testing.T) {
	w := withLagging(t)
	_, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
	w.find()
	app := w.settle("chat")
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus(), app.GetMessage())
	require.Empty(t, w.rowsOf("chat", 1))
	require.Empty(t, w.rowsOf("chat", 2))
	require.Len(t, w.rowsOf("chat", 3), 2)
}

func TestLaggingRegion_WithoutAgentDelaysNoRolloutWithoutAPolicy(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	w.settle("chat")
	made, err := w.regionService(w.owner).CreateRegion(t.Context(), &windlassv1.CreateRegionRequest{Name: "ap-south-1"})
	require.NoError(t, err)
	w.regions["ap-south-1"] = made.GetRegion().GetId()
	w.away = map[string]bool{w.regions["ap-south-1"]: true}
	asia := func(s *windlassv1.DeploymentSpec) { s.Regions = append(s.Regions, "ap-south-1") }

	p := w.planned("chat", nil, args("b"), asia)
	require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
	found := p.GetFindings()[slices.IndexFunc(p.GetFindings(), func(f *windlassv1.PlanFinding) bool { return f.GetRegion() == "ap-south-1" })]
	require.Equal(t, "no agent has joined region ap-south-1 yet: the rollout would leave it out for now, and it would catch up when an agent has joined", found.GetMessage())

	w.deploy("chat", args("b"), asia)
	app := w.settle("chat")
	require.Equal(t, int32(2), app.GetLiveVersion())
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_DEGRADED, app.GetStatus())
	require.Equal(t, "ap-south-1 has no agent yet and has yet to catch up with v2", app.GetMessage())
	w.find()
	w.update(func(tx store.Tx) error {
		_, _, err := tx.StartSession(w.regions["ap-south-1"], "session-ap", 60_000, model.Region{})
		return err
	})
	p = w.planned("chat", nil, args("b"), asia, replicas(3))
	require.Equal(t, outcomeScaled, p.GetOutcome())
	require.NotEmpty(t, movesOf(p)["ap-south-1"], "the plan has the moves of the region")
	app = w.settle("chat")
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus(), app.GetMessage())
	require.Len(t, w.rowsOf("chat", 2), 3)
}
