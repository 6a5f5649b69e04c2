package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const production = "default/production"

// protect sets the protection of the environment production.
func (h *harness) protect(rules *windlassv1.ProtectionRules) *windlassv1.SetProtectionResponse {
	h.t.Helper()
	res, err := h.protections(h.owner).SetProtection(h.t.Context(), &windlassv1.SetProtectionRequest{
		Environment: production, Rules: rules, Reason: "two people see each change",
	})
	require.NoError(h.t, err)
	return res
}

func owners(n int32) *windlassv1.ProtectionRules {
	return &windlassv1.ProtectionRules{Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER, Count: n, NotDeployer: true}}
}

// activeRollout returns the rollout in flight of the app.
func (h *harness) activeRollout(app string) *windlassv1.Rollout {
	h.t.Helper()
	res, err := h.rollouts(h.viewer).GetRollout(h.t.Context(), &windlassv1.GetRolloutRequest{Rollout: h.app(app).GetRolloutId()})
	require.NoError(h.t, err)
	return res.GetRollout()
}

func (h *harness) historyOf(app string) map[string]string {
	h.t.Helper()
	res, err := h.history(h.viewer).ListHistory(h.t.Context(), &windlassv1.ListHistoryRequest{App: app, Page: &windlassv1.PageRequest{Size: 200}})
	require.NoError(h.t, err)
	out := map[string]string{}
	for _, entry := range res.GetEntries() {
		if out[entry.GetWhat()] == "" {
			out[entry.GetWhat()] = entry.GetWhy() // the newest
		}
	}
	return out
}

func TestProtection_NoFileAndNoDeployerPassesItsGate(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		deployer := w.personsKey("dora", windlassv1.Role_ROLE_DEPLOYER)
		alice, bob := w.personsKey("alice", windlassv1.Role_ROLE_OWNER), w.personsKey("bob", windlassv1.Role_ROLE_OWNER)
		w.protect(owners(2))
		deploy := func(policy *windlassv1.RolloutPolicy, arg string) *windlassv1.DeployResponse {
			res, err := w.apps(deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args(arg)), Rollout: policy})
			require.NoError(t, err)
			return res
		}

		// The first rollout of an app also waits, and so does a version after an abort.
		res := deploy(nil, "a")
		require.Equal(t, []string{"it starts after approval by 2 keys of role owner, not by the deployer, by the protection of the environment: two people see each change"}, res.GetWarnings())
		const missing = "approval by 2 keys of role owner (not by dora, who deployed it)"
		require.Equal(t, "v1 waits for "+missing+" before it starts", w.settle("chat").GetMessage())
		require.Zero(t, w.app("chat").GetLiveVersion())
		_, err := w.apps(deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "chat"})
		require.NoError(t, err)
		w.settle("chat")
		for _, policy := range []*windlassv1.RolloutPolicy{nil, {StartApproval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_DEPLOYER}}} {
			deploy(policy, "b")
			require.Zero(t, w.settle("chat").GetLiveVersion())
		}
		require.Equal(t, missing, w.activeRollout("chat").GetStartApproval().GetMissing())
		require.Contains(t, w.historyOf("chat")["RolloutProtected"], "two people see each change")

		_, err = w.approve(deployer, "")
		refused(t, err, connect.CodePermissionDenied, noApprover, "")
		for range 2 {
			got, err := w.approve(alice, "it is good")
			require.NoError(t, err)
			require.Len(t, got.GetMissing(), 1, "a second approval with the same key does not count")
		}
		mint, err := w.access(alice).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: "alice-2", Role: windlassv1.Role_ROLE_OWNER})
		require.NoError(t, err)
		_, err = w.approve(mint.GetValue(), "")
		refused(t, err, connect.CodePermissionDenied, noApprover, "")
		require.Zero(t, w.settle("chat").GetLiveVersion())
		got, err := w.approve(bob, "")
		require.NoError(t, err)
		require.Empty(t, got.GetMissing())
		live := w.settle("chat").GetLiveVersion()
		require.NotZero(t, live)
		require.Contains(t, w.historyOf("chat")["RolloutReleased"], "approved by alice (it is good), bob")

		// An update, a variable and an approval of another rollout.
		deploy(nil, "c")
		require.Equal(t, live, w.settle("chat").GetLiveVersion())
		_, err = w.rollouts(deployer).Promote(ctx, &windlassv1.PromoteRequest{App: "chat", Full: true})
		require.NoError(t, err)
		require.Equal(t, live, w.settle("chat").GetLiveVersion(), "a full promotion opens no gate")
		_, err = w.approve(alice, "")
		require.NoError(t, err)
		_, err = w.apps(deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "1"}})
		require.NoError(t, err)
		require.Equal(t, live, w.settle("chat").GetLiveVersion())
		require.Empty(t, w.activeRollout("chat").GetStartApproval().GetGiven(), "approvals count only for one rollout")
		_, err = w.apps(deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "chat"})
		require.NoError(t, err)
		w.settle("chat")

		plan, err := w.apps(deployer).PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: "chat", Spec: echo(args("d"))})
		require.NoError(t, err)
		require.True(t, plan.GetWouldRun())
		require.Contains(t, plan.GetFindings()[0].GetMessage(), "it starts after approval by 2 keys of role owner")
		require.Equal(t, windlassv1.PlanStep_KIND_GATE, plan.GetSteps()[0].GetKind())
		require.EqualValues(t, 2, plan.GetSteps()[0].GetApproval().GetCount())

		// A version that was never live cannot be pinned.
		_, err = w.apps(deployer).PinVersion(ctx, &windlassv1.PinVersionRequest{App: "chat", Version: live + 1, Weight: 50})
		refused(t, err, failed, needsApproval, "version")
		_, err = w.apps(deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: live + 1})
		require.NoError(t, err)
		require.Equal(t, live, w.settle("chat").GetLiveVersion(), "a rollback to it also needs approval")
	})
}

