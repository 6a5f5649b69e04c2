// Package override computes the spec of an app in one region: the app's spec, with the changes of the app's overrides
// for that region. In is the only function that applies overrides. All code that needs the spec of a region calls In,
// from the quota to the agent.
//
// Pin decides which overrides apply to which region. It does so once, when a version is made,
// and the result is kept with the version. A version is immutable. If labels of a region were
// looked up with each assignment, a new label would change what runs there without a version, a
// rollout or a generation. Agents would take that for drift.
//
// A region's overrides are layers, by field:
//
//	named by name   wins over   named by labels   wins over   the rest of the spec
//
// Each variable is a field, whether it has a value or refers to a secret. The GPU is one field.
// args and extra_args together are one field. Each role has its own fields for resources and args.
package override

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// In returns the spec of one region: its pinned override is applied, and the lists of overrides
// are removed. If the spec has no overrides, In returns the spec itself and not a copy, so
// callers must not change the result.
func In(spec *windlassv1.DeploymentSpec, regionID string) *windlassv1.DeploymentSpec {
	if len(spec.GetOverrides()) == 0 && len(spec.GetPinnedOverrides()) == 0 {
		return spec
	}
	s := proto.CloneOf(spec)
	s.Overrides, s.PinnedOverrides = nil, nil
	if p := pinnedFor(spec, regionID); p != nil {
		apply(s, p.GetValues())
	}
	return s
}

func pinnedFor(spec *windlassv1.DeploymentSpec, regionID string) *windlassv1.PinnedOverride {
	for _, p := range spec.GetPinnedOverrides() {
		if p.GetRegionId() == regionID {
			return p
		}
	}
	return nil
}

// Any returns all variants of the spec: one for each region with a pinned override, and one for
// the other regions if there are any.
func Any(spec *windlassv1.DeploymentSpec) []*windlassv1.DeploymentSpec {
	all := []*windlassv1.DeploymentSpec{}
	if len(spec.GetPinnedOverrides()) < len(spec.GetRegions()) || len(spec.GetRegions()) == 0 {
		all = append(all, In(spec, ""))
	}
	for _, p := range spec.GetPinnedOverrides() {
		all = append(all, In(spec, p.GetRegionId()))
	}
	return all
}

// ID returns the id of the region with the name, if it has a pinned override, else "".
func ID(spec *windlassv1.DeploymentSpec, region string) string {
	for _, p := range spec.GetPinnedOverrides() {
		if p.GetRegion() == region {
			return p.GetRegionId()
		}
	}
	return ""
}

// Replicas returns the replicas that the spec begins with in the region. ok is false if
// the spec sets none.
func Replicas(spec *windlassv1.DeploymentSpec, regionID string) (n int32, ok bool) {
	if v := pinnedFor(spec, regionID).GetValues(); v != nil && v.Replicas != nil {
		return v.GetReplicas(), true
	}
	return spec.GetReplicas(), spec.Replicas != nil
}

// Stale returns the name of a region that was deleted and created again after the spec was
// pinned, "" for none. ids are the ids of regions by name.
func Stale(spec *windlassv1.DeploymentSpec, ids map[string]string) string {
	for _, p := range spec.GetPinnedOverrides() {
		if id := ids[p.GetRegion()]; id != "" && id != p.GetRegionId() {
			return p.GetRegion()
		}
	}
	return ""
}

// Repin replaces the region ids of pinned overrides by the ids of the regions that have the same names now. It
// removes overrides of regions that no longer exist.
func Repin(spec *windlassv1.DeploymentSpec, ids map[string]string) {
	var all []*windlassv1.PinnedOverride
	for _, p := range spec.GetPinnedOverrides() {
		if id := ids[p.GetRegion()]; id != "" {
			p.RegionId = id
			all = append(all, p)
		}
	}
	spec.PinnedOverrides = all
}

// SetReplicas makes n the initial number of replicas in the region. It pins the number only if
// it differs from the spec's.
func SetReplicas(spec *windlassv1.DeploymentSpec, region, regionID string, n int32) {
	StateReplicas(spec, region, regionID, n)
	if n == spec.GetReplicas() {
		pinnedFor(spec, regionID).Values.Replicas = nil
	}
	spec.PinnedOverrides = slices.DeleteFunc(spec.PinnedOverrides, func(p *windlassv1.PinnedOverride) bool {
		return proto.Size(p.GetValues()) == 0
	})
}

