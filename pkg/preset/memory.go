package preset

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/windlass-run/windlass/pkg/plural"
)

const gib = 1 << 30

var gigabytes = regexp.MustCompile(`(?i)\b([0-9]{1,4})gb\b`)

// memoryBytes returns the memory of one GPU in bytes. atMost reports whether the GPU cannot have more. A GPU whose name
// contains 80GB has a little less than 80 GiB. If only a minimum is known, the GPU may have more.
func (g GPU) memoryBytes() (bytes int64, atMost bool) {
	for _, name := range []string{g.Resource, g.Product} {
		if m := gigabytes.FindAllStringSubmatch(name, -1); len(m) > 0 {
			// The last size counts: A100-SXM4-40GB-MIG-1g.5gb is a slice of 5 GB.
			n, _ := strconv.ParseInt(m[len(m)-1][1], 10, 64)
			return n * gib, true
		}
	}
	return int64(g.MinMemoryMiB) << 20, false
}

// shrinks are the flags that make weights take less GPU memory than their files.
var shrinks = []string{"--quantization", "--quantize", "--cpu-offload-gb", "--load-format", "--quantization-encoding", "--cpu-moe", "--n-cpu-moe"}

// checkMemory compares the model with the memory of the GPUs.
func (d *draft) checkMemory() {
	facts, gpus := d.in.Facts, d.in.GPU.Count
	if facts == nil {
		return
	}
	if facts.MaxContext > 0 && d.in.Context > facts.MaxContext {
		d.addWarning("ContextAboveModel", "context", fmt.Sprintf("the model was made for %d tokens, and context is %d", facts.MaxContext, d.in.Context),
			fmt.Sprintf("set context to %d, or set the engine's options for a longer context", facts.MaxContext))
	}
	memory, atMost := d.in.GPU.memoryBytes()
	if gpus == 0 || memory == 0 {
		return
	}
	shards := int64(max(1, d.parallel.Tensor) * max(1, d.parallel.Pipeline))
	if d.preset.wholeInstance {
		shards = int64(gpus)
	}
	if total := shards * memory; facts.WeightBytes > total {
		text := fmt.Sprintf("the weights take %s, more than the %s of %s", inGiB(facts.WeightBytes), inGiB(total), plural.Count(shards, "GPU"))
		fix := fmt.Sprintf("ask for %d GPUs or more with that much memory", (facts.WeightBytes+memory-1)/memory)
		add := d.fail
		if !atMost || d.shrinksWeights() {
			add = d.addWarning
		}
		add("WeightsTooLarge", "/resources.gpu", text, fix)
		return
	}
	d.checkContext(memory, shards)
}

func (d *draft) shrinksWeights() bool { return slices.ContainsFunc(shrinks, d.flags.hasFlag) }

// checkContext estimates the largest context that fits. Each shard holds its part of the weights, and the KV
// cache of its layers and heads. Heads are not split: with more shards than heads, each shard holds one head.
func (d *draft) checkContext(memory, shards int64) {
	facts, size := d.in.Facts, d.kvBytes()
	if facts.KVBytesPerToken(size) == 0 || d.preset.MemoryShare == 0 {
		return
	}
	tensor, pipeline := int64(max(1, d.parallel.Tensor)), int64(max(1, d.parallel.Pipeline))
	heads := max(1, (int64(facts.KVHeads)+tensor-1)/tensor)
	layers := (int64(facts.Layers) + pipeline - 1) / pipeline
	if d.preset.wholeInstance {
		heads, layers = int64(facts.KVHeads), (int64(facts.Layers)+shards-1)/shards
	}
	perToken := 2 * layers * heads * int64(facts.HeadSize) * int64(size)
	room := int64(float64(memory)*d.preset.MemoryShare) - facts.WeightBytes/shards
	fits := max(0, room/perToken)
	want := int64(cmp.Or(d.in.Context, facts.MaxContext))
	if want > fits {
		d.addWarning("ContextTooLarge", "context", fmt.Sprintf("an estimate: about %d tokens fit in the memory of the GPUs besides the weights, and context is %d", fits, want),
			d.contextFix(fits))
	}
	text := fmt.Sprintf("an instance takes %s for weights and %d bytes of KV cache for each token; about %d tokens fit", inGiB(facts.WeightBytes), facts.KVBytesPerToken(size), fits)
	if d.in.Replicas > 1 {
		text += fmt.Sprintf("; %d replicas take %d GPUs and %s for weights", d.in.Replicas, d.in.Replicas*d.in.GPU.Count*d.in.hostCount(), inGiB(facts.WeightBytes*int64(d.in.Replicas)))
	}
	d.addNote("Memory", "/resources.gpu", text, "")
}

func (d *draft) contextFix(fits int64) string {
	if fits < 1024 {
		return "ask for more GPUs, or for GPUs with more memory"
	}
	return fmt.Sprintf("set context to %d or less, ask for more GPUs, or store the KV cache in 8 bits", fits/1024*1024)
}

// kvBytes returns the bytes of a value in the KV cache: 1 with an 8-bit type, else 4 for weights in float32 and 2 for
// other weights.
func (d *draft) kvBytes() int {
	for _, name := range []string{"--kv-cache-dtype", "--cache-type-k"} {
		if i := d.flags.index(name); i >= 0 && len(d.flags[i].values) == 1 {
			value := d.flags[i].values[0]
			if strings.HasPrefix(value, "fp8") || strings.HasPrefix(value, "int8") || strings.HasPrefix(value, "q8") {
				return 1
			}
		}
	}
	if d.in.Facts.DType == "float32" {
		return 4
	}
	return 2
}

func inGiB(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/gib) }
