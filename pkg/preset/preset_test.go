package preset

import (
	"bytes"
	"encoding/json"
	command "flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

var update = command.Bool("update", false, "write testdata anew")

const llama70b = "hf://meta-llama/Llama-3.1-70B-Instruct@1605565b47bb9346c5515c34102e054115b4f98b"

// llama70bFacts are the facts of meta-llama/Llama-3.1-70B-Instruct in bfloat16.
var llama70bFacts = Facts{Layers: 80, Heads: 64, KVHeads: 8, HeadSize: 128, MaxContext: 131072, WeightBytes: 141_107_412_992, DType: "bfloat16"}

// goldens are inputs by the name of their file.
var goldens = map[string]Input{
	"vllm-0.20-70b": {
		Engine: "vllm", Model: llama70b, Name: "llama", Context: 32768, GPU: GPU{Count: 8, Product: "NVIDIA-H100-80GB-HBM3"},
		Options: map[string]Option{"kv-cache-dtype": {Values: []string{"fp8"}}, "enable-prefix-caching": {}}, CachePath: "/models", Facts: &llama70bFacts, Replicas: 2,
	},
	"vllm-0.9":         {Engine: "vllm", EngineVersion: "0.9.2", Model: "hf://org/m", GPU: GPU{Count: 2}},
	"vllm-0.10":        {Engine: "vllm/1", EngineVersion: "v0.10.1", Model: "hf://org/m"},
	"vllm-pipeline-s3": {Engine: "vllm", Model: "s3://bucket/m", Parallel: Parallel{Pipeline: 2}, GPU: GPU{Count: 8}},
	"vllm-hosts": {
		Engine: "vllm", Model: llama70b, Hosts: 2, Parallel: Parallel{Pipeline: 2}, GPU: GPU{Count: 8, Product: "NVIDIA-H100-80GB-HBM3"}, Facts: &llama70bFacts, Replicas: 2, MemoryMiB: 262144,
	},
	"sglang-hosts":       {Engine: "sglang", Model: "hf://org/m", Hosts: 2, GPU: GPU{Count: 8}},
	"sglang-hosts-dp":    {Engine: "sglang", Model: "hf://org/m", Hosts: 2, Parallel: Parallel{Data: 2}, GPU: GPU{Count: 8}, Options: map[string]Option{"enable-dp-attention": {}}},
	"sglang-0.5.9":       {Engine: "sglang", Model: "hf://org/m@main", Name: "m", Context: 8192, GPU: GPU{Count: 4}, Options: map[string]Option{"mem-fraction-static": {Values: []string{"0.85"}}}},
	"sglang-0.4":         {Engine: "sglang", EngineVersion: "0.4.9", Model: "file:///models/m"},
	"sglang-0.5":         {Engine: "sglang", EngineVersion: "0.5.1", Model: "hf://org/m", GPU: GPU{Count: 2}},
	"sglang-dp":          {Engine: "sglang", Model: "hf://org/m", Parallel: Parallel{Data: 8}, GPU: GPU{Count: 8}, Options: map[string]Option{"enable-dp-attention": {}}},
	"tgi-3.3":            {Engine: "tgi", Model: llama70b, Context: 4096, GPU: GPU{Count: 4}, CachePath: "/data"},
	"tgi-2.4":            {Engine: "tgi", EngineVersion: "2.4.1", Model: "file:///models/m"},
	"tei-1.2-cpu":        {Engine: "tei", EngineVersion: "1.2", Model: "file:///models/m"},
	"tei-1.8-cpu":        {Engine: "tei", Model: "hf://BAAI/bge-large-en-v1.5"},
	"tei-1.8-hopper":     {Engine: "tei", Model: "hf://BAAI/bge-large-en-v1.5", GPU: GPU{Count: 1, Product: "NVIDIA-H100-80GB-HBM3"}},
	"llamacpp-cpu":       {Engine: "llamacpp", Model: "hf://ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", Name: "gemma", Context: 4096, CachePath: "/models"},
	"llamacpp-gpu-b6000": {Engine: "llamacpp", EngineVersion: "b6000", Model: "file:///models/m.gguf", GPU: GPU{Count: 1}},
	"max-26.4-cpu":       {Engine: "max", EngineVersion: "26.4", Model: "hf://org/m"},
	"max-gpu":            {Engine: "max", Model: "hf://org/m", Context: 2048, GPU: GPU{Count: 2}},
	"nim-1.0":            {Engine: "nim", Model: "oci://nvcr.io/nim/meta/llama3-8b-instruct:1.0.3", GPU: GPU{Count: 1}},
	"nim-1.8":            {Engine: "nim", Model: "oci://nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.0", Name: "llama", Context: 8192, GPU: GPU{Count: 1}, CachePath: "/opt/nim/.cache"},
}

func TestPresetGoldens(t *testing.T) {
	made, versions := map[string]bool{}, map[string][]string{}
	for name, in := range goldens {
		t.Run(name, func(t *testing.T) {
			got := show(t, in)
			file := filepath.Join("testdata", name+".json")
			if *update {
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
		p, _ := Find(in.Engine)
		made[p.ID()] = true
		f, _ := Generate(in)
		versions[p.ID()] = append(versions[p.ID()], f.EngineVersion)
	}
	for _, p := range presets {
		require.True(t, made[p.ID()], "%s has no golden", p.ID())
		// The oldest version of the range, and the default version.
		for _, version := range []string{p.From, p.DefaultEngine} {
			same := func(have string) bool { return slices.Equal(firstTwo(have), firstTwo(version)) }
			require.True(t, version == "" || slices.ContainsFunc(versions[p.ID()], same), "%s has no golden for version %s of the engine", p.ID(), version)
		}
	}
}

// firstTwo returns the first two numbers of a version: 0.9.2 is a version of 0.9, and 1.0.3 one of 1.
func firstTwo(version string) []int {
	n := append(versionNumbers(version), 0, 0)
	return n[:2]
}

func show(t *testing.T, in Input) []byte {
	f, findings := Generate(in)
	require.False(t, HasErrors(findings), "%v", findings)
	spec, err := protojson.Marshal(f.Spec)
	require.NoError(t, err)
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	var fields any
	require.NoError(t, json.Unmarshal(spec, &fields))
	require.NoError(t, enc.Encode(map[string]any{
		"generatedBy": f.GeneratedBy, "engineVersion": f.EngineVersion, "spec": fields, "metrics": f.Metrics, "findings": findings,
	}))
	return out.Bytes()
}

func TestPresetFindings(t *testing.T) {
	const hf = "hf://org/m"
	opt := func(names ...string) map[string]Option {
		m := map[string]Option{}
		for _, n := range names {
			m[n] = Option{Values: []string{"1"}}
		}
		return m
	}
	for name, c := range map[string]struct {
		in    Input
		code  string
		field string
		fix   string
		is    Severity
	}{
		"engine is missing":           {Input{Model: hf}, "EngineUnknown", "engine", "use one of llamacpp, max, nim, sglang, tei, tgi, vllm", Error},
		"engine is misspelt":          {Input{Engine: "vlm", Model: hf}, "EngineUnknown", "engine", "did you mean vllm?", Error},
		"engine with a dot":           {Input{Engine: "llama.cpp", Model: hf}, "EngineUnknown", "engine", "did you mean llamacpp?", Error},
		"version does not exist":      {Input{Engine: "vllm/9", Model: hf}, "EngineUnknown", "engine", "did you mean vllm?", Error},
		"engine version is odd":       {Input{Engine: "vllm", EngineVersion: "0.20; rm", Model: hf}, "EngineVersionInvalid", "engineVersion", "0.20.0", Error},
		"engine version is new":       {Input{Engine: "vllm", EngineVersion: "0.32.0", Model: hf}, "EngineVersionUnchecked", "engineVersion", "compare", Warning},
		"model is missing":            {Input{Engine: "vllm"}, "ModelInvalid", "model", "name the model", Error},
		"model has no scheme":         {Input{Engine: "vllm", Model: "org/m"}, "ModelInvalid", "model", "write hf://org/m", Error},
		"model is a path":             {Input{Engine: "vllm", Model: "/m"}, "ModelInvalid", "model", "write file:///m", Error},
		"model is a flag":             {Input{Engine: "vllm", Model: "hf://org/m@--x"}, "ModelInvalid", "model", "write hf://", Error},
		"model has a space":           {Input{Engine: "vllm", Model: "hf://org/m x"}, "ModelInvalid", "model", "write a URL", Error},
		"scheme is unknown":           {Input{Engine: "vllm", Model: "ftp://org/m"}, "ModelInvalid", "model", "use hf, file", Error},
		"scheme of another engine":    {Input{Engine: "sglang", Model: "s3://b/m"}, "ModelUnsupported", "model", "use hf:// or file://", Error},
		"revision in llama.cpp":       {Input{Engine: "llamacpp", Model: hf + "@v1"}, "RevisionUnsupported", "model", "remove @", Error},
		"tensor is not GPUs":          {Input{Engine: "vllm", Model: hf, Parallel: Parallel{Tensor: 4}, GPU: GPU{Count: 8}}, "ParallelMismatch", "parallel", "set resources.gpu.count to 4 or parallel.tensor to 8", Error},
		"pipeline does not divide":    {Input{Engine: "vllm", Model: hf, Parallel: Parallel{Pipeline: 3}, GPU: GPU{Count: 8}}, "ParallelMismatch", "parallel", "set resources.gpu.count to 3", Error},
		"tensor without GPUs":         {Input{Engine: "vllm", Model: hf, Parallel: Parallel{Tensor: 2}}, "ParallelMismatch", "parallel", "set resources.gpu.count to 2", Error},
		"tensor below 0":              {Input{Engine: "vllm", Model: hf, Parallel: Parallel{Tensor: -2}}, "NumberInvalid", "parallel.tensor", "above 0", Error},
		"pipeline in TGI":             {Input{Engine: "tgi", Model: hf, Parallel: Parallel{Pipeline: 2}}, "ParallelUnsupported", "parallel.pipeline", "remove it", Error},
		"heads do not divide":         {Input{Engine: "vllm", Model: hf, GPU: GPU{Count: 6}, Facts: &llama70bFacts}, "HeadsNotDivisible", "parallel.tensor", "divisor of 64", Error},
		"weights too large":           {Input{Engine: "vllm", Model: hf, GPU: GPU{Count: 1, Product: "NVIDIA-H100-80GB-HBM3"}, Facts: &llama70bFacts}, "WeightsTooLarge", "/resources.gpu", "ask for 2 GPUs", Error},
		"weights too large, a slice":  {Input{Engine: "vllm", Model: hf, GPU: GPU{Count: 2, Resource: "nvidia.com/mig-3g.40gb"}, Facts: &llama70bFacts}, "WeightsTooLarge", "/resources.gpu", "ask for 4 GPUs", Error},
		"weights too large, perhaps":  {Input{Engine: "vllm", Model: hf, GPU: GPU{Count: 1, MinMemoryMiB: 40960}, Facts: &llama70bFacts}, "WeightsTooLarge", "/resources.gpu", "ask for 4 GPUs", Warning},
		"weights are quantized":       {Input{Engine: "vllm", Model: hf, GPU: GPU{Count: 1, Product: "H100-80GB"}, Facts: &llama70bFacts, Options: opt("quantization")}, "WeightsTooLarge", "/resources.gpu", "", Warning},
		"context does not fit":        {Input{Engine: "vllm", Model: hf, GPU: GPU{Count: 2, Product: "NVIDIA-H100-80GB-HBM3"}, Facts: &llama70bFacts}, "ContextTooLarge", "context", "set context to", Warning},
		"context above the model's":   {Input{Engine: "vllm", Model: hf, Context: 200000, GPU: GPU{Count: 8}, Facts: &llama70bFacts}, "ContextAboveModel", "context", "set context to 131072", Warning},
		"context of embeddings":       {Input{Engine: "tei", Model: hf, Context: 512}, "ContextUnsupported", "context", "max-batch-tokens", Error},
		"flag twice by an alias":      {Input{Engine: "sglang", Model: hf, Options: opt("kv-cache-dtype", "attention-backend", "log-level"), Name: "-x"}, "NameInvalid", "name", "llama", Error},
		"flag twice by two names":     {Input{Engine: "llamacpp", Model: hf, Options: opt("ngl", "n-gpu-layers")}, "FlagTwice", "options.ngl", "keep one", Error},
		"flag twice by a field":       {Input{Engine: "vllm", Model: hf, Context: 10, Options: opt("max-model-len")}, "FlagTwice", "options.max-model-len", "keep one", Error},
		"flag of a field by an alias": {Input{Engine: "vllm", Model: hf, Options: opt("tp")}, "FlagTaken", "options.tp", "set parallel.tensor", Error},
		"flag of Windlass":            {Input{Engine: "vllm", Model: hf, Options: opt("port")}, "FlagTaken", "options.port", "remove it", Error},
		"flag with dashes":            {Input{Engine: "vllm", Model: hf, Options: opt("--dtype")}, "OptionInvalid", "options", "without its dashes", Error},
		"flags of a NIM":              {Input{Engine: "nim", Model: "oci://r/m:1.8", Options: opt("a")}, "OptionUnsupported", "options.a", "env", Error},
		"GPUs of embeddings":          {Input{Engine: "tei", Model: hf, GPU: GPU{Count: 2}}, "GPUsUnused", "/resources.gpu", "raise replicas", Error},
		"hosts of another engine":     {Input{Engine: "tgi", Model: hf, Hosts: 2, GPU: GPU{Count: 8}}, "HostsUnsupported", "/roles[0].hosts", "remove hosts", Error},
		"hosts of an old engine":      {Input{Engine: "vllm", EngineVersion: "0.11.0", Model: hf, Hosts: 2, GPU: GPU{Count: 8}}, "HostsUnsupported", "engineVersion", "set it to 0.12 or newer", Error},
		"hosts without GPUs":          {Input{Engine: "vllm", Model: hf, Hosts: 2}, "HostsUnsupported", "/resources.gpu", "set resources.gpu.count", Error},
		"copies on several hosts":     {Input{Engine: "vllm", Model: hf, Hosts: 2, GPU: GPU{Count: 8}, Parallel: Parallel{Data: 2}}, "ParallelUnsupported", "parallel.data", "raise replicas", Error},
		"tensor is not all GPUs":      {Input{Engine: "sglang", Model: hf, Hosts: 2, GPU: GPU{Count: 8}, Parallel: Parallel{Tensor: 8}}, "ParallelMismatch", "parallel", "set parallel.tensor to 16", Error},
		"pipeline of all hosts":       {Input{Engine: "vllm", Model: hf, Hosts: 2, GPU: GPU{Count: 8}, Parallel: Parallel{Pipeline: 3}}, "ParallelMismatch", "parallel", "GPUs of all hosts", Error},
		"flag of a rank":              {Input{Engine: "vllm", Model: hf, Hosts: 2, GPU: GPU{Count: 8}, Options: opt("headless")}, "FlagTaken", "options.headless", "remove it", Error},
		"weights too large for hosts": {Input{Engine: "vllm", Model: hf, Hosts: 2, GPU: GPU{Count: 1, Product: "NVIDIA-L4-24GB"}, Facts: &llama70bFacts}, "WeightsTooLarge", "/resources.gpu", "ask for 6 GPUs", Error},
		"weights without a cache":     {Input{Engine: "vllm", Model: hf}, "ModelNotCached", "/modelCache", "set modelCache", Note},
		"weights without a commit":    {Input{Engine: "vllm", Model: hf + "@main"}, "ModelNotPinned", "model", "add @", Note},
	} {
		t.Run(name, func(t *testing.T) {
			f, findings := Generate(c.in)
			found := false
			for _, got := range findings {
				if got.Code == c.code && got.Field == c.field {
					found = true
					require.Equal(t, c.is, got.Severity)
					require.Contains(t, got.Fix, c.fix)
					require.NotEmpty(t, got.Text)
				}
			}
			require.True(t, found, "%+v", findings)
			require.Equal(t, c.is == Error, f.Spec == nil)
		})
	}
}

func TestPresetRanks_OnlyTheLeaderOfVLLMServes(t *testing.T) {
	f, _ := Generate(goldens["vllm-hosts"])
	command := f.Spec.GetCommand()
	require.Equal(t, "vllm", command[3])
	for rank, want := range map[string]string{"0": "serve m --x y z\n", "1": "serve m --x y z --headless\n"} {
		cmd := exec.CommandContext(t.Context(), command[0], command[1], command[2], "echo", "serve", "m", "--x", "y z")
		cmd.Env = append(os.Environ(), "WINDLASS_RANK="+rank)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, want, string(out))
	}
}

func TestPresetKVCache(t *testing.T) {
	t.Run("a token of Llama 3.1 70B takes 327,680 bytes in bfloat16", func(t *testing.T) {
		require.EqualValues(t, 327_680, llama70bFacts.KVBytesPerToken(2))
	})
	t.Run("a type of 8 bits fits twice the tokens", func(t *testing.T) {
		in := Input{Engine: "vllm", Model: "hf://org/m", GPU: GPU{Count: 4, Product: "NVIDIA-H100-80GB-HBM3"}, Facts: &llama70bFacts}
		wide := fits(t, in)
		in.Options = map[string]Option{"kv-cache-dtype": {Values: []string{"fp8"}}}
		require.InDelta(t, 2*wide, fits(t, in), 1)
		// 4 x 80 GiB x 0.9 less 131.4 GiB of weights, in 320 KiB.
		require.InDelta(t, (4*80*0.9*gib-141_107_412_992)/327_680, wide, 4)
	})
}

func fits(t *testing.T, in Input) float64 {
	_, findings := Generate(in)
	for _, f := range findings {
		if f.Code == "Memory" {
			var n float64
			_, err := fmt.Sscanf(f.Text[strings.Index(f.Text, "; about ")+len("; about "):], "%f", &n)
			require.NoError(t, err)
			return n
		}
	}
	t.Fatal("no estimate")
	return 0
}

func TestPresetMerge(t *testing.T) {
	args := strings.Fields
	for name, c := range map[string]struct{ args, more, want string }{
		"the last value counts, at the flag's first place": {"serve m --a 1 --b 2", "--a 3", "serve m --a 3 --b 2"},
		"an alias is the same flag":                        {"serve m -tp 2 --b", "--tensor-parallel-size=4", "serve m --tensor-parallel-size 4 --b"},
		"a new flag comes last":                            {"serve m --a 1", "--c --b x y", "serve m --a 1 --c --b x y"},
		"a negative number is a value":                     {"serve m --seed 1", "--seed -1", "serve m --seed -1"},
		"the last of two values counts":                    {"serve m", "--a 1 --a 2", "serve m --a 2"},
		"an empty merge changes nothing":                   {"serve m --a 1", "", "serve m --a 1"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, args(c.want), vllm1.Merge(args(c.args), args(c.more)))
		})
	}
	t.Run("merging twice is the same as merging once", func(t *testing.T) {
		word := rapid.SampledFrom([]string{"--a", "--b", "-tp", "--tensor-parallel-size=1", "1", "x", "-2", "--c=d", "serve"})
		rapid.Check(t, func(t *rapid.T) {
			base, more := rapid.SliceOf(word).Draw(t, "base"), rapid.SliceOf(word).Draw(t, "more")
			once := vllm1.Merge(base, more)
			require.Equal(t, once, vllm1.Merge(once, more))
		})
	})
}

func TestPresetGenerate(t *testing.T) {
	t.Run("one input has one result, and options come in one order", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			in := drawInput(t)
			first, findings := Generate(in)
			for range 3 {
				again, more := Generate(in)
				require.Equal(t, findings, more)
				require.True(t, proto.Equal(first.Spec, again.Spec))
				require.Equal(t, first.Metrics, again.Metrics)
			}
			if HasErrors(findings) {
				require.Nil(t, first.Spec)
				return
			}
			p, _ := Find(in.Engine)
			require.Equal(t, first.Spec.GetArgs(), p.Merge(first.Spec.GetArgs(), first.Spec.GetArgs()), "no flag occurs twice")
			require.NotEmpty(t, first.Metrics)
		})
	})
	t.Run("every finding has its field, and every error its fix", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			_, findings := Generate(drawInput(t))
			for _, f := range findings {
				require.NotEmpty(t, f.Field)
				require.NotEmpty(t, f.Code)
				require.True(t, f.Severity != Error || f.Fix != "", "%+v", f)
			}
		})
	})
}

