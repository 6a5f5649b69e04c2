package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestQuota_RefusesOnlyGrowthBeyondTheLimit(t *testing.T) {
	limits := model.Limits{Apps: 3, Deployments: 3, Instances: 10, GPUs: 8, Rollouts: 2}
	app := func(instances, gpus, rollouts int64) model.Usage {
		return model.Usage{Apps: 1, Deployments: 1, Instances: instances, GPUs: gpus, Rollouts: rollouts}
	}
	none := model.Usage{}
	for name, c := range map[string]struct {
		limits                model.Limits
		others, before, after model.Usage
		refused               *Refusal
	}{
		"the first app":                   {limits: limits, after: app(10, 8, 1)},
		"exactly at the limit":            {limits: limits, others: model.Usage{Instances: 4, GPUs: 6}, after: app(6, 2, 1)},
		"no limits":                       {others: model.Usage{Apps: 1e6, Instances: 1e9}, after: app(1e9, 1e9, 1)},
		"one app too many":                {limits: limits, others: model.Usage{Apps: 3}, after: app(1, 0, 1), refused: &Refusal{Limit: "apps", Max: 3, Used: 3, Asked: 1}},
		"an existing app":                 {limits: limits, others: model.Usage{Apps: 5}, before: app(1, 0, 0), after: app(2, 0, 1)},
		"one deployment too many":         {limits: limits, others: model.Usage{Deployments: 3}, before: model.Usage{Apps: 1}, after: app(1, 0, 1), refused: &Refusal{Limit: "deployments", Max: 3, Used: 3, Asked: 1}},
		"one instance too many":           {limits: limits, others: model.Usage{Instances: 8}, before: app(2, 0, 0), after: app(3, 0, 0), refused: &Refusal{Limit: "instances", Max: 10, Used: 10, Asked: 1}},
		"one GPU too many":                {limits: limits, others: model.Usage{GPUs: 5}, after: app(1, 4, 0), refused: &Refusal{Limit: "gpus", Max: 8, Used: 5, Asked: 4}},
		"one rollout too many":            {limits: limits, others: model.Usage{Rollouts: 2}, before: app(1, 0, 0), after: app(1, 0, 1), refused: &Refusal{Limit: "rollouts", Max: 2, Used: 2, Asked: 1}},
		"a rollout that replaces another": {limits: limits, others: model.Usage{Rollouts: 5}, before: app(1, 0, 1), after: app(1, 0, 1)},
		"less, above the limit":           {limits: limits, others: model.Usage{Instances: 50}, before: app(9, 0, 0), after: app(8, 0, 0)},
		"no change, above the limit":      {limits: limits, others: model.Usage{Instances: 50, GPUs: 90}, before: app(9, 9, 1), after: app(9, 9, 1)},
		"more GPUs by fewer instances":    {limits: limits, others: model.Usage{Instances: 50}, before: app(9, 0, 0), after: app(1, 9, 0), refused: &Refusal{Limit: "gpus", Max: 8, Used: 0, Asked: 9}},
		"gone":                            {limits: limits, others: model.Usage{Apps: 9}, before: app(1, 1, 1), after: none},
	} {
		r := Check(c.limits, c.others, c.before, c.after)
		if c.refused == nil {
			require.Nil(t, r, name)
			continue
		}
		require.NotNil(t, r, name)
		require.NotEmpty(t, r.What)
		r.What = ""
		require.Equal(t, c.refused, r, name)
	}
	require.False(t, Counted(model.Limits{StartsPerMinute: 1}))
	require.True(t, Counted(model.Limits{Rollouts: 1}))
}

func TestUsage_CountsEachHostOfAnInstance(t *testing.T) {
	spec := &windlassv1.DeploymentSpec{Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 8}}, Roles: []*windlassv1.RoleSpec{
		{Name: "router", Resources: &windlassv1.Resources{}}, {Name: "decode", Instances: 2, Hosts: 4},
	}}
	instances, gpus := Of(spec, 3)
	require.EqualValues(t, 3*(1+2*4), instances)
	require.EqualValues(t, 3*2*4*8, gpus)
}

