package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (h *harness) rollback(req *windlassv1.RollbackRequest) *windlassv1.RollbackResponse {
	h.t.Helper()
	req.App = "chat"
	res, err := h.apps(h.deployer).Rollback(h.t.Context(), req)
	require.NoError(h.t, err)
	return res
}

// gated returns a canary policy with one step, at which an owner must approve.
func gated() *windlassv1.RolloutPolicy {
	return canary(&windlassv1.CanaryStep{Weight: 50, Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER}})
}

// rolledOut deploys a version for each of the arguments in turn, and approves each.
func (h *harness) rolledOut(policy *windlassv1.RolloutPolicy, all ...string) {
	h.t.Helper()
	for _, arg := range all {
		_, err := h.deployBy("chat", policy, args(arg))
		require.NoError(h.t, err)
		for h.settle("chat").GetRolloutId() != "" {
			_, err := h.rollouts(h.owner).Approve(h.t.Context(), &windlassv1.ApproveRequest{App: "chat"})
			require.NoError(h.t, err)
		}
	}
}

func TestRollback_AbortsTheRolloutInFlight(t *testing.T) {
	w := setup(t)
	manual := canary(&windlassv1.CanaryStep{Weight: 50, Pause: "manual"})
	w.rolledOut(nil, "a", "b")
	third, err := w.deployBy("chat", manual, args("c"))
	require.NoError(t, err)
	w.settle("chat")
	for range 2 {
		res := w.rollback(&windlassv1.RollbackRequest{})
		require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK, res.GetEffect())
		require.Equal(t, []any{int32(2), int32(3), third.GetRolloutId()}, []any{res.GetVersion(), res.GetTookBack(), res.GetTookBackRolloutId()})
	}
	app := w.settle("chat")
	require.Equal(t, []int32{2, 3}, []int32{app.GetLiveVersion(), app.GetLatestVersion()}, "v2 stays live, and no version is made")
	require.Empty(t, w.rowsOf("chat", 3))
}

func TestRollback_UndoesTheFirstUpdate(t *testing.T) {
	w := setup(t)
	w.rolledOut(nil, "a")
	_, err := w.deployBy("chat", canary(&windlassv1.CanaryStep{Weight: 50, Pause: "manual"}), args("b"))
	require.NoError(t, err)
	w.settle("chat")
	require.Equal(t, int32(2), w.rollback(&windlassv1.RollbackRequest{}).GetTookBack())
	require.Equal(t, int32(1), w.settle("chat").GetLiveVersion())
}

func TestRollback_RepeatedDoesNotUndoItself(t *testing.T) {
	w := setup(t)
	w.rolledOut(nil, "a", "b")
	first := w.rollback(&windlassv1.RollbackRequest{})
	again := w.rollback(&windlassv1.RollbackRequest{})
	require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_IN_FLIGHT_ALREADY, again.GetEffect())
	require.Equal(t, []any{first.GetVersion(), first.GetRolloutId(), int32(1)}, []any{again.GetVersion(), again.GetRolloutId(), again.GetFromVersion()})
	require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
	back := w.rollback(&windlassv1.RollbackRequest{})
	require.Equal(t, []string{"v3, which is live, is a rollback from v2: this brings v2 back"}, back.GetWarnings())
}

func TestRollback_OfThePreviousStableVersionWaitsForNoApproval(t *testing.T) {
	for name, step := range map[string]*windlassv1.CanaryStep{
		"a pause": {Weight: 50, Pause: "manual"}, "an approval": {Weight: 50, Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER}},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			w.rolledOut(nil, "a", "b")
			_, err := w.deployBy("chat", canary(step), args("b"))
			require.NoError(t, err)
			res := w.rollback(&windlassv1.RollbackRequest{})
			require.Equal(t, windlassv1.VersionEffect_VERSION_EFFECT_NEW_VERSION, res.GetEffect())
			require.True(t, res.GetStraight())
			require.Equal(t, []int32{3, 1}, []int32{res.GetVersion(), res.GetFromVersion()})
			require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
		})
	}
}

