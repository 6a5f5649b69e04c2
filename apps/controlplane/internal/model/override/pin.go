package override

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

// Problem is why overrides are refused. Field is the field at fault, such as
// "overrides[0].labels".
type Problem struct {
	Reason              windlassv1.ErrorReason
	Field, Message, Fix string
}

func (p *Problem) Error() string { return p.Message }

const (
	conflict = windlassv1.ErrorReason_ERROR_REASON_OVERRIDE_CONFLICT
	nothing  = windlassv1.ErrorReason_ERROR_REASON_OVERRIDE_WITHOUT_EFFECT
)

// Pin returns the merged override of each of the app's regions that has one, sorted by name,
// or the first *Problem with the overrides. regions are the spec's regions that exist.
func Pin(spec *windlassv1.DeploymentSpec, regions []model.Region) ([]*windlassv1.PinnedOverride, error) {
	all := spec.GetOverrides()
	if len(all) == 0 {
		return nil, nil
	}
	for i, o := range all {
		if len(o.GetLabels()) > 0 && !slices.ContainsFunc(regions, func(r model.Region) bool { return appliesTo(o, r) }) {
			return nil, &Problem{
				nothing, fmt.Sprintf("overrides[%d].labels", i), "none of the app's regions has these labels",
				"`windlass list regions -o yaml` shows the labels of regions.",
			}
		}
	}
	l := layersOf(all)
	var out []*windlassv1.PinnedOverride
	for _, r := range regions {
		values, problem := l.mergeLayers(r, -1)
		if problem != nil {
			return nil, problem
		}
		if values != nil {
			out = append(out, &windlassv1.PinnedOverride{Region: r.Name, RegionId: r.ID, Values: values})
		}
	}
	for i, o := range all {
		about := slices.DeleteFunc(slices.Clone(regions), func(r model.Region) bool { return !appliesTo(o, r) })
		if len(about) == 0 {
			continue // the override names a region that does not exist, which checkRegions reports
		}
		if !l.changesAny(spec, about, i) {
			return nil, &Problem{
				nothing, fmt.Sprintf("overrides[%d]", i),
				fmt.Sprintf("it changes nothing: without it, the spec would be the same in %s", regionNames(about)), "Leave it out.",
			}
		}
	}
	return sortPinned(out), nil
}

func sortPinned(all []*windlassv1.PinnedOverride) []*windlassv1.PinnedOverride {
	slices.SortFunc(all, func(a, b *windlassv1.PinnedOverride) int { return cmp.Compare(a.GetRegion(), b.GetRegion()) })
	return all
}

func regionNames(regions []model.Region) string {
	var out []string
	for _, r := range regions {
		out = append(out, r.Name)
	}
	return strings.Join(out, ", ")
}

