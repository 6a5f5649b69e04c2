package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (s *stack) waitUnreachable(t *testing.T, region string) {
	t.Helper()
	s.eventually(t, region+" unreachable", func(ctx context.Context) error {
		resp, err := s.owner.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: region})
		if err == nil && resp.Region.Status != windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE {
			err = fmt.Errorf("it is %s", resp.Region.Status)
		}
		return err
	})
}

// testSkipped asserts that a rollout goes on without a region whose agent is gone. The region keeps serving
// its version, the app's status says so, and the region catches up when its agent is back.
func testSkipped(t *testing.T, s *stack) {
	const app = "skipped"
	policy := euThenUs()
	policy.Waves[0].OnUnreachable = windlassv1.Wave_ON_UNREACHABLE_SKIP
	v1 := s.deployBy(t, app, spec(replicas(2), label("v1")), policy)
	s.waitLive(t, app, 1)
	before := s.runs(app, eu)
	s.kill9(partAgent(eu))
	s.waitUnreachable(t, eu)

	v2 := s.deployBy(t, app, spec(replicas(2), label("v2")), policy)
	s.eventually(t, "the rollout is over", func(context.Context) error {
		if r := s.rolloutOf(t, v2.RolloutId); r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED {
			return fmt.Errorf("it is %s: %s", r.Status, r.Message)
		}
		return nil
	})
	got := must(t, s.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named(app)}).App
	require.Equal(t, []int32{2, 1}, []int32{got.LiveVersion, got.PreviousVersion})
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_DEGRADED, got.Status)
	require.Contains(t, got.Message, eu+" is out of reach and has yet to catch up with v2")
	require.Equal(t, before, s.runs(app, eu), "the region's version keeps running")
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	s.requireRouted(t, us, v1.AppId, map[string]int32{v2.DeploymentId: 100})
	c := s.cli(t)
	require.Regexp(t, `behind +`+eu+` +skipped +v1 2/2 +v2 - +2 +100/0`, c.ok("rollout", "status", app))

	stop := s.bounds(t, app, 2, 3)
	s.start(partAgent(eu))
	s.waitLive(t, app, 2)
	stop()
	s.waitGone(t, v1.DeploymentId)
	require.Equal(t, map[string]int{"v2": 2}, s.runs(app, eu))
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v2.DeploymentId: 100})
	require.NotContains(t, c.ok("rollout", "status", app), "behind")
	require.Regexp(t, `RegionCaughtUp.*`, c.ok("history", app))
	s.waitAgree(t)
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named(app)})
	s.waitGoneApp(t, v1.AppId, app)
}
