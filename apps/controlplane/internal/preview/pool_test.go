package preview

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func poolSpec() *windlassv1.DeploymentSpec {
	return &windlassv1.DeploymentSpec{
		Layout: windlassv1.Layout_LAYOUT_POOLED,
		Roles: []*windlassv1.RoleSpec{
			{Name: "prefill", Instances: 8, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1}}},
			{Name: "decode", Instances: 2, Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 4}}},
		},
	}
}

func TestPool_SetCapacityIsSaid(t *testing.T) {
	p := &Preview{target: &model.Deployment{ID: "v2", Spec: poolSpec()}}
	whole, step := map[string]int32{"v1": 100}, map[string]int32{"v1": 75, "v2": 25}
	require.EqualValues(t, 100, leastOf(whole, map[string]int32{"v1": 100, "v2": 25}))
	require.EqualValues(t, 75, leastOf(map[string]int32{"v1": 100, "v2": 0}, step), "without surge")
	require.EqualValues(t, 0, leastOf(whole, map[string]int32{"v2": 100}), "recreate")

	e := extent{now: amount{replicas: 100}, after: amount{replicas: 100}, lowest: 100, moves: 8}
	require.Equal(t, "100 % at worst, in 8 steps", p.setCapacityText(e, "us"))
	e.lowest, e.moves = 0, 1
	require.Equal(t, "0 % at worst, in 1 step; strategy rolling with maxSurge 1% and maxUnavailable 0 keeps 100 % and takes 5 GPUs more meanwhile", p.setCapacityText(e, "us"))
	p.target.Spec.Roles[0].Resources, p.target.Spec.Roles[1].Resources = nil, nil
	require.Contains(t, p.setCapacityText(e, "us"), "takes 2 instances more")
	e.now.replicas = 0
	require.Empty(t, p.setCapacityText(e, "us"), "a first version")
}

func TestPool_GPUsAreCountedByShares(t *testing.T) {
	kinds := kindsOf(poolSpec())
	require.Len(t, kinds, 1)
	require.EqualValues(t, 16, kinds[0].count(100))
	require.EqualValues(t, 6, kinds[0].count(25), "2 prefill and 1 decode")
	require.EqualValues(t, 5, kinds[0].count(1))
	require.Zero(t, kinds[0].count(0))
}

func TestPool_CountsOfRowsAreShown(t *testing.T) {
	s := poolSpec()
	setCounts(s, []model.Topology{
		{Roles: "decode=6,prefill=4", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}, {Roles: "decode=6,prefill=5", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING},
	})
	require.EqualValues(t, 8, s.Roles[0].Instances, "regions differ")
	require.EqualValues(t, 6, s.Roles[1].Instances)
}

func TestPool_ScaledRolesNeedMoreGPUs(t *testing.T) {
	row := func(roles string) model.Topology {
		return model.Topology{DeploymentID: "v1", RegionID: "us", Replicas: 100, Roles: roles, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}
	}
	gpus := []*windlassv1.GpuCapacity{{Allocatable: 64, Free: 8}}
	p := &Preview{target: &model.Deployment{ID: "v1", Spec: poolSpec()}, was: []model.Topology{row("decode=2,prefill=8")}}
	p.in.Deployments, p.in.Topology = []model.Deployment{*p.target}, []model.Topology{row("decode=6,prefill=8")}
	measure := func(f forecast.Forecast) extent {
		spec := specIn(p.in.Topology, p.target.ID, p.target.Spec, "us")
		return p.measureExtent(f, model.Region{ID: "us"}, gpus, mergeShared(kindsOf(spec), gpus)[0])
	}
	e := measure(forecast.Forecast{})
	require.Equal(t, []int32{16, 32, 32, 16, 16}, []int32{e.now.gpus, e.peak.gpus, e.after.gpus, e.needed, e.kept})
	require.True(t, e.runsTarget)

	// A rollout that begins with the scale adds its surge.
	next := model.Deployment{ID: "v2", Spec: poolSpec()}
	p.in.Deployments, p.target, p.in.App.LiveDeploymentID = append(p.in.Deployments, next), &next, "v1"
	move := func(v1, v2 int32) forecast.Step {
		return forecast.Step{Kind: windlassv1.PlanStep_KIND_MOVE, RegionID: "us", Sides: []forecast.Side{{DeploymentID: "v1", Replicas: v1}, {DeploymentID: "v2", Replicas: v2}}}
	}
	e = measure(forecast.Forecast{Steps: []forecast.Step{move(100, 25), move(75, 25)}})
	require.Equal(t, []int32{16, 42, 36}, []int32{e.now.gpus, e.peak.gpus, e.after.gpus})
	require.EqualValues(t, 16+10, e.needed, "2 prefill and 2 decode more")

	// A rollout with fewer decode servers gives GPUs back.
	p.in.Topology = []model.Topology{row("decode=1,prefill=8")}
	p.target = &p.in.Deployments[0]
	e = measure(forecast.Forecast{})
	require.Equal(t, []int32{16, 16, 12, 0, 0}, []int32{e.now.gpus, e.peak.gpus, e.after.gpus, e.needed, e.kept})
}