// appliesTo reports whether the override applies to the region.
func appliesTo(o *windlassv1.Override, r model.Region) bool {
	if len(o.GetLabels()) == 0 {
		return slices.Contains(o.GetRegions(), r.Name)
	}
	for k, v := range o.GetLabels() {
		if have, ok := r.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// changesAny reports whether the override with index i changes anything in one of the regions.
// The overrides together must have no conflict.
func (l layers) changesAny(spec *windlassv1.DeploymentSpec, regions []model.Region, i int) bool {
	// Fields that no override changes are left out.
	base := &windlassv1.DeploymentSpec{
		Replicas: spec.Replicas, Resources: spec.GetResources(), Args: spec.GetArgs(), Roles: spec.GetRoles(),
		Env: spec.GetEnv(), Secrets: spec.GetSecrets(),
	}
	for _, r := range regions {
		with, _ := l.mergeLayers(r, -1)
		without, unsettled := l.mergeLayers(r, i)
		if unsettled != nil {
			return true // without it, other overrides conflict
		}
		if proto.Equal(with, without) {
			continue
		}
		a, b := proto.CloneOf(base), proto.CloneOf(base)
		apply(a, with)
		apply(b, cmp.Or(without, &windlassv1.Override{}))
		if !proto.Equal(a, b) {
			return true
		}
	}
	return false
}

// field is a field that an override sets. alone is an override that sets only this field.
type field struct {
	key, path string
	alone     *windlassv1.Override
}

// fieldsOf returns the fields that the override sets.
func fieldsOf(o *windlassv1.Override) []field {
	var out []field
	add := func(key, path string, alone *windlassv1.Override) { out = append(out, field{key, path, alone}) }
	if o.Replicas != nil {
		add("replicas", "replicas", &windlassv1.Override{Replicas: o.Replicas})
	}
	eachAmount(o.GetResources(), func(name string, alone *windlassv1.Resources) {
		add("resources."+name, "resources."+name, &windlassv1.Override{Resources: alone})
	})
	switch {
	case len(o.GetArgs()) > 0:
		add("args", "args", &windlassv1.Override{Args: o.GetArgs()})
	case len(o.GetExtraArgs()) > 0:
		add("args", "extra_args", &windlassv1.Override{ExtraArgs: o.GetExtraArgs()})
	}
	for _, name := range slices.Sorted(maps.Keys(o.GetEnv())) {
		add("variable "+name, fmt.Sprintf("env[%q]", name), &windlassv1.Override{Env: map[string]string{name: o.GetEnv()[name]}})
	}
	for i, r := range o.GetRoles() {
		of, at := fmt.Sprintf("role %s ", r.GetName()), fmt.Sprintf("roles[%d].", i)
		eachAmount(r.GetResources(), func(name string, alone *windlassv1.Resources) {
			add(of+"resources."+name, at+"resources."+name, &windlassv1.Override{Roles: []*windlassv1.RoleOverride{{Name: r.GetName(), Resources: alone}}})
		})
		if r.GetInstances() > 0 {
			add(of+"instances", at+"instances", &windlassv1.Override{Roles: []*windlassv1.RoleOverride{{Name: r.GetName(), Instances: r.GetInstances()}}})
		}
		if len(r.GetArgs()) > 0 {
			add(of+"args", at+"args", &windlassv1.Override{Roles: []*windlassv1.RoleOverride{{Name: r.GetName(), Args: r.GetArgs()}}})
		}
	}
	for i, ref := range o.GetSecrets() {
		add("variable "+ref.GetEnvName(), fmt.Sprintf("secrets[%d]", i), &windlassv1.Override{Secrets: []*windlassv1.SecretReference{ref}})
	}
	return out
}

// eachAmount calls set for each amount that r sets. In alone, only that amount is set.
func eachAmount(r *windlassv1.Resources, set func(name string, alone *windlassv1.Resources)) {
	for _, part := range []struct {
		name  string
		there bool
		alone *windlassv1.Resources
	}{
		{"cpu_millicores", r.GetCpuMillicores() != 0, &windlassv1.Resources{CpuMillicores: r.GetCpuMillicores()}},
		{"memory_mib", r.GetMemoryMib() != 0, &windlassv1.Resources{MemoryMib: r.GetMemoryMib()}},
		{"shm_mib", r.GetShmMib() != 0, &windlassv1.Resources{ShmMib: r.GetShmMib()}},
		{"ephemeral_storage_mib", r.GetEphemeralStorageMib() != 0, &windlassv1.Resources{EphemeralStorageMib: r.GetEphemeralStorageMib()}},
		{"gpu", r.GetGpu() != nil, &windlassv1.Resources{Gpu: r.GetGpu()}},
	} {
		if part.there {
			set(part.name, part.alone)
		}
	}
}

// Empty reports whether the override sets nothing.
func Empty(o *windlassv1.Override) bool { return len(fieldsOf(o)) == 0 }

// layers are overrides and their fields.
type layers struct {
	all    []*windlassv1.Override
	fields [][]field
}

func layersOf(all []*windlassv1.Override) layers {
	l := layers{all: all}
	for _, o := range all {
		l.fields = append(l.fields, fieldsOf(o))
	}
	return l
}

// mergeLayers returns the fields that the overrides set for the region, or nil for none. It leaves out the override whose
// index is except, or none if except is -1.
func (l layers) mergeLayers(r model.Region, except int) (*windlassv1.Override, *Problem) {
	type said struct {
		field
		by int
	}
	decided := map[string]said{}
	for _, byName := range []bool{true, false} {
		layer := map[string]said{}
		for i, o := range l.all {
			if i == except || !appliesTo(o, r) || byName != (len(o.GetLabels()) == 0) {
				continue
			}
			for _, f := range l.fields[i] {
				if _, named := decided[f.key]; named {
					continue // an override that names the region wins
				}
				first, ok := layer[f.key]
				if ok && !proto.Equal(first.alone, f.alone) {
					return nil, &Problem{
						conflict, fmt.Sprintf("overrides[%d].%s", i, f.path),
						fmt.Sprintf("region %s has the labels of overrides[%d] and of overrides[%d], which set its %s to different values", r.Name, first.by, i, f.key),
						fmt.Sprintf("Set it in an override that names region %s, because a name wins over labels, or use other labels in one of the two.", r.Name),
					}
				}
				if !ok {
					layer[f.key] = said{f, i}
				}
			}
		}
		maps.Copy(decided, layer)
	}
	if len(decided) == 0 {
		return nil, nil
	}
	out := &windlassv1.Override{}
	for _, key := range slices.Sorted(maps.Keys(decided)) {
		proto.Merge(out, decided[key].alone)
	}
	out.Roles = joinRoles(out.GetRoles())
	return out, nil
}

// joinRoles returns one entry for each role, from entries with one field each.
func joinRoles(all []*windlassv1.RoleOverride) (out []*windlassv1.RoleOverride) {
	for _, r := range all {
		i := slices.IndexFunc(out, func(o *windlassv1.RoleOverride) bool { return o.GetName() == r.GetName() })
		if i < 0 {
			out = append(out, r)
			continue
		}
		proto.Merge(out[i], r)
	}
	return out
}
