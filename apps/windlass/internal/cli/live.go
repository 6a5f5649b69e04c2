package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/pkg/pool"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// liveFile returns the file of an app that runs the spec. It leaves out values that the control plane adds, and values
// that the file would state twice.
func liveFile(app *windlassv1.App, spec *windlassv1.DeploymentSpec, freeze *windlassv1.FileFreeze) (*appFile, error) {
	f := &appFile{App: app.GetName(), Project: app.GetProjectName(), Environment: app.GetEnvironmentName(), Freeze: freeze}
	var err error
	if f.Spec, err = knownFields(spec); err != nil {
		return nil, err
	}
	if f.Rollout, err = knownFields(app.GetRolloutPolicy()); err != nil {
		return nil, err
	}
	if f.Scaling, err = knownFields(app.GetScaling()); err != nil {
		return nil, err
	}
	s := f.Spec
	for _, name := range slices.Concat(s.GetInheritedEnv(), slices.Collect(maps.Keys(s.GetGenerated().GetEnv()))) {
		delete(s.Env, name)
	}
	s.InheritedEnv, s.PinnedOverrides, s.GeneratedBy, s.Generated = nil, nil, "", nil
	// These fields belong to one deploy, and not to the app.
	s.Message, s.SourceCommit = "", ""
	for _, ref := range s.GetSecrets() {
		ref.Version = 0
	}
	for _, o := range s.GetOverrides() {
		for _, ref := range o.GetSecrets() {
			ref.Version = 0
		}
	}
	for _, o := range scaling.Overrides(f.Scaling) {
		o.RegionIds = nil
	}
	if f.setsReplicas() {
		s.Replicas = nil
		for _, o := range s.GetOverrides() {
			o.Replicas = nil
		}
		s.Overrides = slices.DeleteFunc(s.Overrides, isEmptyOverride)
	}
	// With the spec's default, the file would set two different deadlines.
	if d := f.Rollout.GetDeadlines().GetProgress(); d != nil && d.AsDuration() != s.GetProgressDeadline().AsDuration() {
		s.ProgressDeadline = nil
	}
	return f, nil
}

// setsReplicas reports whether the file's scaling sets the replicas, so that the spec must not.
func (f *appFile) setsReplicas() bool {
	return f.Scaling != nil && f.Scaling.GetMode() != windlassv1.ScalingPolicy_MODE_ADVISE
}

// isEmptyOverride reports whether the override selects regions and changes nothing.
func isEmptyOverride(o *windlassv1.Override) bool {
	rest := proto.CloneOf(o)
	rest.Regions, rest.Labels = nil, nil
	return proto.Size(rest) == 0
}

// knownFields returns a copy of a message without fields that this release does not know.
func knownFields[M proto.Message](m M) (out M, err error) {
	if !m.ProtoReflect().IsValid() {
		return out, nil
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return out, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	out, _ = m.ProtoReflect().New().Interface().(M)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, out); err != nil {
		return out, fmt.Errorf("decode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return out, nil
}

// withoutPreset returns the file without the fields and flags that the preset generatedBy generated. So the file has
// only the fields that people write next to serve. It returns nil if the generated fields are not known. Then the
// caller uses the whole file, which is correct, too.
func (e *exporter) withoutPreset(ctx context.Context, f *appFile, generatedBy string) (*appFile, error) {
	if f.Spec.GetServe() == nil {
		return nil, nil
	}
	p, err := e.presetThatMade(ctx, generatedBy)
	if err != nil || p == nil {
		return nil, err
	}
	asked := &windlassv1.DeploymentSpec{
		Serve: proto.CloneOf(f.Spec.Serve), Resources: proto.CloneOf(f.Spec.Resources), Roles: f.Spec.Roles, ModelCache: f.Spec.ModelCache,
		Replicas: f.Spec.Replicas, Regions: f.Spec.Regions,
	}
	asked.Serve.Engine = generatedBy
	if asked.Resources != nil {
		asked.Resources.ShmMib = 0
	}
	resp, err := e.clients.presets.RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: asked})
	if isRefusal(err) || err == nil && resp.GetSpec() == nil {
		return nil, nil // the plan of the whole file says why
	}
	if err != nil {
		return nil, err
	}
	made := proto.CloneOf(resp.GetSpec())
	health, shm := made.GetHealthCheck(), made.GetResources().GetShmMib()
	args := made.GetArgs()
	asked.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		made.ProtoReflect().Clear(field)
		return true
	})
	made.Args, made.HealthCheck, made.Resources = nil, nil, nil

	out := *f
	out.Spec = proto.CloneOf(f.Spec)
	out.Spec.Args = p.Without(out.Spec.Args, args)
	clearEqual(out.Spec, made)
	if clearEqual(out.Spec.HealthCheck, health); proto.Size(out.Spec.HealthCheck) == 0 {
		out.Spec.HealthCheck = nil
	}
	if r := out.Spec.Resources; r != nil && r.ShmMib == shm {
		r.ShmMib = 0
	}
	return &out, nil
}

// presetThatMade returns the preset of a version's generatedBy, or nil if it is not known. It reads each preset of the
// workspace once.
func (e *exporter) presetThatMade(ctx context.Context, generatedBy string) (*preset.Preset, error) {
	name, version, custom := preset.SplitCustom(generatedBy)
	if !custom {
		p, _ := preset.Find(generatedBy)
		return p, nil
	}
	if p, known := e.presets[generatedBy]; known {
		return p, nil
	}
	resp, err := e.clients.presets.GetPreset(ctx, &windlassv1.GetPresetRequest{Name: generatedBy})
	var p *preset.Preset
	switch {
	case err == nil:
		// Only the preset's flags are needed, even if this release refuses its expressions.
		p = preset.Describe(name, int(version), resp.GetPreset().GetDefinition())
	case !isRefusal(err):
		return nil, err
	}
	if e.presets == nil {
		e.presets = map[string]*preset.Preset{}
	}
	e.presets[generatedBy] = p
	return p, nil
}

