// Package modelfiles reads the facts of a model from a folder in the form of Hugging Face: config.json, and the
// headers of *.safetensors. It reads no weights. It does not trust the files: it limits how much it reads, and
// refuses contradictory numbers.
package modelfiles

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/pkg/preset"
)

// Limits of the files that are read.
const (
	maxConfig = 4 << 20
	maxHeader = 64 << 20
	// maxHeaders limits the sum of all headers, in bytes.
	maxHeaders = 256 << 20
	maxFiles   = 4096
	maxNumber  = 1 << 30
)

// Read returns the facts of the model in a folder. Facts that its files do not state are 0.
func Read(dir fs.FS) (*preset.Facts, error) {
	facts := &preset.Facts{}
	if err := readConfig(dir, facts); err != nil {
		return nil, err
	}
	names, err := fs.Glob(dir, "*.safetensors")
	if err != nil {
		return nil, fmt.Errorf("list weights: %w", err)
	}
	if len(names) > maxFiles {
		return nil, fmt.Errorf("%d files of weights: more than %d are not read", len(names), maxFiles)
	}
	sizes := map[string]int64{}
	left := int64(maxHeaders)
	for _, name := range names {
		if err := readWeights(dir, name, facts, sizes, &left); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	facts.DType = mostOf(sizes, facts.DType)
	return facts, nil
}

// mostOf returns the type with the most bytes, or the value of otherwise if sizes is empty.
func mostOf(sizes map[string]int64, otherwise string) string {
	most := otherwise
	var size int64
	for name, n := range sizes {
		if n > size || n == size && name < most {
			most, size = name, n
		}
	}
	return most
}

// config has the fields of config.json that are read. A model with several kinds of input has the fields of its
// language model in text_config.
type config struct {
	Layers     *float64 `json:"num_hidden_layers"`
	Heads      *float64 `json:"num_attention_heads"`
	KVHeads    *float64 `json:"num_key_value_heads"`
	HeadSize   *float64 `json:"head_dim"`
	Hidden     *float64 `json:"hidden_size"`
	MaxContext *float64 `json:"max_position_embeddings"`
	// KVRank is set for models whose KV cache has a compressed form instead of keys and values.
	KVRank     *float64 `json:"kv_lora_rank"`
	TorchDType string   `json:"torch_dtype"`
	DType      string   `json:"dtype"`
	Text       *config  `json:"text_config"`
}

func readConfig(dir fs.FS, facts *preset.Facts) error {
	f, size, err := open(dir, "config.json")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("config.json: missing: name the folder with the model's config.json and *.safetensors")
		}
		return fmt.Errorf("config.json: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	if size > maxConfig {
		return fmt.Errorf("config.json: %d bytes: more than %d are not read", size, maxConfig)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	if c.Layers == nil && c.Text != nil {
		c.Text.DType, c.Text.TorchDType = cmp.Or(c.Text.DType, c.DType), cmp.Or(c.Text.TorchDType, c.TorchDType)
		c = *c.Text
	}
	return c.setFacts(facts)
}

func (c *config) setFacts(facts *preset.Facts) error {
	hidden := 0
	for _, n := range []struct {
		name string
		from *float64
		to   *int
	}{
		{"num_hidden_layers", c.Layers, &facts.Layers},
		{"num_attention_heads", c.Heads, &facts.Heads},
		{"num_key_value_heads", c.KVHeads, &facts.KVHeads},
		{"head_dim", c.HeadSize, &facts.HeadSize},
		{"hidden_size", c.Hidden, &hidden},
		{"max_position_embeddings", c.MaxContext, &facts.MaxContext},
	} {
		if n.from == nil {
			continue
		}
		if *n.from != math.Trunc(*n.from) || *n.from < 0 || *n.from > maxNumber {
			return fmt.Errorf("config.json: %s: %v is not a whole number from 0 to %d", n.name, *n.from, maxNumber)
		}
		*n.to = int(*n.from)
	}
	if facts.KVHeads == 0 {
		facts.KVHeads = facts.Heads
	}
	if facts.HeadSize == 0 && facts.Heads > 0 {
		facts.HeadSize = hidden / facts.Heads
	}
	if c.KVRank != nil && *c.KVRank > 0 {
		facts.KVHeads, facts.HeadSize = 0, 0
	}
	if d := cmp.Or(c.DType, c.TorchDType); slices.Contains([]string{"float32", "float16", "bfloat16"}, d) {
		facts.DType = d
	}
	return nil
}

// dtypes has the types of safetensors, with their names in preset.Facts and the bits of a value.
var dtypes = map[string]struct {
	name string
	bits int64
}{
	"F64": {"float64", 64}, "F32": {"float32", 32}, "F16": {"float16", 16}, "BF16": {"bfloat16", 16},
	"I64": {"int64", 64}, "I32": {"int32", 32}, "I16": {"int16", 16}, "I8": {"int8", 8}, "U64": {"uint64", 64}, "U32": {"uint32", 32},
	"U16": {"uint16", 16}, "U8": {"uint8", 8}, "BOOL": {"bool", 8}, "F8_E4M3": {"float8_e4m3", 8}, "F8_E5M2": {"float8_e5m2", 8},
	"F8_E8M0": {"float8_e8m0", 8}, "F4": {"float4", 4}, "F6_E2M3": {"float6_e2m3", 6}, "F6_E3M2": {"float6_e3m2", 6}, "C64": {"complex64", 64},
}

// tensor is an entry of a header.
type tensor struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// readWeights adds the sizes of a file's tensors. The file has eight bytes with the length of the header
// (little-endian), the header in JSON, and the tensors.
func readWeights(dir fs.FS, name string, facts *preset.Facts, sizes map[string]int64, left *int64) error {
	f, size, err := open(dir, name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	var length [8]byte
	if _, err := io.ReadFull(f, length[:]); err != nil {
		return fmt.Errorf("read the length of the header: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > *left {
		return fmt.Errorf("the header says that it has %d bytes: more than %d, or %d in all files, are not read", n, maxHeader, maxHeaders)
	}
	if int64(n) > size-8 {
		return fmt.Errorf("the header says that it has %d bytes, but the file has %d: download the file again", n, size)
	}
	*left -= int64(n)
	header := make([]byte, n)
	if _, err := io.ReadFull(f, header); err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		return fmt.Errorf("the header: %w", err)
	}
	delete(entries, "__metadata__")
	return addTensors(entries, size-8-int64(n), facts, sizes)
}

func addTensors(entries map[string]json.RawMessage, room int64, facts *preset.Facts, sizes map[string]int64) error {
	tensors := make([]tensor, 0, len(entries))
	for name, raw := range entries {
		var t tensor
		if err := json.Unmarshal(raw, &t); err != nil {
			return fmt.Errorf("tensor %q: %w", clipText(name), err)
		}
		if err := t.checkRoom(room); err != nil {
			return fmt.Errorf("tensor %q: %w", clipText(name), err)
		}
		tensors = append(tensors, t)
	}
	slices.SortFunc(tensors, func(a, b tensor) int { return cmp.Compare(a.Offsets[0], b.Offsets[0]) })
	var end int64
	for _, t := range tensors {
		size := t.Offsets[1] - t.Offsets[0]
		if size > 0 && t.Offsets[0] < end {
			return errors.New("two tensors have the same bytes")
		}
		end = max(end, t.Offsets[1])
		if facts.WeightBytes > math.MaxInt64-size {
			return errors.New("the sum of all tensors is too large")
		}
		facts.WeightBytes += size
		sizes[dtypes[t.DType].name] += size
	}
	return nil
}

// checkRoom returns an error if the tensor is not within room bytes, or if its size does not match its shape.
func (t tensor) checkRoom(room int64) error {
	d, ok := dtypes[t.DType]
	if !ok {
		return fmt.Errorf("the type %q is not known", clipText(t.DType))
	}
	if t.Offsets[0] < 0 || t.Offsets[1] < t.Offsets[0] || t.Offsets[1] > room {
		return fmt.Errorf("bytes %d to %d are not within the %d bytes of the file's tensors", t.Offsets[0], t.Offsets[1], room)
	}
	bits := d.bits
	for _, n := range t.Shape {
		if n < 0 || n > 0 && bits > math.MaxInt64/n {
			return fmt.Errorf("the shape has %d values in one dimension", n)
		}
		bits *= n
	}
	if want := (bits + 7) / 8; want != t.Offsets[1]-t.Offsets[0] {
		return fmt.Errorf("the shape takes %d bytes, but the header gives it %d", want, t.Offsets[1]-t.Offsets[0])
	}
	return nil
}

// open opens a regular file. It refuses other files, such as pipes, because they may block.
func open(dir fs.FS, name string) (fs.File, int64, error) {
	info, err := fs.Stat(dir, path.Clean(name))
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, errors.New("not a regular file")
	}
	f, err := dir.Open(path.Clean(name))
	return f, info.Size(), err
}

func clipText(text string) string {
	if len(text) > 64 {
		return strings.ToValidUTF8(text[:64], "") + "..."
	}
	return text
}
