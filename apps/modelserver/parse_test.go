package modelserver_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/modelserver"
)

func TestParseArgs_ReadsTheCommandLineOfAnotherProgram(t *testing.T) {
	t.Setenv("MODELSERVER_CONCURRENCY", "77") // this process's environment must not be read
	env := map[string]string{"MODELSERVER_FAULT_NEVER_READY": "true", "MODELSERVER_LOAD_TIME": "9s", "PORT": "7000"}
	cfg, portGiven, err := modelserver.ParseArgs(
		[]string{"text-generation-launcher", "--model-id", "meta/llama", "--num-shard", "8", "--max-model-len", "4096", "--enforce-eager", "--load-time=3s", "--seed=5", "-x", "--model", "m"},
		func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	require.NoError(t, err)
	require.Equal(t, 4096, cfg.MaxModelLen)
	require.Equal(t, "m", cfg.Model)
	require.Equal(t, uint64(5), cfg.Seed)
	require.Equal(t, 3*time.Second, cfg.LoadTime, "a flag beats the environment")
	require.True(t, cfg.Faults.NeverReady)
	require.Equal(t, 7000, cfg.Port)
	require.True(t, portGiven)
	require.Equal(t, 8, cfg.Concurrency, "the default")
}

func TestParseArgs_NamesTheValueThatDoesNotFit(t *testing.T) {
	_, _, err := modelserver.ParseArgs([]string{"--load-time", "soon"}, nil)
	require.ErrorContains(t, err, "--load-time")
	_, _, err = modelserver.ParseArgs([]string{"--port"}, nil)
	require.ErrorContains(t, err, "--port needs a value")
	_, given, err := modelserver.ParseArgs(nil, nil)
	require.NoError(t, err)
	require.False(t, given)
}
