package preview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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

// replaceGroups adds to e the effects of a step in which the region replaces the instances of a number of replicas, with
// one role or several.
func (p *Preview) replaceGroups(e *extent, replicas int32) {
	_, unavailable := strategy.Of(p.policyOf()).Bounds(p.policyOf(), replicas, strategy.Sizes{})
	e.lowest = min(e.lowest, replicas-unavailable)
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
	_, unavailable := strategy.Of(p.policyOf()).Bounds(p.policyOf(), pool.Whole, strategy.Sizes{})
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

// setCapacityText describes what a rollout means for the set capacity of an app with several roles in the region: in
// percent of a pool, or in groups. It is empty for apps with one role, and if no other version runs.
func (p *Preview) setCapacityText(e extent, region string) string {
	if !p.losesSets(e) {
		return ""
	}
	steps := countText(int64(e.moves), "step")
	text := fmt.Sprintf("%d %% at worst, in %s", e.lowest, steps)
	switch {
	case !model.IsPooled(p.target.Spec):
		text = fmt.Sprintf("%d of %s at worst, in %s", e.lowest, countText(int64(e.now.replicas), "group"), steps)
	case len(e.moving) > 1:
		text = fmt.Sprintf("%d %% at worst of instances of one version, in %s of order %s", e.lowest, steps, pool.OrderName(p.target.Spec.GetUpdate()))
		if model.HasPairing(p.target.Spec) {
			text += ", and with pairing only these serve"
		}
	}
	if e.full != nil {
		text += fmt.Sprintf("; without room for more, %d %% at worst", min(*e.full, e.lowest))
	}
	if cure := p.cureText(e, region); cure != "" {
		text += "; " + cure
	}
	return text
}

// losesSets reports whether the rollout moves an app with several roles from another version in a region, so that it may
// have fewer complete sets of roles meanwhile. It is false for a region in which nothing should run after the rollout.
func (p *Preview) losesSets(e extent) bool {
	return len(p.target.Spec.GetRoles()) > 1 && e.now.replicas > 0 && e.after.replicas > 0 && e.moves > 0
}

// cureText describes the cheapest way to a higher set capacity in the region, and its additional instances and GPUs. It is
// empty if there is no such way.
func (p *Preview) cureText(e extent, region string) string {
	spec := specIn(p.in.Topology, p.target.ID, p.target.Spec, region)
	best, ok := p.cheapestCure(e, spec)
	if !ok || best.capacity <= e.lowest {
		return ""
	}
	more := countText(best.instances, "instance")
	if best.gpus > 0 {
		more = countText(best.gpus, "GPU")
	}
	keeps := fmt.Sprintf("%d %%", best.capacity)
	if !model.IsPooled(spec) {
		keeps = countText(int64(best.capacity), "group")
	}
	return fmt.Sprintf("%s keeps %s and takes %s more meanwhile", best.text, keeps, more)
}

// pairFinding returns a warning if the rollout leaves the region without a pair at some moment, else nil.
func (p *Preview) pairFinding(e extent, id string) *windlassv1.PlanFinding {
	if !model.HasPairing(p.target.Spec) || !p.losesSets(e) || e.lowest > 0 {
		return nil
	}
	prefill, decode := model.PairedRoles(p.target.Spec)
	f := &windlassv1.PlanFinding{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, Field: "spec.pairing", Region: p.regions[id].Name,
		Message: fmt.Sprintf("region %s has no pair of a %s and a %s instance of one version for a part of the rollout, so completions fail there meanwhile", p.regions[id].Name, prefill, decode),
	}
	if cure := p.cureText(e, id); cure != "" {
		f.Fix = strings.ToUpper(cure[:1]) + cure[1:] + "."
	}
	return f
}

// countText returns a number with the word for it: "1 step", "2 steps".
func countText(n int64, what string) string {
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
// fewest GPUs. ok is false for stable slots, because instances with stable slots always stop before their
// successors start.
func (p *Preview) cheapestCure(e extent, spec *windlassv1.DeploymentSpec) (best cure, ok bool) {
	if len(model.StableRoles(spec)) > 0 {
		return cure{}, false
	}
	if !model.IsPooled(spec) {
		instances, gpus := admission.Of(spec, 1)
		return cure{"strategy rolling with maxSurge 1 and maxUnavailable 0", min(e.now.replicas, e.after.replicas), instances, gpus}, true
	}
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
	}), true
}
