package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/forecast"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// regionViews tells of each region what the deploy takes there, and what it has.
func (r *dryRun) regionViews(f forecast.Forecast, out *windlassv1.PlanDeployResponse) error {
	ids := map[string]bool{}
	for _, id := range r.in.RegionIDs {
		ids[id] = true
	}
	for _, t := range r.wasRows {
		if topology.Active(t) {
			ids[t.RegionID] = true
		}
	}
	all := keys(ids)
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(r.regions[a].Name, r.regions[b].Name) })
	for _, id := range all {
		region := r.regions[id]
		view, err := regionProto(region)
		if err != nil {
			return err
		}
		wave, waits := r.waveOf(f, id)
		v := &windlassv1.PlanRegion{Region: region.Name, Status: region.Status, Wave: wave}
		e := r.extent(f, region, view.GetGpus())
		v.ReplicasNow, v.ReplicasPeak, v.ReplicasAfter = e.now.replicas, e.peak.replicas, e.after.replicas
		v.GpusNow, v.GpusPeak, v.GpusAfter = e.now.gpus, e.peak.gpus, e.after.gpus
		if gpu := gpuOf(r.target.Spec); gpu != nil && e.comes {
			v.Gpu, v.GpusNeeded, v.Pools = gpu, e.needed, fitting(gpu, view.GetGpus())
			for _, p := range v.GetPools() {
				v.GpusFree += usable(p)
			}
		}
		out.Regions = append(out.Regions, v)
		if r.woken {
			out.Findings = append(out.Findings, r.reach(v, id, waits, out.GetOutcome())...)
			out.Findings = append(out.Findings, room(v, region, view.GetGpus())...)
		}
	}
	return nil
}

// waveOf is the region's wave in the forecast, and whether that waits for a region that is
// out of reach.
func (r *dryRun) waveOf(f forecast.Forecast, region string) (name string, waits bool) {
	if f.Course == nil || r.in.Rollout == nil || f.Course.RolloutID != r.in.Rollout.ID {
		return "", false
	}
	for _, w := range f.Course.Waves {
		if !slices.ContainsFunc(w.Regions, func(st model.CourseRegion) bool { return st.RegionID == region }) {
			continue
		}
		policy := &windlassv1.Wave{}
		if waves := f.Course.Policy.GetWaves(); w.Policy < len(waves) {
			policy = waves[w.Policy]
		}
		return w.Name, policy.GetOnUnreachable() != windlassv1.Wave_ON_UNREACHABLE_FAIL
	}
	return "", true
}

// reach tells of a region that cannot be told anything now.
func (r *dryRun) reach(v *windlassv1.PlanRegion, id string, waits bool, outcome windlassv1.PlanDeployResponse_Outcome) []*windlassv1.PlanFinding {
	if v.GetStatus() == windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
		return nil
	}
	f := &windlassv1.PlanFinding{
		Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, Region: v.GetRegion(),
		Fix: fmt.Sprintf("`windlass region show %s` tells what is known of it.", v.GetRegion()),
	}
	why := fmt.Sprintf("region %s is out of reach", v.GetRegion())
	if v.GetStatus() == windlassv1.RegionStatus_REGION_STATUS_PENDING {
		why = fmt.Sprintf("no agent has joined region %s yet", v.GetRegion())
	}
	i := slices.IndexFunc(r.target.Spec.GetRegions(), func(name string) bool { return r.in.RegionIDs[name] == id })
	switch {
	case i < 0:
		f.Message = why + ": what runs there stays until it returns"
	case outcome != windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT:
		f.Message = why + ": what is asked for is done there when it returns"
	case waits:
		f.Message = why + ": the rollout would wait for it when its turn comes, and those after it with it"
	default:
		f.Message, f.Blocks = why+": the rollout would fail there", true
	}
	if i >= 0 {
		f.Field = fmt.Sprintf("spec.regions[%d]", i)
	}
	return []*windlassv1.PlanFinding{f}
}

// room tells of a region that has too few GPUs free.
func room(v *windlassv1.PlanRegion, region model.Region, all []*windlassv1.GpuCapacity) []*windlassv1.PlanFinding {
	if v.GetGpu() == nil || v.GetStatus() != windlassv1.RegionStatus_REGION_STATUS_CONNECTED {
		return nil
	}
	f := &windlassv1.PlanFinding{
		Reason: windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, Blocks: true, Field: "spec.resources.gpu", Region: v.GetRegion(),
	}
	each := v.GetGpu().GetCount()
	var largest int32
	for _, p := range v.GetPools() {
		largest = max(largest, p.GetLargestFree())
	}
	switch {
	case len(region.Capacity) == 0:
		f.Blocks = false
		f.Message = fmt.Sprintf("region %s has not told yet what it has: whether %s are free there is not known", v.GetRegion(), gpuText(v.GetGpu()))
	case len(v.GetPools()) == 0:
		f.Message = fmt.Sprintf("region %s has no %s: it has %s", v.GetRegion(), gpuText(v.GetGpu()), poolsText(all))
		f.Fix = "Ask for what it has, or take the region out."
	case v.GetGpusNeeded() > v.GetGpusFree():
		f.Message = fmt.Sprintf("region %s needs %d more %s at its peak and has %d free", v.GetRegion(), v.GetGpusNeeded(), gpuText(v.GetGpu()), v.GetGpusFree())
		f.Fix = "Ask for fewer replicas; or move within the room that there is: max_surge 0 and max_unavailable 1, or strategy recreate."
	case v.GetGpusNeeded() > 0 && each > largest:
		f.Message = fmt.Sprintf("region %s has %d %s free, and an instance takes %d of one host, of which none has more than %d free",
			v.GetRegion(), v.GetGpusFree(), gpuText(v.GetGpu()), each, largest)
		f.Fix = "Ask for fewer GPUs for each instance, or make room on one host."
	default:
		return nil
	}
	return []*windlassv1.PlanFinding{f}
}

