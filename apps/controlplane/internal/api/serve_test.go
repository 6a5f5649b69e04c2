package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// serving makes a spec that serves a model with vLLM, without image and command.
func serving(edit ...func(*windlassv1.DeploymentSpec)) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Command = nil
		s.Serve = &windlassv1.Serve{Engine: "vllm", Model: "hf://org/m@main"}
		for _, f := range edit {
			f(s)
		}
	}
}

func gpusOf(n int32, product string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Resources = &windlassv1.Resources{MemoryMib: 65536, Gpu: &windlassv1.Gpu{Count: n, Product: product}}
	}
}

func options(values map[string]any) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		o, err := structpb.NewStruct(values)
		if err != nil {
			panic(err)
		}
		s.Serve.Options = o
	}
}

// hosts turns all regions into hosts, which run processes and pull no images.
func (h *harness) hosts() {
	h.t.Helper()
	h.runtime = model.RuntimeProcess
	h.update(func(tx store.Tx) error {
		for _, id := range h.regions {
			if _, _, err := tx.StartSession(id, "session-"+id, 60_000, model.Region{AgentRuntime: h.runtime}); err != nil {
				return err
			}
		}
		return nil
	})
}

// valueOf returns the value of a flag.
func valueOf(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

func TestServe_IsExpandedWhenAVersionIsMade(t *testing.T) {
	w := setup(t)
	w.hosts()
	res := w.deploy("llama", serving(func(s *windlassv1.DeploymentSpec) {
		s.Serve.Context = 4096
		s.HealthCheck = &windlassv1.HealthCheck{Path: "/live"}
		s.Args = []string{"--max-num-seqs", "8", "-q", "fp8"}
		s.Env = map[string]string{"MINE": "1"}
		s.GeneratedBy, s.Generated = "forged/7", &windlassv1.Generated{EngineVersion: "7", Env: map[string]string{"FORGED": "1"}}
	}, options(map[string]any{"max-num-seqs": 64, "trust-remote-code": true, "shutdown-timeout": false})))
	require.Empty(t, res.GetWarnings())
	s := w.version("llama", 1).GetSpec()
	require.Equal(t, "vllm/1", s.GetGeneratedBy())
	require.Equal(t, "vllm/vllm-openai:v0.20.0", s.GetImage())
	require.Equal(t, []string{"vllm"}, s.GetCommand())
	require.Equal(t, strings.Fields("serve org/m --revision main --host 0.0.0.0 --port $(PORT) --max-model-len 4096 --max-num-seqs 8 --trust-remote-code --quantization fp8"), s.GetArgs(),
		"the app's args replace options, and both replace the preset's args")
	require.Equal(t, "/live", s.GetHealthCheck().GetPath(), "the app's value replaces the preset's, field by field")
	require.Equal(t, int64(1800), s.GetHealthCheck().GetStartupBudget().GetSeconds())
	require.Equal(t, int64(2400), s.GetProgressDeadline().GetSeconds())
	require.Equal(t, map[string]string{"MINE": "1"}, s.GetEnv())
	require.Equal(t, "0.20.0", s.GetGenerated().GetEngineVersion())
	require.Equal(t, "vllm:num_requests_waiting", s.GetGenerated().GetMetrics()[0].GetMetric())
	require.Equal(t, int32(1), w.settle("llama").GetLiveVersion())
}

func TestServe_UpgradeOfAPresetChangesNothingUntilADeploy(t *testing.T) {
	var cfg api.Config
	w := setup(t, func(c *api.Config) { cfg = *c })
	w.hosts()
	w.deploy("llama", serving())
	w.settle("llama")
	before := w.version("llama", 1).GetSpec()
	require.Equal(t, outcomeUnchanged, w.planned("llama", nil, serving()).GetOutcome())

	old, _ := preset.Find("vllm/1")
	cfg.Presets = preset.Builtin().With(old.Next("--new-flag", "1"))
	upgraded := w.another(cfg)
	p := upgraded.planned("llama", nil, serving())
	require.Equal(t, outcomeRollout, p.GetOutcome())
	changes := map[string]string{}
	for _, c := range p.GetChanges() {
		changes[c.GetPath()] = c.GetOld() + " -> " + c.GetNew()
	}
	require.Equal(t, "vllm/1 -> vllm/2", changes["generatedBy"])
	require.Equal(t, " -> 1", changes[`args["--new-flag"]`], "%v", changes)
	require.Len(t, changes, 2, "changes of args are shown by flag: %v", changes)

	// A change other than a deploy keeps the version's preset.
	_, err := upgraded.apps(w.deployer).SetEnvironment(t.Context(), &windlassv1.SetEnvironmentRequest{App: "llama", Set: map[string]string{"A": "1"}})
	require.NoError(t, err)
	w.settle("llama")
	require.Equal(t, before.GetArgs(), w.version("llama", 2).GetSpec().GetArgs())
	require.Equal(t, "vllm/1", w.version("llama", 2).GetSpec().GetGeneratedBy())

	require.Equal(t, int32(3), upgraded.deploy("llama", serving()).GetVersion())
	w.settle("llama")
	require.Equal(t, "vllm/2", w.version("llama", 3).GetSpec().GetGeneratedBy())
	require.Equal(t, outcomeUnchanged, upgraded.planned("llama", nil, serving(func(s *windlassv1.DeploymentSpec) { s.Serve.Engine = "vllm/2" })).GetOutcome(), "a version can be named")
	_, err = upgraded.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "llama", Version: 1})
	require.NoError(t, err)
	require.Equal(t, before.GetArgs(), w.newestSpec("llama").GetArgs())
}

