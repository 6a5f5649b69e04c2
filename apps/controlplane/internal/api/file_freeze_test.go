package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const ofAFile = windlassv1.ErrorReason_ERROR_REASON_FREEZE_OF_FILE

func (h *harness) deployFrozen(freeze *windlassv1.FileFreeze, edit ...func(*windlassv1.DeploymentSpec)) (*windlassv1.DeployResponse, error) {
	h.t.Helper()
	return h.apps(h.deployer).Deploy(h.t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(edit...), Freeze: freeze})
}

func (h *harness) allFreezes() []*windlassv1.Freeze {
	h.t.Helper()
	res, err := h.freezes(h.viewer).ListFreezes(h.t.Context(), &windlassv1.ListFreezesRequest{})
	require.NoError(h.t, err)
	return res.GetFreezes()
}

func TestFileFreeze_IsSetAndLiftedByTheFile(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		_, err := w.deployFrozen(nil, args("a"))
		require.NoError(t, err)
		w.settle("chat")
		weekends := &windlassv1.FileFreeze{Reason: "the team is away", OnStart: refuse}

		same, err := w.deployFrozen(weekends, args("a"))
		require.NoError(t, err, "a deploy that changes only the freeze is never refused")
		require.True(t, same.GetUnchanged())
		f := w.allFreezes()[0]
		require.True(t, f.GetFromFile())
		require.True(t, f.GetInForce())
		require.Equal(t, "default/production/chat", f.GetApp())
		require.Regexp(t, `^chat-[0-9a-f]{12}$`, f.GetName())

		before := w.dump()
		_, err = w.deployFrozen(weekends, args("b"))
		refused(t, err, connect.CodeFailedPrecondition, isFrozen, "")
		require.ErrorContains(t, err, "the team is away")
		_, err = w.freezes(w.owner).SetFreeze(ctx, &windlassv1.SetFreezeRequest{Name: f.GetName(), Reason: "another"})
		refused(t, err, connect.CodeFailedPrecondition, ofAFile, "name")
		_, err = w.freezes(w.owner).LiftFreeze(ctx, &windlassv1.LiftFreezeRequest{Name: f.GetName()})
		refused(t, err, connect.CodeFailedPrecondition, ofAFile, "name")
		require.Equal(t, before, w.dump())

		other, err := w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "other", Spec: echo()})
		require.NoError(t, err, "the freeze applies only to its app")
		require.NotEmpty(t, other.GetRolloutId())

		_, err = w.deployFrozen(nil, args("b"))
		require.NoError(t, err, "a file that lifts the freeze can be deployed, even with other changes")
		require.Empty(t, w.allFreezes())
		require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
	})
}

func TestFileFreeze_IsPlannedHoldsAndEndsWithTheApp(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	_, err := w.deployFrozen(nil, args("a"))
	require.NoError(t, err)
	w.settle("chat")
	holds := &windlassv1.FileFreeze{Reason: "the office is closed", OnStart: hold}

	p, err := w.apps(w.viewer).PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: "chat", Spec: echo(args("b")), Freeze: &windlassv1.FileFreeze{Reason: "late"}})
	require.NoError(t, err)
	require.False(t, p.GetWouldRun())
	require.Equal(t, isFrozen, p.GetFindings()[0].GetReason())
	require.Empty(t, w.allFreezes(), "a plan changes nothing")

	res, err := w.deployFrozen(holds, args("b"))
	require.NoError(t, err)
	require.Equal(t, "the office is closed", res.GetHold().GetReason())
	require.Equal(t, int32(1), w.settle("chat").GetLiveVersion())
	from := w.allFreezes()[0].GetFrom()
	_, err = w.deployFrozen(holds, args("b"))
	require.NoError(t, err)
	require.Equal(t, from, w.allFreezes()[0].GetFrom(), "the freeze begins at its first deploy")

	_, err = w.deployFrozen(&windlassv1.FileFreeze{Reason: "it was late", Until: time.Now().Add(-time.Hour).UnixMilli()}, args("b"))
	require.NoError(t, err, "a freeze that has ended has no effect")
	require.Empty(t, w.allFreezes())
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion(), "the held rollout starts")

	_, err = w.deployFrozen(holds, args("b"))
	require.NoError(t, err)
	_, err = w.apps(w.owner).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "chat"})
	require.NoError(t, err)
	require.Empty(t, w.allFreezes())
}

func TestFileFreeze_InvalidNamesItsField(t *testing.T) {
	w := setup(t)
	now := time.Now().UnixMilli()
	window := []*windlassv1.WeeklyWindow{{Start: "Fri 16:00", End: "Mon 08:00"}}
	for field, f := range map[string]*windlassv1.FileFreeze{
		"freeze.reason":          {},
		"freeze.until":           {Reason: "x", From: now + 2_000_000, Until: now + 1_000_000},
		"freeze.timeZone":        {Reason: "x", TimeZone: "Europe/London"},
		"freeze.weekly[0].start": {Reason: "x", TimeZone: "UTC", Weekly: []*windlassv1.WeeklyWindow{{Start: "Fri 16:00", End: "08:00"}}},
		"freeze.weekly":          {Reason: "x", TimeZone: "UTC", Weekly: append(window, &windlassv1.WeeklyWindow{Start: "Mon 08:00", End: "Fri 16:00"})},
	} {
		_, err := w.deployFrozen(f)
		refused(t, err, connect.CodeInvalidArgument, validation, field)
	}
}
