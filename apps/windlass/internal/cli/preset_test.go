package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/modelserver"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestPresetRender(t *testing.T) {
	server := newFakeServer(t)
	run := func(args ...string) commandResult {
		return runCommand(t, server, false, commandRun{args: append([]string{"preset", "render"}, args...)})
	}
	models := map[string]string{"nim": "oci://nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.0", "llamacpp": "hf://ggml-org/gemma-3-1b-it-GGUF"}
	for _, p := range preset.All() {
		t.Run("the file of "+p.Name+" is an app file that the API accepts", func(t *testing.T) {
			model := models[p.Name]
			if model == "" {
				model = "hf://org/m"
			}
			got := run(p.Name, "--model", model, "--gpus", "1", "--gpu-product", "NVIDIA-H100-80GB-HBM3", "--memory", "65536", "--replicas", "3", "--region", "a,b", "--app", "m")
			require.Zero(t, got.code, got.stderr)
			file, err := parseAppFile([]byte(got.stdout))
			require.NoError(t, err, got.stdout)
			require.NoError(t, protovalidate.Validate(file.Spec))
			require.Equal(t, "m", file.App)
			require.Equal(t, []string{"a", "b"}, file.Spec.GetRegions())
			require.EqualValues(t, 3, file.Spec.GetReplicas())
			require.EqualValues(t, 65536, file.Spec.GetResources().GetMemoryMib())
			require.EqualValues(t, 1, file.Spec.GetResources().GetGpu().GetCount())
			require.Equal(t, "NVIDIA-H100-80GB-HBM3", file.Spec.GetResources().GetGpu().GetProduct())
		})
	}
	t.Run("a server on several hosts has a role with hosts", func(t *testing.T) {
		got := run("vllm", "--model", "hf://org/m", "--gpus", "8", "--hosts", "2", "--memory", "65536")
		require.Zero(t, got.code, got.stderr)
		file, err := parseAppFile([]byte(got.stdout))
		require.NoError(t, err, got.stdout)
		require.NoError(t, protovalidate.Validate(file.Spec))
		require.Len(t, file.Spec.GetRoles(), 1)
		require.EqualValues(t, 2, file.Spec.GetRoles()[0].GetHosts())
		require.Contains(t, run("tgi", "--model", "hf://org/m", "--gpus", "8", "--hosts", "2").stderr, "preset tgi makes a server on one host")
		got = run("custom:modelserver", "--definition", "../../../../deployments/examples/presets/modelserver.yaml", "--model", "hf://org/m", "--hosts", "2")
		require.Zero(t, got.code, got.stderr)
		require.Contains(t, got.stdout, "hosts: 2")
	})
	t.Run("facts of the model are read from a file", func(t *testing.T) {
		facts := filepath.Join(t.TempDir(), "facts.json")
		write := func(text string) { require.NoError(t, os.WriteFile(facts, []byte(text), 0o600)) }
		args := []string{"vllm", "--model", "hf://org/m", "--gpus", "1", "--gpu-product", "A100-80GB", "--facts", facts}
		write(`{"layers": 80, "heads": 64, "kvHeads": 8, "headSize": 128, "weightBytes": 141107412992}`)
		require.Contains(t, run(args...).stderr, "ask for 2 GPUs or more")
		write(`{"layers": -1}`)
		require.Contains(t, run(args...).stderr, "a number is below 0")
		write(`{"leyers": 1}`)
		require.Contains(t, run(args...).stderr, "leyers")
	})
	t.Run("an option is true, false, or a value, once", func(t *testing.T) {
		got := run("sglang", "--model", "hf://org/m", "--option", "enable-metrics=false", "--option", "a=b=c", "--option", "trust-remote-code", "-o", "json")
		require.Zero(t, got.code, got.stderr)
		var out struct{ Spec struct{ Args []string } }
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &out))
		require.NotContains(t, out.Spec.Args, "--enable-metrics")
		require.Subset(t, out.Spec.Args, []string{"--a", "b=c", "--trust-remote-code"})
		require.Contains(t, run("sglang", "--model", "hf://org/m", "--option", "a", "--option", "a=1").stderr, "given twice")
	})
	t.Run("an impossible input fails with field and fix, in JSON too", func(t *testing.T) {
		got := run("vllm", "--model", "hf://org/m", "--gpus", "8", "--tensor", "3", "-o", "json")
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stdout, "ParallelMismatch")
		require.Contains(t, got.stderr, "set resources.gpu.count to 3 or parallel.tensor to 8")
	})
	t.Run("an unknown preset lists the known ones", func(t *testing.T) {
		got := runCommand(t, server, false, commandRun{args: []string{"preset", "show", "vlm"}})
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, "did you mean vllm? The presets are llamacpp, max, nim, sglang, tei, tgi, vllm")
	})
}

