package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestFreezesAndGates asserts that a rollout that waits for a time or for people keeps waiting while the
// control plane is killed, and goes on by itself afterwards.
func TestFreezesAndGates(t *testing.T) { //nolint:tparallel // its subtests share one stack, and kill in it
	t.Parallel()
	s := newStack(t, stackConfig{})
	require.True(t, t.Run("a freeze refuses a deploy, and an owner overrides it", func(t *testing.T) { testFreezeRefuses(t, s) }))
	require.True(t, t.Run("a freeze holds a deploy until it is over", func(t *testing.T) { testFreezeHolds(t, s) }))
	require.True(t, t.Run("a gate waits for the right role", func(t *testing.T) { testGate(t, s) }))
}

func testFreezeRefuses(t *testing.T, s *stack) {
	const app = "refused"
	s.deployReady(t, app, spec(label("v1")))
	c := s.cli(t)
	require.Regexp(t, `audit +app default/production/refused +refused +in force`, c.ok("freeze", "set", "audit", "--reason", "the auditors are here", "--app", app))
	deploy := &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: spec(label("v2"))}
	_, err := s.owner.apps.Deploy(t.Context(), deploy)
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_FROZEN, reasonOf(err), "%v", err)
	require.ErrorContains(t, err, "freeze audit of the app, until it is lifted: the auditors are here")
	refused := c.run("", "env", "set", app, "GREETING=hi")
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, "the auditors are here")
	// A freeze does not prevent scaling.
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 2})
	s.urls(t, app, 4)

	deploy.Mutation, deploy.OverrideFreeze, deploy.Spec.Replicas = mutation(), "incident 4711", new(int32(2))
	must(t, s.owner.apps.Deploy, deploy)
	s.waitLive(t, app, 2)
	require.Regexp(t, `FreezeOverridden.*incident 4711; in spite of freeze audit`, c.ok("history", app))
	c.ok("freeze", "lift", "audit")
	require.NotContains(t, c.ok("freeze", "list"), "audit")
}

