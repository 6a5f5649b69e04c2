package appspec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// An app's spec has layers. A later layer replaces an earlier one, field by field, and args flag by flag:
//
//	preset         Expand
//	environment    InheritEnv, variables only
//	the app        Expand
//	overrides      ExpandRegions, and package override
//
// Expand runs once, when a version is made. Its result is stored with the version, so that a later change of
// the preset changes no running version.

// Expand returns a copy of the spec with the fields that the preset of spec.serve makes, and the preset's findings:
// errors first, then warnings, then notes. A spec without serve is copied unchanged. With an error among the
// findings, the spec is not complete.
func Expand(in *windlassv1.DeploymentSpec, presets *preset.Registry) (*windlassv1.DeploymentSpec, []preset.Finding) {
	s, findings := expandPreset(in, presets)
	preset.SortFindings(findings)
	return s, findings
}

func expandPreset(in *windlassv1.DeploymentSpec, presets *preset.Registry) (*windlassv1.DeploymentSpec, []preset.Finding) {
	s := proto.CloneOf(in)
	s.GeneratedBy, s.Generated = "", nil
	if s.GetServe() == nil {
		return s, nil
	}
	input, findings := inputOf(s, resourcesOf(s))
	p, known := presets.Find(input.Engine)
	if known {
		if flag := p.Twice(s.GetArgs()); flag != "" {
			findings = append(findings, flagTwice("/args", flag))
		}
	}
	if len(s.GetRoles()) > 1 {
		findings = append(findings, preset.Finding{
			Severity: preset.Error, Code: "SeveralRoles", Field: "/roles",
			Text: "serve makes the args of one role, but the app has several", Fix: "remove serve and write the args of each role, or use one role",
		})
	}
	for i, r := range s.GetRoles() {
		if len(r.GetCommand()) > 0 || len(r.GetArgs()) > 0 || r.GetImage() != "" {
			findings = append(findings, preset.Finding{
				Severity: preset.Error, Code: "RoleRunsOther", Field: fmt.Sprintf("/roles[%d]", i),
				Text: "the role has its own image, command or args, but serve sets them in the spec", Fix: "move the role's values to the spec, or remove serve",
			})
		}
	}
	f, more := presets.Generate(input)
	findings = append(findings, more...)
	if preset.HasErrors(findings) {
		return s, findings
	}
	made := f.Spec
	if hostsOf(s) > 1 && startsRanks(made) && len(s.GetCommand()) > 0 {
		return s, append(findings, preset.Finding{
			Severity: preset.Error, Code: "CommandTaken", Field: "/command",
			Text: "the preset's command starts the ranks of an instance of several hosts", Fix: "remove command, or write image and args in the place of serve",
		})
	}
	if shm := made.GetResources().GetShmMib(); s.GetResources().GetShmMib() == 0 && tooLittle(s.GetResources(), shm) {
		return s, append(findings, littleMemory(shm, s.GetResources()))
	}
	out := overlayFields(made, s)
	if out.Args = p.Merge(made.GetArgs(), s.GetArgs()); len(out.Args) > maxArgs {
		return s, append(findings, tooManyArgs(len(out.Args)))
	}
	out.HealthCheck = overlayFields(made.GetHealthCheck(), s.GetHealthCheck())
	if budget := out.GetHealthCheck().GetStartupBudget(); s.GetProgressDeadline() == nil && budget.AsDuration() > made.GetProgressDeadline().AsDuration() {
		out.ProgressDeadline = proto.CloneOf(deadlineFor(budget)) // the file or the preset has a longer budget than the preset's deadline
	}
	out.Resources = overlayFields(made.GetResources(), s.GetResources())
	out.Env = s.GetEnv()
	out.GeneratedBy = f.GeneratedBy
	out.Generated = &windlassv1.Generated{EngineVersion: f.EngineVersion, Env: generatedEnv(made.GetEnv(), s), Metrics: EngineMetrics(f.Metrics)}
	return out, append(findings, checkGenerated(out, made)...)
}

// startsRanks reports whether a preset made a command that adds flags by the rank.
func startsRanks(made *windlassv1.DeploymentSpec) bool {
	return len(made.GetCommand()) > 0 && made.GetCommand()[0] == "sh"
}