// The engines that modelserver simulates accept the command lines of presets.
func TestPresetCommandLines(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang"} {
		for name, in := range map[string]preset.Input{
			"least": {},
			"most": {
				Name: "m", Context: 8192, GPU: preset.GPU{Count: 8}, Parallel: preset.Parallel{Pipeline: 2, Data: 2},
				Options: map[string]preset.Option{"kv-cache-dtype": {Values: []string{"auto"}}, "trust-remote-code": {}},
			},
			"several hosts": {GPU: preset.GPU{Count: 8}, Hosts: 2},
		} {
			t.Run(engine+", "+name, func(t *testing.T) {
				in.Engine, in.Model = engine, "hf://org/m@main"
				f, findings := preset.Generate(in)
				require.NotNil(t, f.Spec, "%v", findings)
				args := slices.Concat(f.Spec.GetCommand(), f.Spec.GetArgs())
				for i := range args {
					args[i] = strings.NewReplacer("$(PORT)", "8123", "$(WINDLASS_RANK)", "1", "$(WINDLASS_LEADER)", "leader").Replace(args[i])
				}
				cfg, given, err := modelserver.ParseArgs(args, nil)
				require.NoError(t, err, strings.Join(args, " "))
				require.True(t, given)
				require.Equal(t, 8123, cfg.Port)
			})
		}
	}
}

// answer replaces the answer of the fake control plane.
func answer(with proto.Message) func(proto.Message) {
	return func(m proto.Message) {
		data, err := proto.Marshal(with)
		if err == nil {
			err = proto.Unmarshal(data, m)
		}
		if err != nil {
			panic(err)
		}
	}
}

const definitions = "../../../../deployments/examples/presets/*.yaml"

