package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSimulate_RefusesMetricsOfQueries(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`app: jobs
regions: [us-east-1]
scaling:
  max: 4
  metrics:
  - {type: inFlight, target: 8}
  - {type: prometheus, query: 'sum(jobs_waiting{{{selector}}})', target: 20}
command: [modelserver]
`), 0o600))
	var out bytes.Buffer
	root := New(Config{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }})
	root.SetArgs([]string{"scaling", "simulate", "-f", file, "--trace", "../../../../deployments/examples/traces/flash-crowd.csv"})
	err := root.ExecuteContext(t.Context())
	require.ErrorContains(t, err, "scaling.metrics[1].type")
	require.ErrorContains(t, err, "a trace has no results of queries: use another metric, such as inFlight")
}

func TestSimulate_RefusesMetricsThatTheEngineLacks(t *testing.T) {
	for name, c := range map[string]struct{ serve, fix string }{
		"tgi":         {"serve: {engine: tgi, model: 'hf://org/m'}\n", "preset tgi/1 names no metric of the engine for kvCache: Use inFlight, requestsPerSecond, queue, cpu"},
		"no preset":   {"command: [modelserver]\n", "the app has no serve: Use inFlight"},
		"vllm":        {"serve: {engine: vllm, model: 'hf://org/m'}\n", ""},
		"a workspace": {"serve: {engine: 'custom:own', model: 'hf://org/m'}\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "app.yaml")
			require.NoError(t, os.WriteFile(file, []byte("app: chat\nregions: [us-east-1]\nscaling: {max: 4, metrics: [{type: kvCache, target: 0.8}]}\n"+c.serve), 0o600))
			var out bytes.Buffer
			root := New(Config{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }})
			root.SetArgs([]string{"scaling", "simulate", "-f", file, "--trace", "../../../../deployments/examples/traces/flash-crowd.csv"})
			err := root.ExecuteContext(t.Context())
			if c.fix == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "scaling.metrics[0].type")
			require.ErrorContains(t, err, c.fix)
		})
	}
}