func TestProtection_GateOfTheStartAppliesToTheWholeRollout(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		alice, bob := w.personsKey("alice", windlassv1.Role_ROLE_OWNER), w.personsKey("bob", windlassv1.Role_ROLE_OWNER)
		w.protect(owners(1))
		_, err := w.deployBy("chat", nil, args("a"))
		require.NoError(t, err)
		w.protect(owners(2))
		_, err = w.approve(alice, "")
		require.NoError(t, err)
		require.EqualValues(t, 1, w.settle("chat").GetLiveVersion(), "the rollout began with a gate of one approval")

		_, err = w.deployBy("chat", nil, args("b"))
		require.NoError(t, err)
		_, err = w.approve(alice, "")
		require.NoError(t, err)
		require.EqualValues(t, 1, w.settle("chat").GetLiveVersion())
		_, err = w.protections(w.owner).RemoveProtection(ctx, &windlassv1.RemoveProtectionRequest{Environment: production})
		require.NoError(t, err)
		require.EqualValues(t, 1, w.settle("chat").GetLiveVersion(), "a rollout keeps the gate that it began with")
		_, err = w.approve(bob, "")
		require.NoError(t, err)
		require.EqualValues(t, 2, w.settle("chat").GetLiveVersion())

		w.protect(owners(1))
		_, err = w.deployBy("chat", nil, args("c"))
		require.NoError(t, err)
		_, err = w.protections(w.owner).RemoveProtection(ctx, &windlassv1.RemoveProtectionRequest{Environment: production})
		require.NoError(t, err)
		_, err = w.deployBy("chat", nil, args("d"))
		require.NoError(t, err)
		require.EqualValues(t, 4, w.settle("chat").GetLiveVersion(), "the next rollout has the protections of its own start")
	})
}

