package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	needsApproval = windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED
	noApprover    = windlassv1.ErrorReason_ERROR_REASON_NOT_AN_APPROVER
)

// personsKey makes a key as an operator, so that the key is in no family of the workspace's other keys.
func (h *harness) personsKey(name string, role windlassv1.Role) string {
	h.t.Helper()
	res, err := h.access(h.operator).CreateApiKey(h.t.Context(), &windlassv1.CreateApiKeyRequest{Name: name, Role: role, Workspace: "acme"})
	require.NoError(h.t, err)
	require.Equal(h.t, h.workspace, res.GetKey().GetWorkspaceId())
	return res.GetValue()
}

func (h *harness) approve(key, comment string) (*windlassv1.ApproveResponse, error) {
	return h.rollouts(key).Approve(h.t.Context(), &windlassv1.ApproveRequest{App: "chat", Comment: comment})
}

func TestGate_WaitsForEnoughApprovalsOfTheRole(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		second := w.personsKey("second", windlassv1.Role_ROLE_OWNER)
		third := w.personsKey("third", windlassv1.Role_ROLE_OWNER)
		policy := canary(&windlassv1.CanaryStep{Weight: 20, Approval: &windlassv1.Approval{Count: 2, NotDeployer: true}})
		policy.Waves = []*windlassv1.Wave{{Name: "all", MaxParallel: 2, Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_DEPLOYER}}}
		for _, arg := range []string{"a", "b"} {
			_, err := w.apps(w.owner).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args(arg)), Rollout: policy})
			require.NoError(t, err)
			w.settle("chat")
		}
		const missing = "approval by 2 keys of role owner (not by owner, who deployed it)"
		require.Contains(t, w.app("chat").GetMessage(), "waits for "+missing)
		_, p := w.progress("chat")
		for _, g := range p.GetWaves()[0].GetRegions() {
			require.Equal(t, missing, g.GetApproval().GetMissing())
			require.False(t, g.GetWaitsForPromotion())
			require.Zero(t, g.GetDeadline(), "no deadline runs while the gate waits")
		}

		_, err := w.rollouts(w.owner).Promote(ctx, &windlassv1.PromoteRequest{App: "chat"})
		refused(t, err, connect.CodeFailedPrecondition, needsApproval, "")
		_, err = w.approve(w.deployer, "me too")
		refused(t, err, connect.CodePermissionDenied, noApprover, "")
		_, err = w.approve(w.owner, "I trust myself")
		refused(t, err, connect.CodePermissionDenied, noApprover, "")
		_, err = w.approve(w.viewer, "")
		refused(t, err, connect.CodePermissionDenied, isDenied, "")
		for range 2 {
			res, err := w.approve(second, "p95 is as before")
			require.NoError(t, err)
			require.Len(t, res.GetMissing(), 2)
			require.Contains(t, res.GetMissing()[0], "second approved")
		}
		w.settle("chat")
		require.Equal(t, int32(1), w.app("chat").GetLiveVersion())
		res, err := w.approve(third, "")
		require.NoError(t, err)
		require.Empty(t, res.GetMissing())

		// The gate at the end of the wave needs one deployer, and accepts the key that deployed.
		w.settle("chat")
		_, p = w.progress("chat")
		require.Equal(t, "approval by a key of role deployer", p.GetWaves()[0].GetApproval().GetMissing())
		_, err = w.rollouts(w.owner).SkipBake(ctx, &windlassv1.SkipBakeRequest{App: "chat"})
		require.NoError(t, err)
		require.Equal(t, int32(1), w.settle("chat").GetLiveVersion(), "SkipBake does not open the gate")
		_, err = w.approve(w.owner, "")
		require.NoError(t, err)
		require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
		_, err = w.approve(w.owner, "")
		refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")

		history, err := w.history(w.viewer).ListHistory(ctx, &windlassv1.ListHistoryRequest{App: "chat", Page: &windlassv1.PageRequest{Size: 200}})
		require.NoError(t, err)
		var who []string
		for _, h := range history.GetEntries() {
			if h.GetWhat() == "Approved" {
				who = append(who, h.GetWho())
			}
		}
		require.Equal(t, []string{"owner", "third", "second"}, who, "each approver once, the newest first")
	})
}