func TestPool_CountsOfStoppedRowsAreNotShown(t *testing.T) {
	s := poolSpec()
	stopped := model.Topology{Roles: "decode=1,prefill=1", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED}
	setCounts(s, []model.Topology{stopped, {Roles: "decode=6,prefill=4", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}})
	require.EqualValues(t, 4, s.Roles[0].Instances)
	require.EqualValues(t, 6, s.Roles[1].Instances)
}

func TestPool_WithoutRoomItYields(t *testing.T) {
	p := &Preview{target: &model.Deployment{ID: "v2", Spec: poolSpec()}}
	p.target.Spec.Update = &windlassv1.PoolUpdate{WhenFull: windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE}
	e := extent{now: amount{replicas: 100}, after: amount{replicas: 100}, lowest: 100, moves: 1}
	us := model.Region{ID: "us", AgentFeatures: []string{agentv1.Feature_FEATURE_POOL_YIELDS.String()}}
	more := p.moveInPlace(&e, us, []string{"decode"}, p.target.Spec, kindsOf(p.target.Spec)[0])
	require.Equal(t, amount{replicas: 0, gpus: 4}, more, "the pool uses more GPUs if there is room, but needs none")
	require.Equal(t, "100 % at worst, in 2 steps; without room for more, 50 % at worst", p.setCapacityText(e, "us"))
	p.target.Spec.Update.WhenFull = 0
	e = extent{now: amount{replicas: 100}, after: amount{replicas: 100}, lowest: 100, moves: 1}
	require.Equal(t, amount{replicas: 4, gpus: 4}, p.moveInPlace(&e, us, []string{"decode"}, p.target.Spec, kindsOf(p.target.Spec)[0]))
	require.Equal(t, "100 % at worst, in 2 steps", p.setCapacityText(e, "us"))
}

func TestPool_OlderAgentsDoNotYield(t *testing.T) {
	row := model.Topology{DeploymentID: "v1", RegionID: "us", Replicas: 100, Roles: "decode=2,prefill=8", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}
	move := forecast.Step{
		Kind: windlassv1.PlanStep_KIND_MOVE, RegionID: "us", InPlace: true, Moving: []string{"decode"},
		Sides: []forecast.Side{{DeploymentID: "v1"}, {DeploymentID: "v2", Replicas: 100}},
	}
	target := model.Deployment{ID: "v2", Spec: poolSpec()}
	target.Spec.Update = &windlassv1.PoolUpdate{WhenFull: windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE}
	p := &Preview{target: &target, was: []model.Topology{row}}
	p.in.Deployments, p.in.Topology, p.in.App.LiveDeploymentID = []model.Deployment{{ID: "v1", Spec: poolSpec()}, target}, []model.Topology{row}, "v1"
	p.in.App.RolloutID = "ro"
	p.in.RolloutState = &model.RolloutState{Progress: &model.Progress{RolloutID: "ro", Policy: &windlassv1.RolloutPolicy{MaxUnavailable: "0"}}}
	gpus := []*windlassv1.GpuCapacity{{Allocatable: 16}}
	for _, c := range []struct {
		name, text string
		features   []string
		needed     int32
	}{
		{"of this release", "100 % at worst, in 2 steps; without room for more, 50 % at worst", []string{agentv1.Feature_FEATURE_POOL_ORDERS.String(), agentv1.Feature_FEATURE_POOL_YIELDS.String()}, 0},
		{"of an earlier release", "100 % at worst, in 2 steps", []string{agentv1.Feature_FEATURE_POOL_ORDERS.String()}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := p.measureExtent(forecast.Forecast{Steps: []forecast.Step{move}}, model.Region{ID: "us", AgentFeatures: c.features}, gpus, mergeShared(kindsOf(target.Spec), gpus)[0])
			require.Equal(t, c.text, p.setCapacityText(e, "us"))
			require.Equal(t, c.needed, e.needed)
		})
	}
}