func TestServe_VariablesHaveLayers(t *testing.T) {
	w := setup(t)
	w.hosts()
	ctx := t.Context()
	cached := serving(func(s *windlassv1.DeploymentSpec) {
		s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 1}}
	})
	home := func() string { return w.newestSpec("llama").GetEnv()["HF_HOME"] }
	change := func(variables map[string]string) {
		e, err := w.environments(w.owner).GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: "default/production"})
		require.NoError(t, err)
		_, err = w.environments(w.owner).UpdateEnvironment(ctx, &windlassv1.UpdateEnvironmentRequest{
			Environment: e.GetEnvironment().GetId(), Name: "production", Variables: variables, ResourceVersion: e.GetEnvironment().GetResourceVersion(),
		})
		require.NoError(t, err)
	}
	set := func(req *windlassv1.SetEnvironmentRequest) {
		req.App = "llama"
		_, err := w.apps(w.deployer).SetEnvironment(ctx, req)
		require.NoError(t, err)
	}
	w.deploy("llama", cached)
	require.Equal(t, "/models", home(), "the preset's")
	change(map[string]string{"HF_HOME": "/shared"})
	set(&windlassv1.SetEnvironmentRequest{Set: map[string]string{"A": "1"}})
	require.Equal(t, "/shared", home(), "the environment's value replaces the preset's")
	change(nil)
	set(&windlassv1.SetEnvironmentRequest{Set: map[string]string{"A": "2"}})
	require.Equal(t, "/models", home(), "the preset's again")
	set(&windlassv1.SetEnvironmentRequest{Set: map[string]string{"HF_HOME": "/own"}})
	change(map[string]string{"HF_HOME": "/shared"})
	set(&windlassv1.SetEnvironmentRequest{Set: map[string]string{"A": "3"}})
	require.Equal(t, "/own", home(), "the app's value replaces both")
	set(&windlassv1.SetEnvironmentRequest{Unset: []string{"HF_HOME"}})
	require.Empty(t, home(), "an unset variable stays unset")
}

func TestServe_ParallelismFollowsTheRegion(t *testing.T) {
	w := setup(t)
	w.deploy("llama", serving(gpusOf(8, "NVIDIA-H100-80GB-HBM3"), overrides(
		extra(with(inRegions("eu-west-1"), func(o *windlassv1.Override) {
			o.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 4, Product: "NVIDIA-H100-80GB-HBM3"}}
		}), "--max-num-seqs", "8", "--shutdown-timeout=9"))))
	s := w.version("llama", 1).GetSpec()
	require.Equal(t, "8", valueOf(s.GetArgs(), "--tensor-parallel-size"))
	in := s.GetPinnedOverrides()[0].GetValues()
	require.Empty(t, in.GetExtraArgs(), "flags are merged by name")
	require.Equal(t, "4", valueOf(in.GetArgs(), "--tensor-parallel-size"))
	require.Equal(t, "8", valueOf(in.GetArgs(), "--max-num-seqs"))
	require.Equal(t, "9", valueOf(in.GetArgs(), "--shutdown-timeout"))
	require.Equal(t, 1, strings.Count(strings.Join(in.GetArgs(), " "), "--shutdown-timeout"))

	p := w.planned("other", nil, serving(gpusOf(8, ""), func(s *windlassv1.DeploymentSpec) { s.Serve.Parallel = &windlassv1.Parallelism{Tensor: 8} }, overrides(
		with(inRegions("eu-west-1"), func(o *windlassv1.Override) { o.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 4}} }))))
	require.Contains(t, reasons(p), "PARALLEL_MISMATCH spec.serve.parallel")
	tei := func(s *windlassv1.DeploymentSpec) { s.Serve.Engine = "tei" }
	p = w.planned("other", nil, serving(gpusOf(1, "NVIDIA-H100-80GB-HBM3"), tei, overrides(
		with(inRegions("eu-west-1"), func(o *windlassv1.Override) {
			o.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1, Product: "NVIDIA-L4"}}
		}))))
	require.Contains(t, reasons(p), "VALIDATION spec.overrides")
}

