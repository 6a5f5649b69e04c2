package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// euThenUs moves a region at a time, one replica more than wanted at most.
func euThenUs() *windlassv1.RolloutPolicy {
	return &windlassv1.RolloutPolicy{MaxSurge: "1", Waves: []*windlassv1.Wave{
		{Name: "canary", Regions: []string{eu}, BakeTime: durationpb.New(0)}, {Name: "rest"},
	}}
}

func (s *stack) deployBy(t *testing.T, app string, spec *windlassv1.DeploymentSpec, policy *windlassv1.RolloutPolicy) *windlassv1.DeployResponse {
	t.Helper()
	return must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: spec, Rollout: policy})
}

// bounds watches what runs and what is said to be ready, in every region, until it is
// stopped: never more processes than may be, never fewer ready replicas than are wanted.
func (s *stack) bounds(t *testing.T, app string, wanted, most int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for looks := 0; ; looks++ {
			if ctx.Err() != nil {
				if looks == 0 {
					done <- fmt.Errorf("it never looked")
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
	// It runs in the first wave and crashes in the second.
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
	require.Equal(t, windlassv1.WaveProgress_STATE_DONE, r.Progress.Waves[0].State, "it got as far as the second wave")
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
	// The old version is kept within the surge, and gets no traffic.
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
