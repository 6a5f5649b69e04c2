package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// euThenUs returns a policy that moves one region at a time, with at most one replica more than wanted.
func euThenUs() *windlassv1.RolloutPolicy {
	return &windlassv1.RolloutPolicy{MaxSurge: "1", Waves: []*windlassv1.Wave{
		{Name: "canary", Regions: []string{eu}, BakeTime: durationpb.New(0)}, {Name: "rest"},
	}}
}

func (s *stack) deployBy(t *testing.T, app string, spec *windlassv1.DeploymentSpec, policy *windlassv1.RolloutPolicy) *windlassv1.DeployResponse {
	t.Helper()
	return must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: spec, Rollout: policy})
}

// bounds checks every region until stop is called. There must never be more than most processes, and never
// fewer than wanted ready replicas.
func (s *stack) bounds(t *testing.T, app string, wanted, most int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for looks := 0; ; looks++ {
			if ctx.Err() != nil {
				if looks == 0 {
					done <- fmt.Errorf("no check was made")
				}
				close(done)
				return
			}
			here := map[string]int{}
			for _, p := range s.runningOf(app) {
				here[p.region()]++
			}
			for region, n := range here {
				if n > most {
					done <- fmt.Errorf("%d instances exist in %s", n, region)
					return
				}
			}
			resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)})
			if err == nil && int(resp.App.ReadyReplicas) < wanted {
				done <- fmt.Errorf("%d of %d replicas are ready", resp.App.ReadyReplicas, wanted)
				return
			}
		}
	}()
	return func() {
		t.Helper()
		cancel()
		require.NoError(t, <-done)
	}
}

func (s *stack) rolloutOf(t *testing.T, id string) *windlassv1.Rollout {
	t.Helper()
	return must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: id}).Rollout
}

// requireRouted asserts that the region serves the app with the weights want, by deployment.
func (s *stack) requireRouted(t *testing.T, region, appID string, want map[string]int32) {
	t.Helper()
	got, err := s.routed(region, appID)
	require.NoError(t, err)
	require.Equal(t, want, got, "what %s routes", region)
}

// runs counts the app's processes in a region, by version.
func (s *stack) runs(app, region string) map[string]int {
	n := map[string]int{}
	for _, p := range s.runningOf(app) {
		if p.region() == region {
			n["v"+p.env["WINDLASS_VERSION"]]++
		}
	}
	return n
}

// waitPromotion waits until the region, and no other region, waits for a promotion.
func (s *stack) waitPromotion(t *testing.T, rollout, region string) {
	t.Helper()
	s.eventually(t, region+" waits for promotion", func(context.Context) error {
		r := s.rolloutOf(t, rollout)
		for _, w := range r.GetProgress().GetWaves() {
			for _, g := range w.Regions {
				if g.WaitsForPromotion != (g.Region == region) {
					return fmt.Errorf("%s is at step %d: %s", g.Region, g.Step, g.Message)
				}
			}
		}
		if r.GetProgress().GetWaves() == nil {
			return errors.New("it has not begun")
		}
		return nil
	})
}