func TestCeiling_CanBeUsedFor10sBelowEveryLimit(t *testing.T) {
	const now, second = int64(1_000_000_000_000), int64(1_000_000)
	limits := model.Limits{Apps: 10, Instances: 20}
	before, after := model.Usage{Apps: 1, Instances: 4}, model.Usage{Apps: 1, Instances: 8}
	at := func(countedAt, instances int64) model.Ceiling {
		return model.Ceiling{CountedAt: countedAt, Usage: model.Usage{Apps: 3, Instances: instances}}
	}
	for name, c := range map[string]struct {
		ceiling model.Ceiling
		holds   bool
	}{
		"below the limit":       {at(now, 16), true},
		"above the limit":       {at(now, 17), false},
		"counted 9 s ago":       {at(now-9*second, 16), true},
		"counted 10 s ago":      {at(now-10*second, 16), false},
		"counted in the future": {at(now+1, 16), false},
		"not counted yet":       {at(0, 0), false},
	} {
		require.Equal(t, c.holds, Holds(c.ceiling, now, limits, before, after), name)
	}
	require.Equal(t, model.Usage{Apps: 3, Instances: 20}, at(now, 16).Grown(before, after))
	require.Equal(t, model.Usage{Apps: 3, Instances: 16}, at(now, 16).Grown(after, before), "only a new sum finds usage that ended")
}

func TestRefusal_HasTheLimitTheUsageAndTheRequest(t *testing.T) {
	r := Check(model.Limits{GPUs: 8}, model.Usage{GPUs: 6}, model.Usage{GPUs: 1}, model.Usage{GPUs: 4})
	require.Equal(t, "the workspace may have 8 GPUs: it has 7, and this call asks for 3 more", r.String())
}

func TestLimits_OfAWorkspaceReplaceTheDefaults(t *testing.T) {
	ours := model.Limits{Apps: 1, Deployments: 2, Instances: 3, GPUs: 4, Rollouts: 5, StartsPerMinute: 6, StartsBurst: 7}
	require.Equal(t, ours, InForce(ours, model.NoLimitsOfItsOwn))
	own := model.Limits{Apps: 10, Deployments: 20, Instances: 30, GPUs: 40, Rollouts: 50, StartsPerMinute: 60, StartsBurst: 70}
	require.Equal(t, own, InForce(ours, own))
	own = model.NoLimitsOfItsOwn
	own.GPUs = 0
	require.Zero(t, InForce(ours, own).GPUs)
	require.Equal(t, ours.Apps, InForce(ours, own).Apps)
}

func TestQuota_CountsAnAppsLargerVersion(t *testing.T) {
	const east, west = "reg_e", "reg_w"
	spec := func(replicas int32, gpus int32, regions ...string) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{Replicas: &replicas, Regions: regions, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: gpus}}}
	}
	row := func(d, region string, replicas int32, s windlassv1.TopologyStatus) model.Topology {
		return model.Topology{DeploymentID: d, RegionID: region, Replicas: replicas, Status: s}
	}
	const (
		starting = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING
		started  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
		stopping = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
	)
	live := &model.Deployment{ID: "live", Spec: spec(2, 1, "e", "w")}
	next := &model.Deployment{ID: "next", Spec: spec(3, 4, "e")}
	roles := &model.Deployment{ID: "next", Spec: spec(2, 8, "e")}
	roles.Spec.Roles = []*windlassv1.RoleSpec{
		{Name: "leader"}, {Name: "worker", Instances: 3, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 2}}},
	}
	differs := &model.Deployment{ID: "next", Spec: spec(3, 4, "e", "w")}
	differs.Spec.PinnedOverrides = []*windlassv1.PinnedOverride{{Region: "w", RegionId: west, Values: &windlassv1.Override{
		Replicas: new(int32(5)), Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 8, Pool: "l4"}},
	}}}
	sleeping := &model.Deployment{ID: "live", Spec: spec(0, 4, "e", "w")}
	sleeping.Spec.Routing = &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
	running := []model.Topology{row("live", east, 5, started), row("live", west, 1, starting)}
	for name, c := range map[string]struct {
		live, next      *model.Deployment
		rows            []model.Topology
		instances, gpus int64
	}{
		"nothing":                             {},
		"not placed yet":                      {next: next, instances: 3, gpus: 12},
		"live, scaled in one region":          {live: live, rows: running, instances: 6, gpus: 6},
		"an update with more GPUs":            {live: live, next: next, rows: running, instances: 6, gpus: 12},
		"an update that is placed":            {live: live, next: next, rows: append([]model.Topology{row("next", east, 9, starting)}, running...), instances: 9, gpus: 36},
		"a stopping row does not count":       {live: live, rows: []model.Topology{row("live", east, 2, started), row("live", west, 2, stopping)}, instances: 2, gpus: 2},
		"rows of ended versions do not count": {live: live, rows: append([]model.Topology{row("old", east, 50, started)}, running...), instances: 6, gpus: 6},
		"regions that differ":                 {next: differs, instances: 3 + 5, gpus: 3*4 + 5*8},
		"regions that differ, placed":         {next: differs, rows: []model.Topology{row("next", east, 1, starting), row("next", west, 2, started)}, instances: 3, gpus: 4 + 16},
		"none, without a cold start":          {live: live, rows: []model.Topology{row("live", east, 0, started)}},
		"at zero, where requests start 1":     {live: sleeping, rows: []model.Topology{row("live", east, 0, started), row("live", west, 3, started)}, instances: 4, gpus: 16},
		"at zero, not placed yet":             {next: sleeping, instances: 2, gpus: 8},
		"roles":                               {next: roles, instances: 8, gpus: 2 * (8 + 3*2)},
	} {
		got := Claim(model.App{ID: "app_1", LiveDeploymentID: "l", RolloutID: "r", WorkspaceID: "ws_1"}, c.live, c.next, c.rows)
		require.Equal(t, model.Claim{
			AppID: "app_1", WorkspaceID: "ws_1", LiveDeploymentID: "l", RolloutID: "r", Instances: c.instances, GPUs: c.gpus,
		}, got, name)
	}
}

