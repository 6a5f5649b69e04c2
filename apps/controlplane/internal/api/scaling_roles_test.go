package api_test

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// rolesPolicy returns a policy for the roles of pooled. prefill is coupled to decode.
func rolesPolicy(edit ...func(*windlassv1.ScalingPolicy)) *windlassv1.ScalingPolicy {
	p := &windlassv1.ScalingPolicy{Roles: []*windlassv1.RoleScaling{
		{
			Role: "prefill", Max: 8, Initial: new(int32(3)), Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND, Target: "8"}},
			Couple: &windlassv1.ScalingCouple{Role: "decode", Ratio: []float64{0.5, 4}},
		},
		{
			Role: "decode", Min: new(int32(2)), Max: 8, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: "80"}},
			Overrides: []*windlassv1.ScalingOverride{{Regions: []string{"eu-west-1"}, Max: new(int32(20))}},
		},
	}}
	for _, f := range edit {
		f(p)
	}
	return p
}

// roleDecision returns a decision that is based on the pool's current state.
func (h *harness) roleDecision(region string, roles ...model.RescaledRole) model.Rescale {
	h.t.Helper()
	r := h.decision(region, 0)
	r.Decision = &windlassv1.RegionScaling{At: time.Now().UnixMilli()}
	r.Entries = nil
	for _, role := range roles {
		r.Decision.Roles = append(r.Decision.Roles, &windlassv1.RegionScaling{Role: role.Role, Replicas: role.From, Wanted: role.Wanted})
		r.Entries = append(r.Entries, model.ScalingEntry{What: "ScalingDecided", Why: "role " + role.Role + ": because"})
	}
	r.Roles = roles
	return r
}

func TestScalingRoles_CountsFollowDecisions(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0)))
		w.settle("chat")
		require.Equal(t, map[string]string{"us-east-1": "3 prefill 2 decode ", "eu-west-1": "3 prefill 2 decode "}, w.pool(1), "the roles begin with initial, or min")
		require.Equal(t, []string{w.regions["eu-west-1"]}, w.desired("chat", 1, "eu-west-1").Scaling.GetRoles()[1].GetOverrides()[0].GetRegionIds())

		app := w.scaledApp()
		require.Equal(t, model.RoleCounts{"prefill": 3, "decode": 2}, app.Regions[w.regions["eu-west-1"]].Roles)
		stale := w.roleDecision("eu-west-1", model.RescaledRole{Role: "decode", From: 2, Wanted: 7})
		require.NoError(t, w.api.Rescale(ctx, w.roleDecision("eu-west-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 4}, model.RescaledRole{Role: "decode", From: 2, Wanted: 6})))
		want := map[string]string{"us-east-1": "3 prefill 2 decode ", "eu-west-1": "4 prefill 6 decode "}
		require.Equal(t, want, w.pool(1))
		require.ErrorIs(t, w.api.Rescale(ctx, stale), model.ErrStale)
		wrong := w.roleDecision("eu-west-1", model.RescaledRole{Role: "decode", From: 5, Wanted: 7})
		require.ErrorIs(t, w.api.Rescale(ctx, wrong), model.ErrStale)
		require.Equal(t, want, w.pool(1))

		got := w.getScaling()
		require.Len(t, got.GetRegions(), 2)
		for i, role := range []string{"prefill", "decode"} {
			require.Equal(t, []any{"eu-west-1", role}, []any{got.GetRegions()[i].GetRegion(), got.GetRegions()[i].GetRole()})
		}
		require.EqualValues(t, 6, got.GetRegions()[1].GetWanted())

		// Deploys and new versions keep the counts.
		require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0)))
		require.EqualValues(t, 1, w.app("chat").GetLatestVersion())
		require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0), args("b")))
		w.settle("chat")
		require.Equal(t, want, w.pool(2))
		require.NoError(t, w.deployScaled(nil, pooled(0, 0), args("b")))
		require.Equal(t, want, w.pool(2))
		require.Nil(t, w.getScaling().GetPolicy())
	})
}