func testCanary(t *testing.T, s *stack) {
	const app = "canary"
	policy := euThenUs()
	policy.Strategy = windlassv1.RolloutPolicy_STRATEGY_CANARY
	policy.Steps = []*windlassv1.CanaryStep{{Weight: 10, Pause: "1s"}, {Weight: 40, Pause: "manual"}}
	v1 := s.deployBy(t, app, spec(replicas(2), label("v1")), policy)
	s.waitLive(t, app, 1)
	before := s.runningOf(app)
	stop := s.bounds(t, app, 4, 3)
	v2 := s.deployBy(t, app, spec(replicas(2), label("v2")), policy)
	c := s.cli(t)

	s.waitPromotion(t, v2.RolloutId, eu)
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v1.DeploymentId: 60, v2.DeploymentId: 40})
	s.requireRouted(t, us, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	require.Equal(t, map[string]int{"v1": 2, "v2": 1}, s.runs(app, eu))
	require.Equal(t, map[string]int{"v1": 2}, s.runs(app, us))
	require.Subset(t, keysOf(s.runningOf(app)), keysOf(before), "a canary within the surge touches nothing")
	status := c.ok("rollout", "status", app)
	require.Contains(t, status, "waits for promotion: windlass rollout promote "+app)
	require.Regexp(t, eu+` +step 2 of 2, waits for promotion .*60/40`, status)

	c.ok("rollout", "promote", app, "-m", "it answers better")
	s.waitPromotion(t, v2.RolloutId, us)
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v2.DeploymentId: 100})
	s.requireRouted(t, us, v1.AppId, map[string]int32{v1.DeploymentId: 60, v2.DeploymentId: 40})
	require.Equal(t, 2, s.runs(app, eu)["v2"])
	for range 2 {
		must(t, s.owner.rollouts.Promote, &windlassv1.PromoteRequest{Mutation: mutation(), App: named(app)})
	}
	got := s.waitLive(t, app, 2)
	stop()
	s.waitGone(t, v1.DeploymentId)
	for _, region := range []string{eu, us} {
		s.requireRouted(t, region, v1.AppId, map[string]int32{v2.DeploymentId: 100})
	}
	for _, url := range got.Urls {
		_, version := chat(t, url, "who are you")
		require.Equal(t, "v2", version)
	}
	require.Regexp(t, `Promoted.*it answers better`, c.ok("history", app))
}

