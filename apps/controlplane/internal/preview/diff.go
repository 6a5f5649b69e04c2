package preview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// changes returns what the deploy changes in the spec, in the rollout policy and in the scaling policy.
func (d *Deploy) changes() ([]*windlassv1.FieldChange, error) {
	var before *windlassv1.DeploymentSpec
	if d.Live != nil {
		before = proto.CloneOf(d.Live.Spec)
		before.Replicas = new(d.WasApp.Replicas)
	}
	after := proto.CloneOf(d.target.Spec)
	after.Replicas = new(d.App.Replicas)
	d.setSizes(before, after)
	out, err := diff("", specLeaves(before), specLeaves(after))
	if err != nil {
		return nil, err
	}
	policy, err := diff("rollout", leavesOf(d.WasPolicy), leavesOf(d.Policy))
	if err != nil {
		return nil, err
	}
	scaling, err := diff("scaling", scalingLeaves(d.WasScaling), scalingLeaves(d.Scaling))
	return slices.Concat(out, policy, scaling), err
}

// scalingLeaves returns the leaves of the policy without the ids of regions, which the control plane adds.
func scalingLeaves(p *windlassv1.ScalingPolicy) leavesError {
	p = proto.CloneOf(p)
	for _, o := range p.GetOverrides() {
		o.RegionIds = nil
	}
	return leavesOf(p)
}

// SpecChanges returns the differences between two specs, sorted by path.
func SpecChanges(before, after *windlassv1.DeploymentSpec) ([]*windlassv1.FieldChange, error) {
	return diff("", specLeaves(before), specLeaves(after))
}

// setSizes sets in both specs the replicas of regions with a number of their own. The stored specs do not
// have them, because scaling changes no spec.
func (d *Deploy) setSizes(before, after *windlassv1.DeploymentSpec) {
	own := map[string]bool{}
	for _, p := range slices.Concat(before.GetPinnedOverrides(), after.GetPinnedOverrides()) {
		own[p.GetRegionId()] = own[p.GetRegionId()] || p.GetValues().Replicas != nil
	}
	for id, n := range d.Sizes {
		asAll := n == d.App.Replicas && d.WasSizes[id] == d.WasApp.Replicas
		own[id] = own[id] || n != d.WasSizes[id] && !asAll
	}
	for id, mine := range own {
		if n, ok := d.WasSizes[id]; ok && mine && before != nil {
			override.StateReplicas(before, d.regions[id].Name, id, n)
		}
		n, ok := d.Sizes[id]
		if !ok {
			n, ok = override.Replicas(after, id)
		}
		if ok && mine && slices.Contains(after.GetRegions(), d.regions[id].Name) {
			override.StateReplicas(after, d.regions[id].Name, id, n)
		}
	}
}

// leaf is a field's value as text. The value of a hidden leaf is compared, but not shown.
type leaf struct {
	value  string
	hidden bool
}

// leaves are the leaves of a message by path.
type leaves map[string]leaf

type leavesError struct {
	leaves
	err error
}

// diff returns the differences between two sets of leaves, sorted by path. Paths begin with prefix.
func diff(prefix string, before, after leavesError) (out []*windlassv1.FieldChange, err error) {
	if before.err != nil {
		return nil, before.err
	}
	if after.err != nil {
		return nil, after.err
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(slices.Collect(maps.Keys(before.leaves)), maps.Keys(after.leaves))))) {
		was, had := before.leaves[path]
		is, has := after.leaves[path]
		c := &windlassv1.FieldChange{Path: joined(prefix, path), Hidden: was.hidden || is.hidden}
		switch {
		case had && has && was == is:
			continue
		case !had:
			c.Kind = windlassv1.FieldChange_KIND_ADDED
		case !has:
			c.Kind = windlassv1.FieldChange_KIND_REMOVED
		default:
			c.Kind = windlassv1.FieldChange_KIND_CHANGED
		}
		if !c.GetHidden() {
			c.Old, c.New = was.value, is.value
		}
		out = append(out, c)
	}
	return out, nil
}

