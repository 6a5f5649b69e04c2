package preview

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/strategy"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// unblockIfWaits changes a blocking finding to one that does not block, if the rollout's policy waits for room.
func (p *Preview) unblockIfWaits(f *windlassv1.PlanFinding) *windlassv1.PlanFinding {
	limit := p.capacityWait()
	if limit == 0 || !f.GetBlocks() {
		return f
	}
	f.Blocks, f.Fix = false, ""
	f.Message += fmt.Sprintf(": the rollout would wait for room, for %s at most", limit)
	return f
}

// capacityWait returns how long the rollout's policy waits for room. 0 means not at all.
func (p *Preview) capacityWait() time.Duration {
	if p.in.RolloutState == nil {
		return 0
	}
	if c := p.progressOf(); c != nil {
		return c.Policy.GetWaitForCapacity().AsDuration()
	}
	return p.in.RolloutState.Policy.GetWaitForCapacity().AsDuration()
}

// capacity is the capacity that a region reported.
type capacity struct {
	// known reports whether the region has reported its capacity.
	known bool
	gpus  []*windlassv1.GpuCapacity
	// cpuMillicores and memoryMiB are of all hosts of the region together. 0: not known.
	cpuMillicores, memoryMiB int64
}

// capacityOf returns the region's reported capacity.
func capacityOf(r model.Region) (capacity, error) {
	reported, err := rollup.Capacity(r)
	if err != nil {
		return capacity{}, err
	}
	return capacity{
		known: len(r.Capacity) > 0, gpus: rollup.GPUs(reported),
		cpuMillicores: reported.GetCpuMillicores(), memoryMiB: reported.GetMemoryMib(),
	}, nil
}

// regionView returns the app's needs in a region in the forecast, the extent from which they follow, and the region's
// capacity.
func (p *Preview) regionView(f forecast.Forecast, id string) (*windlassv1.PlanRegion, extent, capacity, error) {
	region, e := p.regions[id], extent{}
	has, err := capacityOf(region)
	if err != nil {
		return nil, e, has, err
	}
	v := &windlassv1.PlanRegion{Region: region.Name, Status: region.Status}
	kinds := mergeShared(kindsOf(specIn(p.in.Topology, p.target.ID, p.target.Spec, id)), has.gpus)
	for i, k := range append(kinds, kind{})[:max(1, len(kinds))] {
		e = p.measureExtent(f, region, has.gpus, k)
		v.ReplicasNow, v.ReplicasPeak, v.ReplicasAfter = e.now.replicas, e.peak.replicas, e.after.replicas
		v.GpusNow, v.GpusPeak, v.GpusAfter = e.now.gpus, e.peak.gpus, e.after.gpus
		v.SetCapacity = p.setCapacityText(e, id)
		if k.gpu == nil || !e.runsTarget {
			continue
		}
		pools, free := fittingPools(k.gpu, has.gpus), int32(0)
		for _, p := range pools {
			free += usableGPUs(p)
		}
		if i == 0 {
			v.Gpu, v.GpusNeeded, v.GpusKept, v.GpusFree, v.Pools = k.gpu, e.needed, e.kept, free, pools
			continue
		}
		v.OtherGpus = append(v.OtherGpus, &windlassv1.PlanGpus{Gpu: k.gpu, Roles: k.roles, Needed: e.needed, Kept: e.kept, Free: free, Pools: pools})
	}
	return v, e, has, nil
}