func TestProtection_IsSetByOwnersOrOperatorsAndIsInTheAudit(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		set := func(key string, req *windlassv1.SetProtectionRequest) error {
			req.Reason = "r"
			_, err := w.protections(key).SetProtection(ctx, req)
			return err
		}
		refused(t, set(w.deployer, &windlassv1.SetProtectionRequest{Rules: owners(1)}), connect.CodePermissionDenied, isDenied, "")
		refused(t, set(w.operator, &windlassv1.SetProtectionRequest{Rules: owners(1)}), connect.CodeInvalidArgument, validation, "workspace")
		refused(t, set(w.operator, &windlassv1.SetProtectionRequest{Workspace: "acme", Environment: production, Rules: owners(1)}), connect.CodeInvalidArgument, validation, "environment")
		refused(t, set(w.owner, &windlassv1.SetProtectionRequest{Rules: &windlassv1.ProtectionRules{}}), connect.CodeInvalidArgument, validation, "rules")
		refused(t, set(w.owner, &windlassv1.SetProtectionRequest{Project: "default", Environment: production, Rules: owners(1)}), connect.CodeInvalidArgument, validation, "environment")
		refused(t, set(w.owner, &windlassv1.SetProtectionRequest{Environment: "default/none", Rules: owners(1)}), connect.CodeNotFound, notFound, "environment")
		refused(t, set(w.owner, &windlassv1.SetProtectionRequest{Rules: &windlassv1.ProtectionRules{Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_VIEWER}}}),
			connect.CodeInvalidArgument, validation, "rules.approval.role")

		require.NoError(t, set(w.operator, &windlassv1.SetProtectionRequest{Workspace: "acme", Rules: owners(1)}))
		_, err := w.protections(w.owner).RemoveProtection(ctx, &windlassv1.RemoveProtectionRequest{})
		refused(t, err, connect.CodePermissionDenied, isDenied, "")
		require.NoError(t, set(w.owner, &windlassv1.SetProtectionRequest{Rules: &windlassv1.ProtectionRules{AutoRollback: true}}), "next to the operator's protection")
		res := w.protect(owners(2))
		require.Len(t, res.GetWarnings(), 1, "all owner keys are of one family")
		require.True(t, w.protect(owners(2)).GetUnchanged())
		list, err := w.protections(w.viewer).ListProtections(ctx, &windlassv1.ListProtectionsRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetProtections(), 3)
		require.Equal(t, production, list.GetProtections()[2].GetEnvironment())
		others, err := w.protections(w.rival).ListProtections(ctx, &windlassv1.ListProtectionsRequest{})
		require.NoError(t, err)
		require.Empty(t, others.GetProtections())
		platform, err := w.protections(w.operator).ListProtections(ctx, &windlassv1.ListProtectionsRequest{Workspace: "acme"})
		require.NoError(t, err)
		require.Len(t, platform.GetProtections(), 1, "an operator does not see names of a workspace")

		_, err = w.protections(w.operator).RemoveProtection(ctx, &windlassv1.RemoveProtectionRequest{Workspace: "acme"})
		require.NoError(t, err)
		_, err = w.protections(w.owner).RemoveProtection(ctx, &windlassv1.RemoveProtectionRequest{Project: "default"})
		refused(t, err, connect.CodeNotFound, notFound, "project")
		audit, err := w.history(w.owner).ListAudit(ctx, &windlassv1.ListAuditRequest{Page: &windlassv1.PageRequest{Size: 200}})
		require.NoError(t, err)
		changes := 0
		for _, e := range audit.GetEntries() {
			if e.GetResourceKind() == "protection" {
				changes++
			}
		}
		require.Equal(t, 4, changes, "the audit has each change, and no call without a change")
	})
}

func TestProtection_BakeTimeAndRollback(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.protect(&windlassv1.ProtectionRules{BakeTime: durationpb.New(time.Hour), AutoRollback: true})
	for _, arg := range []string{"a", "b"} {
		_, err := w.deployBy("chat", nil, args(arg))
		require.NoError(t, err)
		w.settle("chat")
	}
	policy := w.activeRollout("chat").GetProgress().GetPolicy()
	require.Equal(t, time.Hour, policy.GetWaves()[0].GetBakeTime().AsDuration())
	require.EqualValues(t, 1, w.app("chat").GetLiveVersion())
	_, err := w.rollouts(w.deployer).SkipBake(ctx, &windlassv1.SkipBakeRequest{App: "chat"})
	refused(t, err, connect.CodePermissionDenied, noApprover, "")
	_, err = w.rollouts(w.deployer).Promote(ctx, &windlassv1.PromoteRequest{App: "chat", Full: true})
	refused(t, err, connect.CodePermissionDenied, noApprover, "")
	_, err = w.rollouts(w.owner).SkipBake(ctx, &windlassv1.SkipBakeRequest{App: "chat"})
	require.NoError(t, err)
	require.EqualValues(t, 2, w.settle("chat").GetLiveVersion())

	// The previous stable version comes back at once.
	w.protect(owners(1))
	_, err = w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	w.settle("chat")
	require.EqualValues(t, 3, w.app("chat").GetLiveVersion())
}

func TestProtection_KeepsADomainFromAnotherApp(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	_, err := w.addDomain("chat", "chat.example.com")
	require.NoError(t, err)
	w.protect(owners(1))
	remove := func(key string) error {
		_, err := w.routes(key).RemoveDomain(t.Context(), &windlassv1.RemoveDomainRequest{App: "chat", Domain: "chat.example.com"})
		return err
	}
	refused(t, remove(w.deployer), connect.CodePermissionDenied, noApprover, "domain")
	require.NoError(t, remove(w.owner))
}

func TestProtection_AppliesToNewValuesOfSecrets(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.setSecret("token", "one")
	for _, arg := range []string{"a", "b"} {
		w.deploy("chat", args(arg), withSecret("token"))
		w.settle("chat")
	}
	require.EqualValues(t, 2, w.app("chat").GetLiveVersion())
	w.protect(owners(1))
	w.setSecret("token", "two")
	require.EqualValues(t, 2, w.settle("chat").GetLiveVersion(), "the rollout of the new value waits")
	_, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 1})
	require.NoError(t, err)
	require.EqualValues(t, 2, w.settle("chat").GetLiveVersion(), "a rollback with the new value also waits")
	_, err = w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 1, WithSecrets: true})
	require.NoError(t, err)
	require.Greater(t, w.settle("chat").GetLiveVersion(), int32(2))
}
