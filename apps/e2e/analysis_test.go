package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func post(ctx context.Context, url string, body io.Reader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := plainHTTP.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// faulty makes instances answer nine of ten requests with 500 although they are ready. So a few requests are
// enough to judge them.
func faulty(s *windlassv1.DeploymentSpec) { s.Args = append(s.Args, "--fault-error-rate", "0.9") }

// watched returns the policy of a canary of one step that is judged by its metrics.
func watched() *windlassv1.RolloutPolicy {
	policy := euThenUs()
	policy.Strategy = windlassv1.RolloutPolicy_STRATEGY_CANARY
	policy.Steps = []*windlassv1.CanaryStep{{Weight: 40, Pause: "4s"}}
	policy.Analysis = []*windlassv1.AnalysisCheck{
		{
			Template: windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE, Max: new(0.2), FailureLimit: 1,
			Interval: seconds(3), Window: seconds(20), MinSamples: 5,
		},
		{
			Template: windlassv1.AnalysisCheck_TEMPLATE_QUEUE_LENGTH, VersusOld: &windlassv1.VersusOld{MaxDifference: new(5.0)},
			Interval: seconds(3), Window: seconds(20), MinSamples: 2,
		},
	}
	return policy
}

// TestAnalysis judges real processes by metrics that a real Prometheus collects.
func TestAnalysis(t *testing.T) { //nolint:tparallel // its subtests share one stack
	t.Parallel()
	s := newStack(t, stackConfig{prometheus: true})
	t.Run("a canary with good metrics goes on", func(t *testing.T) { testAnalysisPasses(t, s) })
	t.Run("a canary that is ready and answers with errors goes back", func(t *testing.T) { testAnalysisFails(t, s) })
	t.Run("missing metrics hold a canary, and an outage of Prometheus fails no canary", func(t *testing.T) { testAnalysisHolds(t, s) })
}

// testAnalysisOnKubernetes is TestAnalysis with pods. Prometheus labels them as the Prometheus of users does.
func testAnalysisOnKubernetes(t *testing.T) {
	s := newStack(t, stackConfig{runtime: "kubernetes", prometheus: true, groups: []string{"name=cpu,nodes=1,pods=250"}})
	t.Run("a canary with good metrics goes on", func(t *testing.T) { testPodsPass(t, s) })
	t.Run("a canary that is ready and answers with errors goes back", func(t *testing.T) { testPodsFail(t, s) })
}

// TestAnalysisByGateways judges versions without a Prometheus, by the real requests that gateways count.
func TestAnalysisByGateways(t *testing.T) { //nolint:tparallel // its subtests share one stack
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true})
	const app = "seen"
	policy := func() *windlassv1.RolloutPolicy {
		p := watched()
		p.Analysis = append(p.Analysis[:1], &windlassv1.AnalysisCheck{
			Template: windlassv1.AnalysisCheck_TEMPLATE_TIME_TO_FIRST_TOKEN, VersusOld: &windlassv1.VersusOld{MaxDifference: new(60.0)},
			Interval: seconds(3), Window: seconds(20), MinSamples: 2,
		})
		return p
	}
	v1 := s.deployBy(t, app, spec(replicas(2), label("v1")), policy())
	s.waitLive(t, app, 1)
	calls := s.callers(s.host(t, app, windlassv1.Route_KIND_STABLE, 0))
	defer calls.stop()

	t.Run("a canary with good metrics goes on", func(t *testing.T) {
		v2 := s.deployBy(t, app, spec(replicas(2), label("v2")), policy())
		s.waitLive(t, app, 2)
		s.requirePassed(t, v2)
		history := s.cli(t).ok("history", app)
		require.Regexp(t, `CheckPassed.*error-rate in wave canary: 0 on \d+ samples`, history)
		require.Regexp(t, `CheckPassed.*time-to-first-token in wave canary: [0-9.e-]+ on \d+ samples, the old version's is [0-9.e-]+`, history)
		v1 = v2
	})
	t.Run("a canary that is ready and answers with errors goes back", func(t *testing.T) {
		bad := s.deployBy(t, app, spec(replicas(2), label("bad"), faulty), policy())
		d := s.waitFailed(t, app, bad)
		require.Equal(t, "AnalysisFailed", d.Reason, d.Message)
		require.Regexp(t, eu+`, in wave canary .*error-rate: [\d.]+ on \d+ samples: figure [\d.]+, at most 0\.2; failures: 2, limit 1`, d.Message)
		for _, region := range []string{eu, us} {
			s.requireRouted(t, region, v1.AppId, map[string]int32{v1.DeploymentId: 100})
		}
	})
}

func testPodsPass(t *testing.T, s *stack) {
	const app = "watched"
	s.serveFigures(t, app)
	s.deployBy(t, app, podSpec(replicas(2), label("v1")), watched())
	s.waitLive(t, app, 1)
	v2 := s.deployBy(t, app, podSpec(replicas(2), label("v2")), watched())
	s.waitLive(t, app, 2)
	s.requirePassed(t, v2)
	require.Regexp(t, `CheckPassed.*error-rate in wave canary: 0 on \d+ samples`, s.cli(t).ok("history", app))
}