// checkGenerated returns the schema's violations in the fields of a spec that a preset made. The request was checked
// before the preset set these fields.
func checkGenerated(spec, made *windlassv1.DeploymentSpec) (findings []preset.Finding) {
	invalid, ok := errors.AsType[*protovalidate.ValidationError](protovalidate.Validate(spec))
	if !ok {
		return nil
	}
	for _, v := range invalid.Violations {
		path, message := rpc.Violation(v)
		top, _, _ := strings.Cut(strings.ReplaceAll(path, "[", "."), ".")
		if f := made.ProtoReflect().Descriptor().Fields().ByJSONName(top); f == nil || !made.ProtoReflect().Has(f) {
			continue
		}
		findings = append(findings, preset.Finding{
			Severity: preset.Error, Code: "GeneratedInvalid", Field: "/" + path,
			Text: fmt.Sprintf("preset %s generates an invalid value: %s", spec.GetGeneratedBy(), message),
			Fix:  "change the fields that the preset reads from the file, or set this field in the file",
		})
	}
	return findings
}

// EngineMetrics returns a preset's metrics in the API's form.
func EngineMetrics(of []preset.Metric) (out []*windlassv1.EngineMetric) {
	for _, m := range of {
		out = append(out, &windlassv1.EngineMetric{Signal: m.Signal, Metric: m.Metric, Port: m.Port, Path: m.Path})
	}
	return out
}

// generatedEnv returns the preset's variables. It leaves out variables that the app sets, as a value or with a
// secret.
func generatedEnv(made map[string]string, s *windlassv1.DeploymentSpec) map[string]string {
	env := maps.Clone(made)
	maps.DeleteFunc(env, func(name, _ string) bool {
		_, own := s.GetEnv()[name]
		return own || slices.ContainsFunc(s.GetSecrets(), func(r *windlassv1.SecretReference) bool { return r.GetEnvName() == name })
	})
	return env
}

// overlayFields returns base, in which every field that over sets is replaced as a whole.
func overlayFields[M proto.Message](base, over M) M {
	if !base.ProtoReflect().IsValid() {
		return proto.CloneOf(over)
	}
	out := proto.CloneOf(base)
	if over.ProtoReflect().IsValid() {
		proto.CloneOf(over).ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			out.ProtoReflect().Set(f, v)
			return true
		})
	}
	return out
}

// ExpandRegions makes the args of each region whose override changes resources or adds args. A flag of an override
// replaces the flag with the same name, and parallelism follows the region's GPUs. asked is the spec before Expand.
// spec is the result of Expand with its overrides pinned. Fields of findings are relative to the same object as in
// Expand.
func ExpandRegions(spec, asked *windlassv1.DeploymentSpec, presets *preset.Registry) (findings []preset.Finding) {
	p, known := presets.Find(spec.GetGeneratedBy())
	if !known {
		return nil
	}
	for _, pinned := range spec.GetPinnedOverrides() {
		v := pinned.GetValues()
		if v.GetResources() == nil && len(v.GetExtraArgs()) == 0 {
			continue
		}
		if flag := p.Twice(v.GetExtraArgs()); flag != "" {
			findings = append(findings, flagTwice("/overrides", flag))
			continue
		}
		resources := resourcesOf(override.In(spec, pinned.GetRegionId()))
		input, _ := inputOf(asked, resources)
		f, found := p.Generate(input)
		for _, one := range found {
			if one.Severity == preset.Error || one.Severity == preset.Warning && v.GetResources() != nil {
				one.Text = fmt.Sprintf("in region %s: %s", pinned.GetRegion(), one.Text)
				findings = append(findings, one)
			}
		}
		if f.Spec == nil {
			continue
		}
		if asked.GetImage() == "" && f.Spec.GetImage() != spec.GetImage() {
			findings = append(findings, preset.Finding{
				Severity: preset.Error, Code: "BuildDiffers", Field: "/overrides",
				Text: fmt.Sprintf("the GPUs of region %s need image %s, but the GPUs of other regions need image %s", pinned.GetRegion(), f.Spec.GetImage(), spec.GetImage()),
				Fix:  "make an app for each image, or set image to one that runs in all regions",
			})
			continue
		}
		if shm := f.Spec.GetResources().GetShmMib(); shm > resources.GetShmMib() && asked.GetResources().GetShmMib() == 0 {
			if tooLittle(resources, shm) {
				findings = append(findings, littleMemory(shm, resources))
				continue
			}
			if v.Resources == nil {
				v.Resources = &windlassv1.Resources{}
			}
			v.Resources.ShmMib = shm
		}
		if len(v.GetArgs()) > 0 {
			continue // the override's args replace all args
		}
		args := p.Merge(p.Merge(f.Spec.GetArgs(), asked.GetArgs()), v.GetExtraArgs())
		if v.ExtraArgs = nil; len(args) > maxArgs {
			findings = append(findings, tooManyArgs(len(args)))
			continue
		}
		if !slices.Equal(args, spec.GetArgs()) {
			v.Args = args
		}
	}
	return findings
}