// hostFindings returns a warning for each amount of CPU or memory of which one instance needs more than all hosts of
// the region have. It does not block, because hosts may be added to the region.
func (p *Preview) hostFindings(v *windlassv1.PlanRegion, has capacity, id string) (out []*windlassv1.PlanFinding) {
	if v.GetStatus() != windlassv1.RegionStatus_REGION_STATUS_CONNECTED || !slices.Contains(p.target.Spec.GetRegions(), v.GetRegion()) {
		return nil
	}
	for _, amount := range []struct {
		field, unit string
		has         int64
		of          func(*windlassv1.Resources) int32
	}{
		{"cpuMillicores", "millicores of CPU", has.cpuMillicores, (*windlassv1.Resources).GetCpuMillicores},
		{"memoryMib", "MiB of memory", has.memoryMiB, (*windlassv1.Resources).GetMemoryMib},
	} {
		needs, field := largestOf(specIn(p.in.Topology, p.target.ID, p.target.Spec, id), amount.of)
		if amount.has == 0 || int64(needs) <= amount.has {
			continue
		}
		field += "." + amount.field
		if own, _ := largestOf(p.target.Spec, amount.of); own != needs {
			field = "spec.overrides"
		}
		out = append(out, &windlassv1.PlanFinding{
			Reason: windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, Field: field, Region: v.GetRegion(),
			Message: fmt.Sprintf("an instance needs %d %s, and all hosts of region %s together have %d", needs, amount.unit, v.GetRegion(), amount.has),
			Fix:     "Ask for no more than one host has, or remove the region from the spec.",
		})
	}
	return out
}

// largestOf returns the largest amount that an instance of a role asks for, and the field that has the amounts. s must be
// the spec of one region (override.In).
func largestOf(s *windlassv1.DeploymentSpec, amount func(*windlassv1.Resources) int32) (most int32, field string) {
	if len(s.GetRoles()) == 0 {
		return amount(s.GetResources()), "spec.resources"
	}
	for i, role := range s.GetRoles() {
		resources, at := s.GetResources(), "spec.resources"
		if role.GetResources() != nil {
			resources, at = role.GetResources(), fmt.Sprintf("spec.roles[%d].resources", i)
		}
		if n := amount(resources); n > most {
			most, field = n, at
		}
	}
	return most, field
}

// gpuFindings returns a finding for each kind of GPU if the region has, or may have, too few free GPUs of the kind.
func (p *Preview) gpuFindings(v *windlassv1.PlanRegion, has capacity) (out []*windlassv1.PlanFinding) {
	all := []*windlassv1.PlanRegion{v}
	for _, o := range v.GetOtherGpus() {
		all = append(all, &windlassv1.PlanRegion{
			Region: v.GetRegion(), Status: v.GetStatus(), Gpu: o.GetGpu(), GpusNeeded: o.GetNeeded(), GpusKept: o.GetKept(), GpusFree: o.GetFree(), Pools: o.GetPools(),
		})
	}
	for _, one := range all {
		if found := p.gpuFinding(one, has); found != nil {
			out = append(out, found)
		}
	}
	return out
}

// gpuFinding returns a finding if a region has, or may have, too few free GPUs of the kind v.Gpu, else nil.
func (p *Preview) gpuFinding(v *windlassv1.PlanRegion, has capacity) *windlassv1.PlanFinding {
	if v.GetGpu() == nil || v.GetStatus() != windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
		return nil
	}
	f := &windlassv1.PlanFinding{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, Blocks: true, Field: p.gpuField(v), Region: v.GetRegion(),
	}
	// With tolerations, an instance may run on hosts that refuse other pods. With a priority, other pods may be
	// evicted for it. So the number of free GPUs does not show whether it fits.
	if k := p.target.Spec.GetKubernetes(); len(k.GetTolerations()) > 0 || k.GetPriorityClass() != "" {
		f.Blocks = false
	}
	each := v.GetGpu().GetCount()
	var largest int32
	for _, p := range v.GetPools() {
		largest = max(largest, p.GetLargestFree())
	}
	switch {
	case !has.known:
		f.Blocks = false
		f.Message = fmt.Sprintf("region %s has not reported its capacity yet: whether %s are free there is not known", v.GetRegion(), gpuText(v.GetGpu()))
	case len(v.GetPools()) == 0:
		f.Blocks = true
		f.Message, f.Fix = lackText(v.GetRegion(), v.GetGpu(), has.gpus)
	case v.GetGpusNeeded() > v.GetGpusFree():
		f.Message = fmt.Sprintf("region %s needs %d more %s%s and has %d free", v.GetRegion(), v.GetGpusNeeded(), gpuText(v.GetGpu()), p.neededWhen, v.GetGpusFree())
		f.Fix = "Ask for fewer replicas, or for fewer GPUs for each, or make room."
		if v.GetGpusKept() <= v.GetGpusFree() {
			f.Fix = "Use no additional GPUs during the rollout: rollout.maxSurge 0 and maxUnavailable 1, or strategy " + strategy.NamesWithoutOverlap() + ". Or make room."
		}
	case v.GetGpusNeeded() > 0 && each > largest:
		f.Message = fmt.Sprintf("region %s has %d %s free, and an instance takes %d of one host, of which none has more than %d free",
			v.GetRegion(), v.GetGpusFree(), gpuText(v.GetGpu()), each, largest)
		f.Fix = "Ask for fewer GPUs for each instance, or make room on one host."
	default:
		return nil
	}
	return f
}