func TestScalingRoles_HoldAppliesToOneRole(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		hold := func(req *windlassv1.ScaleRequest) { req.HoldFor = durationpb.New(time.Hour) }
		end := func(req *windlassv1.ScaleRequest) { req.EndHold = true }
		require.NoError(t, w.deployScaled(rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles = p.Roles[1:] }), pooled(2, 0)))
		w.settle("chat")
		_, err := w.scaleRole("decode", 5, "")
		refused(t, err, connect.CodeFailedPrecondition, scaled, "replicas")
		require.Contains(t, err.Error(), "the instances of role decode of app chat follow the load")
		_, err = w.scaleRole("prefill", 4, "")
		require.NoError(t, err, "the role has no scaling")
		_, err = w.scaleRole("prefill", 5, "", hold)
		refused(t, err, connect.CodeInvalidArgument, invalid, "holdFor")
		_, err = w.scaleRole("decode", 5, "us-east-1", hold)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"us-east-1": "4 prefill 5 decode ", "eu-west-1": "4 prefill 2 decode "}, w.pool(1))
		held := w.getScaling().GetHolds()
		require.Len(t, held, 1)
		require.Equal(t, []any{"decode", "us-east-1", int32(5)}, []any{held[0].GetRole(), held[0].GetRegion(), held[0].GetReplicas()})
		require.ErrorIs(t, w.api.Rescale(ctx, w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 5, Wanted: 6})), model.ErrStale)
		require.NoError(t, w.api.Rescale(ctx, w.roleDecision("eu-west-1", model.RescaledRole{Role: "decode", From: 2, Wanted: 3})))

		res, err := w.scaleRole("decode", 0, "", end)
		require.NoError(t, err)
		require.False(t, res.GetUnchanged())
		require.Empty(t, w.getScaling().GetHolds())
		res, err = w.scaleRole("decode", 0, "", end)
		require.NoError(t, err)
		require.True(t, res.GetUnchanged())
		require.NoError(t, w.api.Rescale(ctx, w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 5, Wanted: 6})))

		// The pool as a whole does not follow the load.
		_, err = w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
		require.NoError(t, err)
	})
}

func TestScalingRoles_CallerComparesCounts(t *testing.T) {
	w := setup(t)
	w.deploy("chat", pooled(4, 2))
	w.settle("chat")
	current := func(n int32) func(*windlassv1.ScaleRequest) {
		return func(req *windlassv1.ScaleRequest) { req.CurrentReplicas = &n }
	}
	_, err := w.scaleRole("decode", 3, "us-east-1", current(2))
	require.NoError(t, err)
	_, err = w.scaleRole("decode", 4, "", current(2))
	refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "currentReplicas")
	require.Contains(t, err.Error(), "does not have 2 instances of role decode, but 3 in us-east-1")
	require.Equal(t, map[string]string{"us-east-1": "4 prefill 3 decode ", "eu-west-1": "4 prefill 2 decode "}, w.pool(1))
}

func TestScalingRoles_RolloutLosesNoInstances(t *testing.T) {
	w := setup(t)
	require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0)))
	w.settle("chat")
	_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{
		App: "chat", Spec: echo(pooled(0, 0), args("b")), Scaling: rolesPolicy(), Rollout: &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING},
	})
	require.NoError(t, err)
	require.NoError(t, w.stepper.Step(t.Context(), w.app("chat").GetId()))
	require.ErrorIs(t, w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 2})), model.ErrStale)
	require.NoError(t, w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 5})))
	w.settle("chat")
	require.Equal(t, map[string]string{"us-east-1": "5 prefill 2 decode ", "eu-west-1": "3 prefill 2 decode "}, w.pool(2))
}

func TestScalingRoles_GrowWithinQuotaAndGrant(t *testing.T) {
	w := setup(t, limited(model.Limits{Instances: 12}))
	require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0)))
	w.settle("chat")
	err := w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 2, Wanted: 5}))
	limitOf(t, err, overQuota, "instances")
	require.NoError(t, w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 2, Wanted: 4})))
	require.EqualValues(t, 12, w.usage().Instances)
	cost := w.scaledApp().Regions[w.regions["us-east-1"]].RoleCosts
	require.Equal(t, model.RoleCost{Instances: 1}, cost["decode"])
}

