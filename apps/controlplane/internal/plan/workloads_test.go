package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (r *running) outdated() (n int32) {
	for _, ready := range r.taken {
		n += ready
	}
	return n
}

// stop takes so many away of those that serve and are of other versions.
func (r *running) stop(n int32) {
	for _, id := range sortedKeys(r.taken) {
		less := min(n, r.taken[id])
		r.taken[id] -= less
		n -= less
	}
}

// adopt has the row go on with what runs under its workload.
func (f *fleet) adopt(key rowKey, workload string) {
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
		*o = running{generation: o.generation, epoch: o.epoch, told: o.told, gone: o.gone}
	}
	for id, n := range r.taken {
		if id == key.deployment || f.alike(id, key.deployment) {
			r.ready += n
			delete(r.taken, id)
		}
	}
}

// awaitsHeir tells whether the region takes nothing of the row away yet: who is to go on with
// it comes first.
func (f *fleet) awaitsHeir(row model.Topology) bool {
	for k, heir := range f.rows {
		if !row.Told() && k.region == row.RegionID && heir.Told() && heir.WorkloadKey() == row.WorkloadKey() &&
			(f.runs[k] == nil || f.runs[k].workload != heir.WorkloadKey()) {
			return true
		}
	}
	return false
}

// TestAVersionThatIsMadeAlikeStartsAndStopsNothing: by no policy, neither there nor half way and
// back, but where the agent knows nothing of taking over.
func TestAVersionThatIsMadeAlikeStartsAndStopsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policy := drawPolicy(t)
		policy.Analysis, policy.Deadlines = nil, nil
		f := newFleet(t, policy)
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