func flagTwice(field, flag string) preset.Finding {
	return preset.Finding{
		Severity: preset.Error, Code: "FlagTwice", Field: field,
		Text: fmt.Sprintf("flag %s is set twice", flag), Fix: "keep one of them, and write several values after it",
	}
}

// maxArgs is the maximum number of args in the schema.
const maxArgs = 1024

func tooManyArgs(n int) preset.Finding {
	return preset.Finding{
		Severity: preset.Error, Code: "TooManyArgs", Field: "options",
		Text: fmt.Sprintf("the engine would get %d args, and at most %d are allowed", n, maxArgs), Fix: "write fewer options or args",
	}
}

// tooLittle reports whether the instance's memory, which includes shared memory, is too small for shm MiB of shared
// memory.
func tooLittle(r *windlassv1.Resources, shm int32) bool {
	return shm > cmp.Or(r.GetMemoryMib(), defaultMemoryMiB)
}

func littleMemory(shm int32, r *windlassv1.Resources) preset.Finding {
	return preset.Finding{
		Severity: preset.Error, Code: "MemoryTooSmall", Field: "/resources.memoryMib",
		Text: fmt.Sprintf("the GPUs of an instance share %d MiB of memory in /dev/shm, but the instance has only %d MiB", shm, cmp.Or(r.GetMemoryMib(), defaultMemoryMiB)),
		Fix:  fmt.Sprintf("set it to the host memory that the engine needs, at least %d MiB, or set shmMib", 2*shm),
	}
}

// resourcesOf returns the resources of the first role that has its own, or else the spec's.
func resourcesOf(s *windlassv1.DeploymentSpec) *windlassv1.Resources {
	for _, r := range s.GetRoles() {
		if r.GetResources() != nil {
			return r.GetResources()
		}
	}
	return s.GetResources()
}

// hostsOf returns the number of hosts of each instance. The spec must have at most one role.
func hostsOf(s *windlassv1.DeploymentSpec) int {
	if len(s.GetRoles()) != 1 {
		return 1
	}
	return int(model.HostsOf(s.GetRoles()[0]))
}

// maxOption is the maximum length of an option's value, in bytes. Elements of args have the same limit.
const maxOption = 32768

// inputOf returns the input of a preset for the spec, in a region with the resources r.
func inputOf(s *windlassv1.DeploymentSpec, r *windlassv1.Resources) (preset.Input, []preset.Finding) {
	serve := s.GetServe()
	in := preset.Input{
		Engine: serve.GetEngine(), EngineVersion: serve.GetEngineVersion(), Model: serve.GetModel(), Name: serve.GetName(), Context: int(serve.GetContext()),
		Parallel: preset.Parallel{Tensor: int(serve.GetParallel().GetTensor()), Pipeline: int(serve.GetParallel().GetPipeline()), Data: int(serve.GetParallel().GetData())},
		Options:  map[string]preset.Option{},
		GPU: preset.GPU{
			Count: int(r.GetGpu().GetCount()), Product: r.GetGpu().GetProduct(), Resource: r.GetGpu().GetResourceName(), MinMemoryMiB: int(r.GetGpu().GetMinMemoryMib()),
		},
		Hosts: hostsOf(s), MemoryMiB: int(r.GetMemoryMib()), Replicas: int(s.GetReplicas()), CachePath: s.GetModelCache().GetMountPath(),
	}
	if f := serve.GetFacts(); f != nil {
		in.Facts = &preset.Facts{
			Layers: int(f.GetLayers()), Heads: int(f.GetHeads()), KVHeads: int(f.GetKvHeads()), HeadSize: int(f.GetHeadSize()),
			MaxContext: int(f.GetMaxContext()), WeightBytes: f.GetWeightBytes(), DType: f.GetDtype(),
		}
	}
	var findings []preset.Finding
	options := serve.GetOptions().GetFields()
	for _, name := range slices.Sorted(maps.Keys(options)) {
		o, err := preset.OptionOf(options[name].AsInterface())
		bad := ""
		if err != nil {
			bad = err.Error()
		}
		for _, value := range o.Values {
			if strings.ContainsRune(value, 0) || len(value) > maxOption {
				bad = fmt.Sprintf("a value contains a zero byte, or has more than %d bytes", maxOption)
			}
		}
		if bad != "" {
			findings = append(findings, preset.Finding{
				Severity: preset.Error, Code: "OptionInvalid", Field: "options", Text: fmt.Sprintf("flag %q: %s", clipText(name), bad),
				Fix: "write true, false, a number, a text or a list of these",
			})
			continue
		}
		in.Options[name] = o
	}
	return in, findings
}

