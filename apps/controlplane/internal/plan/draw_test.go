package plan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// allowedPolicy returns the policy, with strategy rolling in place of inPlace for a pool, because the API refuses inPlace for
// pools.
func allowedPolicy(p *windlassv1.RolloutPolicy, pooled bool) *windlassv1.RolloutPolicy {
	if pooled && p.GetStrategy() == windlassv1.RolloutPolicy_STRATEGY_IN_PLACE {
		p.Strategy = windlassv1.RolloutPolicy_STRATEGY_ROLLING
	}
	return p
}

func drawPolicy(t *rapid.T) *windlassv1.RolloutPolicy {
	amount := rapid.SampledFrom([]string{"", "0", "1", "2", "25%", "100%"})
	policy := &windlassv1.RolloutPolicy{
		Strategy: rapid.SampledFrom(strategy.All()).Draw(t, "strategy"),
		MaxSurge: amount.Draw(t, "surge"), MaxUnavailable: amount.Draw(t, "unavailable"),
	}
	if policy.Strategy == windlassv1.RolloutPolicy_STRATEGY_CANARY {
		pause := rapid.SampledFrom([]string{"", "20s", "1m", strategy.Manual})
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			step := &windlassv1.CanaryStep{Weight: rapid.Int32Range(0, 100).Draw(t, "weight"), Pause: pause.Draw(t, "pause")}
			if step.Weight == 0 {
				step.Replicas = rapid.Int32Range(1, 5).Draw(t, "replicas")
			}
			if step.Pause != strategy.Manual {
				step.Approval = drawApproval(t)
			}
			policy.Steps = append(policy.Steps, step)
		}
	}
	if policy.Strategy == windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN {
		policy.InitialWeight = rapid.SampledFrom([]int32{0, 0, 1, 50, 99}).Draw(t, "initial weight")
		policy.Promotion = rapid.SampledFrom([]string{"", "auto", "auto after 1m", strategy.Manual}).Draw(t, "promotion")
		if policy.Promotion != strategy.Manual {
			policy.Approval = drawApproval(t)
		}
		policy.Retain = durationpb.New(time.Duration(rapid.IntRange(0, 300).Draw(t, "retain")) * time.Second)
	}
	wave := func(regions ...string) *windlassv1.Wave {
		return &windlassv1.Wave{
			Regions: regions, MaxParallel: rapid.Int32Range(0, 2).Draw(t, "parallel"),
			BakeTime:      durationpb.New(time.Duration(rapid.IntRange(0, 120).Draw(t, "bake")) * time.Second),
			OnFailure:     windlassv1.Wave_OnFailure(rapid.Int32Range(0, 3).Draw(t, "on failure")),
			OnUnreachable: windlassv1.Wave_OnUnreachable(rapid.Int32Range(0, 3).Draw(t, "on unreachable")),
			Approval:      drawApproval(t),
		}
	}
	policy.Analysis = drawAnalysis(t)
	if rapid.Bool().Draw(t, "waits for capacity") {
		policy.WaitForCapacity = durationpb.New(time.Duration(rapid.Int64Range(1, 2*deadline).Draw(t, "capacity")) * time.Millisecond)
	}
	drawLimits(t, policy)
	switch rapid.IntRange(0, 2).Draw(t, "waves") {
	case 1:
		policy.Waves = []*windlassv1.Wave{wave("eu"), wave()}
	case 2:
		policy.Waves = []*windlassv1.Wave{wave("us"), wave("ap"), wave()}
	}
	return policy
}

func TestDrawPolicy_HasEveryFieldOfItsStrategy(t *testing.T) {
	drawn := map[string]bool{}
	for seed := range 1000 {
		p := rapid.Custom(drawPolicy).Example(seed)
		p.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			drawn[strategy.Name(p)+" "+f.JSONName()] = true
			return true
		})
	}
	for _, s := range strategy.All() {
		p := &windlassv1.RolloutPolicy{Strategy: s}
		for _, field := range strategy.Of(p).Fields() {
			require.True(t, drawn[strategy.Name(p)+" "+field], "drawPolicy leaves out %s of %s", field, strategy.Name(p))
		}
	}
}

// drawApproval draws a gate, or none.
func drawApproval(t *rapid.T) *windlassv1.Approval {
	if rapid.IntRange(0, 3).Draw(t, "gate") != 0 {
		return nil
	}
	return &windlassv1.Approval{
		Role:  rapid.SampledFrom([]windlassv1.Role{0, windlassv1.Role_ROLE_DEPLOYER, windlassv1.Role_ROLE_OWNER}).Draw(t, "role"),
		Count: rapid.Int32Range(0, 2).Draw(t, "approvals"), NotDeployer: rapid.Bool().Draw(t, "not who deployed"),
	}
}