func TestScalingRoles_RefusalsHaveFieldAndFix(t *testing.T) {
	w := setup(t)
	role := func(i int, edit func(r *windlassv1.RoleScaling)) *windlassv1.ScalingPolicy {
		return rolesPolicy(func(p *windlassv1.ScalingPolicy) { edit(p.Roles[i]) })
	}
	pool := pooled(0, 0)
	for name, c := range map[string]struct {
		policy *windlassv1.ScalingPolicy
		spec   func(*windlassv1.DeploymentSpec)
		field  string
	}{
		"a pool without roles":  {scalingPolicy(), pool, "scaling"},
		"roles without a pool":  {rolesPolicy(), args("a"), "scaling.roles"},
		"both":                  {rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Max = 4 }), pool, "scaling.max"},
		"a missing role":        {role(0, func(r *windlassv1.RoleScaling) { r.Role = "router" }), pool, "scaling.roles[0].role"},
		"instances in the spec": {rolesPolicy(), pooled(0, 3), "spec.roles[1].instances"},
		"instances of a region": {rolesPolicy(), func(s *windlassv1.DeploymentSpec) {
			pool(s)
			s.Overrides = []*windlassv1.Override{{Regions: []string{"us-east-1"}, Roles: []*windlassv1.RoleOverride{{Name: "prefill", Instances: 2}}}}
		}, "spec.overrides[0].roles[0].instances"},
		"couple to a missing role": {role(0, func(r *windlassv1.RoleScaling) { r.Couple.Role = "router" }), pool, "scaling.roles[0].couple.role"},
		"couple to itself":         {role(0, func(r *windlassv1.RoleScaling) { r.Couple.Role = "prefill" }), pool, "scaling.roles[0].couple.role"},
		"a circle": {role(1, func(r *windlassv1.RoleScaling) {
			r.Couple = &windlassv1.ScalingCouple{Role: "prefill", Ratio: []float64{1, 2}}
		}), pool, "scaling.roles[0].couple.role"},
		"a region without the app": {role(1, func(r *windlassv1.RoleScaling) { r.Overrides[0].Regions = []string{"ap-south-1"} }), pool, "scaling.roles[1].overrides[0].regions[0]"},
		"an unknown variable": {role(1, func(r *windlassv1.RoleScaling) {
			r.Metrics = []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Query: "x{{nothing}}", Target: "1"}}
		}), pool, "scaling.roles[1].metrics[0].query"},
		"no Prometheus": {role(1, func(r *windlassv1.RoleScaling) {
			r.Metrics = []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Query: "x", Target: "1"}}
		}), pool, "scaling.roles[1].metrics[0].type"},
	} {
		t.Run(name, func(t *testing.T) {
			err := w.deployScaled(c.policy, c.spec)
			require.Error(t, err)
			detail := detailOf(err)
			require.Equal(t, c.field, detail.GetField())
			require.NotEmpty(t, detail.GetFix())
		})
	}
	// With mode advise, the file may set instances.
	require.NoError(t, w.deployScaled(rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Mode = windlassv1.ScalingPolicy_MODE_ADVISE }), pooled(2, 3)))
	w.settle("chat")
	require.Equal(t, map[string]string{"us-east-1": "2 prefill 3 decode ", "eu-west-1": "2 prefill 3 decode "}, w.pool(1))
}

func TestScalingRoles_NewRoleBeginsWithInitial(t *testing.T) {
	w := setup(t)
	require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0)))
	w.settle("chat")
	require.NoError(t, w.deployScaled(rolesPolicy(func(p *windlassv1.ScalingPolicy) {
		p.Roles[0].Couple.Role, p.Roles[1].Role, p.Roles[1].Initial = "dec", "dec", new(int32(4))
	}), pooled(0, 0), func(s *windlassv1.DeploymentSpec) { s.Roles[1].Name = "dec" }))
	w.settle("chat")
	require.Equal(t, map[string]string{"us-east-1": "3 prefill 4 dec ", "eu-west-1": "3 prefill 4 dec "}, w.pool(2))
}