// specLeaves returns the leaves of the fields that people write. Regions and secrets are by name, because
// their order means nothing, and variables are hidden. An override is shown by its result in each region,
// under the region's name. Args that a preset made are by flag; its other results are in the fields that they
// are for.
func specLeaves(s *windlassv1.DeploymentSpec) leavesError {
	plain := proto.CloneOf(s)
	if plain != nil {
		plain.Regions, plain.Secrets, plain.Env, plain.InheritedEnv = nil, nil, nil, nil
		plain.Overrides, plain.PinnedOverrides, plain.Generated = nil, nil, nil
		for _, r := range plain.GetRoles() {
			r.Env = nil
		}
	}
	byFlag := s.GetGeneratedBy() != ""
	if byFlag {
		plain.Args = nil
	}
	out := leavesOf(plain)
	if out.err != nil {
		return out
	}
	for _, name := range s.GetRegions() {
		out.leaves[fmt.Sprintf("regions[%q]", name)] = leaf{value: name}
	}
	out.variables(s.GetEnv(), s.GetSecrets())
	for i, r := range s.GetRoles() {
		for name, value := range r.GetEnv() {
			out.leaves[fmt.Sprintf("roles[%d].env[%q]", i, name)] = leaf{value: value, hidden: true}
		}
	}
	if byFlag {
		out.args(s.GetArgs())
	}
	for _, p := range s.GetPinnedOverrides() {
		values := proto.CloneOf(p.GetValues())
		values.Env, values.Secrets = nil, nil
		if byFlag {
			values.Args = nil
		}
		of := leavesOf(values)
		if of.err != nil {
			return of
		}
		if byFlag {
			of.args(p.GetValues().GetArgs())
		}
		of.variables(p.GetValues().GetEnv(), p.GetValues().GetSecrets())
		for path, l := range of.leaves {
			out.leaves[joined(fmt.Sprintf("regions[%q]", p.GetRegion()), path)] = l
		}
	}
	return out
}

// args adds args that a preset made: words before the first flag by index, then flags by name with their
// values. A flag without a value has "true", as options have.
func (l leaves) args(args []string) {
	words := slices.IndexFunc(args, preset.IsFlag)
	if words < 0 {
		words = len(args)
	}
	for i, word := range args[:words] {
		l[fmt.Sprintf("args[%d]", i)] = leaf{value: word}
	}
	for rest := args[words:]; len(rest) > 0; {
		n := 1
		for n < len(rest) && !preset.IsFlag(rest[n]) {
			n++
		}
		l[fmt.Sprintf("args[%q]", rest[0])] = leaf{value: cmp.Or(strings.Join(rest[1:n], " "), "true")}
		rest = rest[n:]
	}
}

func (l leaves) variables(env map[string]string, secrets []*windlassv1.SecretReference) {
	for _, ref := range secrets {
		if ref.GetImagePull() {
			l[fmt.Sprintf("secrets[%q]", ref.GetSecret())] = leaf{value: "pulls the image"}
			continue
		}
		value := ref.GetSecret()
		if ref.GetVersion() != 0 {
			value += fmt.Sprintf(", version %d", ref.GetVersion())
		}
		l[fmt.Sprintf("secrets[%q]", ref.GetEnvName())] = leaf{value: value}
	}
	for name, value := range env {
		l[fmt.Sprintf("env[%q]", name)] = leaf{value: value, hidden: true}
	}
}

// leavesOf returns the leaves of a message's JSON form.
func leavesOf(m proto.Message) leavesError {
	out := leavesError{leaves: leaves{}}
	if !m.ProtoReflect().IsValid() {
		return out
	}
	data, err := protojson.Marshal(m)
	if err != nil {
		return leavesError{err: fmt.Errorf("encode %T: %w", m, err)}
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	var root any
	if err := decoder.Decode(&root); err != nil {
		return leavesError{err: fmt.Errorf("decode %T: %w", m, err)}
	}
	out.walk("", root)
	return out
}

func (l leaves) walk(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, child := range v {
			l.walk(joined(path, k), child)
		}
	case []any:
		for i, child := range v {
			l.walk(fmt.Sprintf("%s[%d]", path, i), child)
		}
	default:
		l[path] = leaf{value: fmt.Sprint(v)}
	}
}

func joined(path, key string) string {
	return strings.Join(slices.DeleteFunc([]string{path, key}, func(s string) bool { return s == "" }), ".")
}