func TestPool_OrdersAreCompared(t *testing.T) {
	made := func(id, roles string, update *windlassv1.PoolUpdate) model.Deployment {
		d := model.Deployment{ID: id, Spec: poolSpec()}
		d.Spec.Update = update
		hashes := map[string][]byte{"prefill": []byte("a"), "decode": []byte("a")}
		for name := range strings.SplitSeq(roles, ",") {
			hashes[name] = []byte(id)
		}
		var err error
		d.RolesMade, err = model.EncodeRoleHashes(hashes)
		require.NoError(t, err)
		return d
	}
	row := model.Topology{DeploymentID: "v1", RegionID: "us", Replicas: 100, Roles: "decode=2,prefill=8", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}
	move := forecast.Step{Kind: windlassv1.PlanStep_KIND_MOVE, RegionID: "us", InPlace: true, Sides: []forecast.Side{{DeploymentID: "v1"}, {DeploymentID: "v2", Replicas: 100}}}
	gpus := []*windlassv1.GpuCapacity{{Allocatable: 64, Free: 8}}
	coherent := "; update.order coherent with maxSurge 1% and maxUnavailable 0 keeps 100 % and takes 5 GPUs more meanwhile"
	for _, c := range []struct {
		name, roles, unavailable string
		order                    windlassv1.PoolUpdate_Order
		text                     string
		peak, needed             int32
	}{
		{"sequential", "prefill,decode", "0", windlassv1.PoolUpdate_ORDER_SEQUENTIAL, "0 % at worst of instances of one version, in 10 steps of order sequential" + coherent, 20, 4},
		{"parallel", "prefill,decode", "0", windlassv1.PoolUpdate_ORDER_PARALLEL, "0 % at worst of instances of one version, in 8 steps of order parallel" + coherent, 21, 5},
		{"interleaved", "prefill,decode", "0", windlassv1.PoolUpdate_ORDER_INTERLEAVED, "25 % at worst of instances of one version, in 8 steps of order interleaved" + coherent, 21, 5},
		{"without room", "prefill,decode", "25%", windlassv1.PoolUpdate_ORDER_INTERLEAVED, "25 % at worst of instances of one version, in 4 steps of order interleaved" + coherent, 16, 0},
		{"one role", "decode", "0", windlassv1.PoolUpdate_ORDER_SEQUENTIAL, "100 % at worst, in 2 steps", 20, 4},
		{"one role without room", "decode", "25%", windlassv1.PoolUpdate_ORDER_UNSPECIFIED, "50 % at worst, in 2 steps; maxUnavailable 0 keeps 100 % and takes 4 GPUs more meanwhile", 16, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, target := made("v1", "", nil), made("v2", c.roles, &windlassv1.PoolUpdate{Order: c.order})
			if c.order == 0 {
				target.Spec.Update = nil
			}
			p := &Preview{target: &target, was: []model.Topology{row}}
			p.in.Deployments, p.in.Topology, p.in.App.LiveDeploymentID = []model.Deployment{old, target}, []model.Topology{row}, "v1"
			p.in.App.RolloutID = "ro"
			p.in.RolloutState = &model.RolloutState{Progress: &model.Progress{RolloutID: "ro", Policy: &windlassv1.RolloutPolicy{MaxUnavailable: c.unavailable}}}
			move.Moving = strings.Split(c.roles, ",")
			e := p.measureExtent(forecast.Forecast{Steps: []forecast.Step{move}}, model.Region{ID: "us"}, gpus, mergeShared(kindsOf(target.Spec), gpus)[0])
			require.Equal(t, c.text, p.setCapacityText(e, "us"))
			require.Equal(t, []int32{16, c.peak, 16, c.needed, 0}, []int32{e.now.gpus, e.peak.gpus, e.after.gpus, e.needed, e.kept})
		})
	}
}