func TestServe_FindingsRefuseOrWarn(t *testing.T) {
	w := setup(t)
	facts := func(s *windlassv1.DeploymentSpec) {
		s.Serve.Facts = &windlassv1.ModelFacts{Layers: 80, Heads: 64, KvHeads: 8, HeadSize: 128, MaxContext: 131072, WeightBytes: 141_107_412_992, Dtype: "bfloat16"}
	}
	serve := func(edit func(*windlassv1.Serve)) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) { edit(s.Serve) }
	}
	type reason = windlassv1.ErrorReason
	for name, c := range map[string]struct {
		edit   []func(*windlassv1.DeploymentSpec)
		reason reason
		field  string
	}{
		"an unknown engine": {[]func(*windlassv1.DeploymentSpec){serve(func(s *windlassv1.Serve) { s.Engine = "vlm" })}, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_ENGINE, "spec.serve.engine"},
		"a model from an unknown source": {
			[]func(*windlassv1.DeploymentSpec){serve(func(s *windlassv1.Serve) { s.Model = "oci://r/m" })}, windlassv1.ErrorReason_ERROR_REASON_MODEL_UNSUPPORTED, "spec.serve.model",
		},
		"an invalid model": {[]func(*windlassv1.DeploymentSpec){serve(func(s *windlassv1.Serve) { s.Model = "org/m" })}, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.serve.model"},
		"tensor x pipeline that differs from the GPUs": {
			[]func(*windlassv1.DeploymentSpec){gpusOf(8, ""), serve(func(s *windlassv1.Serve) { s.Parallel = &windlassv1.Parallelism{Tensor: 4, Pipeline: 4} })},
			windlassv1.ErrorReason_ERROR_REASON_PARALLEL_MISMATCH, "spec.serve.parallel",
		},
		"heads that do not divide": {[]func(*windlassv1.DeploymentSpec){gpusOf(6, ""), facts}, windlassv1.ErrorReason_ERROR_REASON_HEADS_NOT_DIVISIBLE, "spec.serve.parallel.tensor"},
		"weights that are too large": {
			[]func(*windlassv1.DeploymentSpec){gpusOf(1, "NVIDIA-H100-80GB-HBM3"), facts}, windlassv1.ErrorReason_ERROR_REASON_WEIGHTS_TOO_LARGE, "spec.resources.gpu",
		},
		"less memory than the GPUs share": {
			[]func(*windlassv1.DeploymentSpec){gpusOf(2, ""), func(s *windlassv1.DeploymentSpec) { s.Resources.MemoryMib = 4096 }}, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.resources.memoryMib",
		},
		"a flag twice by two names": {
			[]func(*windlassv1.DeploymentSpec){options(map[string]any{"q": "fp8", "quantization": "fp8"})}, windlassv1.ErrorReason_ERROR_REASON_FLAG_TWICE, "spec.serve.options.quantization",
		},
		"a flag twice in args": {[]func(*windlassv1.DeploymentSpec){args("-q", "a", "--quantization=b")}, windlassv1.ErrorReason_ERROR_REASON_FLAG_TWICE, "spec.args"},
		"a flag of a field":    {[]func(*windlassv1.DeploymentSpec){options(map[string]any{"max-model-len": 1})}, windlassv1.ErrorReason_ERROR_REASON_FLAG_TAKEN, "spec.serve.options.max-model-len"},
		"a flag of Windlass":   {[]func(*windlassv1.DeploymentSpec){options(map[string]any{"port": 1})}, windlassv1.ErrorReason_ERROR_REASON_FLAG_TAKEN, "spec.serve.options.port"},
		"an option with an invalid value": {
			[]func(*windlassv1.DeploymentSpec){options(map[string]any{"a": map[string]any{"b": 1}})}, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.serve.options",
		},
		"more options than args": {
			[]func(*windlassv1.DeploymentSpec){func(s *windlassv1.DeploymentSpec) {
				many := map[string]any{}
				for i := range 1100 {
					many[fmt.Sprintf("a%d", i)] = true
				}
				options(many)(s)
			}}, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.serve.options",
		},
		"a role with its own args": {
			[]func(*windlassv1.DeploymentSpec){func(s *windlassv1.DeploymentSpec) {
				s.Roles = []*windlassv1.RoleSpec{{Name: "main", Args: []string{"a"}}}
			}}, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[0]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := echo(serving(c.edit...))
			_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "llama", Spec: spec})
			refused(t, err, connect.CodeInvalidArgument, c.reason, c.field)
			p := w.planned("llama", nil, serving(c.edit...))
			require.False(t, p.GetWouldRun())
			require.Contains(t, reasons(p), strings.TrimPrefix(c.reason.String(), "ERROR_REASON_")+" "+c.field)
			require.NotEmpty(t, p.GetFindings()[0].GetFix())
		})
	}
	t.Run("a plan has all errors", func(t *testing.T) {
		p := w.planned("llama", nil, serving(gpusOf(3, ""), serve(func(s *windlassv1.Serve) {
			s.Model, s.Parallel = "org/m", &windlassv1.Parallelism{Tensor: 2}
		})))
		require.Equal(t, []string{"VALIDATION spec.serve.model", "PARALLEL_MISMATCH spec.serve.parallel"}, reasons(p))
	})
	t.Run("an estimate warns, in the plan and in the answer", func(t *testing.T) {
		edit := serving(gpusOf(2, "NVIDIA-H100-80GB-HBM3"), facts)
		p := w.planned("llama", nil, edit)
		i := slices.IndexFunc(p.GetFindings(), func(f *windlassv1.PlanFinding) bool {
			return f.GetReason() == windlassv1.ErrorReason_ERROR_REASON_CONTEXT_TOO_LARGE
		})
		require.GreaterOrEqual(t, i, 0, "%v", p.GetFindings())
		require.False(t, p.GetFindings()[i].GetBlocks())
		require.Equal(t, "spec.serve.context", p.GetFindings()[i].GetField())
		require.Contains(t, p.GetFindings()[i].GetFix(), "Set context to")
		res, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "llama", Spec: echo(edit)})
		require.NoError(t, err)
		require.Len(t, res.GetWarnings(), 1)
		require.Contains(t, res.GetWarnings()[0], "serve.context: an estimate")
		require.Contains(t, res.GetWarnings()[0], "Set context to")
	})
	t.Run("a version of the engine for which the preset was not written warns", func(t *testing.T) {
		p := w.planned("llama", nil, serving(gpusOf(1, ""), serve(func(s *windlassv1.Serve) { s.EngineVersion = "99.0.0" })))
		i := slices.IndexFunc(p.GetFindings(), func(f *windlassv1.PlanFinding) bool {
			return f.GetReason() == windlassv1.ErrorReason_ERROR_REASON_ENGINE_UNCHECKED
		})
		require.GreaterOrEqual(t, i, 0, "%v", p.GetFindings())
		require.False(t, p.GetFindings()[i].GetBlocks())
		require.Equal(t, "spec.serve.engineVersion", p.GetFindings()[i].GetField())
	})
}