// StateReplicas pins the number for the region, even if the spec has the same number.
func StateReplicas(spec *windlassv1.DeploymentSpec, region, regionID string, n int32) {
	p := pinnedFor(spec, regionID)
	if p == nil {
		p = &windlassv1.PinnedOverride{Region: region, RegionId: regionID, Values: &windlassv1.Override{}}
		spec.PinnedOverrides = sortPinned(append(slices.Clone(spec.PinnedOverrides), p))
	}
	p.Values.Replicas = &n
}

// Versioned returns the pinned overrides without replicas and instances of roles, which are not part of a version.
func Versioned(spec *windlassv1.DeploymentSpec) []*windlassv1.PinnedOverride {
	var all []*windlassv1.PinnedOverride
	for _, p := range spec.GetPinnedOverrides() {
		p = proto.CloneOf(p)
		p.Values.Replicas = nil
		for _, r := range p.Values.GetRoles() {
			r.Instances = 0
		}
		p.Values.Roles = slices.DeleteFunc(p.Values.Roles, func(r *windlassv1.RoleOverride) bool {
			return r.GetResources() == nil && len(r.GetArgs()) == 0
		})
		if proto.Size(p.GetValues()) > 0 {
			all = append(all, p)
		}
	}
	return sortPinned(all)
}

// apply applies the override to the spec. It changes no list or map in place, because
// other specs may share them.
func apply(s *windlassv1.DeploymentSpec, o *windlassv1.Override) {
	if o.Replicas != nil {
		s.Replicas = new(o.GetReplicas())
	}
	s.Resources = mergeResources(s.GetResources(), o.GetResources())
	s.Args = argsOf(s.GetArgs(), o)
	s.Roles = slices.Clone(s.GetRoles())
	for i, r := range s.Roles {
		r = proto.CloneOf(r)
		if r.GetResources() != nil {
			r.Resources = mergeResources(r.GetResources(), o.GetResources())
		}
		if len(r.GetArgs()) > 0 {
			r.Args = argsOf(r.GetArgs(), o)
		}
		s.Roles[i] = r
	}
	for _, change := range o.GetRoles() {
		for _, r := range s.Roles {
			if r.GetName() != change.GetName() {
				continue
			}
			if change.GetResources() != nil {
				r.Resources = mergeResources(cmp.Or(r.GetResources(), s.GetResources()), change.GetResources())
			}
			if len(change.GetArgs()) > 0 {
				r.Args = change.GetArgs()
			}
			if change.GetInstances() > 0 {
				r.Instances = change.GetInstances()
			}
		}
	}
	if len(o.GetEnv()) > 0 {
		s.Env = maps.Clone(s.GetEnv())
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		maps.Copy(s.Env, o.GetEnv())
	}
	if len(o.GetSecrets()) > 0 {
		s.Env = maps.Clone(s.GetEnv())
	}
	s.Secrets = slices.DeleteFunc(slices.Clone(s.GetSecrets()), func(r *windlassv1.SecretReference) bool {
		_, value := o.GetEnv()[r.GetEnvName()]
		return !r.GetImagePull() && (value || hasSecret(o, r.GetEnvName()))
	})
	for _, r := range o.GetSecrets() {
		delete(s.Env, r.GetEnvName())
		s.Secrets = append(s.Secrets, r)
	}
	s.InheritedEnv = slices.DeleteFunc(slices.Clone(s.GetInheritedEnv()), func(name string) bool {
		_, value := o.GetEnv()[name]
		return value || hasSecret(o, name)
	})
}

func hasSecret(o *windlassv1.Override, name string) bool {
	return slices.ContainsFunc(o.GetSecrets(), func(r *windlassv1.SecretReference) bool { return r.GetEnvName() == name })
}

func argsOf(of []string, o *windlassv1.Override) []string {
	switch {
	case len(o.GetArgs()) > 0:
		return o.GetArgs()
	case len(o.GetExtraArgs()) > 0:
		return slices.Concat(of, o.GetExtraArgs())
	}
	return of
}

func mergeResources(of, by *windlassv1.Resources) *windlassv1.Resources {
	if by == nil {
		return of
	}
	r := &windlassv1.Resources{}
	proto.Merge(r, of)
	gpu := by.GetGpu()
	plain := proto.CloneOf(by)
	plain.Gpu = nil
	proto.Merge(r, plain)
	switch {
	case gpu != nil && gpu.GetCount() > 0:
		r.Gpu = gpu
	case gpu != nil:
		r.Gpu = nil
	}
	return r
}