func testFreezeHolds(t *testing.T, s *stack) {
	const app = "held"
	s.deployReady(t, app, spec(label("v1")))
	before := s.runningOf(app)
	c := s.cli(t)
	c.ok("freeze", "set", "christmas", "--reason", "the office is closed", "--hold")
	v2 := s.deploy(t, app, spec(label("v2")))
	require.Equal(t, "christmas", v2.GetHold().GetFreeze())
	held := func(what string, is func(*windlassv1.FreezeHold) bool) {
		t.Helper()
		s.eventually(t, what, func(context.Context) error {
			r := s.rolloutOf(t, v2.RolloutId)
			if h := r.GetHold(); h == nil || !is(h) {
				return fmt.Errorf("it is %s, and held by %v", r.Status, h)
			}
			return nil
		})
	}
	held("it is held", func(h *windlassv1.FreezeHold) bool { return h.Until == 0 })
	require.Contains(t, c.ok("rollout", "status", app), "held by freeze christmas of the workspace, until it is lifted: the office is closed")
	require.Contains(t, c.ok("status", app), "v2 is held by freeze christmas")
	requireSame(t, before, s.runningOf(app), "the live version was touched")

	// The freeze gets an end, which takes effect without a call.
	f := must(t, s.owner.freezes.SetFreeze, &windlassv1.SetFreezeRequest{
		Mutation: mutation(), Name: "christmas", Reason: "the office is closed", OnStart: windlassv1.Freeze_ON_START_HOLD,
		Until: time.Now().Add(10 * time.Second).UnixMilli(),
	}).Freeze
	held("it has an end", func(h *windlassv1.FreezeHold) bool { return h.Until == f.Until })
	s.kill9(partControlPlane)
	s.eventually(t, "the freeze is over", func(context.Context) error {
		if left := time.Until(time.UnixMilli(f.Until)); left >= 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	requireSame(t, before, s.runningOf(app), "nothing begins without a control plane")
	s.start(partControlPlane)
	s.waitLive(t, app, 2)
	history := must(t, s.owner.history.ListHistory, &windlassv1.ListHistoryRequest{App: named(app)})
	var released bool
	for _, h := range history.Entries {
		if h.What == "RolloutReleased" {
			released = true
			require.GreaterOrEqual(t, h.At, f.Until, h.Why)
			t.Logf("it went on %s after the freeze was over", time.Duration(h.At-f.Until)*time.Millisecond)
		}
	}
	require.True(t, released)
	must(t, s.owner.freezes.LiftFreeze, &windlassv1.LiftFreezeRequest{Mutation: mutation(), Name: "christmas"})
}

func testGate(t *testing.T, s *stack) {
	const app = "gated"
	policy := euThenUs()
	policy.Strategy = windlassv1.RolloutPolicy_STRATEGY_CANARY
	policy.Steps = []*windlassv1.CanaryStep{{Weight: 50, Approval: &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER, NotDeployer: true}}}
	policy.Waves[1].Approval = &windlassv1.Approval{Role: windlassv1.Role_ROLE_DEPLOYER}
	keys := map[string]*client{}
	workspace := must(t, s.owner.access.WhoAmI, &windlassv1.WhoAmIRequest{}).Key.WorkspaceId
	for name, role := range map[string]windlassv1.Role{"dora": windlassv1.Role_ROLE_DEPLOYER, "olga": windlassv1.Role_ROLE_OWNER} {
		made := must(t, newClient(s.url, s.keys.OperatorKey).access.CreateApiKey, &windlassv1.CreateApiKeyRequest{Mutation: mutation(), Name: name, Role: role, Workspace: workspace})
		keys[name] = newClient(s.url, made.Value)
	}
	approve := func(by *client) error {
		_, err := persist(t.Context(), by.rollouts.Approve, &windlassv1.ApproveRequest{Mutation: mutation(), App: named(app), Comment: "it answers as before"})
		return err
	}
	v1 := s.deployBy(t, app, spec(replicas(2), label("v1")), policy)
	s.waitLive(t, app, 1)
	v2 := s.deployBy(t, app, spec(replicas(2), label("v2")), policy)
	waits := func(region string) {
		t.Helper()
		s.eventually(t, region+" waits for approval", func(context.Context) error {
			for _, w := range s.rolloutOf(t, v2.RolloutId).GetProgress().GetWaves() {
				for _, g := range w.Regions {
					if g.Region == region && g.GetApproval().GetMissing() != "" {
						return nil
					}
				}
			}
			return errors.New("it does not")
		})
	}
	c := s.cli(t)
	waits(eu)
	require.Contains(t, c.ok("rollout", "status", app), "waits for approval by a key of role owner (not by ")
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v1.DeploymentId: 50, v2.DeploymentId: 50})
	_, err := s.owner.rollouts.Promote(t.Context(), &windlassv1.PromoteRequest{Mutation: mutation(), App: named(app)})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_APPROVAL_NEEDED, reasonOf(err), "%v", err)
	for name, by := range map[string]*client{"a deployer": keys["dora"], "who deployed": s.owner} {
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NOT_AN_APPROVER, reasonOf(approve(by)), name)
	}
	// A restart of the control plane does not end the wait for people.
	s.restart(partControlPlane)
	waits(eu)
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v1.DeploymentId: 50, v2.DeploymentId: 50})
	for range 2 {
		require.NoError(t, approve(keys["olga"]), "a repeated approval counts once")
	}
	waits(us)
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v2.DeploymentId: 100})
	s.requireRouted(t, us, v1.AppId, map[string]int32{v1.DeploymentId: 50, v2.DeploymentId: 50})
	require.NoError(t, approve(keys["olga"]))
	s.eventually(t, "the last wave's end waits for approval", func(context.Context) error {
		waves := s.rolloutOf(t, v2.RolloutId).GetProgress().GetWaves()
		if waves[len(waves)-1].GetApproval().GetMissing() == "" {
			return errors.New("it does not")
		}
		return nil
	})
	require.Contains(t, c.ok("rollout", "status", app), "waits for approval by a key of role deployer: windlass rollout approve "+app)
	c.ok("rollout", "approve", app, "--comment", "all of it answers as before")
	s.waitLive(t, app, 2)
	require.Regexp(t, `Approved.*all of it answers as before`, c.ok("history", app))
	require.Regexp(t, `olga.*Approved|Approved.*olga`, c.ok("history", app))
}
