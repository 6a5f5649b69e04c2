package cli

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// modelFolder returns a folder with a small model.
func modelFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	header := `{"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}`
	data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"num_hidden_layers": 2, "num_attention_heads": 6, "hidden_size": 12}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), append(data, make([]byte, 12)...), 0o600))
	return dir
}

func TestModelInspect(t *testing.T) {
	server := newFakeServer(t)
	run := func(args ...string) commandResult { return runCommand(t, server, false, commandRun{args: args}) }
	t.Run("preset render reads its JSON", func(t *testing.T) {
		got := run("model", "inspect", modelFolder(t), "-o", "json")
		require.Zero(t, got.code, got.stderr)
		facts := filepath.Join(t.TempDir(), "facts.json")
		require.NoError(t, os.WriteFile(facts, []byte(got.stdout), 0o600))
		got = run("preset", "render", "vllm", "--model", "hf://org/m", "--gpus", "4", "--facts", facts)
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, "the model has 6 attention heads, which 4 GPUs cannot share evenly")
	})
	t.Run("a folder without a model says what is missing", func(t *testing.T) {
		got := run("model", "inspect", t.TempDir())
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, "config.json: missing")
	})
}
