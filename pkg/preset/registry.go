package preset

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Registry has all versions of presets.
type Registry struct{ presets []*Preset }

// presets are all versions of all presets. New versions are added. Old versions are never changed or removed.
var presets = []*Preset{vllm1, sglang1, tgi1, nim1, max1, llamacpp1, tei1}

// Builtin returns a registry with the presets of this package.
func Builtin() *Registry { return &Registry{presets} }

// With returns a registry that also has the given presets.
func (r *Registry) With(more ...*Preset) *Registry { return &Registry{slices.Concat(r.presets, more)} }

// All returns the newest version of each preset, by name.
func (r *Registry) All() []*Preset {
	newest := map[string]*Preset{}
	for _, p := range r.presets {
		if have := newest[p.Name]; have == nil || have.Version < p.Version {
			newest[p.Name] = p
		}
	}
	list := make([]*Preset, 0, len(newest))
	for _, p := range newest {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *Preset) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Find returns a preset by its name, "vllm", or by name and version, "vllm/1".
func (r *Registry) Find(name string) (*Preset, bool) {
	base, version, has := strings.Cut(name, "/")
	var found *Preset
	for _, p := range r.presets {
		if p.Name == base && (strconv.Itoa(p.Version) == version || !has && (found == nil || found.Version < p.Version)) {
			found = p
		}
	}
	return found, found != nil
}

// Unknown returns the error text and the fix for the name of a preset that does not exist. The fix lists the presets.
func (r *Registry) Unknown(name string) (text, fix string) {
	if custom, ok := strings.CutPrefix(name, CustomPrefix); ok {
		return fmt.Sprintf("the workspace has no preset %q", clipText(custom)), "`windlass preset list --remote` lists its presets, and `windlass preset set` makes one"
	}
	if name == strings.TrimSuffix(CustomPrefix, ":") {
		return "the name of the workspace's preset is missing", "write " + CustomPrefix + "NAME: `windlass preset list --remote` lists them"
	}
	var names []string
	best, distance := "", 4
	base, _, _ := strings.Cut(strings.ToLower(name), "/")
	squeezed := strings.NewReplacer("-", "", "_", "", ".", "", " ", "").Replace(base)
	for _, p := range r.All() {
		names = append(names, p.Name)
		if d := editDistance(squeezed, p.Name); d < distance && d < len(p.Name) {
			best, distance = p.Name, d
		}
	}
	fix = "use one of " + strings.Join(names, ", ")
	if best != "" {
		fix = "did you mean " + best + "? The presets are " + strings.Join(names, ", ")
	}
	if name == "" {
		return "missing", fix
	}
	return fmt.Sprintf("there is no preset %q", clipText(name)), fix
}

// Generate returns the fragment for the input. If a finding is an error, the fragment is empty. Findings are
// sorted: errors, warnings, notes.
func (r *Registry) Generate(in Input) (Fragment, []Finding) {
	p, ok := r.Find(in.Engine)
	if !ok {
		text, fix := r.Unknown(in.Engine)
		return Fragment{}, []Finding{{Severity: Error, Code: "EngineUnknown", Field: "engine", Text: text, Fix: fix}}
	}
	return p.Generate(in)
}

// Generate returns the fragment of this preset for the input. It ignores the input's Engine.
func (p *Preset) Generate(in Input) (Fragment, []Finding) {
	d := &draft{preset: p, in: in, engine: cmp.Or(strings.TrimPrefix(in.EngineVersion, "v"), p.DefaultEngine), spec: &windlassv1.DeploymentSpec{}}
	d.checkEngine()
	d.checkModel()
	d.checkNumbers()
	d.checkOptions()
	if d.checkHosts() {
		d.splitModel()
	}
	if !HasErrors(d.findings) {
		p.generate(d)
		d.setOptions()
		d.checkMemory()
	}
	SortFindings(d.findings)
	if HasErrors(d.findings) {
		return Fragment{}, d.findings
	}
	d.spec.Args = d.flags.toArgs()
	return Fragment{GeneratedBy: p.ID(), EngineVersion: d.engine, Spec: d.spec, Metrics: p.metrics(d.engine)}, d.findings
}

// Next returns a copy of the preset with the next version and one more flag. Tests use it as an upgrade.
func (p *Preset) Next(name string, values ...string) *Preset {
	next := *p
	next.Version++
	next.generate = func(d *draft) {
		p.generate(d)
		d.flags.set(name, values...)
	}
	return &next
}

// Twice returns a flag that occurs more than once in the arguments, under any of its names, or "".
func (p *Preset) Twice(args []string) string {
	seen := map[string]bool{}
	for _, f := range p.parse(args) {
		if f.name != "" && seen[f.name] {
			return f.name
		}
		seen[f.name] = true
	}
	return ""
}

// All returns the newest version of each built-in preset, by name.
func All() []*Preset { return Builtin().All() }

// Find returns a built-in preset by its name, "vllm", or by name and version, "vllm/1".
func Find(name string) (*Preset, bool) { return Builtin().Find(name) }

// Unknown returns the error text and the fix for the name of a missing built-in preset. The fix lists the presets.
func Unknown(name string) (text, fix string) { return Builtin().Unknown(name) }

// Generate returns the fragment of a built-in preset.
func Generate(in Input) (Fragment, []Finding) { return Builtin().Generate(in) }
