package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/pool"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (r *running) outdated() (n int32) {
	for _, ready := range r.taken {
		n += ready
	}
	return n
}

// stop stops n of the serving replicas of other versions.
func (r *running) stop(n int32) {
	for _, id := range sortedKeys(r.taken) {
		less := min(n, r.taken[id])
		r.taken[id] -= less
		n -= less
	}
}

// adopt makes the row continue with the replicas of its workload.
func (f *stagedSimulation) adopt(key rowKey, workload string) {
	r := f.runs[key]
	r.workload = workload
	if r.taken == nil {
		r.taken = map[string]int32{}
	}
	for k, o := range f.runs {
		if k == key || k.region != key.region || o.workload != workload {
			continue
		}
		for id, n := range o.taken {
			r.taken[id] += n
		}
		r.taken[k.deployment] += o.ready
		r.other, r.draining = r.other+o.other, r.draining+o.draining
		*o = running{generation: o.generation, epoch: o.epoch, assigned: o.assigned, gone: o.gone}
	}
	f.checkCoherence(key, r.taken)
	for id, n := range r.taken {
		if id == key.deployment || f.alike(id, key.deployment) {
			r.ready += n
			delete(r.taken, id)
		}
	}
}

// checkCoherence fails if the row's version takes over a pool by order coherent while the region still runs instances of
// earlier versions from which it differs in several roles.
func (f *stagedSimulation) checkCoherence(key rowKey, taken map[string]int32) {
	d := &f.deps[f.index(key.deployment)]
	if !model.IsPooled(d.Spec) || pool.OrderOf(d.Spec.GetUpdate()).InPlace(2) {
		return
	}
	differ := map[string]bool{}
	for _, id := range sortedKeys(taken) {
		before := &f.deps[f.index(id)]
		if before.Version > d.Version {
			return // the pool goes back
		}
		changed, _ := d.ChangedRoles(before)
		for _, name := range changed {
			differ[name] = differ[name] || taken[id] > 0
		}
	}
	n := 0
	for _, does := range differ {
		if does {
			n++
		}
	}
	require.LessOrEqual(f.t, n, 1, "roles that move to %s in %s at once, of %v", key.deployment, key.region, taken)
}

// awaitsSuccessor reports whether the region must not stop the row yet, because the row's successor must be applied
// first.
func (f *stagedSimulation) awaitsSuccessor(row model.Topology) bool {
	for k, successor := range f.rows {
		if !row.Assigned() && k.region == row.RegionID && successor.Assigned() && successor.WorkloadKey() == row.WorkloadKey() &&
			(f.runs[k] == nil || f.runs[k].workload != successor.WorkloadKey()) {
			return true
		}
	}
	return false
}

// TestWorkload_EqualVersionStartsAndStopsNothing requires under every policy, on the way and on the way back, that no
// replica starts or stops, unless the agent cannot take over workloads.
func TestWorkload_EqualVersionStartsAndStopsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policy := drawPolicy(t)
		policy.Analysis, policy.Deadlines = nil, nil
		f := newStagedSimulation(t, policy)
		for range rapid.IntRange(1, 3).Draw(t, "versions") {
			clear(f.moved)
			s := spec(2, "eu", "us")
			s.Routing = &windlassv1.RoutingPolicy{QueueSize: new(f.app.LatestVersion + 1)}
			id := f.deployAlike(s)
			for range rapid.IntRange(0, 6).Draw(t, "steps before it is cancelled") {
				f.step()
				f.obeyAll("eu")
				f.obeyAll("us")
				f.now += 10_000
			}
			if rapid.Bool().Draw(t, "cancelled") {
				id = f.app.LiveDeploymentID
				for i := range f.rol {
					if f.rol[i].ID == f.app.RolloutID {
						f.rol[i].CancelRequested, f.rol[i].CancelledBy = true, "ada"
					}
				}
			}
			f.heal()
			require.Equal(t, id, f.app.LiveDeploymentID, f.app.Message)
			for _, region := range []string{"eu", "us"} {
				if len(f.regs[region].AgentFeatures) > 0 {
					require.Zero(t, f.moved[region], "replicas were started or stopped in %s", region)
				}
				require.True(t, f.rts[region].Routes(f.deps[f.index(id)].Spec.GetRouting()), region)
			}
		}
	})
}