// lackText returns the message and the fix for a region with the pools, none of which fits the request.
func lackText(region string, g *windlassv1.Gpu, pools []*windlassv1.GpuCapacity) (message, fix string) {
	if len(pools) == 0 {
		return fmt.Sprintf("region %s has no GPUs at all, and each instance needs %d %s", region, g.GetCount(), gpuText(g)), "Ask for no GPUs there, or remove the region from the spec."
	}
	named := func(p *windlassv1.GpuCapacity) bool { return p.GetPool() == g.GetPool() }
	if g.GetPool() != "" && !slices.ContainsFunc(pools, named) {
		return fmt.Sprintf("region %s has no pool %s: it has %s", region, g.GetPool(), poolsText(pools)), "Name a pool that it has, or remove the region from the spec."
	}
	return fmt.Sprintf("region %s has no %s: it has %s", region, gpuText(g), poolsText(pools)), "Ask for GPUs that it has, or remove the region from the spec."
}

// gpuField returns the field that asks for the region's GPUs, in the spec or in its overrides.
func (p *Preview) gpuField(v *windlassv1.PlanRegion) string {
	for _, k := range kindsOf(p.target.Spec) {
		if proto.Equal(v.GetGpu(), k.gpu) {
			return k.field
		}
	}
	return "spec.overrides"
}

// amount is a number of an app's replicas, and of the GPUs that they take.
type amount struct{ replicas, gpus int32 }

// plusReplicas returns the amount with replicas of the spec added. Replicas of an unknown spec (nil) take no GPUs.
func (a amount) plusReplicas(spec *windlassv1.DeploymentSpec, replicas int32) amount {
	a.replicas += replicas
	if spec != nil {
		_, gpus := admission.Of(spec, replicas)
		a.gpus += int32(gpus)
	}
	return a
}

// extent is what the app takes of a region: before the rollout, at its peak, and after it.
type extent struct {
	now, peak, after amount
	// needed is how many GPUs of one kind the target needs at the peak, in addition to GPUs that other versions
	// give back.
	needed int32
	// kept is how many of the needed GPUs are still needed after the rollout.
	kept int32
	// lowest is the lowest set capacity during the rollout, in percent of a pool or in replicas. moves is the number of
	// steps.
	// moving has the roles that are replaced in their places, and is empty if both versions have shares of the pool.
	lowest int32
	moves  int
	moving []pool.Progress
	// full is the lowest set capacity if there is no room for more instances and old instances then stop. nil: old
	// instances do not stop.
	full *int32
	// runsTarget reports whether the region runs replicas of the target at any time.
	runsTarget bool
}

// policyOf returns the policy of the rollout.
func (p *Preview) policyOf() *windlassv1.RolloutPolicy {
	if c := p.progressOf(); c != nil {
		return c.Policy
	}
	return nil
}

// specIn returns the deployment's spec in the region. For a pool, it has the numbers of instances in the rows.
func specIn(rows []model.Topology, deployment string, spec *windlassv1.DeploymentSpec, region string) *windlassv1.DeploymentSpec {
	row := model.Topology{}
	for _, t := range rows {
		if t.RegionID == region && topology.Active(t) && (row.Roles == "" || t.DeploymentID == deployment) {
			row = t
		}
	}
	return row.In(override.In(spec, region))
}