func TestPairs_PlanSaysWhatServes(t *testing.T) {
	target := &model.Deployment{ID: "v2", Spec: poolSpec()}
	target.Spec.Pairing = &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL}
	target.Spec.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_SEQUENTIAL}
	p := &Preview{target: target, regions: map[string]model.Region{"us": {ID: "us", Name: "us-east-1"}}}
	e := extent{now: amount{replicas: 100}, after: amount{replicas: 100}, lowest: 100, moves: 1}
	p.moveInPlace(&e, model.Region{ID: "us"}, []string{"prefill", "decode"}, target.Spec, kindsOf(target.Spec)[0])
	const cure = "pdate.order coherent with maxSurge 1% and maxUnavailable 0 keeps 100 % and takes 5 GPUs more meanwhile"
	require.Equal(t, "0 % at worst of instances of one version, in 10 steps of order sequential, and with pairing only these serve; u"+cure, p.setCapacityText(e, "us"))
	found := p.pairFinding(e, "us")
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, found.GetReason())
	require.False(t, found.GetBlocks())
	require.Equal(t, []string{"us-east-1", "spec.pairing", "U" + cure + "."}, []string{found.GetRegion(), found.GetField(), found.GetFix()})
	require.Contains(t, found.GetMessage(), "no pair of a prefill and a decode instance of one version")

	e.lowest = 25
	require.Nil(t, p.pairFinding(e, "us"), "pairs are left")
	e.lowest, e.now.replicas = 0, 0
	require.Nil(t, p.pairFinding(e, "us"), "a first version")
	e.now.replicas, e.after.replicas = 100, 0
	require.Nil(t, p.pairFinding(e, "us"), "the new version leaves the region")
	require.Empty(t, p.setCapacityText(e, "us"))
	e.after.replicas, target.Spec.Pairing = 100, nil
	require.Nil(t, p.pairFinding(e, "us"), "instances of two versions serve each other")
}

func TestGroups_SetCapacityIsSaid(t *testing.T) {
	spec := poolSpec()
	spec.Layout, spec.Roles[0].Instances = 0, 2
	p := &Preview{target: &model.Deployment{ID: "v2", Spec: spec}}
	p.in.App.RolloutID = "ro"
	p.in.RolloutState = &model.RolloutState{Progress: &model.Progress{RolloutID: "ro", Policy: &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE, MaxUnavailable: "2",
	}}}
	p.in.Deployments = []model.Deployment{{ID: "v1", Spec: spec}, *p.target}
	row := model.Topology{DeploymentID: "v1", RegionID: "us", Replicas: 3, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}
	p.was, p.in.Topology = []model.Topology{row}, []model.Topology{row}
	move := forecast.Step{Kind: windlassv1.PlanStep_KIND_MOVE, RegionID: "us", InPlace: true, Sides: []forecast.Side{{DeploymentID: "v1"}, {DeploymentID: "v2", Replicas: 3}}}
	measure := func(s forecast.Step) string {
		return p.setCapacityText(p.measureExtent(forecast.Forecast{Steps: []forecast.Step{s}}, model.Region{ID: "us"}, nil, kind{}), "us")
	}
	require.Equal(t, "1 of 3 groups at worst, in 1 step; strategy rolling with maxSurge 1 and maxUnavailable 0 keeps 3 groups and takes 10 GPUs more meanwhile", measure(move))
	smaller := forecast.Step{Kind: windlassv1.PlanStep_KIND_MOVE, RegionID: "us", Sides: []forecast.Side{{DeploymentID: "v1"}, {DeploymentID: "v2", Replicas: 1}}}
	fewer := forecast.Forecast{Steps: []forecast.Step{{
		Kind: windlassv1.PlanStep_KIND_MOVE, RegionID: "us", Sides: []forecast.Side{{DeploymentID: "v1", Replicas: 3}, {DeploymentID: "v2", Replicas: 1}},
	}, smaller}}
	require.Equal(t, "1 of 3 groups at worst, in 2 steps", p.setCapacityText(p.measureExtent(fewer, model.Region{ID: "us"}, nil, kind{}), "us"), "no rollout to 1 group keeps 3")
	kept := move
	kept.Keeps = true
	require.Equal(t, "3 of 3 groups at worst, in 1 step", measure(kept), "no instance is replaced")
	spec.Roles[0].Slots = windlassv1.RoleSpec_SLOTS_STABLE
	require.Equal(t, "1 of 3 groups at worst, in 1 step", measure(move), "no other rollout keeps slots stable")
	spec.Roles = spec.Roles[:1]
	require.Empty(t, measure(move), "one role")
}

