package forecast

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const start = int64(1_000_000)

func spec(replicas int32, regions ...string) *windlassv1.DeploymentSpec {
	return &windlassv1.DeploymentSpec{
		Image: "registry.example/llama:v1", Replicas: new(replicas), Regions: regions,
		ProgressDeadline: durationpb.New(10 * time.Minute),
	}
}

// update returns an app whose v1 is live and whose v2 was just deployed.
func update(policy *windlassv1.RolloutPolicy, replicas int32, regions ...string) plan.Input {
	in := first(policy, replicas, regions...)
	in.App.LiveDeploymentID, in.App.RolloutID, in.App.LatestVersion = "d1", "r2", 2
	in.Deployments[0].Status, in.Deployments[0].Stable = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY, true
	in.Deployments = append(in.Deployments, model.Deployment{
		ID: "d2", AppID: "app", Version: 2, Spec: spec(replicas, regions...), Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING,
	})
	in.Rollout = &model.Rollout{
		ID: "r2", AppID: "app", DeploymentID: "d2", Version: 2, FromDeploymentID: "d1", FromVersion: 1,
		Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, CreatedAt: start, Deadline: start + 600_000,
	}
	for _, r := range regions {
		in.Topology = append(in.Topology, model.Topology{
			AppID: "app", DeploymentID: "d1", RegionID: r, Replicas: replicas, Weight: 100, Generation: 3,
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		})
	}
	if policy != nil {
		in.RolloutState.Progress = plan.NextProgress(*in.RolloutState, in.App, in.Topology, "r2", plan.Asked{})
	}
	return in
}

// first returns an app whose v1 was just deployed. Its regions are unreachable, which a forecast ignores.
func first(policy *windlassv1.RolloutPolicy, replicas int32, regions ...string) plan.Input {
	in := plan.Input{
		App: model.App{ID: "app", RolloutID: "r1", Replicas: replicas, LatestVersion: 1, Status: windlassv1.AppStatus_APP_STATUS_IDLE},
		Deployments: []model.Deployment{{
			ID: "d1", AppID: "app", Version: 1, Spec: spec(replicas, regions...), Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING,
		}},
		Rollout: &model.Rollout{
			ID: "r1", AppID: "app", DeploymentID: "d1", Version: 1,
			Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, CreatedAt: start, Deadline: start + 600_000,
		},
		RegionIDs: map[string]string{},
	}
	for _, r := range regions {
		in.RegionIDs[r] = r
		in.Regions = append(in.Regions, model.Region{ID: r, Name: r, SessionEpoch: 4, Status: windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE})
	}
	if policy != nil {
		in.RolloutState = &model.RolloutState{AppID: "app", Policy: policy}
	}
	return in
}

