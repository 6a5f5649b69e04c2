package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/modelserver"
	"github.com/windlass-run/windlass/pkg/preset"
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
		require.Contains(t, got.stderr, "did you mean vllm? There are llamacpp, max, nim, sglang, tei, tgi, vllm")
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
		} {
			t.Run(engine+", "+name, func(t *testing.T) {
				in.Engine, in.Model = engine, "hf://org/m@main"
				f, findings := preset.Generate(in)
				require.NotNil(t, f.Spec, "%v", findings)
				args := slices.Concat(f.Spec.GetCommand(), f.Spec.GetArgs())
				args[slices.Index(args, "$(PORT)")] = "8123"
				cfg, given, err := modelserver.ParseArgs(args, nil)
				require.NoError(t, err, strings.Join(args, " "))
				require.True(t, given)
				require.Equal(t, 8123, cfg.Port)
			})
		}
	}
}