func TestPool_StableSlotsHaveNoCure(t *testing.T) {
	p := &Preview{target: &model.Deployment{ID: "v2", Spec: poolSpec()}}
	e := extent{now: amount{replicas: 100}, after: amount{replicas: 100}, lowest: 0, moves: 1}
	require.Contains(t, p.setCapacityText(e, "us"), "keeps 100 %")
	p.target.Spec.Roles[1].Slots = windlassv1.RoleSpec_SLOTS_STABLE
	require.Equal(t, "0 % at worst, in 1 step", p.setCapacityText(e, "us"), "the API refuses each other way for stable slots")
}

func TestSlots_LossIsWarnedOf(t *testing.T) {
	stable := func(slots windlassv1.RoleSpec_Slots) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "cache", Slots: slots}}}
	}
	d := &Deploy{
		Live: &model.Deployment{Version: 4, Spec: stable(windlassv1.RoleSpec_SLOTS_STABLE)}, Preview: &Preview{target: &model.Deployment{Version: 5, Spec: stable(0)}},
	}
	found := d.slotFindings()
	require.Len(t, found, 1)
	require.False(t, found[0].GetBlocks())
	require.Equal(t, "spec.roles[0].slots", found[0].GetField())
	require.Equal(t, `role "cache" of v4 has stable slots, and role "cache" of v5 has none: what the slots store is deleted`, found[0].GetMessage())
	require.NotEmpty(t, found[0].GetFix())
	d.target.Spec.Roles[0].Slots = windlassv1.RoleSpec_SLOTS_STABLE
	require.Empty(t, d.slotFindings())
	d.Live = nil
	require.Empty(t, d.slotFindings())
}

func TestPool_SharesYieldWithoutRoom(t *testing.T) {
	target := model.Deployment{ID: "v2", Spec: poolSpec()}
	target.Spec.Update = &windlassv1.PoolUpdate{WhenFull: windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE}
	row := model.Topology{DeploymentID: "v1", RegionID: "us", Replicas: 100, Roles: "decode=2,prefill=8", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}
	p := &Preview{target: &target, was: []model.Topology{row}}
	p.in.Deployments, p.in.Topology, p.in.App.LiveDeploymentID = []model.Deployment{{ID: "v1", Spec: poolSpec()}, target}, []model.Topology{row}, "v1"
	move := func(v1, v2 int32) forecast.Step {
		return forecast.Step{Kind: windlassv1.PlanStep_KIND_MOVE, RegionID: "us", Sides: []forecast.Side{{DeploymentID: "v1", Replicas: v1}, {DeploymentID: "v2", Replicas: v2}}}
	}
	gpus := []*windlassv1.GpuCapacity{{Allocatable: 16}}
	measure := func() extent {
		f := forecast.Forecast{Steps: []forecast.Step{move(100, 25), move(75, 25), move(75, 50), move(0, 100)}}
		return p.measureExtent(f, model.Region{ID: "us"}, gpus, mergeShared(kindsOf(target.Spec), gpus)[0])
	}
	e := measure()
	require.Zero(t, e.needed, "no GPU is missing")
	require.Contains(t, p.setCapacityText(e, "us"), "; without room for more, 0 % at worst", "move(0, 100) stops 75 percent, and half of the pool may be gone")
	target.Spec.Update = nil
	e = measure()
	require.Positive(t, e.needed)
	require.NotContains(t, p.setCapacityText(e, "us"), "without room")
}