// A rollout in place takes over the instances of the live version, and their counts.
func TestScalingRoles_CountsComeFromTheVersionThatTookOver(t *testing.T) {
	w := setup(t)
	require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0)))
	w.settle("chat")
	_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{
		App: "chat", Scaling: rolesPolicy(), Rollout: &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING},
		Spec: echo(pooled(0, 0), func(s *windlassv1.DeploymentSpec) { s.Roles[1].Args = []string{"b"} }),
	})
	require.NoError(t, err)
	require.NoError(t, w.stepper.Step(t.Context(), w.app("chat").GetId()))
	require.Equal(t, "3 prefill 2 decode ", w.pool(2)["us-east-1"], "v2 has taken over the instances")
	grow := w.roleDecision("us-east-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 5})
	require.NoError(t, w.api.Rescale(t.Context(), grow))
	require.Equal(t, "5 prefill 2 decode ", w.pool(2)["us-east-1"])
	require.EqualValues(t, 5, w.scaledApp().Regions[w.regions["us-east-1"]].Roles["prefill"])
	require.ErrorIs(t, w.api.Rescale(t.Context(), grow), model.ErrStale, "the decision is already written")
	lower := w.roleDecision("us-east-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 4})
	require.ErrorIs(t, w.api.Rescale(t.Context(), lower), model.ErrStale)
	require.Equal(t, "5 prefill 2 decode ", w.pool(2)["us-east-1"], "a rollout keeps its instances")
}

// host turns all regions into hosts. free is the number of free GPUs of each.
func (h *harness) host(free int32) {
	h.t.Helper()
	h.joined("process")
	capacity, err := proto.Marshal(&agentv1.Capacity{Gpus: []*agentv1.GpuPool{
		{Product: "L4", Allocatable: 8, Free: free, LargestFree: free, ResourceName: "nvidia.com/gpu", Hosts: 1},
	}})
	require.NoError(h.t, err)
	h.update(func(tx store.Tx) error {
		for _, id := range h.regions {
			session, err := tx.GetRegion(id)
			if err != nil {
				return err
			}
			session.SessionSequence, session.LastReportAt, session.Capacity = guards.Add(1), time.Now().UnixMilli(), capacity
			if err := tx.NoteReports([]model.Region{session}, 60_000); err != nil {
				return err
			}
		}
		return nil
	})
}

// exist makes the region report the given instances of each role of the live version.
func (h *harness) exist(region string, instances model.RoleCounts) {
	h.t.Helper()
	app := h.app("chat")
	rollup := &agentv1.DeploymentRollup{Groups: 100}
	for name, n := range instances {
		rollup.Roles = append(rollup.Roles, &agentv1.RoleRollup{Role: name, Instances: n, Ready: n, Pool: n})
	}
	h.update(func(tx store.Tx) error {
		seen, err := tx.ListObserved([]string{app.GetId()})
		if err != nil {
			return err
		}
		for i := range seen {
			if seen[i].RegionID == h.regions[region] {
				seen[i].Guard, seen[i].RoleCounts = model.NewGuard(1, guards.Add(1)), model.EncodeRoleCounts(rollup)
			}
		}
		return tx.PutObserved(seen)
	})
}

// existReplicas makes the region report the instances of the live version of an app without roles.
func (h *harness) existReplicas(region string, ready, draining int32) {
	h.t.Helper()
	app := h.app("chat")
	h.update(func(tx store.Tx) error {
		seen, err := tx.ListObserved([]string{app.GetId()})
		if err != nil {
			return err
		}
		for i := range seen {
			if seen[i].RegionID == h.regions[region] {
				seen[i].Guard, seen[i].Ready, seen[i].Draining = model.NewGuard(1, guards.Add(1)), ready, draining
			}
		}
		return tx.PutObserved(seen)
	})
}

func TestScalingRoles_GrowAsFarAsAHostHasRoom(t *testing.T) {
	// An instance of decode takes 2 GPUs, and one of prefill takes 1.
	withGPUs := func(s *windlassv1.DeploymentSpec) {
		s.Roles[0].Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1}}
		s.Roles[1].Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 2}}
	}
	fits := func(t *testing.T, err error) map[string]int32 {
		t.Helper()
		no, ok := errors.AsType[*model.NoRoomError](err)
		require.True(t, ok, "%v", err)
		return no.Fits
	}
	t.Run("GPUs go to the roles in their order", func(t *testing.T) {
		onBoth(t, func(t *testing.T, w *harness) {
			ctx := t.Context()
			require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0), withGPUs))
			w.settle("chat")
			w.host(4)
			w.exist("us-east-1", model.RoleCounts{"prefill": 3, "decode": 2})
			err := w.api.Rescale(ctx, w.roleDecision("us-east-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 6}, model.RescaledRole{Role: "decode", From: 2, Wanted: 3}))
			require.Equal(t, map[string]int32{"prefill": 6, "decode": 2}, fits(t, err))
			require.EqualError(t, err, "region us-east-1, which is one host, has GPUs for 0 of 1 more instances of role decode")
			require.NoError(t, w.api.Rescale(ctx, w.roleDecision("us-east-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 5}, model.RescaledRole{Role: "decode", From: 2, Wanted: 3})))

			// The added instances do not exist yet, so their GPUs are still reported as free.
			err = w.api.Rescale(ctx, w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 3, Wanted: 4}))
			require.Equal(t, map[string]int32{"decode": 3}, fits(t, err))
			require.NoError(t, w.api.Rescale(ctx, w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 3, Wanted: 2})))
		})
	})
	t.Run("a cluster may add nodes", func(t *testing.T) {
		w := setup(t)
		require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0), withGPUs))
		w.settle("chat")
		w.host(0)
		w.joined("kubernetes")
		require.NoError(t, w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 2, Wanted: 6})))
	})
	t.Run("a fixed port", func(t *testing.T) {
		w := setup(t)
		require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0), fixed(8000)), "no agent has joined yet")
		w.settle("chat")
		w.joined("process")
		err := w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 2, Wanted: 3}))
		require.Equal(t, map[string]int32{"decode": 2}, fits(t, err))
		require.EqualError(t, err, "port 8000 is fixed, and region us-east-1 is one host, which has it once")
		_, err = w.scaleRole("decode", 3, "us-east-1", func(req *windlassv1.ScaleRequest) { req.HoldFor = durationpb.New(time.Hour) })
		refused(t, err, connect.CodeFailedPrecondition, noCapacity, "replicas")
		_, err = w.scaleRole("decode", 1, "us-east-1", func(req *windlassv1.ScaleRequest) { req.HoldFor = durationpb.New(time.Hour) })
		require.NoError(t, err)
	})
	t.Run("replicas of an app", func(t *testing.T) {
		w := setup(t)
		require.NoError(t, w.deployScaled(scalingPolicy(), func(s *windlassv1.DeploymentSpec) {
			s.Replicas, s.Resources = nil, &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 2}}
		}))
		w.settle("chat")
		w.host(5)
		have := w.decision("us-east-1", 0).From
		err := w.api.Rescale(t.Context(), w.decision("us-east-1", have+3))
		require.Equal(t, map[string]int32{"": have + 2}, fits(t, err))
		require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", have+2)))
	})
	oneGPU := func(s *windlassv1.DeploymentSpec) {
		s.Replicas, s.Resources = nil, &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1}}
	}
	t.Run("replicas that stop free their GPUs", func(t *testing.T) {
		w := setup(t)
		require.NoError(t, w.deployScaled(scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Initial = new(int32(3)) }), oneGPU))
		w.settle("chat")
		w.host(0)
		require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", 2)))
		w.existReplicas("us-east-1", 2, 1)
		err := w.api.Rescale(t.Context(), w.decision("us-east-1", 5))
		require.Equal(t, map[string]int32{"": 3}, fits(t, err))
		require.EqualError(t, err, "region us-east-1, which is one host, has GPUs for 1 of 3 more replicas")
		w.host(1)
		err = w.api.Rescale(t.Context(), w.decision("us-east-1", 5))
		require.Equal(t, map[string]int32{"": 4}, fits(t, err), "one GPU is free, and the replica that stops has another one")
		w.host(0)
		require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", 3)))

		// The replica that stops is now counted as the third one.
		err = w.api.Rescale(t.Context(), w.decision("us-east-1", 4))
		require.Equal(t, map[string]int32{"": 3}, fits(t, err))
	})
	zero := scalingPolicy(func(p *windlassv1.ScalingPolicy) {
		p.Zero, p.Min, p.Initial = &windlassv1.ScaleToZero{}, new(int32(0)), new(int32(1))
	})
	t.Run("a replica that the agent has woken has its GPU", func(t *testing.T) {
		w := setup(t)
		require.NoError(t, w.deployScaled(zero, oneGPU, coldStart))
		w.settle("chat")
		w.host(0)
		require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", 0)))
		w.existReplicas("us-east-1", 0, 0)
		err := w.api.Rescale(t.Context(), w.decision("us-east-1", 1))
		require.Equal(t, map[string]int32{"": 0}, fits(t, err), "nothing runs, and another app has the GPU")
		w.existReplicas("us-east-1", 1, 0)
		require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", 1)))
	})
	t.Run("a replica that the agent has woken has its fixed port", func(t *testing.T) {
		w := setup(t)
		require.NoError(t, w.deployScaled(zero, oneGPU, coldStart, fixed(8000)))
		w.settle("chat")
		w.host(0)
		require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", 0)))
		w.existReplicas("us-east-1", 1, 0)
		require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", 1)))
		w.existReplicas("us-east-1", 1, 1)
		err := w.api.Rescale(t.Context(), w.decision("us-east-1", 2))
		require.Equal(t, map[string]int32{"": 1}, fits(t, err), "two replicas cannot use the port")
	})
	t.Run("instances of a role that stop free their GPUs for that role", func(t *testing.T) {
		w := setup(t)
		require.NoError(t, w.deployScaled(rolesPolicy(), pooled(0, 0), withGPUs))
		w.settle("chat")
		w.host(0)
		w.exist("us-east-1", model.RoleCounts{"prefill": 3, "decode": 3})
		err := w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "prefill", From: 3, Wanted: 4}, model.RescaledRole{Role: "decode", From: 2, Wanted: 3}))
		require.Equal(t, map[string]int32{"prefill": 3, "decode": 3}, fits(t, err))
		require.EqualError(t, err, "region us-east-1, which is one host, has GPUs for 0 of 1 more instances of role prefill")
		require.NoError(t, w.api.Rescale(t.Context(), w.roleDecision("us-east-1", model.RescaledRole{Role: "decode", From: 2, Wanted: 3})))
	})
}