// textOf returns the forecast as text, one line for each step.
func textOf(f Forecast) string {
	var b strings.Builder
	for _, s := range f.Steps {
		fmt.Fprintf(&b, "%s %s", time.Duration(s.At)*time.Millisecond, strings.ToLower(strings.TrimPrefix(s.Kind.String(), "KIND_")))
		for _, text := range []string{s.Wave, s.RegionID} {
			if text != "" {
				b.WriteString(" " + text)
			}
		}
		if s.Steps > 0 {
			fmt.Fprintf(&b, " step %d of %d", s.Step, s.Steps)
		}
		for _, side := range s.Sides {
			fmt.Fprintf(&b, " v%d", side.Version)
			if s.Kind == windlassv1.PlanStep_KIND_MOVE {
				fmt.Fprintf(&b, "=%d/%d%%", side.Replicas, side.Weight)
			}
		}
		if s.Wait > 0 {
			fmt.Fprintf(&b, " %s", s.Wait)
		}
		for _, c := range s.Checks {
			b.WriteString(" " + c)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%s in all", time.Duration(f.Lasts)*time.Millisecond)
	if !f.Complete {
		b.WriteString(", and more")
	}
	return b.String()
}

func TestForecast_ListsTheStepsOfAGoodRollout(t *testing.T) {
	minutes := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Minute) }
	for name, c := range map[string]struct {
		in   plan.Input
		want string
	}{
		"a first version, everywhere at once": {first(nil, 2, "eu", "us"), `
0s move eu v1=2/100%
0s move us v1=2/100%
0s live v1
0s in all`},
		"an update without a policy": {update(nil, 2, "eu", "us"), `
0s move eu v1=2/100% v2=2/0%
0s move us v1=2/100% v2=2/0%
0s move eu v1=2/0% v2=2/100%
0s move us v1=2/0% v2=2/100%
0s live v2
0s move eu v2=2/100%
0s move us v2=2/100%
0s in all`},
		"rolling by waves, with a bake": {update(&windlassv1.RolloutPolicy{MaxSurge: "1", Waves: []*windlassv1.Wave{
			{Name: "canary", Regions: []string{"us"}, BakeTime: minutes(30)}, {Name: "rest"},
		}}, 2, "eu", "us"), `
0s wave canary
0s move canary us v1=2/100% v2=1/0%
0s move canary us v1=2/50% v2=1/50%
0s move canary us v1=1/50% v2=1/50%
0s move canary us v1=1/50% v2=2/50%
0s move canary us v1=1/0% v2=2/100%
0s bake canary 30m0s
30m0s wave rest
30m0s move rest eu v1=2/100% v2=1/0%
30m0s move canary us v2=2/100%
30m0s move rest eu v1=2/50% v2=1/50%
30m0s move rest eu v1=1/50% v2=1/50%
30m0s move rest eu v1=1/50% v2=2/50%
30m0s move rest eu v1=1/0% v2=2/100%
30m0s live v2
30m0s move eu v2=2/100%
30m0s in all`},
		"a canary with a pause, a gate and a check": {update(&windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1",
			Steps: []*windlassv1.CanaryStep{{Weight: 10, Pause: "10m"}, {Weight: 50, Pause: "manual"}},
			Analysis: []*windlassv1.AnalysisCheck{{
				Name: "errors", Template: windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE, Max: new(0.01), MinSamples: 10,
				VersusOld: &windlassv1.VersusOld{MaxDifference: new(-1.0)},
			}},
		}, 2, "eu"), `
0s wave 1
0s move 1 eu v1=2/100% v2=1/0%
0s move 1 eu v1=2/90% v2=1/10%
0s pause 1 eu step 1 of 2 10m0s errors
10m0s move 1 eu v1=2/50% v2=1/50%
10m0s gate 1 eu step 2 of 2 errors
10m0s move 1 eu v1=1/50% v2=1/50%
10m0s move 1 eu v1=1/50% v2=2/50%
10m0s move 1 eu v1=1/0% v2=2/100%
10m0s live v2
10m0s move eu v2=2/100%
10m0s in all`},
		"a check that takes longer than the pause": {update(&windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY,
			Steps:    []*windlassv1.CanaryStep{{Replicas: 1, Pause: "10s"}},
			Analysis: []*windlassv1.AnalysisCheck{{Name: "queue", Query: "up{{{selector}}}", Max: new(1.0), Interval: minutes(3)}},
		}, 1, "eu"), `
0s wave 1
0s move 1 eu v1=1/100% v2=1/0%
0s move 1 eu v1=1/50% v2=1/50%
0s pause 1 eu step 1 of 1 10s queue
3m0s move 1 eu v1=1/0% v2=1/100%
3m0s live v2
3m0s move eu v2=1/100%
3m0s in all`},
		"a webhook": {update(&windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1",
			Steps:    []*windlassv1.CanaryStep{{Weight: 50, Pause: "2m"}},
			Analysis: []*windlassv1.AnalysisCheck{{Name: "smoke", Webhook: &windlassv1.WebHook{Url: "https://checks.example.com"}}},
		}, 1, "eu"), `
0s wave 1
0s move 1 eu v1=1/100% v2=1/0%
0s move 1 eu v1=1/50% v2=1/50%
0s pause 1 eu step 1 of 1 2m0s smoke
2m0s move 1 eu v1=1/0% v2=1/100%
2m0s live v2
2m0s move eu v2=1/100%
2m0s in all`},
		"blue-green, and the old version kept for an hour": {update(&windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, Promotion: "auto after 5m", InitialWeight: 5, Retain: minutes(60),
		}, 2, "eu"), `
0s wave 1
0s move 1 eu v1=2/100% v2=2/0%
0s move 1 eu v1=2/95% v2=2/5%
0s pause 1 eu step 1 of 1 5m0s
5m0s move 1 eu v1=2/0% v2=2/100%
5m0s live v2
5m0s retain v1 1h0m0s
1h5m0s move eu v2=2/100%
1h5m0s in all`},
		"recreate": {update(&windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE}, 2, "eu"), `
0s wave 1
0s move 1 eu v1=2/0%
0s move 1 eu
0s move 1 eu v2=2/0%
0s move 1 eu v2=2/100%
0s live v2
0s in all`},
	} {
		t.Run(name, func(t *testing.T) {
			before := proto.CloneOf(c.in.Deployments[0].Spec)
			f := Run(c.in.Topology, c.in, start)
			require.Equal(t, strings.TrimSpace(c.want), textOf(f))
			require.True(t, f.Complete)
			require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, f.Rollout.Status)
			require.Equal(t, f, Run(c.in.Topology, c.in, start), "a second run has the same result: the first one did not change its input")
			require.True(t, proto.Equal(before, c.in.Deployments[0].Spec))
			require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, c.in.Rollout.Status)
		})
	}
}