func (h *harness) presets(key string) windlassv1connect.PresetServiceClient {
	return windlassv1connect.NewPresetServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func TestPresets_AreShown(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	list, err := w.presets(w.viewer).ListPresets(ctx, &windlassv1.ListPresetsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetPresets(), len(preset.All()))
	got, err := w.presets(w.viewer).GetPreset(ctx, &windlassv1.GetPresetRequest{Name: "vllm", EngineVersion: "0.10.1"})
	require.NoError(t, err)
	require.Equal(t, "vllm/1", got.GetPreset().GetId())
	require.NotEmpty(t, got.GetPreset().GetSources())
	require.Equal(t, "vllm:gpu_cache_usage_perc", got.GetPreset().GetMetrics()[2].GetMetric(), "the metric of this version of the engine")
	_, err = w.presets(w.viewer).GetPreset(ctx, &windlassv1.GetPresetRequest{Name: "vlm"})
	refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_ENGINE, "name")

	made, err := w.presets(w.viewer).RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: echo(serving())})
	require.NoError(t, err)
	require.Equal(t, "vllm/1", made.GetSpec().GetGeneratedBy())
	require.Contains(t, made.GetFindings()[0].GetField(), "serve.")
	made, err = w.presets(w.viewer).RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: echo(serving(gpusOf(3, ""), func(s *windlassv1.DeploymentSpec) {
		s.Serve.Parallel = &windlassv1.Parallelism{Tensor: 2}
	}))})
	require.NoError(t, err)
	require.Nil(t, made.GetSpec())
	require.Equal(t, windlassv1.PresetFinding_SEVERITY_ERROR, made.GetFindings()[0].GetSeverity())
	require.Equal(t, "ParallelMismatch", made.GetFindings()[0].GetCode())
	require.Equal(t, "serve.parallel", made.GetFindings()[0].GetField())
	_, err = w.presets(w.viewer).RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: echo()})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.serve")
}

