package agent_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestMain(m *testing.M) {
	if agent.IsShim(os.Args) {
		os.Exit(agent.ShimMain(os.Args))
	}
	if os.Getenv(programEnv) != "" {
		os.Exit(programMain())
	}
	os.Exit(m.Run())
}

// startRuntime starts a runtime on an agent's data directory. The returned function stops the
// runtime, but no instances.
func startRuntime(t *testing.T, dir string) (*process.Runtime, func()) {
	t.Helper()
	rt, err := process.New(t.Context(), process.Config{
		DataDir: filepath.Join(dir, "process"), Region: "test-1",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Random: rand.Float64,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	return rt, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func untilRunning(t *testing.T, rt *process.Runtime, id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		seen, err := rt.Observe(t.Context())
		require.NoError(t, err)
		for _, d := range seen.Deployments {
			if d.DeploymentID == id && len(d.Instances) == 1 {
				status := d.Instances[0].Status
				return status == windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING || status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY
			}
		}
		return false
	}, time.Minute, 10*time.Millisecond)
}

func TestStop_InstancesReturnWithTheNextAgent(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(t.TempDir(), "started")
	const id = "dep_1"

	rt, stop := startRuntime(t, dir)
	require.NoError(t, rt.Apply(t.Context(), runtime.Assignment{
		WorkloadKey: "app_1", Generation: 1, TemplateHash: "one",
		Deployment: &agentv1.Deployment{
			Id: id, WorkspaceId: "ws_1", AppId: "app_1", AppName: "app", Version: 1, Replicas: 1,
			Spec: &windlassv1.DeploymentSpec{
				Command: []string{"/bin/sh", "-c", `echo started >>"$0"; exec sleep 300`, started},
				HealthCheck: &windlassv1.HealthCheck{
					Path: "/health", Interval: durationpb.New(time.Second), Timeout: durationpb.New(time.Second),
					HealthyThreshold: 1, UnhealthyThreshold: 3, StartupBudget: durationpb.New(time.Hour),
				},
				TerminationGrace: durationpb.New(5 * time.Second),
			},
		},
	}))
	untilRunning(t, rt, id)
	stop()

	require.NoError(t, agent.StopInstances(t.Context(), dir, slog.New(slog.NewTextHandler(t.Output(), nil))))
	require.NoError(t, agent.StopInstances(t.Context(), dir, slog.New(slog.NewTextHandler(t.Output(), nil))), "no instance is left")

	rt, stop = startRuntime(t, dir)
	untilRunning(t, rt, id)
	stop()
	require.NoError(t, agent.StopInstances(t.Context(), dir, slog.New(slog.NewTextHandler(t.Output(), nil))))
	b, err := os.ReadFile(started)
	require.NoError(t, err)
	require.Equal(t, "started\nstarted\n", string(b), "each runtime started the instance once")
}
