package agent_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
)

// The process runtime fails, for example, if another agent of the host uses the same ids for instances.
func TestNew_FailedRuntimeIsReported(t *testing.T) {
	p := startPlane(t, "test-1")
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(p.newToken()), 0o600))
	cfg := agent.Config{
		Server: p.url, HTTPClient: &http.Client{}, DataDir: t.TempDir(), TokenFile: token, RuntimeName: "process",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Tracer: sdktrace.NewTracerProvider(), Rand: rand.Float64,
		NewRuntime: func(ctx context.Context, _ string) (agent.Runtime, error) { return process.New(ctx, process.Config{}) },
	}
	for range 2 { // a failed start must release the data directory
		cfg.Registerer = prometheus.NewRegistry()
		_, err := agent.New(t.Context(), cfg)
		require.ErrorContains(t, err, "start runtime: process runtime: ")
	}
}
