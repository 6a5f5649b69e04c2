package preview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// gpuText describes the GPUs of a request.
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

// HasGPU reports whether instances of the spec ask for GPUs. s must be the spec of one region (override.In).
func HasGPU(s *windlassv1.DeploymentSpec) bool { return len(kindsOf(s)) > 0 }

// kind is a kind of GPU that one or more roles of a spec ask for.
type kind struct {
	// gpu is the request of the role whose instances ask for the most GPUs of the kind.
	gpu *windlassv1.Gpu
	// parts are the requests of the kind, one for each role.
	parts []kindPart
	roles []string
	// field is the path of the field that has gpu.
	field string
}

// kindPart is what one role takes of a kind of GPU.
type kindPart struct {
	spec *windlassv1.DeploymentSpec
	role *windlassv1.RoleSpec
	// gpus is how many GPUs of the kind all hosts of one instance have.
	gpus int32
}

// count returns how many GPUs of the kind the replicas take.
func (k kind) count(replicas int32) (n int32) {
	for _, p := range k.parts {
		n += model.InstancesOf(p.spec, p.role, replicas) * p.gpus
	}
	return n
}

// kindWith returns the kind with the instances of another spec, which has the same roles.
func (k kind) kindWith(spec *windlassv1.DeploymentSpec) kind {
	k.parts = slices.Clone(k.parts)
	for i, p := range k.parts {
		for _, role := range spec.GetRoles() {
			if role.GetName() == p.role.GetName() {
				k.parts[i] = kindPart{spec, role, p.gpus}
			}
		}
	}
	return k
}

// kindsOf returns the kinds of GPUs that the roles of the spec ask for. s must be the spec of one region
// (override.In).
func kindsOf(s *windlassv1.DeploymentSpec) (kinds []kind) {
	roles := s.GetRoles()
	if len(roles) == 0 {
		roles = []*windlassv1.RoleSpec{{}}
	}
	for i, role := range roles {
		k := kind{gpu: s.GetResources().GetGpu(), field: "spec.resources.gpu"}
		if role.GetResources() != nil {
			k.gpu = role.GetResources().GetGpu()
			if len(roles) > 1 {
				k.field = fmt.Sprintf("spec.roles[%d].resources.gpu", i)
			}
		}
		if k.gpu.GetCount() == 0 {
			continue
		}
		k.parts = []kindPart{{s, role, k.gpu.GetCount() * model.HostsOf(role)}}
		if len(roles) > 1 {
			k.roles = []string{role.GetName()}
		}
		same := slices.IndexFunc(kinds, func(o kind) bool { return sameKind(o.gpu, k.gpu) })
		if same < 0 {
			kinds = append(kinds, k)
			continue
		}
		kinds[same] = kinds[same].add(k)
	}
	return kinds
}

// add returns the kind with the GPUs of o added.
func (k kind) add(o kind) kind {
	if o.gpu.GetCount() > k.gpu.GetCount() {
		k.gpu, k.field = o.gpu, o.field
	}
	k.parts = slices.Concat(k.parts, o.parts)
	k.roles = slices.Concat(k.roles, o.roles)
	return k
}

// sameKind reports whether two requests differ at most in their numbers of GPUs.
func sameKind(a, b *windlassv1.Gpu) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Count, b.Count = 0, 0
	return proto.Equal(a, b)
}

// mergeShared merges kinds that fit the same pools, because they compete for the same GPUs.
func mergeShared(kinds []kind, pools []*windlassv1.GpuCapacity) (out []kind) {
	for _, k := range kinds {
		fits := fittingPools(k.gpu, pools)
		same := slices.IndexFunc(out, func(o kind) bool { return len(fits) > 0 && slices.Equal(fits, fittingPools(o.gpu, pools)) })
		if same < 0 {
			out = append(out, k)
			continue
		}
		out[same] = out[same].add(k)
	}
	return out
}

// fittingPools returns the pools whose GPUs match g, by the rules of agents: unknown memory does not match, and a
// named pool implies the kind of its GPUs.
func fittingPools(g *windlassv1.Gpu, pools []*windlassv1.GpuCapacity) (out []*windlassv1.GpuCapacity) {
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

// usableGPUs returns how many of the pool's GPUs new instances can get: the free ones, but at most the pool's quota.
func usableGPUs(p *windlassv1.GpuCapacity) int32 {
	if p.GetQuota() > 0 {
		return min(p.GetFree(), p.GetQuota())
	}
	return p.GetFree()
}

// isSubset reports whether all contains each pool of some.
func isSubset(some, all []*windlassv1.GpuCapacity) bool {
	return !slices.ContainsFunc(some, func(p *windlassv1.GpuCapacity) bool { return !slices.Contains(all, p) })
}

// HostGPUs are the free GPUs of a region that is one host.
type HostGPUs struct {
	pools []*windlassv1.GpuCapacity
	free  map[*windlassv1.GpuCapacity]int32
}

// FreeGPUs returns the GPUs that were free on the host when its agent last reported. known is false before the first
// report.
func FreeGPUs(host model.Region) (gpus HostGPUs, known bool, err error) {
	has, err := capacityOf(host)
	gpus = HostGPUs{has.gpus, map[*windlassv1.GpuCapacity]int32{}}
	for _, p := range has.gpus {
		gpus.free[p] = usableGPUs(p)
	}
	return gpus, has.known, err
}

// Take takes GPUs for up to n replicas of the spec, or for n instances of one of its roles, and returns for how many the
// GPUs were enough. The spec must be of the host's region. role is empty for replicas.
func (g HostGPUs) Take(spec *windlassv1.DeploymentSpec, role string, n int32) (taken int32) {
	kinds := kindsOf(spec)
	if len(kinds) == 0 {
		return max(n, 0)
	}
	for taken < n {
		left := maps.Clone(g.free)
		for _, k := range kinds {
			for _, p := range k.parts {
				need := p.gpus * model.InstancesOf(p.spec, p.role, 1)
				if role != "" {
					need = p.gpus
				}
				if role != "" && p.role.GetName() != role || takeFrom(left, fittingPools(k.gpu, g.pools), need) {
					continue
				}
				return taken
			}
		}
		maps.Copy(g.free, left)
		taken++
	}
	return taken
}

// takeFrom takes n GPUs from the pools, and reports whether they had enough.
func takeFrom(free map[*windlassv1.GpuCapacity]int32, pools []*windlassv1.GpuCapacity, n int32) bool {
	for _, p := range pools {
		took := min(free[p], n)
		free[p], n = free[p]-took, n-took
	}
	return n == 0
}