func TestRollback_WithStepsWaitsAtEachStep(t *testing.T) {
	w := setup(t)
	w.rolledOut(nil, "a", "b")
	_, err := w.deployBy("chat", canary(&windlassv1.CanaryStep{Weight: 50, Pause: "manual"}), args("b"))
	require.NoError(t, err)
	require.False(t, w.rollback(&windlassv1.RollbackRequest{WithSteps: true}).GetStraight())
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
	_, p := w.progress("chat")
	require.True(t, p.GetWaves()[0].GetRegions()[0].GetWaitsForPromotion())
}

func TestRollback_ToAnOlderVersionNeedsApproval(t *testing.T) {
	w := setup(t)
	w.rolledOut(gated(), "a", "b", "c")
	res := w.rollback(&windlassv1.RollbackRequest{Version: 1})
	require.True(t, res.GetStraight(), "pauses apply only to new code")
	require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
	_, p := w.progress("chat")
	require.NotEmpty(t, p.GetWaves()[0].GetRegions()[0].GetApproval().GetMissing())
	_, err := w.rollouts(w.deployer).Approve(t.Context(), &windlassv1.ApproveRequest{App: "chat"})
	refused(t, err, connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_NOT_AN_APPROVER, "")
}

func TestRollback_ToAVersionThatWasNeverStableTakesAllSteps(t *testing.T) {
	w := setup(t)
	policy := canary(&windlassv1.CanaryStep{Weight: 50, Pause: "manual"})
	w.rolledOut(nil, "a")
	_, err := w.deployBy("chat", policy, args("b"))
	require.NoError(t, err)
	w.settle("chat")
	w.rollback(&windlassv1.RollbackRequest{})
	w.settle("chat")
	res := w.rollback(&windlassv1.RollbackRequest{Version: 2})
	require.False(t, res.GetStraight())
	require.Len(t, res.GetWarnings(), 1)
	require.Contains(t, res.GetWarnings()[0], "v2 was never stable")
	require.Equal(t, int32(1), w.settle("chat").GetLiveVersion())
}

func TestRollback_KeepsTheNewestSecretsByDefault(t *testing.T) {
	w := setup(t)
	w.setSecret("token", "one")
	w.deploy("chat", withSecret("token"))
	w.settle("chat")
	w.deploy("chat", withSecret("token"), args("b"))
	w.settle("chat")
	w.setSecret("token", "two")
	w.settle("chat")
	pinned := func(version int32) int32 { return w.version("chat", version).GetSpec().GetSecrets()[0].GetVersion() }
	res := w.rollback(&windlassv1.RollbackRequest{Version: 1})
	require.Equal(t, []string{"it runs with version 2 of secret token, the newest; v1 ran with version 1, which --with-secrets brings back"}, res.GetWarnings())
	require.Equal(t, int32(2), pinned(res.GetVersion()))
	w.settle("chat")
	res = w.rollback(&windlassv1.RollbackRequest{Version: 2, WithSecrets: true})
	require.Equal(t, []string{"it runs with version 1 of secret token again, although the newest is 2: deploy the app again to use version 2"}, res.GetWarnings())
	require.Equal(t, int32(1), pinned(res.GetVersion()))
}

func TestRollback_NeedsANewVersionAfterASecretWasRotated(t *testing.T) {
	w := setup(t)
	w.setSecret("token", "one")
	green := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Retain: durationpb.New(time.Hour)}
	for _, name := range []string{"a", "b"} {
		_, err := w.deployBy("chat", green, withSecret("token"), args(name))
		require.NoError(t, err)
		w.settle("chat")
	}
	w.setSecret("token", "two")
	require.Equal(t, int32(3), w.settle("chat").GetLiveVersion(), "v2 is retained, with the earlier value")
	_, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	require.Contains(t, rpc.DetailOf(err).GetFix(), "windlass rollback --with-secrets")
	require.True(t, w.rollback(&windlassv1.RollbackRequest{WithSecrets: true}).GetRetained())
}

func TestDeploy_StatusLineIsAboutTheNewVersionAtOnce(t *testing.T) {
	w := setup(t)
	w.rolledOut(nil, "a")
	_, err := w.deployBy("chat", canary(&windlassv1.CanaryStep{Weight: 50, Pause: "manual"}), args("b"))
	require.NoError(t, err)
	require.Contains(t, w.settle("chat").GetMessage(), "v2: wave 1")
	w.deploy("chat", args("c"))
	require.Equal(t, "v3: about to start", w.app("chat").GetMessage())
}
