package appspec

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Upgrade returns the spec that a deploy of the same file would make with the presets of the registry, and the
// findings of that deploy. spec is the spec of a version that a preset made. The file is not stored, so a field or
// flag with the preset's value counts as made by the preset. With an error among the findings, the returned spec is
// not complete. ok is false if the preset that made the version is not in the registry.
func Upgrade(spec *windlassv1.DeploymentSpec, presets *preset.Registry) (_ *windlassv1.DeploymentSpec, findings []preset.Finding, ok bool) {
	p, known := presets.Find(spec.GetGeneratedBy())
	if !known {
		return nil, nil, false
	}
	asked := withoutGenerated(spec, p)
	next, findings := Expand(asked, presets)
	if preset.HasErrors(findings) {
		return next, findings, true
	}
	regions := ExpandRegions(next, asked, presets)
	findings = append(findings, regions...)
	preset.SortFindings(findings)
	next = fillDefaults(next)
	InheritEnv(next, inheritedOf(spec), OwnEnv(spec))
	return next, findings, true
}

// inheritedOf returns the variables that the version has from its environment.
func inheritedOf(s *windlassv1.DeploymentSpec) map[string]string {
	env := map[string]string{}
	for _, name := range s.GetInheritedEnv() {
		env[name] = s.GetEnv()[name]
	}
	return env
}

// withoutGenerated returns the spec without the values that the preset made. The app's file may have looked like
// this.
func withoutGenerated(spec *windlassv1.DeploymentSpec, p *preset.Preset) *windlassv1.DeploymentSpec {
	s := proto.CloneOf(spec)
	s.Env = OwnEnv(s)
	input, _ := inputOf(s, resourcesOf(s))
	f, _ := p.Generate(input)
	made := f.Spec
	if made == nil {
		return s
	}
	for _, pinned := range s.GetPinnedOverrides() {
		v := pinned.GetValues()
		if len(v.GetArgs()) == 0 || slices.ContainsFunc(s.GetOverrides(), func(o *windlassv1.Override) bool { return len(o.GetArgs()) > 0 }) {
			continue
		}
		// The region's args consist of the preset's flags, the spec's flags and the file's extraArgs. Only extraArgs
		// remain.
		resources := resourcesOf(override.In(spec, pinned.GetRegionId()))
		input, _ := inputOf(s, resources)
		there, _ := p.Generate(input)
		if there.Spec == nil {
			continue
		}
		own := p.Without(s.GetArgs(), made.GetArgs())
		v.ExtraArgs, v.Args = p.Without(v.GetArgs(), p.Merge(there.Spec.GetArgs(), own)), nil
		if shm := there.Spec.GetResources().GetShmMib(); v.GetResources().GetShmMib() == shm {
			v.GetResources().ShmMib = 0
		}
	}
	s.Args = p.Without(s.GetArgs(), made.GetArgs())
	clearEqual(s, made)
	if s.GetHealthCheck() != nil && made.GetHealthCheck() != nil {
		clearEqual(s.HealthCheck, made.HealthCheck)
	}
	if s.GetResources() != nil && made.GetResources() != nil {
		clearEqual(s.Resources, made.Resources)
	}
	return s
}

// clearEqual clears the fields of s that are set in made to the same value.
func clearEqual[M proto.Message](s, made M) {
	made.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if s.ProtoReflect().Has(f) && s.ProtoReflect().Get(f).Equal(v) {
			s.ProtoReflect().Clear(f)
		}
		return true
	})
}