func TestPresetDefinition(t *testing.T) {
	server := newFakeServer(t)
	run := func(args ...string) commandResult {
		return runCommand(t, server, false, commandRun{args: append([]string{"preset"}, args...)})
	}
	files, err := filepath.Glob(definitions)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		t.Run("the example "+filepath.Base(path)+" is valid, and renders an app file for each of its examples", func(t *testing.T) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			def, err := parseDefinition(data)
			require.NoError(t, err)
			require.NoError(t, protovalidate.Validate(def))
			name := strings.TrimSuffix(filepath.Base(path), ".yaml")
			for _, e := range def.GetExamples() {
				require.Equal(t, "custom:"+name, e.GetServe().GetEngine())
				got := run("render", e.GetServe().GetEngine(), "--definition", path, "--model", e.GetServe().GetModel(), "--context", strconv.Itoa(int(e.GetServe().GetContext())))
				require.Equal(t, e.GetFails() != "", got.code != 0, got.stderr)
				if got.code != 0 {
					continue
				}
				file, err := parseAppFile([]byte(got.stdout))
				require.NoError(t, err, got.stdout)
				require.NoError(t, protovalidate.Validate(file.Spec))
				require.Equal(t, name, file.App)
			}
		})
	}
	t.Run("an error names the line, the field and the fix", func(t *testing.T) {
		for text, want := range map[string]string{
			"title: x\nargs:\n- {flog: --a}": "line 3: args[0].flog",
			"[]":                             "start with `title:",
			"title: x\nhealthCheck: {startupBudget: soon}":                "healthCheck.startupBudget",
			"title: x\nmodelSchemes: [hf]\nimage: a:${b}\nexamples: [{}]": "examples[0]",
		} {
			file := filepath.Join(t.TempDir(), "p.yaml")
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			got := run("render", "custom:x", "--model", "hf://org/m", "--definition", file)
			require.Equal(t, 1, got.code)
			require.Contains(t, got.stderr, want)
		}
		require.Contains(t, run("render", "vllm", "--model", "hf://org/m", "--definition", files[0]).stderr, "vllm is built in")
		require.Contains(t, run("show", "vllm", "--definition").stderr, "vllm is built in")
	})
	t.Run("set reads the output of show", func(t *testing.T) {
		data, err := os.ReadFile(files[0])
		require.NoError(t, err)
		def, err := parseDefinition(data)
		require.NoError(t, err)
		got := runCommand(t, server, false, commandRun{args: []string{"preset", "show", "custom:modelserver", "--definition"}, answers: map[string]func(proto.Message){
			"GetPreset": answer(&windlassv1.GetPresetResponse{Preset: &windlassv1.Preset{Definition: def}}),
		}})
		require.Zero(t, got.code, got.stderr)
		again, err := parseDefinition([]byte(got.stdout))
		require.NoError(t, err, got.stdout)
		require.True(t, proto.Equal(def, again), got.stdout)
	})
	t.Run("the control plane renders a preset of the workspace", func(t *testing.T) {
		got := runCommand(t, server, false, commandRun{
			args: []string{
				"preset", "render", "custom:x", "--model", "hf://org/m", "--gpus", "2", "--memory", "4096", "--option", "a=1", "--option", "b", "--cache", "/m", "--replicas", "3",
			},
			answers: map[string]func(proto.Message){"RenderPreset": answer(&windlassv1.RenderPresetResponse{
				Spec: &windlassv1.DeploymentSpec{
					Image: "r/x:1", GeneratedBy: "custom:x/4", Generated: &windlassv1.Generated{Env: map[string]string{"A": "1"}}, Serve: &windlassv1.Serve{},
				},
				Findings: []*windlassv1.PresetFinding{{Severity: windlassv1.PresetFinding_SEVERITY_WARNING, Field: "serve.context", Message: "long", Fix: "less"}},
			})},
		})
		require.Zero(t, got.code, got.stderr)
		file, err := parseAppFile([]byte(got.stdout))
		require.NoError(t, err, got.stdout)
		require.Contains(t, got.stdout, "# Generated by preset custom:x/4")
		require.Contains(t, got.stderr, "warning: serve.context: long")
		require.Equal(t, map[string]string{"A": "1"}, file.Spec.GetEnv())
		require.Nil(t, file.Spec.GetServe())
		require.EqualValues(t, 2, file.Spec.GetResources().GetGpu().GetCount())

		f := renderFlags{in: preset.Input{
			Engine: "custom:x", Model: "hf://org/m", Context: 5, GPU: preset.GPU{Count: 2, Product: "L4"}, Replicas: 3, CachePath: "/m", Facts: &preset.Facts{Layers: 4, WeightBytes: 1 << 40},
			Options: map[string]preset.Option{"a": {Values: []string{"1"}}, "b": {}, "c": {Off: true}, "d": {Values: []string{"x", "y"}}},
		}, regions: []string{"us-east-1"}}
		spec, err := f.specOf()
		require.NoError(t, err)
		require.NoError(t, protovalidate.Validate(spec))
		require.Equal(t, map[string]any{"a": "1", "b": true, "c": false, "d": []any{"x", "y"}}, spec.GetServe().GetOptions().AsMap())
		require.Equal(t, int64(1<<40), spec.GetServe().GetFacts().GetWeightBytes())
		require.Equal(t, "/m", spec.GetModelCache().GetMountPath())
	})
}