func clipText(text string) string {
	if len(text) > 64 {
		return strings.ToValidUTF8(text[:64], "") + "..."
	}
	return text
}

// reasons are the error reasons of findings by code. Other codes have reason VALIDATION.
var reasons = map[string]windlassv1.ErrorReason{
	"EngineUnknown":          windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_ENGINE,
	"EngineVersionUnchecked": windlassv1.ErrorReason_ERROR_REASON_ENGINE_UNCHECKED,
	"BuildUnknown":           windlassv1.ErrorReason_ERROR_REASON_ENGINE_UNCHECKED,
	"ModelUnsupported":       windlassv1.ErrorReason_ERROR_REASON_MODEL_UNSUPPORTED,
	"RevisionUnsupported":    windlassv1.ErrorReason_ERROR_REASON_MODEL_UNSUPPORTED,
	"ParallelMismatch":       windlassv1.ErrorReason_ERROR_REASON_PARALLEL_MISMATCH,
	"ParallelUnsupported":    windlassv1.ErrorReason_ERROR_REASON_PARALLEL_MISMATCH,
	"GPUsUnused":             windlassv1.ErrorReason_ERROR_REASON_PARALLEL_MISMATCH,
	"HeadsNotDivisible":      windlassv1.ErrorReason_ERROR_REASON_HEADS_NOT_DIVISIBLE,
	"FlagTwice":              windlassv1.ErrorReason_ERROR_REASON_FLAG_TWICE,
	"FlagTaken":              windlassv1.ErrorReason_ERROR_REASON_FLAG_TAKEN,
	"OptionUnsupported":      windlassv1.ErrorReason_ERROR_REASON_FLAG_TAKEN,
	"WeightsTooLarge":        windlassv1.ErrorReason_ERROR_REASON_WEIGHTS_TOO_LARGE,
	"ContextTooLarge":        windlassv1.ErrorReason_ERROR_REASON_CONTEXT_TOO_LARGE,
	"ContextAboveModel":      windlassv1.ErrorReason_ERROR_REASON_CONTEXT_TOO_LARGE,
}

func reasonOf(code string) windlassv1.ErrorReason {
	if r, ok := reasons[code]; ok {
		return r
	}
	return windlassv1.ErrorReason_ERROR_REASON_VALIDATION
}

// fieldOf returns the path of a finding's field in a request.
func fieldOf(f preset.Finding) string { return "spec." + FileField(f) }

// FileField returns the path of a finding's field in an app's file.
func FileField(f preset.Finding) string {
	if path, ok := strings.CutPrefix(f.Field, "/"); ok {
		return path
	}
	return "serve." + f.Field
}

// Sentence returns text as a sentence with a capital letter and a full stop, like the fixes of the API.
func Sentence(text string) string {
	if text == "" {
		return ""
	}
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

// Refusals returns the errors among the findings, in the form in which the API returns them.
func Refusals(findings []preset.Finding) (errs []error) {
	for _, f := range findings {
		if f.Severity == preset.Error {
			errs = append(errs, rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
				Reason: reasonOf(f.Code), Field: fieldOf(f), Fix: Sentence(f.Fix),
			}, fieldOf(f)+": "+f.Text))
		}
	}
	return errs
}

// Warnings returns the warnings among the findings, in the form of a plan.
func Warnings(findings []preset.Finding) (out []*windlassv1.PlanFinding) {
	for _, f := range findings {
		if f.Severity == preset.Warning {
			out = append(out, &windlassv1.PlanFinding{Reason: reasonOf(f.Code), Field: fieldOf(f), Message: fieldOf(f) + ": " + f.Text, Fix: Sentence(f.Fix)})
		}
	}
	return out
}

// WarningText returns a warning as text for the history and for users.
func WarningText(f *windlassv1.PlanFinding) string {
	text := strings.TrimPrefix(f.GetMessage(), "spec.") + "."
	if f.GetFix() != "" {
		text += " " + f.GetFix()
	}
	return text
}
