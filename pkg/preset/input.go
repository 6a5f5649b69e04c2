package preset

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Input has all values that a preset reads.
type Input struct {
	// Engine is the name of a preset, "vllm", or of one of its versions, "vllm/1".
	Engine string
	// EngineVersion is the engine's own version, such as "0.20.0". Default: the preset's DefaultEngine.
	EngineVersion string
	// Model is the URL of the weights: hf://ORG/NAME@REVISION, file:///PATH, s3://, gs://, https://, oci://.
	Model string
	// Name is the model's name in requests. Default: the engine's default.
	Name string
	// Context is the longest prompt with its answer, in tokens. Default: the engine's default.
	Context  int
	Parallel Parallel
	// Options are flags of the engine, without dashes.
	Options map[string]Option
	// GPU has the GPUs of each host of an instance.
	GPU GPU
	// Hosts is the number of hosts of an instance. 0 means 1.
	Hosts int
	// MemoryMiB is the memory of an instance on each host. 0 means not known.
	MemoryMiB int
	// Replicas is the number of replicas, for totals in findings. 0 means no totals.
	Replicas int
	// CachePath is the mount path of the app's model cache. Empty means that the app has no cache.
	CachePath string
	// Facts are the facts of the model. Nil means not known.
	Facts *Facts
}

// Parallel is how an instance splits the model over its GPUs. The preset replaces zero values.
type Parallel struct {
	Tensor, Pipeline, Data int
}

// GPU describes the GPUs that an instance requests on one host.
type GPU struct {
	Count int
	// Product and Resource may contain the memory: "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig-3g.40gb".
	Product, Resource string
	// MinMemoryMiB is the least memory of each GPU.
	MinMemoryMiB int
}

// Option is the value of a flag. Without values, the flag has no value.
type Option struct {
	Values []string
	// Off removes the flag, if the preset sets it.
	Off bool
}

// OptionOf returns an option from a JSON value. True sets the flag without a value, false removes it, and a list
// sets several values.
func OptionOf(value any) (Option, error) {
	switch v := value.(type) {
	case bool:
		return Option{Off: !v}, nil
	case []any:
		if len(v) == 0 {
			return Option{}, fmt.Errorf("want a value, got an empty list: use true for a flag without a value")
		}
		var o Option
		for _, item := range v {
			text, err := textOf(item)
			if err != nil {
				return Option{}, err
			}
			o.Values = append(o.Values, text)
		}
		return o, nil
	default:
		text, err := textOf(v)
		return Option{Values: []string{text}}, err
	}
}

func textOf(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case float64:
		if math.Trunc(v) == v && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10), nil
		}
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	}
	return "", fmt.Errorf("want true, false, a number, a text or a list of these, got %T: put quotes around JSON", value)
}

// Facts are facts of a model, from its config.json and the headers of its weights.
type Facts struct {
	Layers   int `json:"layers,omitempty"`
	Heads    int `json:"heads,omitempty"`
	KVHeads  int `json:"kvHeads,omitempty"`
	HeadSize int `json:"headSize,omitempty"`
	// MaxContext is the longest context of the model, in tokens.
	MaxContext  int   `json:"maxContext,omitempty"`
	WeightBytes int64 `json:"weightBytes,omitempty"`
	// DType is the type of most weights: "bfloat16".
	DType string `json:"dtype,omitempty"`
}

// KVBytesPerToken returns the bytes that one token takes in the KV cache, over all layers. bytes is the size of one
// value. The result is 0 if a fact is not known.
func (f *Facts) KVBytesPerToken(bytes int) int64 {
	if f == nil {
		return 0
	}
	return 2 * int64(f.Layers) * int64(f.KVHeads) * int64(f.HeadSize) * int64(bytes)
}

// hostCount returns the number of hosts of an instance.
func (in *Input) hostCount() int { return max(1, in.Hosts) }

// optionNames returns the names of the options, sorted.
func (in *Input) optionNames() []string {
	names := make([]string, 0, len(in.Options))
	for name := range in.Options {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
