package preset

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPresetScenarios tests failures that people had with other systems. Tests of the control plane cover P5:
// TestCustomPreset_EditChangesNothingUntilADeploy and TestServe_UpgradeOfAPresetChangesNothingUntilADeploy of its API,
// and TestPresetGoldens_PassTheChecksOfADeploy of its package appspec.
func TestPresetScenarios(t *testing.T) {
	const h100 = "NVIDIA-H100-80GB-HBM3"
	find := func(findings []Finding, code string) *Finding {
		for i := range findings {
			if findings[i].Code == code {
				return &findings[i]
			}
		}
		return nil
	}
	valueOf := func(f Fragment, flag string) string {
		for i, arg := range f.Spec.GetArgs() {
			if arg == flag {
				return f.Spec.GetArgs()[i+1]
			}
		}
		return ""
	}
	t.Run("P1 parallelism that does not match the GPUs is refused with the fix, and derived if it is left out", func(t *testing.T) {
		for engine, flag := range map[string]string{"vllm": "--tensor-parallel-size", "sglang": "--tp-size", "tgi": "--num-shard"} {
			f, findings := Generate(Input{Engine: engine, Model: llama70b, GPU: GPU{Count: 8}, Parallel: Parallel{Tensor: 3}})
			require.Nil(t, f.Spec)
			wrong := find(findings, "ParallelMismatch")
			require.Equal(t, Error, wrong.Severity)
			require.Contains(t, wrong.Text, "tensor 3 x pipeline 1 x data 1 is 3, and an instance has 8 GPUs")
			require.Contains(t, wrong.Fix, "set resources.gpu.count to 3 or parallel.tensor to 8")
			f, _ = Generate(Input{Engine: engine, Model: llama70b, GPU: GPU{Count: 8}})
			require.Equal(t, "8", valueOf(f, flag))
		}
	})
	t.Run("P2 a context whose KV cache does not fit is a warning with the largest context that fits", func(t *testing.T) {
		in := Input{Engine: "vllm", Model: llama70b, GPU: GPU{Count: 2, Product: h100}, Facts: &llama70bFacts}
		f, findings := Generate(in)
		require.NotNil(t, f.Spec, "an estimate refuses nothing")
		large := find(findings, "ContextTooLarge")
		require.Equal(t, Warning, large.Severity)
		require.Contains(t, large.Fix, "set context to ")
		in.Context = int(fits(t, in)) / 1024 * 1024
		_, findings = Generate(in)
		require.Nil(t, find(findings, "ContextTooLarge"), "the context that the fix names fits")
		in.Context += 1024
		_, findings = Generate(in)
		require.NotNil(t, find(findings, "ContextTooLarge"))
	})
	t.Run("P3 an estimate is for an instance and for all replicas, heads divide, and a slice has its own memory", func(t *testing.T) {
		_, findings := Generate(Input{Engine: "vllm", Model: llama70b, GPU: GPU{Count: 8, Product: h100}, Facts: &llama70bFacts, Replicas: 3})
		memory := find(findings, "Memory").Text
		require.Contains(t, memory, "an instance takes 131.4 GiB for weights")
		require.Contains(t, memory, "3 replicas take 24 GPUs and 394.2 GiB for weights")
		_, findings = Generate(Input{Engine: "vllm", Model: llama70b, GPU: GPU{Count: 6, Product: h100}, Facts: &llama70bFacts})
		require.Equal(t, Error, find(findings, "HeadsNotDivisible").Severity)
		small := Facts{Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128, WeightBytes: 16 * gib, DType: "bfloat16"}
		for _, slice := range []GPU{{Count: 1, Product: h100, Resource: "nvidia.com/mig-1g.10gb"}, {Count: 1, Product: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}} {
			_, findings = Generate(Input{Engine: "vllm", Model: "hf://org/m", GPU: slice, Facts: &small})
			require.NotNil(t, find(findings, "WeightsTooLarge"), "%+v", slice)
		}
	})
	t.Run("P4 a preset has a range of versions, and passes on flags that it does not know", func(t *testing.T) {
		for _, p := range All() {
			in := Input{Engine: p.Name, Model: p.Schemes[0] + "://org/m", Options: map[string]Option{"flag-of-tomorrow": {Values: []string{"1"}}}}
			if p.Name == "nim" {
				continue // it has no flags: an option is refused
			}
			f, findings := Generate(in)
			require.NotNil(t, f.Spec, "%v", findings)
			require.Contains(t, strings.Join(f.Spec.GetArgs(), " "), "--flag-of-tomorrow 1")
			if p.Before == "" {
				continue
			}
			in.EngineVersion = "99.0"
			f, findings = Generate(in)
			require.NotNil(t, f.Spec)
			require.Equal(t, Warning, find(findings, "EngineVersionUnchecked").Severity)
		}
	})
	t.Run("P6 the name of a metric depends on the engine's version", func(t *testing.T) {
		for engine, want := range map[string]string{"0.10.1": "vllm:gpu_cache_usage_perc", "0.20.0": "vllm:kv_cache_usage_perc"} {
			f, _ := Generate(Input{Engine: "vllm", EngineVersion: engine, Model: "hf://org/m"})
			require.Contains(t, f.Metrics, Metric{"cache", want, "http", "/metrics"})
		}
		f, _ := Generate(Input{Engine: "tei", Model: "hf://org/m"})
		for _, m := range f.Metrics {
			require.NotEqual(t, "cache", m.Signal, "a metric that the engine lacks is not named")
		}
	})
}