func TestRate_StartsWithTheBurst(t *testing.T) {
	rate := RateOf(model.Limits{StartsPerMinute: 120, StartsBurst: 5})
	const second = int64(1_000_000)
	fullAt, taken := int64(0), 0
	for now := 1000 * second; now < 1060*second; now += second / 10 {
		for {
			after, wait := rate.Take(fullAt, now)
			if wait > 0 {
				require.Zero(t, rate.Left(fullAt, now))
				// A token is available exactly then, and not 1 us earlier.
				_, early := rate.Take(fullAt, now+wait.Microseconds()-1)
				require.Positive(t, early)
				_, then := rate.Take(fullAt, now+wait.Microseconds())
				require.Zero(t, then)
				break
			}
			require.Equal(t, rate.Left(fullAt, now)-1, rate.Left(after, now))
			fullAt = after
			taken++
		}
	}
	require.InDelta(t, 5+119, taken, 1)
}

func TestBucket_OfAClockThatWasAheadIsEmpty(t *testing.T) {
	rate := RateOf(model.Limits{StartsPerMinute: 60})
	require.EqualValues(t, 60, rate.Burst, "the default is the rate of a minute")
	_, wait := rate.Take(1<<50, 1_000_000)
	require.Equal(t, time.Second, wait)
	require.EqualValues(t, 60, rate.Left(0, 1_000_000))
}

func TestRate_UnlimitedPassesEverything(t *testing.T) {
	rate := RateOf(model.Limits{StartsBurst: 3})
	require.False(t, rate.Limited())
	_, wait := rate.Take(1<<50, 0)
	require.Zero(t, wait)
	require.EqualValues(t, -1, rate.Left(0, 0))
}

func TestLimiter_RefusesFromItsCopyAndLetsOneCallASecondThrough(t *testing.T) {
	const ms = int64(1000)
	rate := RateOf(model.Limits{StartsPerMinute: 6, StartsBurst: 2})
	g := NewLimiter()
	now := int64(1e12)
	enter := func(id string) time.Duration {
		_, wait := g.Enter(id, now)
		return wait
	}
	for range 100 {
		require.Zero(t, enter("ws"), "the limiter does not know the workspace")
	}
	g.Learn("ws", rate, 10*time.Second, now) // one token is taken
	require.Zero(t, enter("ws"))
	require.Equal(t, 10*time.Second, enter("ws"))
	require.Zero(t, enter("another"))
	g.Leave("ws")
	require.Zero(t, enter("ws"), "the token was given back")

	now += 999 * ms
	require.Positive(t, enter("ws"))
	now += 2 * ms
	require.Zero(t, enter("ws"), "one call is let through")
	require.Positive(t, enter("ws"), "only one call is let through")
	g.Learn("ws", rate, 20*time.Second, now)
	require.Equal(t, 10*time.Second, enter("ws"))
	g.Learn("ws", Rate{}, 0, now)
	require.Zero(t, enter("ws"), "the limit was removed")
}

func TestLimiter_MemoryIsBounded(t *testing.T) {
	g := NewLimiter()
	rate := RateOf(model.Limits{StartsPerMinute: 60})
	for i := range maxWorkspaces + 10 {
		g.Learn(string(rune('a'+i%26))+time.Duration(i).String(), rate, time.Second, 0)
	}
	require.Len(t, g.workspaces, maxWorkspaces)
	g.Learn("late", rate, time.Second, 2_000_000)
	require.Len(t, g.workspaces, 1, "the other buckets are full by now")
}