func testCanaryCrash(t *testing.T, s *stack) {
	const app = "canary-bad"
	policy := &windlassv1.RolloutPolicy{
		Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "2",
		Steps: []*windlassv1.CanaryStep{{Replicas: 1, Pause: "manual"}, {Replicas: 2, Pause: "1h"}},
	}
	v1 := s.deployBy(t, app, spec(replicas(2), label("good")), policy)
	s.waitLive(t, app, 1)
	before := s.runningOf(app)
	stop := s.bounds(t, app, 4, 4)
	// The version's first replica runs, and the second one crashes.
	bad := spec(replicas(2), label("bad"))
	bad.Command = append([]string{"sh", "-c", `[ "$WINDLASS_GROUP" = 0 ] || exit 3; exec "$@"`, "sh"}, bad.Command...)
	v2 := s.deployBy(t, app, bad, policy)
	first := eu
	s.eventually(t, "a region waits for promotion", func(context.Context) error {
		for _, w := range s.rolloutOf(t, v2.RolloutId).GetProgress().GetWaves() {
			for _, g := range w.Regions {
				if g.WaitsForPromotion {
					first = g.Region
					return nil
				}
			}
		}
		return errors.New("none does")
	})
	s.requireRouted(t, first, v1.AppId, map[string]int32{v1.DeploymentId: 67, v2.DeploymentId: 33})
	must(t, s.owner.rollouts.Promote, &windlassv1.PromoteRequest{Mutation: mutation(), App: named(app)})
	d := s.waitFailed(t, app, v2)
	require.Equal(t, "CrashLoop", d.Reason, d.Message)
	s.eventually(t, "the rollout is over", func(context.Context) error {
		if r := s.rolloutOf(t, v2.RolloutId); r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED {
			return fmt.Errorf("it is %s: %s", r.Status, r.Message)
		}
		return nil
	})
	s.waitLive(t, app, 1)
	stop()
	requireSame(t, before, s.runningOf(app), "the old version was touched")
	for _, region := range []string{eu, us} {
		s.requireRouted(t, region, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	}
	s.requireNothingOf(t, v2.DeploymentId)
}

func testBlueGreen(t *testing.T, s *stack) {
	const app = "blue-green"
	policy := euThenUs()
	policy.Strategy, policy.MaxSurge = windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, ""
	policy.InitialWeight, policy.Promotion, policy.Retain = 5, "manual", seconds(3600)
	v1 := s.deployBy(t, app, spec(replicas(2), label("blue")), policy)
	s.waitLive(t, app, 1)
	blue := s.runningOf(app)
	stop := s.bounds(t, app, 4, 4)
	v2 := s.deployBy(t, app, spec(replicas(2), label("green")), policy)
	c := s.cli(t)

	s.waitPromotion(t, v2.RolloutId, eu)
	require.Equal(t, map[string]int{"v1": 2, "v2": 2}, s.runs(app, eu))
	require.Equal(t, map[string]int{"v1": 2}, s.runs(app, us))
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v1.DeploymentId: 95, v2.DeploymentId: 5})
	require.Contains(t, c.ok("rollout", "status", app), "waits for promotion: windlass rollout promote "+app)
	ro := must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: v2.RolloutId}).Rollout
	require.Len(t, ro.PreviewUrls, 2)
	for _, url := range ro.PreviewUrls {
		require.Contains(t, c.ok("rollout", "status", app), url)
		_, version := chat(t, url, "who are you, before anybody asks")
		require.Equal(t, "green", version)
	}
	c.ok("rollout", "promote", app)
	s.waitPromotion(t, v2.RolloutId, us)
	s.requireRouted(t, eu, v1.AppId, map[string]int32{v2.DeploymentId: 100})
	require.Equal(t, map[string]int{"v1": 2, "v2": 2}, s.runs(app, eu), "the blue version stays")
	c.ok("rollout", "promote", app)
	s.waitLive(t, app, 2)
	for _, region := range []string{eu, us} {
		s.requireRouted(t, region, v1.AppId, map[string]int32{v2.DeploymentId: 100})
		require.Equal(t, map[string]int{"v1": 2, "v2": 2}, s.runs(app, region))
	}
	require.Contains(t, c.ok("rollout", "status", app), "v1 is retained for")
	require.Empty(t, must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: v2.RolloutId}).Rollout.PreviewUrls)

	back := c.run("", "rollback", app, "-m", "green is worse")
	require.Zero(t, back.code, back.stderr)
	require.Contains(t, back.stderr, "v1 was retained and is live again")
	got := s.waitLive(t, app, 1)
	s.waitGone(t, v2.DeploymentId)
	stop()
	require.Equal(t, int32(2), got.LatestVersion, "no new version")
	requireSame(t, blue, s.runningOf(app), "going back started or stopped something of the blue version")
	for _, region := range []string{eu, us} {
		s.requireRouted(t, region, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	}
	for _, url := range got.Urls {
		_, version := chat(t, url, "who are you")
		require.Equal(t, "blue", version)
	}
	require.Regexp(t, `LiveReturned.*green is worse`, c.ok("history", app))

	// After a rollback, nothing is promoted automatically. The retained version stops when its time is over.
	policy.Promotion, policy.Retain = "auto", seconds(1)
	v3 := s.deployBy(t, app, spec(replicas(2), label("teal")), policy)
	s.waitPromotion(t, v3.RolloutId, eu)
	c.ok("rollout", "promote", app)
	s.waitLive(t, app, 3)
	s.waitGone(t, v1.DeploymentId)
}

func testStagedRollout(t *testing.T, s *stack) {
	const app = "staged"
	s.deployBy(t, app, spec(replicas(2)), euThenUs())
	s.waitLive(t, app, 1)
	stop := s.bounds(t, app, 4, 3)
	resp := s.deployBy(t, app, spec(replicas(2), label("v2")), euThenUs())
	got := s.waitLive(t, app, 2)
	stop()
	require.Equal(t, int32(4), got.ReadyReplicas)
	for _, url := range got.Urls {
		_, version := chat(t, url, "who are you")
		require.Equal(t, "v2", version)
	}
	first := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{App: named(app), Version: 1}).Deployment
	s.waitGone(t, first.Id)
	r := s.rolloutOf(t, resp.RolloutId)
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, r.Status)
	for _, w := range r.Progress.Waves {
		require.Equal(t, windlassv1.WaveProgress_STATE_DONE, w.State)
		for _, g := range w.Regions {
			require.Equal(t, []int32{2, 100}, []int32{g.New.Ready, g.New.Weight}, g.Region)
		}
	}
}