// drawLimits draws for which failures the policy goes back, and how long it waits.
func drawLimits(t *rapid.T, policy *windlassv1.RolloutPolicy) {
	switch rapid.IntRange(0, 5).Draw(t, "auto rollback") {
	case 0:
		policy.AutoRollback = &windlassv1.AutoRollback{Enabled: new(false)}
	case 1:
		policy.AutoRollback = &windlassv1.AutoRollback{Conditions: rapid.SliceOfNDistinct(rapid.SampledFrom([]windlassv1.AutoRollback_Condition{
			onCrash, onImage, onUnschedulable, onProgress, onAnalysis, onUnreachable, onHealth,
		}), 1, 3, rapid.ID[windlassv1.AutoRollback_Condition]).Draw(t, "on")}
	}
	if rapid.IntRange(0, 2).Draw(t, "amounts") == 0 {
		if policy.AutoRollback == nil {
			policy.AutoRollback = &windlassv1.AutoRollback{}
		}
		amount := rapid.SampledFrom([]string{"", "1", "2", "50%", "100%"})
		policy.AutoRollback.FailedInstances, policy.AutoRollback.Unhealthy = amount.Draw(t, "failed"), amount.Draw(t, "unhealthy")
		policy.AutoRollback.UnhealthyFor = durationpb.New(time.Duration(rapid.IntRange(1, 120).Draw(t, "unhealthy for")) * time.Second)
	}
	if rapid.IntRange(0, 2).Draw(t, "deadlines") != 0 {
		return
	}
	limit := func(name string) *durationpb.Duration {
		if rapid.Bool().Draw(t, name) {
			return nil
		}
		return durationpb.New(time.Duration(rapid.IntRange(1, 300).Draw(t, name)) * time.Second)
	}
	policy.Deadlines = &windlassv1.Deadlines{Progress: limit("progress"), Image: limit("image"), Crash: limit("crash")}
	if policy.WaitForCapacity == nil {
		policy.Deadlines.Unschedulable = limit("unschedulable")
	}
}

// deployDrawnPool makes the spec a pool. It draws which roles differ from the live version, or from the newest version.
func (f *stagedSimulation) deployDrawnPool(s *windlassv1.DeploymentSpec) {
	size := rapid.SampledFrom([]int32{0, pool.Whole, pool.Whole, pool.Whole})
	s.Replicas, s.MinReady = new(size.Draw(f.t, "size of the pool")), 0
	for _, p := range s.GetPinnedOverrides() {
		override.SetReplicas(s, p.GetRegion(), p.GetRegionId(), size.Draw(f.t, "size of the pool of "+p.GetRegion()))
	}
	s.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_Order(rapid.IntRange(0, len(windlassv1.PoolUpdate_Order_name)-1).Draw(f.t, "order"))}
	if rapid.Bool().Draw(f.t, "makes room") {
		s.Update.WhenFull = windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE
	}
	base := f.app.LiveDeploymentID
	if newest := f.deps[len(f.deps)-1]; model.IsPooled(newest.Spec) && rapid.Bool().Draw(f.t, "differs from the newest version") {
		base = newest.ID
	}
	id := f.deployPoolOn(s, rapid.SampledFrom([]string{"", "decode", "prefill", "prefill, decode"}).Draw(f.t, "roles that differ"), base)
	f.bad[id] = rapid.IntRange(0, 3).Draw(f.t, "bad version") == 0
	f.poor[id] = rapid.IntRange(0, 3).Draw(f.t, "poor version") == 0
}

// deployStaged draws a version, and whether its instances are made like those of the live version.
func (f *stagedSimulation) deployStaged() {
	regions := rapid.SampledFrom([][]string{{"ap", "eu", "us"}, {"eu", "us"}, {"us"}, {"ap", "us"}}).Draw(f.t, "regions")
	s := spec(rapid.Int32Range(0, 4).Draw(f.t, "replicas"), regions...)
	s.ProgressDeadline = durationpb.New(time.Duration(deadline) * time.Millisecond)
	s.MinReady = rapid.Int32Range(0, 2).Draw(f.t, "min ready")
	for _, r := range regions {
		if rapid.IntRange(0, 4).Draw(f.t, "own size") == 0 {
			override.SetReplicas(s, r, r, rapid.Int32Range(0, 4).Draw(f.t, "size of "+r))
		}
	}
	if rapid.IntRange(0, 3).Draw(f.t, "new policy") == 0 {
		f.rolloutState.Policy = allowedPolicy(drawPolicy(f.t), f.pool)
	}
	s.Routing = &windlassv1.RoutingPolicy{QueueSize: new(f.app.LatestVersion + 1)}
	if rapid.IntRange(0, 2).Draw(f.t, "cold start") == 0 {
		s.Routing.ColdStart = &windlassv1.ColdStart{}
	}
	if f.pool {
		f.deployDrawnPool(s)
		return
	}
	live := f.app.LiveDeploymentID
	alike := rapid.IntRange(0, 2).Draw(f.t, "made alike") == 0
	deploy := f.deploy
	switch {
	case alike && live != "":
		s.Roles = f.deps[f.index(live)].Spec.GetRoles()
	case rapid.IntRange(0, 2).Draw(f.t, "several roles") == 0:
		groups(s)
	}
	if alike {
		deploy = f.deployAlike
	}
	id := deploy(s)
	if rapid.Bool().Draw(f.t, "other size") {
		f.rolloutState.Progress.Replicas = s.GetReplicas()
	}
	if alike {
		f.bad[id] = f.bad[live]
	} else {
		f.bad[id] = rapid.IntRange(0, 3).Draw(f.t, "bad version") == 0
	}
	f.poor[id] = rapid.IntRange(0, 3).Draw(f.t, "poor version") == 0
}
