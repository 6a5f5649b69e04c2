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