func testStagedRollback(t *testing.T, s *stack) {
	const app = "staged-bad"
	s.deployBy(t, app, spec(replicas(2), label("good")), euThenUs())
	s.waitLive(t, app, 1)
	stop := s.bounds(t, app, 4, 3)
	// The version runs in the first wave and crashes in the second one.
	bad := spec(replicas(2), label("bad"))
	bad.Command = append([]string{"sh", "-c", `[ "$WINDLASS_REGION" != ` + us + ` ] || exit 3; exec "$@"`, "sh"}, bad.Command...)
	resp := s.deployBy(t, app, bad, euThenUs())
	d := s.waitFailed(t, app, resp)
	require.Equal(t, "CrashLoop", d.Reason, d.Message)
	require.Contains(t, d.Message, us)
	s.eventually(t, "the rollout is over", func(context.Context) error {
		if r := s.rolloutOf(t, resp.RolloutId); r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED {
			return fmt.Errorf("it is %s: %s", r.Status, r.Message)
		}
		return nil
	})
	got := s.waitLive(t, app, 1)
	stop()
	require.Len(t, got.Urls, 4)
	for _, url := range got.Urls {
		_, version := chat(t, url, "who are you")
		require.Equal(t, "good", version)
	}
	s.requireNothingOf(t, resp.DeploymentId)
	r := s.rolloutOf(t, resp.RolloutId)
	require.Equal(t, windlassv1.WaveProgress_STATE_DONE, r.Progress.Waves[0].State, "the first wave must be done")
	require.Equal(t, windlassv1.RegionProgress_STATE_BACK, r.Progress.Waves[0].Regions[0].State)
}

func testStagedAbort(t *testing.T, s *stack) {
	const app = "staged-abort"
	policy := euThenUs()
	policy.Waves[0].BakeTime = seconds(3600)
	s.deployBy(t, app, spec(replicas(2), label("good")), policy)
	s.waitLive(t, app, 1)
	stop := s.bounds(t, app, 4, 3)
	resp := s.deployBy(t, app, spec(replicas(2), label("better")), policy)
	s.eventually(t, "the first wave bakes", func(context.Context) error {
		r := s.rolloutOf(t, resp.RolloutId)
		if w := r.GetProgress().GetWaves(); len(w) == 0 || w[0].State != windlassv1.WaveProgress_STATE_BAKING {
			return fmt.Errorf("it is at %v", r.GetProgress())
		}
		return nil
	})
	// During the bake time the old version keeps the replicas of the surge, without traffic.
	eu1 := s.rolloutOf(t, resp.RolloutId).Progress.Waves[0].Regions[0]
	require.Equal(t, []int32{1, 0, 2, 100}, []int32{eu1.Old.Ready, eu1.Old.Weight, eu1.New.Ready, eu1.New.Weight})
	must(t, s.owner.apps.Cancel, &windlassv1.CancelRequest{Mutation: mutation(), App: named(app), Why: "second thoughts"})
	s.eventually(t, "the rollout is over", func(context.Context) error {
		if r := s.rolloutOf(t, resp.RolloutId); r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED {
			return fmt.Errorf("it is %s: %s", r.Status, r.Message)
		}
		return nil
	})
	got := s.waitLive(t, app, 1)
	stop()
	s.waitGone(t, resp.DeploymentId)
	for _, url := range got.Urls {
		_, version := chat(t, url, "who are you")
		require.Equal(t, "good", version)
	}
}