func drawInput(t *rapid.T) Input {
	small := rapid.IntRange(-1, 9)
	in := Input{
		Engine:        rapid.SampledFrom([]string{"vllm", "sglang", "tgi", "nim", "max", "llamacpp", "tei", "vllm/1", "", "x"}).Draw(t, "engine"),
		EngineVersion: rapid.SampledFrom([]string{"", "0.10.1", "v0.20.0", "b1", "?", "1.8.0"}).Draw(t, "engineVersion"),
		Model:         rapid.SampledFrom([]string{"hf://org/m", llama70b, "file:///m", "s3://b/m", "https://h/m.gguf", "oci://r/m:1.8.0", "m", ""}).Draw(t, "model"),
		Name:          rapid.SampledFrom([]string{"", "m", "-m"}).Draw(t, "name"),
		Context:       small.Draw(t, "context") * 1000,
		Parallel:      Parallel{small.Draw(t, "tensor"), small.Draw(t, "pipeline"), small.Draw(t, "data")},
		GPU: GPU{
			Count:   rapid.IntRange(0, 8).Draw(t, "gpus"),
			Product: rapid.SampledFrom([]string{"", "NVIDIA-H100-80GB-HBM3", "T4", "999999GB"}).Draw(t, "product"),
		},
		CachePath: rapid.SampledFrom([]string{"", "/models"}).Draw(t, "cache"),
		Options:   map[string]Option{},
	}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "tp", "quantization", "max-model-len", "enable-metrics", "enable-dp-attention", "-x", ""}), func(s string) string { return s }).Draw(t, "options") {
		in.Options[name] = Option{Off: rapid.Bool().Draw(t, "off"), Values: rapid.SliceOf(rapid.SampledFrom([]string{"1", "fp8", "-1"})).Draw(t, "values")}
	}
	if rapid.Bool().Draw(t, "known") {
		in.Facts = &Facts{
			Layers: small.Draw(t, "layers"), Heads: small.Draw(t, "heads"), KVHeads: small.Draw(t, "kv"), HeadSize: small.Draw(t, "size"),
			MaxContext: small.Draw(t, "max"), WeightBytes: rapid.Int64Range(0, 1<<42).Draw(t, "weights"),
		}
	}
	return in
}

func TestPresetOptionOf(t *testing.T) {
	for text, want := range map[string]Option{
		`true`: {}, `false`: {Off: true}, `64`: {Values: []string{"64"}}, `0.92`: {Values: []string{"0.92"}}, `"fp8"`: {Values: []string{"fp8"}},
		`[1, "b"]`: {Values: []string{"1", "b"}}, `1000000000`: {Values: []string{"1000000000"}},
	} {
		var v any
		require.NoError(t, json.Unmarshal([]byte(text), &v))
		got, err := OptionOf(v)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
	for _, v := range []any{nil, map[string]any{}, []any{}, []any{true}} {
		_, err := OptionOf(v)
		require.Error(t, err)
	}
}

func TestPresetAll(t *testing.T) {
	for _, p := range All() {
		require.NotEmpty(t, p.Sources, p.Name)
		for _, s := range p.Sources {
			require.NotEmpty(t, s.Page)
			require.NotEmpty(t, s.Version)
		}
		require.NotEmpty(t, p.Metrics(""))
		found, ok := Find(p.ID())
		require.True(t, ok)
		require.Same(t, p, found)
	}
}
