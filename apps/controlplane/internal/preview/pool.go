package preview

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// leastOf returns the smallest number of replicas that serve between two steps.
func leastOf(at, next map[string]int32) (n int32) {
	for id, replicas := range at {
		n += min(replicas, next[id])
	}
	return n
}

// moveInPlace adds to e the effects of a step in which the target takes over a pool. moving names the roles whose
// instances are replaced, and spec is the target's spec in the region. It does nothing for other layouts. If the region's
// agent does not yield (model.Region.HasPoolYields), a new instance waits for room, so its GPUs are needed.
//
// It returns the largest number of additional GPUs that the pool has at any moment. more.gpus counts all GPUs.
// more.replicas counts GPUs of the kind, not replicas.
func (p *Preview) moveInPlace(e *extent, region model.Region, moving []string, spec *windlassv1.DeploymentSpec, of kind) (more amount) {
	if !model.IsPooled(spec) {
		return more
	}
	_, unavailable := strategy.Of(p.policy()).Bounds(p.policy(), pool.Whole, strategy.Sizes{})
	e.moving = model.RolesInPlace(spec, moving, unavailable)
	f := pool.Foresee(pool.OrderOf(spec.GetUpdate()), e.moving)
	e.lowest = min(e.lowest, int32(f.Capacity))
	e.moves += max(0, f.Steps-1)
	for _, counts := range f.More {
		var all, ofKind int32
		for i, n := range counts {
			all += int32(n) * int32(costOf(spec, e.moving[i].Name).GPUs)
			for _, part := range of.parts {
				if part.role.GetName() == e.moving[i].Name {
					ofKind += int32(n) * part.gpus
				}
			}
		}
		more = amount{max(more.replicas, ofKind), max(more.gpus, all)}
	}
	if model.ReplacesWhenFull(spec) && region.HasPoolYields() && len(e.moving) > 0 {
		more.replicas = 0 // without room, old instances stop first, so no GPUs are needed
		roles := slices.Clone(e.moving)
		for i := range roles {
			roles[i].Unavailable = 1
		}
		e.full = new(int32(pool.Foresee(pool.OrderOf(spec.GetUpdate()), roles).Capacity))
	}
	return more
}

// costOf returns what an instance of the role takes.
func costOf(spec *windlassv1.DeploymentSpec, role string) (cost model.RoleCost) {
	for _, r := range spec.GetRoles() {
		if r.GetName() == role {
			cost = admission.CostOfRole(spec, r)
		}
	}
	return cost
}

// setCapacityText describes what a rollout means for the set capacity of a pool in the region. It is empty for other
// layouts, and if no other version runs.
func (p *Preview) setCapacityText(e extent, region string) string {
	if !model.IsPooled(p.target.Spec) || e.now.replicas == 0 || e.moves == 0 {
		return ""
	}
	text := fmt.Sprintf("%d %% at worst, in %s", e.lowest, counted(int64(e.moves), "step"))
	if name := pool.OrderName(p.target.Spec.GetUpdate()); len(e.moving) > 1 {
		text = fmt.Sprintf("%d %% at worst of instances of one version, in %s of order %s", e.lowest, counted(int64(e.moves), "step"), name)
	}
	if e.full != nil {
		text += fmt.Sprintf("; without room for more, %d %% at worst", min(*e.full, e.lowest))
	}
	best := p.cheapestCure(e, specIn(p.in.Topology, p.target.ID, p.target.Spec, region))
	if best.capacity <= e.lowest {
		return text
	}
	more := counted(best.instances, "instance")
	if best.gpus > 0 {
		more = counted(best.gpus, "GPU")
	}
	return fmt.Sprintf("%s; %s keeps %d %% and takes %s more meanwhile", text, best.text, best.capacity, more)
}

// counted returns a number with the word for it: "1 step", "2 steps".
func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// cure is a way to move the pool with another set capacity. It has the additional instances and GPUs that the pool takes
// meanwhile.
type cure struct {
	text            string
	capacity        int32
	instances, gpus int64
}

// cheapestCure returns the way with the highest set capacity. Of several such ways, it returns the way that takes the
// fewest GPUs.
func (p *Preview) cheapestCure(e extent, spec *windlassv1.DeploymentSpec) cure {
	const room = "maxUnavailable 0"
	var cures []cure
	inPlace := func(text string, update *windlassv1.PoolUpdate) {
		roles := slices.Clone(e.moving)
		for i := range roles {
			roles[i].Unavailable = 0
		}
		f := pool.Foresee(pool.OrderOf(update), roles)
		c := cure{text: text, capacity: min(e.now.replicas, int32(f.Capacity))}
		for _, counts := range f.More {
			var instances, gpus int64
			for i, n := range counts {
				instances += int64(n)
				gpus += int64(n) * costOf(spec, roles[i].Name).GPUs
			}
			c.instances, c.gpus = max(c.instances, instances), max(c.gpus, gpus)
		}
		cures = append(cures, c)
	}
	if len(e.moving) > 0 {
		inPlace(room, spec.GetUpdate())
	}
	if len(e.moving) > 1 {
		inPlace("update.order interleaved with "+room, &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_INTERLEAVED})
	}
	if len(e.moving) != 1 {
		text := "strategy rolling with maxSurge 1% and " + room
		if spec.GetUpdate().GetOrder() > windlassv1.PoolUpdate_ORDER_COHERENT {
			text = "update.order coherent with maxSurge 1% and " + room
		}
		instances, gpus := admission.Of(spec, 1)
		cures = append(cures, cure{text, e.now.replicas, instances, gpus})
	}
	return slices.MinFunc(cures, func(a, b cure) int {
		return cmp.Or(cmp.Compare(b.capacity, a.capacity), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.instances, b.instances))
	})
}
