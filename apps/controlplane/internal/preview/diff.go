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

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fieldChanges returns what the deploy changes in the spec, in the rollout policy and in the scaling policy.
func (d *Deploy) fieldChanges() ([]*windlassv1.FieldChange, error) {
	var before *windlassv1.DeploymentSpec
	if d.Live != nil {
		before = proto.CloneOf(d.Live.Spec)
		before.Replicas = new(d.WasApp.Replicas)
	}
	after := proto.CloneOf(d.target.Spec)
	after.Replicas = new(d.App.Replicas)
	d.setSizes(before, after)
	setCounts(before, d.was)
	setCounts(after, d.in.Topology)
	out, err := diffLeaves("", specLeaves(before), specLeaves(after))
	if err != nil {
		return nil, err
	}
	policy, err := diffLeaves("rollout", leavesOf(d.WasPolicy), leavesOf(d.Policy))
	if err != nil {
		return nil, err
	}
	scaling, err := diffLeaves("scaling", scalingLeaves(d.WasScaling), scalingLeaves(d.Scaling))
	return slices.Concat(out, policy, scaling), err
}

// scalingLeaves returns the leaves of the policy, except the ids of regions, which the control plane adds.
func scalingLeaves(p *windlassv1.ScalingPolicy) leavesResult {
	p = proto.CloneOf(p)
	for _, o := range scaling.Overrides(p) {
		o.RegionIds = nil
	}
	return leavesOf(p)
}

// SpecChanges returns the differences between two specs, sorted by path.
func SpecChanges(before, after *windlassv1.DeploymentSpec) ([]*windlassv1.FieldChange, error) {
	return diffLeaves("", specLeaves(before), specLeaves(after))
}

// setSizes sets, in both specs, the replicas of regions whose number differs from the app's. Stored specs do not
// have these numbers, because scaling does not change a spec.
func (d *Deploy) setSizes(before, after *windlassv1.DeploymentSpec) {
	own := map[string]bool{}
	for _, p := range slices.Concat(before.GetPinnedOverrides(), after.GetPinnedOverrides()) {
		own[p.GetRegionId()] = own[p.GetRegionId()] || p.GetValues().Replicas != nil
	}
	for id, n := range d.Sizes {
		likeApp := n == d.App.Replicas && d.WasSizes[id] == d.WasApp.Replicas
		own[id] = own[id] || n != d.WasSizes[id] && !likeApp
	}
	for id, differs := range own {
		if n, ok := d.WasSizes[id]; ok && differs && before != nil {
			override.StateReplicas(before, d.regions[id].Name, id, n)
		}
		n, ok := d.Sizes[id]
		if !ok {
			n, ok = override.Replicas(after, id)
		}
		if ok && differs && slices.Contains(after.GetRegions(), d.regions[id].Name) {
			override.StateReplicas(after, d.regions[id].Name, id, n)
		}
	}
}

// setCounts sets the instances of a pool's roles to the numbers in the rows, if these are the same in all regions. Stored
// specs do not have the numbers, because scaling does not change a spec.
func setCounts(spec *windlassv1.DeploymentSpec, rows []model.Topology) {
	if !model.IsPooled(spec) {
		return
	}
	counts := map[string]int32{}
	for _, t := range rows {
		if !topology.Active(t) {
			continue // its counts are no longer kept up to date
		}
		for name, n := range t.RoleCounts() {
			if was, seen := counts[name]; seen && was != n {
				n = 0
			}
			counts[name] = n
		}
	}
	for _, r := range spec.GetRoles() {
		r.Instances = cmp.Or(counts[r.GetName()], r.GetInstances())
	}
}

// leaf is a field's value as text. The value of a hidden leaf is compared, but not shown.
type leaf struct {
	value  string
	hidden bool
}

// leaves are the leaves of a message, by path.
type leaves map[string]leaf

// leavesResult has the leaves of a message, or the error of finding them.
type leavesResult struct {
	leaves
	err error
}

// diffLeaves returns the differences between two sets of leaves, sorted by path. Paths begin with prefix.
func diffLeaves(prefix string, before, after leavesResult) (out []*windlassv1.FieldChange, err error) {
	if before.err != nil {
		return nil, before.err
	}
	if after.err != nil {
		return nil, after.err
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(slices.Collect(maps.Keys(before.leaves)), maps.Keys(after.leaves))))) {
		was, had := before.leaves[path]
		is, has := after.leaves[path]
		c := &windlassv1.FieldChange{Path: joinPath(prefix, path), Hidden: was.hidden || is.hidden}
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

// specLeaves returns the leaves of the fields that people write. The paths of regions and secrets have names
// instead of indexes, because the order has no meaning. Variables are hidden. An override is shown by its result
// in each region, under the region's name. The paths of args that a preset generated have the flags. Other
// generated values are in the fields of the spec.
func specLeaves(s *windlassv1.DeploymentSpec) leavesResult {
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
	out.addVariables(s.GetEnv(), s.GetSecrets())
	for i, r := range s.GetRoles() {
		for name, value := range r.GetEnv() {
			out.leaves[fmt.Sprintf("roles[%d].env[%q]", i, name)] = leaf{value: value, hidden: true}
		}
	}
	if byFlag {
		out.addArgs(s.GetArgs())
	}
	for _, p := range s.GetPinnedOverrides() {
		values := proto.CloneOf(p.GetValues())
		values.Env, values.Secrets = nil, nil
		if byFlag {
			values.Args = nil
		}
		own := leavesOf(values)
		if own.err != nil {
			return own
		}
		if byFlag {
			own.addArgs(p.GetValues().GetArgs())
		}
		own.addVariables(p.GetValues().GetEnv(), p.GetValues().GetSecrets())
		for path, l := range own.leaves {
			out.leaves[joinPath(fmt.Sprintf("regions[%q]", p.GetRegion()), path)] = l
		}
	}
	return out
}

// addArgs adds args that a preset generated: the words before the first flag by index, and then each flag by name
// with its values. The value of a flag without values is "true", as in options.
func (l leaves) addArgs(args []string) {
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

// addVariables adds variables and references to secrets, by name.
func (l leaves) addVariables(env map[string]string, secrets []*windlassv1.SecretReference) {
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
func leavesOf(m proto.Message) leavesResult {
	out := leavesResult{leaves: leaves{}}
	if !m.ProtoReflect().IsValid() {
		return out
	}
	data, err := protojson.Marshal(m)
	if err != nil {
		return leavesResult{err: fmt.Errorf("encode %T: %w", m, err)}
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	var root any
	if err := decoder.Decode(&root); err != nil {
		return leavesResult{err: fmt.Errorf("decode %T: %w", m, err)}
	}
	out.addValue("", root)
	return out
}

// addValue adds the leaves of the JSON value v.
func (l leaves) addValue(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, child := range v {
			l.addValue(joinPath(path, k), child)
		}
	case []any:
		for i, child := range v {
			l.addValue(fmt.Sprintf("%s[%d]", path, i), child)
		}
	default:
		l[path] = leaf{value: fmt.Sprint(v)}
	}
}

func joinPath(path, key string) string {
	return strings.Join(slices.DeleteFunc([]string{path, key}, func(s string) bool { return s == "" }), ".")
}