// DiffPreset of a version has the same changes as a plan of its file.
func TestPresetDiff_EqualsThePlanOfTheSameFile(t *testing.T) {
	for name, edit := range map[string]func(*windlassv1.DeploymentSpec){
		"the least": serving(),
		"own flags, fields and variables": serving(func(s *windlassv1.DeploymentSpec) {
			s.Args = []string{"--shutdown-timeout", "9", "--own", "1"}
			s.HealthCheck = &windlassv1.HealthCheck{Path: "/live"}
			s.Env = map[string]string{"A": "1"}
			s.ModelCache = &windlassv1.ModelCache{MountPath: "/models", Claim: &windlassv1.VolumeClaim{SizeGib: 1}}
			s.TerminationGrace = durationpb.New(time.Second)
		}, options(map[string]any{"max-num-seqs": 64})),
		"regions of their own": serving(gpusOf(4, "NVIDIA-H100-80GB-HBM3"), overrides(
			extra(with(inRegions("eu-west-1"), func(o *windlassv1.Override) {
				o.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 8, Product: "NVIDIA-H100-80GB-HBM3"}}
			}), "--max-num-seqs", "8"))),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			var cfg api.Config
			w := setup(t, func(c *api.Config) { cfg = *c })
			w.hosts()
			w.deploy("llama", edit)
			w.settle("llama")
			same, err := w.presets(w.viewer).DiffPreset(ctx, &windlassv1.DiffPresetRequest{App: "llama"})
			require.NoError(t, err)
			require.Empty(t, same.GetChanges())
			require.Equal(t, "vllm/1", same.GetNewest())

			old, _ := preset.Find("vllm/1")
			cfg.Presets = preset.Builtin().With(old.Next("--new-flag", "1"))
			upgraded := w.another(cfg)
			diff, err := upgraded.presets(w.viewer).DiffPreset(ctx, &windlassv1.DiffPresetRequest{App: "llama"})
			require.NoError(t, err)
			require.Equal(t, int32(1), diff.GetVersion())
			require.Equal(t, "vllm/1", diff.GetGeneratedBy())
			require.Equal(t, "vllm/2", diff.GetNewest())
			planned := upgraded.planned("llama", nil, edit).GetChanges()
			require.NotEmpty(t, planned)
			require.Equal(t, paths(planned), paths(diff.GetChanges()))
		})
	}
}

func paths(changes []*windlassv1.FieldChange) (out []string) {
	for _, c := range changes {
		out = append(out, c.GetPath()+": "+c.GetOld()+" -> "+c.GetNew())
	}
	return out
}

func TestPresetDiff_IsRefused(t *testing.T) {
	w := setup(t)
	w.hosts()
	diff := func(key string) error {
		_, err := w.presets(key).DiffPreset(t.Context(), &windlassv1.DiffPresetRequest{App: "llama"})
		return err
	}
	refused(t, diff(w.viewer), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "app")
	w.deploy("llama")
	refused(t, diff(w.viewer), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	w.settle("llama")
	refused(t, diff(w.viewer), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	refused(t, diff(w.rival), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "app")
}
