package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestDeploy_EffectDistinguishesLiveAndInFlight(t *testing.T) {
	w := setup(t)
	first := w.deploy("chat", args("a"))
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION, first.GetEffect())
	again := w.deploy("chat", args("a"))
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY, again.GetEffect())
	require.Equal(t, []any{true, first.GetRolloutId()}, []any{again.GetUnchanged(), again.GetRolloutId()})
	w.settle("chat")
	again = w.deploy("chat", args("a"))
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY, again.GetEffect())
	require.Equal(t, []any{true, ""}, []any{again.GetUnchanged(), again.GetRolloutId()})

	second := w.deploy("chat", args("b"))
	third := w.deploy("chat", args("c"))
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION, third.GetEffect())
	require.Equal(t, []any{int32(2), second.GetRolloutId()}, []any{third.GetTookBack(), third.GetTookBackRolloutId()})
	back := w.deploy("chat", args("a"))
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK, back.GetEffect())
	require.Equal(t, []any{int32(1), int32(3), third.GetRolloutId()}, []any{back.GetVersion(), back.GetTookBack(), back.GetTookBackRolloutId()})
	w.settle("chat")
	scaled := w.deploy("chat", args("a"), replicas(3))
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_SCALED, scaled.GetEffect())

	env := func(value string) *windlassv1.SetEnvironmentResponse {
		res, err := w.apps(w.deployer).SetEnvironment(t.Context(), &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": value}})
		require.NoError(t, err)
		return res
	}
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION, env("1").GetEffect())
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY, env("1").GetEffect())
	w.settle("chat")
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_LIVE_ALREADY, env("1").GetEffect())
}

func TestWatchApp_ReportsTheRequestedRolloutAfterItIsSuperseded(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	w.settle("chat")
	second := w.deploy("chat", args("b"))
	stream, err := w.apps(w.viewer).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "chat", Rollout: second.GetRolloutId()})
	require.NoError(t, err)
	defer stream.Close()
	x := &watching{t: t, stream: stream}
	first := x.until(func(*windlassv1.WatchAppResponse) bool { return true })
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, first.GetAskedRollout().GetStatus())

	third := w.deploy("chat", args("c"))
	last := x.until(func(r *windlassv1.WatchAppResponse) bool { return r.GetRollout().GetId() == third.GetRolloutId() })
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, last.GetAskedRollout().GetStatus())
	require.Equal(t, second.GetRolloutId(), last.GetAskedRollout().GetId())
	var versions []int32
	for _, d := range last.GetDeployments() {
		versions = append(versions, d.GetVersion())
	}
	require.Equal(t, []int32{1, 2, 3}, versions)

	wrong, err := w.apps(w.viewer).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "chat", Rollout: "rol_unknown"})
	require.NoError(t, err)
	defer wrong.Close()
	require.False(t, wrong.Receive())
	refused(t, wrong.Err(), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "rollout")
}