func TestGate_InvalidGateNamesItsField(t *testing.T) {
	w := setup(t)
	gate := &windlassv1.Approval{}
	for name, c := range map[string]struct {
		policy *windlassv1.RolloutPolicy
		field  string
	}{
		"a viewer":            {canary(&windlassv1.CanaryStep{Weight: 20, Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_VIEWER}}), "rollout.steps[0].approval.role"},
		"an operator":         {&windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_OPERATOR}}}}, "rollout.waves[0].approval.role"},
		"too many":            {canary(&windlassv1.CanaryStep{Weight: 20, Approval: &windlassv1.Approval{Count: 11}}), "rollout.steps[0].approval.count"},
		"manual step as well": {canary(&windlassv1.CanaryStep{Weight: 20, Pause: "manual", Approval: gate}), "rollout.steps[0].approval"},
		"manual promotion":    {&windlassv1.RolloutPolicy{Strategy: 4, Promotion: "manual", Approval: gate}, "rollout.approval"},
		"rolling":             {&windlassv1.RolloutPolicy{Approval: gate}, "rollout.approval"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.deployBy("chat", c.policy)
			refused(t, err, connect.CodeInvalidArgument, validation, c.field)
		})
	}
	res, err := w.deployBy("chat", canary(&windlassv1.CanaryStep{Weight: 20, Approval: gate}))
	require.NoError(t, err)
	require.NotEmpty(t, res.GetAppId())
	stored := w.app("chat").GetRolloutPolicy().GetSteps()[0].GetApproval()
	require.Equal(t, []any{windlassv1.Role_ROLE_OWNER, int32(1)}, []any{stored.GetRole(), stored.GetCount()})
}

func TestGate_OnlyAKeyThatMayApproveCanLoosenIt(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	gated := func(count int32) *windlassv1.RolloutPolicy {
		return canary(&windlassv1.CanaryStep{Weight: 20, Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER, Count: count, NotDeployer: true}})
	}
	deploy := func(key string, policy *windlassv1.RolloutPolicy, arg string) error {
		_, err := w.apps(key).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args(arg)), Rollout: policy})
		return err
	}
	require.NoError(t, deploy(w.deployer, gated(2), "a"))
	w.settle("chat")
	const field = "rollout.steps[0].approval"
	for _, policy := range []*windlassv1.RolloutPolicy{nil, gated(1), canary(&windlassv1.CanaryStep{Weight: 20})} {
		refused(t, deploy(w.deployer, policy, "b"), connect.CodePermissionDenied, noApprover, field)
		require.EqualValues(t, 2, w.app("chat").GetRolloutPolicy().GetSteps()[0].GetApproval().GetCount(), "the policy stays")
	}
	plan, err := w.apps(w.deployer).PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: "chat", Spec: echo(args("b"))})
	require.NoError(t, err)
	require.False(t, plan.GetWouldRun())
	require.NoError(t, deploy(w.deployer, gated(3), "b"), "stricter")
	require.NoError(t, deploy(w.owner, nil, "c"))
	require.Empty(t, w.app("chat").GetRolloutPolicy().GetSteps())
}

func TestApproval_KeysOfOneFamilyAreOneApprover(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		mint := func(by, name string) string {
			res, err := w.access(by).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: name, Role: windlassv1.Role_ROLE_OWNER})
			require.NoError(t, err)
			return res.GetValue()
		}
		alice := w.personsKey("alice", windlassv1.Role_ROLE_OWNER)
		aliceTwo := mint(alice, "alice-2")
		aliceThree := mint(aliceTwo, "alice-3")
		ownerTwo := mint(w.owner, "owner-2")
		policy := canary(&windlassv1.CanaryStep{Weight: 20, Approval: &windlassv1.Approval{Count: 2, NotDeployer: true}})
		policy.Waves = []*windlassv1.Wave{{Name: "all", MaxParallel: 2}}
		for _, arg := range []string{"a", "b"} {
			_, err := w.apps(w.owner).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args(arg)), Rollout: policy})
			require.NoError(t, err)
			w.settle("chat")
		}
		_, err := w.approve(ownerTwo, "")
		refused(t, err, connect.CodePermissionDenied, noApprover, "")
		require.ErrorContains(t, err, "key owner-2 is of the same family as owner")
		_, err = w.approve(aliceTwo, "")
		require.NoError(t, err)
		for name, key := range map[string]string{"the key that made it": alice, "the key that it made": aliceThree} {
			_, err = w.approve(key, "")
			refused(t, err, connect.CodePermissionDenied, noApprover, "")
			require.ErrorContains(t, err, "of the same family as alice-2, which approved", name)
		}
		require.EqualValues(t, 1, w.settle("chat").GetLiveVersion())
		_, err = w.approve(w.personsKey("bob", windlassv1.Role_ROLE_OWNER), "")
		require.NoError(t, err)
		require.EqualValues(t, 2, w.settle("chat").GetLiveVersion())
	})
}
