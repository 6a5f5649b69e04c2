package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// testHealthLost deploys a version whose replicas become unready during its bake time. Their load time is
// longer than they may be unready, so a restart of a replica does not help.
func testHealthLost(t *testing.T, s *stack) {
	const app = "falls-ill"
	s.deployReady(t, app, spec(label("good")))
	before := s.runningOf(app)
	policy := euThenUs()
	policy.Waves[0].BakeTime = seconds(3600)
	policy.AutoRollback = &windlassv1.AutoRollback{Unhealthy: "100%", UnhealthyFor: seconds(1)}
	resp := s.deployBy(t, app, spec(label("bad"), args("--load-time", "4s", "--fault-fail-health", "--fault-fail-health-after", "10s")), policy)
	d := s.waitFailed(t, app, resp)
	require.Equal(t, "Unhealthy", d.Reason, d.Message)
	require.Contains(t, d.Message, "1 of 1 replicas that were ready are no longer ready, limit 1")
	s.waitLive(t, app, 1)
	s.requireNothingOf(t, resp.DeploymentId)
	requireSame(t, before, s.runningOf(app), "the old version was touched")
}

// testAllCrash deploys a version that may have some crashed instances. All its instances crash.
func testAllCrash(t *testing.T, s *stack) {
	const app = "all-crash"
	s.deployReady(t, app, spec(label("good"), replicas(2)))
	policy := euThenUs()
	policy.MaxSurge, policy.AutoRollback = "100%", &windlassv1.AutoRollback{FailedInstances: "100%"}
	bad := spec(label("bad"), replicas(2), args("--load-time", "1m", "--fault-crash-after", "300ms", "--fault-exit-code", "3"))
	resp := s.deployBy(t, app, bad, policy)
	d := s.waitFailed(t, app, resp)
	require.Equal(t, "CrashLoop", d.Reason, d.Message)
	require.Contains(t, d.Message, "2 of 2 instances failed, limit 2")
	s.waitLive(t, app, 1)
	s.requireNothingOf(t, resp.DeploymentId)
}