// isRefusal reports whether the control plane answered that the object does not exist or the request is not valid.
// After any other error, the answer is not known.
func isRefusal(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeFailedPrecondition, connect.CodeUnimplemented:
		return true
	default:
		return false
	}
}

// clearEqual clears the fields of m that have the same value in made.
func clearEqual[M proto.Message](m, made M) {
	if !m.ProtoReflect().IsValid() || !made.ProtoReflect().IsValid() {
		return
	}
	made.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if m.ProtoReflect().Has(f) && m.ProtoReflect().Get(f).Equal(v) {
			m.ProtoReflect().Clear(f)
		}
		return true
	})
}

// adoptSizes sets the file's replicas to the app's present numbers, which scaling may have changed since the version
// was created. p is the plan of the file. adoptSizes reports whether the file changed.
func (f *appFile) adoptSizes(p *windlassv1.PlanDeployResponse) bool {
	if f.setsReplicas() {
		return false
	}
	changed := false
	for _, c := range p.GetChanges() {
		n, err := strconv.ParseInt(c.GetOld(), 10, 32)
		if err != nil || !isSize(c.GetPath()) {
			continue
		}
		if c.GetPath() == "replicas" {
			f.Spec.Replicas, changed = new(int32(n)), true
			continue
		}
		region, ok := strings.CutPrefix(c.GetPath(), `regions["`)
		region, ended := strings.CutSuffix(region, `"].replicas`)
		if ok && ended && slices.Contains(f.Spec.GetRegions(), region) {
			f.setReplicas(region, int32(n))
			changed = true
		}
	}
	return changed
}

// adoptCounts sets the instances of a pool's roles to the present numbers, if all regions have the same. Otherwise the
// file leaves the numbers out, so a deploy of the file changes none.
func (f *appFile) adoptCounts(regions []*windlassv1.RegionTopology) {
	if f.Spec.GetLayout() != windlassv1.Layout_LAYOUT_POOLED {
		return
	}
	counts := map[string]int32{}
	for _, t := range regions {
		for _, r := range t.GetRoles() {
			if n, seen := counts[r.GetRole()]; seen && n != r.GetWanted() || t.GetReplicas() != pool.Whole {
				counts[r.GetRole()] = 0
			} else {
				counts[r.GetRole()] = r.GetWanted()
			}
		}
	}
	for _, r := range f.Spec.GetRoles() {
		r.Instances = counts[r.GetName()]
		if f.setsReplicas() && slices.ContainsFunc(f.Scaling.GetRoles(), func(s *windlassv1.RoleScaling) bool { return s.GetRole() == r.GetName() }) {
			r.Instances = 0 // the file's scaling sets them
		}
	}
	for _, o := range f.Spec.GetOverrides() {
		for _, r := range o.GetRoles() {
			r.Instances = 0
		}
		o.Roles = slices.DeleteFunc(o.Roles, func(r *windlassv1.RoleOverride) bool { return r.GetResources() == nil && len(r.GetArgs()) == 0 })
	}
	f.Spec.Overrides = slices.DeleteFunc(f.Spec.Overrides, isEmptyOverride)
}

// setReplicas sets the replicas of one region in the override that names the region. Only one such override may name a
// region, so an override for several regions is split.
func (f *appFile) setReplicas(region string, n int32) {
	s := f.Spec
	for _, o := range s.GetOverrides() {
		i := slices.Index(o.GetRegions(), region)
		if i < 0 {
			continue
		}
		if len(o.GetRegions()) > 1 {
			o.Regions = slices.Delete(o.Regions, i, i+1)
			o = proto.CloneOf(o)
			o.Regions = []string{region}
			s.Overrides = append(s.Overrides, o)
		}
		o.Replicas = new(n)
		return
	}
	for _, o := range s.GetOverrides() {
		if len(o.GetRegions()) > 0 && proto.Equal(o, &windlassv1.Override{Regions: o.GetRegions(), Replicas: new(n)}) {
			o.Regions = append(o.Regions, region)
			return
		}
	}
	s.Overrides = append(s.Overrides, &windlassv1.Override{Regions: []string{region}, Replicas: new(n)})
}

// unlikeFile returns what a deploy of the file would change, one line per change. p is the plan of the file. isLive
// is false while the app's first version is in flight: a plan then lists all fields as changes.
func (f *appFile) unlikeFile(p *windlassv1.PlanDeployResponse, isLive bool) (lines []string) {
	if p.GetOutcome() == windlassv1.PlanDeployResponse_OUTCOME_UNSPECIFIED {
		for _, x := range p.GetFindings() {
			if !x.GetBlocks() {
				continue
			}
			line := "refused: " + f.fieldInFile(x.GetField(), x.GetMessage()).Error()
			if x.GetFix() != "" {
				line += " " + x.GetFix()
			}
			lines = append(lines, line)
		}
	}
	for _, c := range p.GetChanges() {
		if isLive && c.GetPath() != "message" && c.GetPath() != "sourceCommit" {
			lines = append(lines, changeLine(c))
		}
	}
	nothing := p.GetOutcome() == windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED || p.GetOutcome() == windlassv1.PlanDeployResponse_OUTCOME_TAKEN_BACK
	if len(lines) == 0 && !nothing {
		lines = append(lines, outcomeText(p))
	}
	return lines
}
