package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// changes of what runs, and of how rollouts go.
func (r *dryRun) changes() ([]*windlassv1.FieldChange, error) {
	var before *windlassv1.DeploymentSpec
	if r.live != nil {
		before = proto.CloneOf(r.live.Spec)
		before.Replicas = new(r.wasApp.Replicas)
	}
	after := proto.CloneOf(r.target.Spec)
	after.Replicas = new(r.app.Replicas)
	out, err := diff("", specLeaves(before), specLeaves(after))
	if err != nil {
		return nil, err
	}
	policy, err := diff("rollout", leavesOf(r.wasStaging.Policy), leavesOf(policyWithDefaults(r.req.GetRollout())))
	return append(out, policy...), err
}

// leaf is a field's value, as text. Two that are hidden may differ in what is not told.
type leaf struct {
	value  string
	hidden bool
}

// leaves by path.
type leaves map[string]leaf

type leavesError struct {
	leaves
	err error
}

// diff of two sets of leaves, by path. Paths begin with prefix.
func diff(prefix string, before, after leavesError) (out []*windlassv1.FieldChange, err error) {
	if before.err != nil {
		return nil, before.err
	}
	if after.err != nil {
		return nil, after.err
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(append(keysOf(before.leaves), keysOf(after.leaves)...)))) {
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

// specLeaves are those of what people write: regions and secrets by name, as their order
// means nothing, and variables without their values.
func specLeaves(s *windlassv1.DeploymentSpec) leavesError {
	plain := proto.CloneOf(s)
	if plain != nil {
		plain.Regions, plain.Secrets, plain.Env, plain.InheritedEnv = nil, nil, nil, nil
	}
	out := leavesOf(plain)
	if out.err != nil {
		return out
	}
	for _, name := range s.GetRegions() {
		out.leaves[fmt.Sprintf("regions[%q]", name)] = leaf{value: name}
	}
	for _, ref := range s.GetSecrets() {
		if ref.GetImagePull() {
			out.leaves[fmt.Sprintf("secrets[%q]", ref.GetSecret())] = leaf{value: "pulls the image"}
			continue
		}
		out.leaves[fmt.Sprintf("secrets[%q]", ref.GetEnvName())] = leaf{value: ref.GetSecret()}
	}
	for name, value := range s.GetEnv() {
		out.leaves[fmt.Sprintf("env[%q]", name)] = leaf{value: value, hidden: true}
	}
	return out
}

// leavesOf a message in its JSON form.
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