// measureExtent follows the region's steps, and counts the GPUs of the kind wanted that the target needs. Between two
// steps, a version has at most the larger of its two numbers of replicas.
func (p *Preview) measureExtent(f forecast.Forecast, region model.Region, pools []*windlassv1.GpuCapacity, wanted kind) (e extent) {
	// specs has the region's specs, by deployment. ofKind has the GPUs that count for the kind: GPUs that replicas of the
	// target take, and GPUs that replicas of another version give back to pools of the kind. specsWas and ofKindWas are
	// the same before the call, which may scale roles of a pool.
	specs, ofKind := map[string]*windlassv1.DeploymentSpec{}, map[string]kind{}
	specsWas, ofKindWas := map[string]*windlassv1.DeploymentSpec{}, map[string]kind{}
	for _, d := range p.in.Deployments {
		specs[d.ID] = specIn(p.in.Topology, d.ID, d.Spec, region.ID)
		specsWas[d.ID] = specIn(p.was, d.ID, d.Spec, region.ID)
		for _, theirs := range kindsOf(specs[d.ID]) {
			// GPUs count as given back if each pool that fits them also fits the target.
			if d.ID != p.target.ID && wanted.gpu != nil && isSubset(fittingPools(theirs.gpu, pools), fittingPools(wanted.gpu, pools)) {
				ofKind[d.ID] = ofKind[d.ID].add(theirs)
			}
		}
	}
	ofKind[p.target.ID] = wanted
	for id, k := range ofKind {
		ofKindWas[id] = k.kindWith(specsWas[id])
	}
	at := map[string]int32{}
	for _, t := range p.was {
		if t.RegionID == region.ID && topology.Active(t) {
			at[t.DeploymentID] += t.Replicas
		}
	}
	start := at
	sum := func(replicas map[string]int32) (a amount, needed int32) {
		for id, n := range replicas {
			a = a.plusReplicas(specs[id], n)
			needed += ofKind[id].count(n) - ofKindWas[id].count(start[id])
			e.runsTarget = e.runsTarget || id == p.target.ID && n > 0
		}
		for id, n := range start {
			if _, still := replicas[id]; !still {
				needed -= ofKindWas[id].count(n)
			}
		}
		return a, needed
	}
	for id, n := range at {
		e.now = e.now.plusReplicas(specsWas[id], n)
	}
	// Roles of a pool are scaled before the first step.
	e.after, e.kept = sum(at)
	e.kept = max(0, e.kept)
	e.needed, e.lowest = e.kept, e.now.replicas
	e.peak = amount{e.now.replicas, max(e.now.gpus, e.after.gpus)}
	shares := false
	for _, s := range f.Steps {
		if s.Kind != windlassv1.PlanStep_KIND_MOVE || s.RegionID != region.ID {
			continue
		}
		next, most := map[string]int32{}, maps.Clone(at)
		for _, side := range s.Sides {
			next[side.DeploymentID] = side.Replicas
			most[side.DeploymentID] = max(most[side.DeploymentID], side.Replicas)
		}
		e.moves++
		more := amount{}
		if s.InPlace {
			most = maps.Clone(next) // except in a pool, an instance never runs next to its successor
			more = p.moveInPlace(&e, region, s.Moving, specs[p.target.ID], wanted)
			if !model.IsPooled(p.target.Spec) && !s.Keeps {
				p.replaceGroups(&e, next[p.target.ID])
			}
		} else {
			e.lowest = min(e.lowest, leastOf(at, next))
			shares = true
		}
		a, _ := sum(most)
		for id := range most {
			if id == p.target.ID || id == p.in.App.LiveDeploymentID {
				continue
			}
			// This version is neither the target nor live. It stops as soon as no traffic is routed to it. In a
			// staged rollout it stops only as far as this step says.
			most[id] = 0
			if p.progressOf() != nil {
				most[id] = next[id]
			}
		}
		_, needed := sum(most)
		e.peak = amount{max(e.peak.replicas, a.replicas), max(e.peak.gpus, a.gpus+more.gpus)}
		e.needed = max(e.needed, needed+more.replicas)
		e.after, e.kept = sum(next)
		e.kept = max(0, e.kept)
		at = next
	}
	if spec := specs[p.target.ID]; shares && model.IsPooled(spec) && model.ReplacesWhenFull(spec) {
		e.full = new(max(0, e.lowest-model.PercentOfSet(spec)))
		e.needed = e.kept // without room, old instances stop first
	}
	return e
}
