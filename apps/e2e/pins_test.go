package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// waitRouted waits until the region serves the app with the weights want, by deployment.
func (s *stack) waitRouted(t *testing.T, region, appID string, want map[string]int32) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("%s routes %v", region, want), func(context.Context) error {
		got, err := s.routed(region, appID)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("it routes %v", got)
		}
		return err
	})
}

// answers returns the versions that instances of the deployment report, one for each instance.
func (s *stack) answers(t *testing.T, deployment string) (versions []string) {
	t.Helper()
	list := must(t, s.owner.deployments.ListInstances, &windlassv1.ListInstancesRequest{Deployment: deployment})
	for _, i := range list.Instances {
		_, version := chat(t, "http://"+i.Address, "which are you?")
		versions = append(versions, version)
	}
	return versions
}

// testPins asserts that two versions serve by their weights, even during a rollout, until one is unpinned.
func testPins(t *testing.T, s *stack) {
	const app = "pinned"
	v1 := s.deployReady(t, app, spec(replicas(2), label("v1")))
	v2 := s.deployReady(t, app, spec(replicas(2), label("v2")))
	s.waitGone(t, v1.DeploymentId)
	c := s.cli(t)
	out := c.ok("pin", app, "v1", "--weight", "10%", "--replicas", "1", "--why", "to compare")
	for _, region := range s.cfg.regions {
		require.Regexp(t, `v1 +10 % +`+region+` +serving +1/1 +10 %`, out)
		s.waitRouted(t, region, v1.AppId, map[string]int32{v2.DeploymentId: 9000, v1.DeploymentId: 1000})
		require.Equal(t, map[string]int{"v1": 1, "v2": 2}, s.runs(app, region))
	}
	require.Equal(t, []string{"v1", "v1"}, s.answers(t, v1.DeploymentId))
	require.Len(t, s.answers(t, v2.DeploymentId), 4)
	status := c.ok("status", app)
	require.Regexp(t, `Pins: +v1 10 %: .*`+eu+` serving`, status)
	require.Regexp(t, `v2 \(live\) +`+eu+` +started +2/2 +2 +90`, status)
	require.Regexp(t, `v1 +superseded \(pinned, 10 %\)`, c.ok("list", "versions", app))

	// A rollout goes on at the same time, and its versions share the rest of the traffic.
	pinned := s.runningOf(app)
	policy := euThenUs()
	policy.Strategy = windlassv1.RolloutPolicy_STRATEGY_CANARY
	policy.Steps = []*windlassv1.CanaryStep{{Weight: 50, Pause: "manual"}}
	v3 := s.deployBy(t, app, spec(replicas(2), label("v3")), policy)
	s.waitPromotion(t, v3.RolloutId, eu)
	s.waitRouted(t, eu, v1.AppId, map[string]int32{v2.DeploymentId: 4500, v3.DeploymentId: 4500, v1.DeploymentId: 1000})
	c.ok("pin", app, "v1", "--weight", "30%")
	s.waitRouted(t, eu, v1.AppId, map[string]int32{v2.DeploymentId: 3500, v3.DeploymentId: 3500, v1.DeploymentId: 3000})
	require.Equal(t, int32(2), s.waitPinned(t, app, 1, 30).GetApp().GetLiveVersion())
	c.ok("rollout", "promote", app)
	s.waitPromotion(t, v3.RolloutId, us)
	c.ok("rollout", "promote", app)
	s.waitLive(t, app, 3)
	s.waitGone(t, v2.DeploymentId)
	var kept []process
	for _, p := range pinned {
		if p.deployment() == v1.DeploymentId {
			kept = append(kept, p)
		}
	}
	var now []process
	for _, p := range s.runningOf(app) {
		if p.deployment() == v1.DeploymentId {
			now = append(now, p)
		}
	}
	requireSame(t, kept, now, "a rollout touched the pinned version")

	c.ok("unpin", app, "v1", "--why", "compared")
	for _, region := range s.cfg.regions {
		s.waitRouted(t, region, v1.AppId, map[string]int32{v3.DeploymentId: 100})
	}
	s.waitGone(t, v1.DeploymentId)
	require.Contains(t, c.ok("pins", app), "Nothing is pinned")
	history := c.ok("history", app)
	for _, what := range []string{`VersionPinned +\S+ +.*to compare`, `PinServing`, `PinChanged`, `VersionUnpinned +\S+ +.*compared`, `PinRemoved`} {
		require.Regexp(t, what, history)
	}
}

func (s *stack) waitPinned(t *testing.T, app string, version, weight int32) *windlassv1.GetAppResponse {
	t.Helper()
	var got *windlassv1.GetAppResponse
	s.eventually(t, fmt.Sprintf("%s v%d is pinned at %d %%", app, version, weight), func(ctx context.Context) (err error) {
		if got, err = s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)}); err != nil {
			return err
		}
		for _, p := range got.App.Pins {
			if p.Version != version {
				continue
			}
			for _, r := range p.Regions {
				if r.State == windlassv1.PinRegion_STATE_FAILED {
					return fatal{fmt.Errorf("it failed in %s: %s %s", r.Region, r.Reason, r.Message)}
				}
				if r.State != windlassv1.PinRegion_STATE_SERVING || r.Weight != weight {
					return fmt.Errorf("%s: %s at %d %%", r.Region, r.State, r.Weight)
				}
			}
			return nil
		}
		return errors.New("it is not pinned")
	})
	return got
}

// testPinKilled asserts that a pin serves although the control plane is killed while the pin starts. It also asserts
// that nothing of the pin is left although the control plane is killed while the pin ends.
func testPinKilled(t *testing.T, s *stack) {
	const app = "pinned"
	v1 := s.deployReady(t, app, spec(label("v1"), args("--load-time", "1s")))
	v2 := s.deployReady(t, app, spec(label("v2")))
	s.waitGone(t, v1.DeploymentId)
	c := s.cli(t)
	c.ok("pin", app, "v1", "--weight", "25%", "--wait=false")
	s.eventually(t, "the first instance of the pin runs", func(context.Context) error {
		if len(s.instances(func(p process) bool { return p.deployment() == v1.DeploymentId })) == 0 {
			return errors.New("none does")
		}
		return nil
	})
	s.kill9(partControlPlane)
	s.start(partControlPlane)
	s.waitPinned(t, app, 1, 25)
	for _, region := range s.cfg.regions {
		s.waitRouted(t, region, v1.AppId, map[string]int32{v2.DeploymentId: 7500, v1.DeploymentId: 2500})
	}
	s.waitAgree(t)

	c.ok("unpin", app, "v1", "--wait=false")
	s.kill9(partControlPlane)
	s.start(partControlPlane)
	s.waitGone(t, v1.DeploymentId)
	for _, region := range s.cfg.regions {
		s.waitRouted(t, region, v1.AppId, map[string]int32{v2.DeploymentId: 100})
	}
	s.waitAgree(t)
	require.Empty(t, must(t, s.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named(app)}).App.Pins)
}