func testPodsFail(t *testing.T, s *stack) {
	const app = "watched-bad"
	s.serveFigures(t, app)
	v1 := s.deployBy(t, app, podSpec(replicas(2), label("good")), watched())
	s.waitLive(t, app, 1)
	before := s.podsOf(t, app)
	v2 := s.deployBy(t, app, podSpec(replicas(2), label("bad"), faulty), watched())
	d := s.waitFailed(t, app, v2)
	require.Equal(t, "AnalysisFailed", d.Reason, d.Message)
	require.Regexp(t, eu+`, in wave canary .*error-rate: [\d.]+ on \d+ samples: figure [\d.]+, at most 0\.2; failures: 2, limit 1`, d.Message)
	s.waitLive(t, app, 1)
	s.waitNothingInClusters(t, "windlass.run/workload="+v2.DeploymentId)
	require.Equal(t, uids(before), uids(s.podsOf(t, app)), "the old version was touched")
	for _, region := range []string{eu, us} {
		s.requireRouted(t, region, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	}
	history := s.cli(t).ok("history", app)
	require.Contains(t, history, "RolloutGoingBack")
	require.NotRegexp(t, `RegionBegun.*`+us, history, "the version must not reach the next wave")
}

func testAnalysisPasses(t *testing.T, s *stack) {
	const app = "watched"
	s.serveFigures(t, app)
	s.deployBy(t, app, spec(replicas(2), label("v1")), watched())
	s.waitLive(t, app, 1)
	v2 := s.deployBy(t, app, spec(replicas(2), label("v2")), watched())
	s.waitLive(t, app, 2)
	s.requirePassed(t, v2)
	require.Regexp(t, `CheckPassed.*error-rate in wave canary: 0 on \d+ samples`, s.cli(t).ok("history", app))
}

// requirePassed asserts that each of the two checks has figures and passed in each region.
func (s *stack) requirePassed(t *testing.T, v2 *windlassv1.DeployResponse) {
	t.Helper()
	for _, w := range s.rolloutOf(t, v2.RolloutId).Progress.Waves {
		for _, g := range w.Regions {
			require.Len(t, g.Checks, 2, g.Region)
			for _, c := range g.Checks {
				require.Equal(t, windlassv1.CheckProgress_STATE_PASSED, c.State, "%s in %s: %s", c.Name, g.Region, c.Message)
				require.NotNil(t, c.Figure)
				require.Positive(t, c.GetSamples())
			}
			require.NotNil(t, g.Checks[1].OldFigure, "the old version's queue is known")
		}
	}
}

func testAnalysisFails(t *testing.T, s *stack) {
	const app = "watched-bad"
	s.serveFigures(t, app)
	v1 := s.deployBy(t, app, spec(replicas(2), label("good")), watched())
	s.waitLive(t, app, 1)
	before := s.runningOf(app)
	stop := s.bounds(t, app, 4, 3)
	v2 := s.deployBy(t, app, spec(replicas(2), label("bad"), faulty), watched())
	d := s.waitFailed(t, app, v2)
	require.Equal(t, "AnalysisFailed", d.Reason, d.Message)
	require.Regexp(t, eu+`, in wave canary .*error-rate: [\d.]+ on \d+ samples: figure [\d.]+, at most 0\.2; failures: 2, limit 1`, d.Message)
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
	history := s.cli(t).ok("history", app)
	require.Regexp(t, `CheckFailed.*error-rate in wave canary: [\d.]+ on \d+ samples: figure [\d.]+, at most 0\.2`, history)
	require.Contains(t, history, "RolloutGoingBack")
	require.NotRegexp(t, `RegionBegun.*`+us, history, "the version must not reach the next wave")
}

// waitHeld waits until a check holds the rollout, with a message that contains says.
func (s *stack) waitHeld(t *testing.T, rollout, says string) {
	t.Helper()
	s.eventually(t, "it is held: "+says, func(ctx context.Context) error {
		resp, err := s.owner.rollouts.GetRollout(ctx, &windlassv1.GetRolloutRequest{Rollout: rollout})
		if err != nil {
			return err
		}
		for _, w := range resp.Rollout.GetProgress().GetWaves() {
			for _, g := range w.Regions {
				for _, c := range g.Checks {
					if c.State == windlassv1.CheckProgress_STATE_HELD && c.HeldSince != 0 && strings.Contains(c.Message, says) {
						return nil
					}
					err = fmt.Errorf("%s is %s: %s", c.Name, c.State, c.Message)
				}
			}
		}
		return fmt.Errorf("no check is: %w", err)
	})
}

func testAnalysisHolds(t *testing.T, s *stack) {
	const app = "watched-silently"
	v1 := s.deployBy(t, app, spec(replicas(2), label("v1")), watched())
	s.waitLive(t, app, 1)
	v2 := s.deployBy(t, app, spec(replicas(2), label("v2")), watched())
	held := func(says string) {
		t.Helper()
		s.waitHeld(t, v2.RolloutId, says)
		s.requireRouted(t, eu, v1.AppId, map[string]int32{v1.DeploymentId: 60, v2.DeploymentId: 40})
		s.requireRouted(t, us, v1.AppId, map[string]int32{v1.DeploymentId: 100})
	}
	held("0 samples")
	s.kill9(partPrometheus)
	held("Prometheus cannot be reached")
	s.restart(partControlPlane)
	held("Prometheus cannot be reached")
	status := s.cli(t).ok("rollout", "status", app)
	require.Regexp(t, `Status: +held: (error-rate|queue-length) in `+eu+` for \d+s: Prometheus cannot be reached.*rollout promote`, status)
	s.start(partPrometheus)
	s.serveFigures(t, app)
	s.waitLive(t, app, 2)
	require.Regexp(t, `CheckHeld.*error-rate in wave canary`, s.cli(t).ok("history", app))
}
