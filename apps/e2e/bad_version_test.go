package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// badVersion updates a good app to a bad version. It asserts that the version fails within its deadline for the right
// reason, and that the old version's instances keep serving. It also asserts that nothing of the bad version is left.
func badVersion(t *testing.T, s *stack, app string, bad *windlassv1.DeploymentSpec, reasons ...string) *windlassv1.Deployment {
	t.Helper()
	return badVersionBy(t, s, app, nil, bad, reasons...)
}

func badVersionBy(t *testing.T, s *stack, app string, policy *windlassv1.RolloutPolicy, bad *windlassv1.DeploymentSpec, reasons ...string) *windlassv1.Deployment {
	t.Helper()
	s.deployReady(t, app, spec(label("good")))
	before := s.runningOf(app)
	require.Len(t, before, 2)

	started := time.Now()
	resp := s.deployBy(t, app, bad, policy)
	d := s.waitFailed(t, app, resp)
	require.Contains(t, reasons, d.Reason, d.Message)
	require.NotEmpty(t, d.Message)
	require.Less(t, time.Since(started), bad.ProgressDeadline.AsDuration(), "it must fail before its deadline")

	rollout := must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: resp.RolloutId}).Rollout
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, rollout.Status)
	require.Equal(t, d.Reason, rollout.Reason)
	requireSame(t, before, s.runningOf(app), "the old version was touched")
	got := s.waitLive(t, app, 1)
	require.Len(t, got.Urls, 2)
	for _, url := range got.Urls {
		_, version := chat(t, url, "still here")
		require.Equal(t, "good", version)
	}
	s.requireNothingOf(t, resp.DeploymentId)
	return d
}

// requireNothingOf asserts that no agent has a record of an instance of the deployment.
func (s *stack) requireNothingOf(t *testing.T, deployment string) {
	t.Helper()
	s.eventually(t, "the agents have no record of "+deployment, func(context.Context) error {
		for _, region := range s.cfg.regions {
			records, _ := filepath.Glob(filepath.Join(s.agentDir(region), "data", "process", "instances", "*", "record.json"))
			for _, record := range records {
				if b, err := os.ReadFile(record); err == nil && bytes.Contains(b, []byte(deployment)) {
					return fmt.Errorf("%s is a record of it", record)
				}
			}
		}
		return nil
	})
}

func testCrashing(t *testing.T, s *stack) {
	d := badVersion(t, s, "crashing", spec(label("bad"), args("--load-time", "1m", "--fault-crash-after", "300ms", "--fault-exit-code", "3")), "CrashLoop")
	require.Contains(t, d.Message, "exit code 3")
}

func testNeverReady(t *testing.T, s *stack) {
	bad := spec(label("bad"), args("--fault-never-ready"))
	bad.HealthCheck.StartupBudget = seconds(4)
	badVersion(t, s, "never-ready", bad, "StartupTimeout")
}

func testMissingProgram(t *testing.T, s *stack) {
	bad := spec()
	bad.Command = []string{"no-such-program"}
	d := badVersion(t, s, "missing", bad, "BadCommand")
	require.Contains(t, d.Message, "no-such-program")
}

func testPortClash(t *testing.T, s *stack) {
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	bad := spec(label("bad"))
	bad.Ports[0].Port = int32(port)
	d := badVersion(t, s, "clash", bad, "PortInUse")
	require.Contains(t, d.Message, fmt.Sprint(port))
}

func testUnrunnable(t *testing.T, s *stack) {
	bad := spec()
	bad.Command, bad.Args = nil, nil
	bad.Image = "registry.example/model@sha256:" + fmt.Sprintf("%064x", 1)
	badVersion(t, s, "unrunnable", bad, "Unsupported")

	large := spec(label("large"))
	large.Resources.Gpu = &windlassv1.Gpu{Count: 8}
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named("unschedulable"), Spec: large})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, rpc.DetailOf(err).GetReason(), "%v", err)
	require.ErrorContains(t, err, "region "+us+" has no GPUs at all")
	badVersionBy(t, s, "unschedulable", &windlassv1.RolloutPolicy{WaitForCapacity: seconds(1)}, large, "Unschedulable")
}

func testFirstFails(t *testing.T, s *stack) {
	const app = "stillborn"
	bad := spec(args("--load-time", "1m", "--fault-crash-after", "100ms"))
	resp := s.deploy(t, app, bad)
	d := s.waitFailed(t, app, resp)
	require.Equal(t, "CrashLoop", d.Reason)
	got := must(t, s.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named(app)}).App
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_FAILED, got.Status)
	require.Zero(t, got.LiveVersion)
	require.NotEmpty(t, got.Message)
	s.requireNothingOf(t, resp.DeploymentId)

	s.deployReady(t, app, spec(label("mended")))
}

func testDeadline(t *testing.T, s *stack) {
	const app = "late"
	s.deployReady(t, app, spec(label("good")))
	before := s.runningOf(app)
	late := spec(label("late"), args("--load-time", "10m"))
	late.ProgressDeadline = seconds(5)
	started := time.Now()
	resp := s.deploy(t, app, late)
	d := s.waitFailed(t, app, resp)
	require.Equal(t, "DeadlineExceeded", d.Reason, d.Message)
	rollout := must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: resp.RolloutId}).Rollout
	took := time.Duration(rollout.FinishedAt-rollout.CreatedAt) * time.Millisecond
	require.GreaterOrEqual(t, took, 5*time.Second)
	require.Less(t, took, 15*time.Second, "the version failed long after its deadline (%s in all)", time.Since(started))
	requireSame(t, before, s.runningOf(app), "the old version was touched")
	s.waitLive(t, app, 1)
}