func coldStart(s *windlassv1.DeploymentSpec) {
	s.Routing = &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
}

func TestScalingRoles_GoToZeroAndComeBackTogether(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		policy := rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Zero = &windlassv1.ScaleToZero{} })
		require.NoError(t, w.deployScaled(policy, pooled(0, 0), coldStart))
		w.settle("chat")
		us := w.regions["us-east-1"]
		zero, whole := new(int32(0)), new(int32(100))
		pool := func(n *int32, roles ...model.RescaledRole) model.Rescale {
			r := w.roleDecision("us-east-1", roles...)
			r.Pool = n
			return r
		}
		stale := pool(zero)
		require.NoError(t, w.api.Rescale(ctx, pool(zero, model.RescaledRole{Role: "prefill", From: 3, Wanted: 4})))
		require.ErrorIs(t, w.api.Rescale(ctx, stale), model.ErrStale)
		require.Equal(t, map[string]int32{"us-east-1": 0, "eu-west-1": 100}, w.sizes("chat", 1))
		item := w.desired("chat", 1, "us-east-1")
		require.Equal(t, []any{int32(0), int32(100), "decode=2,prefill=4"}, []any{item.Topology.Replicas, item.Topology.WakeTo(item.Deployment.Spec), item.Topology.Roles})
		app := w.scaledApp()
		require.Equal(t, []int32{0, 100}, []int32{app.Regions[us].Replicas, app.Regions[us].Counted}, "quotas count what a request starts")
		require.Equal(t, model.RoleCounts{"prefill": 4, "decode": 2}, app.Regions[us].Roles)
		require.ErrorIs(t, w.api.Rescale(ctx, pool(zero)), model.ErrStale, "the pool is at zero already")

		w.settle("chat")
		require.NoError(t, w.deployScaled(policy, pooled(0, 0), coldStart, args("b")))
		w.settle("chat")
		require.Equal(t, map[string]int32{"us-east-1": 0, "eu-west-1": 100}, w.sizes("chat", 2), "a deploy starts nothing")
		require.NoError(t, w.api.Rescale(ctx, pool(whole, model.RescaledRole{Role: "decode", From: 2, Wanted: 3})))
		require.Equal(t, map[string]int32{"us-east-1": 100, "eu-west-1": 100}, w.sizes("chat", 2))
		require.Equal(t, map[string]string{"us-east-1": "4 prefill 3 decode ", "eu-west-1": "3 prefill 2 decode "}, w.pool(2))

		_, err := w.scaleRole("decode", 5, "", func(req *windlassv1.ScaleRequest) { req.HoldFor = durationpb.New(time.Hour) })
		require.NoError(t, err)
		require.ErrorIs(t, w.api.Rescale(ctx, pool(zero)), model.ErrStale, "a person holds a role")
	})
}

func TestScalingRoles_ZeroNeedsColdStart(t *testing.T) {
	w := setup(t)
	policy := rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Zero = &windlassv1.ScaleToZero{} })
	err := w.deployScaled(policy, pooled(0, 0))
	refused(t, err, connect.CodeInvalidArgument, invalid, "scaling.zero")
	require.ErrorContains(t, err, "at zero, requests would fail")
	policy.Zero.WakeTo = 2
	err = w.deployScaled(policy, pooled(0, 0), coldStart)
	refused(t, err, connect.CodeInvalidArgument, invalid, "scaling.zero.wakeTo")

	// A pool without scaling goes to zero by hand.
	w.deploy("chat", pooled(2, 1), coldStart)
	w.settle("chat")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
	require.NoError(t, err)
	item := w.desired("chat", 1, "us-east-1")
	require.EqualValues(t, 100, item.Topology.WakeTo(item.Deployment.Spec))
}