func TestForecast_CountsReplicaLoads(t *testing.T) {
	inPlace := update(&windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE, MaxUnavailable: "2"}, 3, "eu")
	inPlace.Regions[0].AgentFeatures = []string{agentv1.Feature_FEATURE_IN_PLACE.String()}
	alike := update(&windlassv1.RolloutPolicy{MaxSurge: "1"}, 3, "eu")
	alike.Regions[0].AgentFeatures = inPlace.Regions[0].AgentFeatures
	alike.Deployments[0].SpecHash = []byte("made")
	alike.Deployments[0].ResolvedImage, alike.Deployments[1].ResolvedImage = "registry.example/llama@sha256:00", "registry.example/llama@sha256:00"
	alike.Deployments[1].MadeAs = alike.Deployments[0].Made()
	scaled := update(nil, 2, "eu")
	scaled.App.RolloutID, scaled.Rollout = "", nil
	was := scaled.Topology
	scaled.Topology = []model.Topology{was[0]}
	scaled.Topology[0].Replicas, scaled.Topology[0].Generation = 5, 4
	for name, c := range map[string]struct {
		was  []model.Topology
		in   plan.Input
		want string
	}{
		"a first version, in two regions at once": {nil, first(nil, 2, "eu", "us"), "move+0 move+0 live+1, 1 in all"},
		"replica by replica": {
			nil, update(&windlassv1.RolloutPolicy{MaxSurge: "1"}, 2, "eu"),
			"wave+0 move+0 move+1 move+1 move+1 move+2 live+2 move+2, 2 in all",
		},
		"two regions, one after the other": {
			nil, update(&windlassv1.RolloutPolicy{MaxSurge: "100%"}, 2, "eu", "us"),
			"wave+0 move+0 move+1 move+1 move+2 live+2 move+2 move+2, 2 in all",
		},
		"in place, two at a time": {nil, inPlace, "wave+0 move+0 live+2, 2 in all"},
		"instances are kept":      {nil, alike, "wave+0 move+0 live+0, 0 in all"},
		"scaled":                  {was, scaled, "move+0, 1 in all"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.was == nil {
				c.was = c.in.Topology
			}
			f := Run(c.was, c.in, start)
			require.True(t, f.Complete)
			var steps []string
			for _, s := range f.Steps {
				steps = append(steps, fmt.Sprintf("%s+%d", strings.ToLower(strings.TrimPrefix(s.Kind.String(), "KIND_")), s.Loads))
			}
			require.Equal(t, c.want, fmt.Sprintf("%s, %d in all", strings.Join(steps, " "), f.Loads))
		})
	}
}

func TestForecast_LongBakeTakesFewLooks(t *testing.T) {
	in := update(&windlassv1.RolloutPolicy{
		Waves: []*windlassv1.Wave{{BakeTime: durationpb.New(7 * 24 * time.Hour)}},
		Analysis: []*windlassv1.AnalysisCheck{{
			Template: windlassv1.AnalysisCheck_TEMPLATE_QUEUE_LENGTH, Max: new(3.0), Interval: durationpb.New(time.Second),
		}},
	}, 1, "eu")
	f := Run(in.Topology, in, start)
	require.True(t, f.Complete)
	require.Equal(t, (7 * 24 * time.Hour).Milliseconds(), f.Lasts)
}

func TestForecast_TooLongIsGivenUp(t *testing.T) {
	in := update(&windlassv1.RolloutPolicy{MaxSurge: "1"}, 10_000, "eu", "us")
	began := time.Now()
	f := Run(in.Topology, in, start)
	require.False(t, f.Complete)
	require.LessOrEqual(t, len(f.Steps), 3*maxLooks)
	require.Less(t, time.Since(began), time.Minute)
}

func TestForecast_BeginsWithTheReplicasOfTheCall(t *testing.T) {
	in := update(nil, 2, "eu")
	in.App.RolloutID, in.Rollout = "", nil
	was := in.Topology
	in.Topology = []model.Topology{was[0]}
	in.Topology[0].Replicas, in.Topology[0].Generation = 5, 4
	require.Equal(t, "0s move eu v1=5/100%\n0s in all", textOf(Run(was, in, start)))
}