// gpuText is what is asked for, in words.
func gpuText(g *windlassv1.Gpu) string {
	text := "GPUs"
	if g.GetProduct() != "" {
		text = "GPUs " + g.GetProduct()
	}
	if g.GetPool() != "" {
		text += " of pool " + g.GetPool()
	}
	if g.GetMinMemoryMib() > 0 {
		text += fmt.Sprintf(" with %d MiB or more", g.GetMinMemoryMib())
	}
	if g.GetResourceName() != "" {
		text += " (" + g.GetResourceName() + ")"
	}
	return text
}

func poolsText(all []*windlassv1.GpuCapacity) string {
	var parts []string
	for _, p := range all {
		parts = append(parts, fmt.Sprintf("%d %s", p.GetAllocatable(), gpuText(&windlassv1.Gpu{
			Product: p.GetProduct(), Pool: p.GetPool(), ResourceName: p.GetResourceName(),
		})))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// gpuOf is what each instance of the spec asks for, nil for none.
func gpuOf(s *windlassv1.DeploymentSpec) *windlassv1.Gpu {
	resources := s.GetResources()
	for _, role := range s.GetRoles() {
		if role.GetResources() != nil {
			resources = role.GetResources()
		}
	}
	if resources.GetGpu().GetCount() == 0 {
		return nil
	}
	return resources.GetGpu()
}

// fitting are the pools whose GPUs are what is asked for, as agents choose them: memory
// that nobody knows is not enough.
func fitting(g *windlassv1.Gpu, pools []*windlassv1.GpuCapacity) (out []*windlassv1.GpuCapacity) {
	const nvidia = "nvidia.com/gpu"
	for _, p := range pools {
		if (g.GetProduct() == "" || g.GetProduct() == p.GetProduct()) &&
			(g.GetPool() == "" || g.GetPool() == p.GetPool()) &&
			cmp.Or(g.GetResourceName(), nvidia) == cmp.Or(p.GetResourceName(), nvidia) &&
			p.GetMemoryMib() >= int64(g.GetMinMemoryMib()) {
			out = append(out, p)
		}
	}
	return out
}

// usable is how many of the pool's GPUs a new instance may have: those that are free, and
// no more than all that Windlass may use of it.
func usable(p *windlassv1.GpuCapacity) int32 {
	if p.GetQuota() > 0 {
		return min(p.GetFree(), p.GetQuota())
	}
	return p.GetFree()
}

// amount is what replicas of an app take.
type amount struct{ replicas, gpus int32 }

// extent is what the app takes of a region: now, at most, and in the end.
type extent struct {
	now, peak, after amount
	// needed GPUs of the kind that the target asks for, beyond those given back.
	needed int32
	// comes tells whether replicas of the target are there at any time.
	comes bool
}

// extent follows the region's steps. Between two of them there is of each version what
// either says, at most.
func (r *dryRun) extent(f forecast.Forecast, region model.Region, pools []*windlassv1.GpuCapacity) (e extent) {
	each, gives := map[string]int32{}, map[string]bool{}
	mine := gpuOf(r.target.Spec)
	for _, d := range r.in.Deployments {
		_, n := admission.PerReplica(d.Spec)
		each[d.ID] = int32(n)
		theirs := gpuOf(d.Spec)
		// What it gives back is of use if the target could take any of it.
		gives[d.ID] = mine != nil && theirs != nil && subset(fitting(theirs, pools), fitting(mine, pools))
	}
	at := map[string]int32{}
	for _, t := range r.wasRows {
		if t.RegionID == region.ID && topology.Active(t) {
			at[t.DeploymentID] += t.Replicas
		}
	}
	start := at
	sum := func(replicas map[string]int32) (a amount, needed int32) {
		for id, n := range replicas {
			a.replicas += n
			a.gpus += n * each[id]
			if id == r.target.ID || gives[id] {
				needed += (n - start[id]) * each[id]
			}
			e.comes = e.comes || id == r.target.ID && n > 0
		}
		for id, n := range start {
			if _, still := replicas[id]; !still && (id == r.target.ID || gives[id]) {
				needed -= n * each[id]
			}
		}
		return a, needed
	}
	e.now, _ = sum(at)
	e.peak, e.after = e.now, e.now
	for _, s := range f.Steps {
		if s.Kind != windlassv1.PlanStep_KIND_MOVE || s.RegionID != region.ID {
			continue
		}
		next, most := map[string]int32{}, maps.Clone(at)
		for _, side := range s.Sides {
			next[side.DeploymentID] = side.Replicas
			most[side.DeploymentID] = max(most[side.DeploymentID], side.Replicas)
		}
		a, needed := sum(most)
		e.peak = amount{max(e.peak.replicas, a.replicas), max(e.peak.gpus, a.gpus)}
		e.needed = max(e.needed, needed)
		e.after, _ = sum(next)
		at = next
	}
	return e
}

func subset(some, of []*windlassv1.GpuCapacity) bool {
	return !slices.ContainsFunc(some, func(p *windlassv1.GpuCapacity) bool { return !slices.Contains(of, p) })
}
