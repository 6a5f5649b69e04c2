package modelfiles

import (
	"encoding/binary"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/preset"
)

const llama = `{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}`

// weights returns a safetensors file with the header and n bytes of tensors.
func weights(header string, n int) *fstest.MapFile {
	data := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return &fstest.MapFile{Data: append(append(data, header...), make([]byte, n)...)}
}

func folder(config string, files map[string]*fstest.MapFile) fstest.MapFS {
	dir := fstest.MapFS{"config.json": {Data: []byte(config)}}
	maps.Copy(dir, files)
	return dir
}

func TestReadFacts(t *testing.T) {
	t.Run("a folder has its config and the sum of its weights", func(t *testing.T) {
		facts, err := Read(folder(llama, map[string]*fstest.MapFile{
			"model-00001-of-00002.safetensors": weights(`{"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}`, 12),
			"model-00002-of-00002.safetensors": weights(`{"b": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "c": {"dtype": "BF16", "shape": [0], "data_offsets": [4, 4]}}`, 4),
			"other.bin":                        {Data: []byte("x")},
		}))
		require.NoError(t, err)
		require.Equal(t, &preset.Facts{Layers: 80, Heads: 64, KVHeads: 8, HeadSize: 128, MaxContext: 131072, WeightBytes: 16, DType: "bfloat16"}, facts)
		require.EqualValues(t, 327_680, facts.KVBytesPerToken(2))
	})
	t.Run("without a number of heads for keys and values, all heads count", func(t *testing.T) {
		facts, err := Read(folder(`{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 8}`, nil))
		require.NoError(t, err)
		require.Equal(t, &preset.Facts{Layers: 2, Heads: 4, KVHeads: 4, HeadSize: 2}, facts)
	})
	t.Run("a model with several inputs has the facts of its language model", func(t *testing.T) {
		facts, err := Read(folder(`{"dtype": "float16", "text_config": {"num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 7}}`, nil))
		require.NoError(t, err)
		require.Equal(t, &preset.Facts{Layers: 3, Heads: 2, KVHeads: 2, HeadSize: 7, DType: "float16"}, facts)
	})
	t.Run("a compressed KV cache has no size", func(t *testing.T) {
		facts, err := Read(folder(`{"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 8, "kv_lora_rank": 512}`, nil))
		require.NoError(t, err)
		require.Zero(t, facts.KVBytesPerToken(2))
	})
}

func TestReadRefuses(t *testing.T) {
	file := func(f *fstest.MapFile) fs.FS { return folder(llama, map[string]*fstest.MapFile{"m.safetensors": f}) }
	length := func(n uint64) *fstest.MapFile { return &fstest.MapFile{Data: binary.LittleEndian.AppendUint64(nil, n)} }
	for name, c := range map[string]struct {
		dir  fs.FS
		want string
	}{
		"no config":                      {fstest.MapFS{}, "config.json: missing"},
		"a config that is no JSON":       {folder("{", nil), "unexpected end"},
		"a config with a broken number":  {folder(`{"num_hidden_layers": 1.5}`, nil), "num_hidden_layers: 1.5 is not a whole number"},
		"a config with a number below 0": {folder(`{"num_attention_heads": -4}`, nil), "num_attention_heads: -4"},
		"a config with a huge number":    {folder(`{"head_dim": 1e300}`, nil), "head_dim: 1e+300"},
		"a huge config":                  {folder(strings.Repeat(" ", maxConfig)+llama, nil), "are not read"},
		"a config that is a folder":      {fstest.MapFS{"config.json/a": {}}, "not a regular file"},
		"deep JSON":                      {folder(strings.Repeat("[", 1<<20), nil), "exceeded max depth"},
		"no length":                      {file(&fstest.MapFile{Data: []byte("abc")}), "length of the header"},
		"a header larger than the file":  {file(length(1000)), "but the file has 8: download the file again"},
		"a header larger than memory":    {file(length(1 << 62)), "are not read"},
		"a length below 0":               {file(length(1 << 63)), "are not read"},
		"a header that is no JSON":       {file(weights("[]", 0)), "cannot unmarshal"},
		"a tensor outside of the file":   {file(weights(`{"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}`, 8)), "not within the 8"},
		"a tensor that ends before it begins": {
			file(weights(`{"a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 1]}}`, 8)), "not within",
		},
		"a tensor of another size":   {file(weights(`{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}`, 8)), "takes 8 bytes, but the header gives it 4"},
		"a shape that overflows":     {file(weights(`{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}`, 0)), "in one dimension"},
		"a shape below 0":            {file(weights(`{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}`, 0)), "in one dimension"},
		"a type that is not known":   {file(weights(`{"a": {"dtype": "X", "shape": [1], "data_offsets": [0, 1]}}`, 1)), `type "X" is not known`},
		"tensors in the same bytes":  {file(weights(`{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}`, 3)), "same bytes"},
		"weights that are no folder": {fstest.MapFS{"config.json": {Data: []byte(llama)}, "m.safetensors/x": {}}, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(c.dir)
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("a pipe, without waiting for it", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "config.json"), 0o600))
		_, err := Read(os.DirFS(dir))
		require.ErrorContains(t, err, "not a regular file")
	})
}

func FuzzReadWeights(f *testing.F) {
	f.Add(weights(`{"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}`, 12).Data)
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := Read(folder(llama, map[string]*fstest.MapFile{"m.safetensors": {Data: data}}))
		if err == nil && (facts.WeightBytes < 0 || facts.WeightBytes > int64(len(data))) {
			t.Fatalf("%d bytes of weights in a file of %d bytes", facts.WeightBytes, len(data))
		}
	})
}