// TestWorkload_ServingIsCountedOnce checks the counts while the workload moves from v1 to v2, before and after the
// region reports the workload under its new name. One of three replicas is not ready yet.
func TestWorkload_ServingIsCountedOnce(t *testing.T) {
	t.Parallel()
	row := func(id string, generation int64, replicas int32, transferred bool) model.Topology {
		return model.Topology{
			DeploymentID: id, RegionID: "eu", Workload: "v1", Generation: generation, Replicas: replicas, Transferred: transferred,
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		}
	}
	counts := func(generation int64, all, own int32) model.Observed {
		return model.Observed{
			AppliedGeneration: generation, Phase: int32(agentv1.AppliedState_PHASE_APPLIED),
			CountsGeneration: generation, Ready: all, ReadyReplicas: own,
		}
	}
	waits := counts(1, 0, 0)
	waits.Phase, waits.Code = int32(agentv1.AppliedState_PHASE_PENDING), "Adopting"
	rows := []model.Topology{row("v1", 2, 0, true), row("v2", 1, 3, false)}
	for _, c := range []struct {
		name   string
		rows   []model.Topology
		v1, v2 model.Observed
		want   [2]int32
	}{
		{"before", []model.Topology{row("v1", 1, 3, false)}, counts(1, 2, 2), model.Observed{}, [2]int32{2, 0}},
		{"the region has not reported v2 yet", rows, counts(1, 2, 2), model.Observed{}, [2]int32{0, 2}},
		{"the region does not count under the new name yet", rows, counts(1, 2, 2), counts(0, 0, 0), [2]int32{0, 2}},
		{"the agent waits until it may take the replicas over", rows, counts(1, 2, 2), waits, [2]int32{0, 2}},
		{"the region counts under the new name and has replaced one replica", rows, counts(2, 0, 0), counts(1, 2, 1), [2]int32{0, 2}},
		{"no other row has taken the workload over", rows[:1], counts(1, 1, 1), model.Observed{}, [2]int32{1, 0}},
	} {
		observed := func(t model.Topology) model.Observed {
			return map[string]model.Observed{"v1": c.v1, "v2": c.v2}[t.DeploymentID]
		}
		var got [2]int32
		for n, r := range c.rows {
			got[n] = Serving(r, c.rows, observed, nil)
		}
		require.Equal(t, c.want, got, c.name)
	}
}

// TestGroups_ExistUntilTheirLastInstance requires that two groups with one remaining instance each count as two replicas.
func TestGroups_ExistUntilTheirLastInstance(t *testing.T) {
	t.Parallel()
	w := newSimulation(t, "eu")
	id := w.deploy(groups(spec(2, "eu")))
	row := model.Topology{DeploymentID: id, RegionID: "eu"}
	seen := func(groups int32, o model.Observed) int32 {
		o.AppID, o.DeploymentID, o.RegionID = w.app.ID, id, "eu"
		o.RoleCounts = model.EncodeRoleCounts(&agentv1.DeploymentRollup{Groups: groups, Roles: []*agentv1.RoleRollup{{Role: "prefill"}, {Role: "decode"}}})
		in := w.input()
		in.Observed = []model.Observed{o}
		return newFacts(in, w.now).reportedReplicas(&row)
	}
	require.EqualValues(t, 2, seen(2, model.Observed{Draining: 2}))
	require.EqualValues(t, 2, seen(2, model.Observed{Ready: 6}))
	require.EqualValues(t, 2, seen(0, model.Observed{Ready: 4}), "an agent that does not report groups")
	require.Zero(t, seen(0, model.Observed{}))
}

// TestGroups_OnlyEqualOnesAreReplacedInPlace requires that a region does not replace groups by groups of other roles.
func TestGroups_OnlyEqualOnesAreReplacedInPlace(t *testing.T) {
	t.Parallel()
	two := &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode"}}}
	for name, c := range map[string]struct {
		a, b *windlassv1.DeploymentSpec
		want bool
	}{
		"one role each":               {spec(1), &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "main"}}}, true},
		"the same roles":              {two, groups(spec(3)), true},
		"several roles and one":       {two, spec(1), false},
		"another number of instances": {two, &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "prefill", Instances: 3}, {Name: "decode"}}}, false},
		"another role":                {two, &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "router"}}}, false},
		"other hosts":                 {two, &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Hosts: 2}}}, false},
		"one role of several hosts":   {spec(1), &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "main", Hosts: 2}}}, false},
		"a role in addition":          {two, &windlassv1.DeploymentSpec{Roles: append([]*windlassv1.RoleSpec{{Name: "router"}}, two.GetRoles()...)}, false},
	} {
		require.Equal(t, c.want, model.SameGroups(c.a, c.b), name)
		require.Equal(t, c.want, model.SameGroups(c.b, c.a), name)
	}
}