func TestForecast_AssumesThatPeopleApprove(t *testing.T) {
	owners := &windlassv1.Approval{Role: windlassv1.Role_ROLE_OWNER, Count: 2, NotDeployer: true}
	in := update(&windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1",
		Steps:    []*windlassv1.CanaryStep{{Weight: 10, Pause: "10m", Approval: owners}},
		Waves:    []*windlassv1.Wave{{Name: "all", Approval: &windlassv1.Approval{}}},
		Analysis: []*windlassv1.AnalysisCheck{{Name: "queue", Query: "up{{{selector}}}", Max: new(1.0)}},
	}, 2, "eu")
	in.RolloutState.Progress.DeployedBy, in.RolloutState.Progress.DeployedByID = "somebody 1", "somebody 1"
	f := Run(in.Topology, in, start)
	require.True(t, f.Complete)
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, f.Rollout.Status)
	require.Contains(t, textOf(f), "\n0s gate all eu step 1 of 1 10m0s queue\n")
	require.Contains(t, textOf(f), "\n10m0s gate all\n10m0s live v2\n")
	for _, s := range f.Steps {
		require.Equal(t, s.Kind == windlassv1.PlanStep_KIND_GATE, s.Approval != nil)
	}
}

// v2, which differs from v1 in the prefill servers, has moved half of them when v3 is deployed. v3 differs from v2 in the
// decode servers.
func TestForecast_PoolMovesRolesOfAllVersions(t *testing.T) {
	run := func(order windlassv1.PoolUpdate_Order, updated int32) (moves int, inPlace []Step) {
		in := update(&windlassv1.RolloutPolicy{MaxSurge: "50%"}, pool.Whole, "us")
		for i, hashes := range []string{"aa", "ba", "bb"} {
			if i == len(in.Deployments) {
				in.Deployments = append(in.Deployments, model.Deployment{ID: "d3", AppID: "app", Version: 3, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING})
			}
			d := &in.Deployments[i]
			d.Spec = spec(pool.Whole, "us")
			d.Spec.Image, d.Spec.Command = "", []string{"serve"}
			d.Spec.Layout, d.Spec.Update = windlassv1.Layout_LAYOUT_POOLED, &windlassv1.PoolUpdate{Order: order}
			d.Spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 8}, {Name: "decode", Instances: 2, Entry: true}}
			d.SpecHash = []byte(hashes)
			var err error
			d.RolesMade, err = model.EncodeRoleHashes(map[string][]byte{"prefill": []byte(hashes[:1]), "decode": []byte(hashes[1:])})
			require.NoError(t, err)
		}
		in.Deployments[1].Status = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED
		in.App.LatestVersion, in.App.RolloutID = 3, "r3"
		in.Rollout.ID, in.Rollout.DeploymentID, in.Rollout.Version = "r3", "d3", 3
		in.Regions[0].AgentFeatures = []string{agentv1.Feature_FEATURE_IN_PLACE.String(), agentv1.Feature_FEATURE_POOL_ORDERS.String()}
		v1 := &in.Topology[0]
		v1.Roles, v1.Replicas, v1.Weight, v1.Transferred = "decode=2,prefill=8", 0, 0, true
		v2 := *v1
		v2.DeploymentID, v2.Workload, v2.WorkloadVersion, v2.Transferred, v2.Replicas, v2.Weight, v2.Moving = "d2", "d1", 1, false, pool.Whole, 100, "prefill"
		in.Topology = append(in.Topology, v2)
		in.RolloutState.Progress = plan.NextProgress(*in.RolloutState, in.App, in.Topology, "r3", plan.Asked{})
		in.RolloutState.Progress.OldSizes["us"] = pool.Whole
		in.Observed = []model.Observed{{
			AppID: "app", DeploymentID: "d2", RegionID: "us", AppliedGeneration: v2.Generation, CountsGeneration: v2.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED),
			RoleCounts: model.EncodeRoleCounts(&agentv1.DeploymentRollup{Roles: []*agentv1.RoleRollup{
				{Role: "prefill", Pool: 8, Instances: 8, Ready: 8, Updated: updated}, {Role: "decode", Pool: 2, Instances: 2, Ready: 2, Updated: 2},
			}}),
		}}
		f := Run(in.Topology, in, start)
		require.True(t, f.Complete)
		for _, s := range f.Steps {
			if s.Kind == windlassv1.PlanStep_KIND_MOVE {
				moves++
			}
			if s.InPlace {
				inPlace = append(inPlace, s)
			}
		}
		return moves, inPlace
	}
	for range 8 { // the result must not depend on the order of maps
		moves, inPlace := run(windlassv1.PoolUpdate_ORDER_COHERENT, 4)
		require.Empty(t, inPlace, "by order coherent, two roles move in shares")
		require.Greater(t, moves, 2)
		_, inPlace = run(windlassv1.PoolUpdate_ORDER_COHERENT, 8)
		require.Len(t, inPlace, 1)
		require.Equal(t, []string{"decode"}, inPlace[0].Moving, "all prefill servers are of v2")
		_, inPlace = run(windlassv1.PoolUpdate_ORDER_SEQUENTIAL, 4)
		require.Len(t, inPlace, 1)
		require.Equal(t, []string{"prefill", "decode"}, inPlace[0].Moving)
	}
}
