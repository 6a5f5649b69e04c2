package preview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// gpuText describes in words the GPUs that are asked for.
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

// HasGPU reports whether instances of the spec, as it is in a region, ask for GPUs.
func HasGPU(s *windlassv1.DeploymentSpec) bool { return gpuOf(s) != nil }

// gpuOf returns what each instance of the spec, as it is in a region, asks for; nil for none.
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

// fitting returns the pools whose GPUs match g, by the rules of agents: unknown memory does not match, and a
// named pool implies the kind of its GPUs.
func fitting(g *windlassv1.Gpu, pools []*windlassv1.GpuCapacity) (out []*windlassv1.GpuCapacity) {
	const nvidia = "nvidia.com/gpu"
	for _, p := range pools {
		if (g.GetProduct() == "" || g.GetProduct() == p.GetProduct()) &&
			(g.GetPool() == "" || g.GetPool() == p.GetPool()) &&
			(g.GetPool() != "" && g.GetResourceName() == "" || cmp.Or(g.GetResourceName(), nvidia) == cmp.Or(p.GetResourceName(), nvidia)) &&
			p.GetMemoryMib() >= int64(g.GetMinMemoryMib()) {
			out = append(out, p)
		}
	}
	return out
}

// usable returns how many of the pool's GPUs a new instance may have: the free ones, but at most the pool's
// quota.
func usable(p *windlassv1.GpuCapacity) int32 {
	if p.GetQuota() > 0 {
		return min(p.GetFree(), p.GetQuota())
	}
	return p.GetFree()
}

func subset(some, of []*windlassv1.GpuCapacity) bool {
	return !slices.ContainsFunc(some, func(p *windlassv1.GpuCapacity) bool { return !slices.Contains(of, p) })
}
