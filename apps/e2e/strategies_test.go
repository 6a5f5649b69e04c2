package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestStrategiesOnProcesses tests every strategy with all faults, on a real stack with processes.
func TestStrategiesOnProcesses(t *testing.T) { //nolint:tparallel // each subtest begins in the state in which the one before has ended
	t.Parallel()
	testStrategies(t, newStack(t, stackConfig{}))
}

func testStrategiesOnKubernetes(t *testing.T) {
	testStrategies(t, newStack(t, stackConfig{runtime: "kubernetes", groups: []string{"name=cpu,nodes=2,pods=250"}}))
}

func testStrategies(t *testing.T, s *stack) {
	t.Helper()
	f := newFleet(s)
	first := f.move(t, nil)
	for _, m := range f.movers {
		m.id = first[m.app].AppId
	}
	f.arrive(t, first)
	stop := f.watch(t)
	for _, way := range []struct {
		name string
		test func(*testing.T, *strategyStack)
	}{
		{"only variables change", strategyVariables},
		{"the new version crashes", strategyCrash},
		{"the new version is never ready", strategyNeverReady},
		{"the new version is ready, and judged to be bad", strategyJudged},
		{"a newer version comes", strategyNewer},
		{"a region is lost", strategyLost},
		{"the control plane dies at every step", strategyKilled},
		{"it is aborted, later each time", strategyAborted},
	} {
		// Each subtest begins in the state in which the one before has ended.
		require.True(t, t.Run(way.name, func(t *testing.T) {
			way.test(t, f)
			f.requireUnbroken(t)
		}))
	}
	stop()
}

func strategyVariables(t *testing.T, f *strategyStack) {
	for _, m := range f.movers {
		m.versions-- // its label, and so its arguments, stay the same
	}
	f.arrive(t, f.move(t, nil, variable("hello")))
	for _, m := range f.movers {
		taken, err := f.count(t.Context(), "SELECT COUNT(*) FROM history WHERE app_id = ? AND what = 'InstancesTakenOver'", m.id)
		require.NoError(t, err)
		want := int64(0)
		if m.inPlace {
			want = int64(len(f.cfg.regions))
		}
		require.Equal(t, want, taken, m.app)
	}
}

func strategyCrash(t *testing.T, f *strategyStack) {
	before := f.lives(t)
	bad := f.move(t, nil, args("--load-time", "1m", "--fault-crash-after", "300ms", "--fault-exit-code", "3"))
	f.goneBack(t, bad, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, before, "CrashLoop")
}

func strategyNeverReady(t *testing.T, f *strategyStack) {
	before := f.lives(t)
	bad := f.move(t, nil, args("--fault-never-ready"), func(s *windlassv1.DeploymentSpec) { s.HealthCheck.StartupBudget = seconds(4) })
	f.goneBack(t, bad, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, before, "StartupTimeout", "CrashLoop")
}

func strategyJudged(t *testing.T, f *strategyStack) {
	v := newVerdicts(t)
	v.say(`{"verdict": "fail", "message": "its answers are wrong"}`)
	v.serve(t)
	before := f.lives(t)
	bad := f.move(t, func(p *windlassv1.RolloutPolicy) {
		p.Waves[0].BakeTime = seconds(3)
		for _, step := range p.Steps {
			step.Pause = "3s"
		}
		p.Analysis = []*windlassv1.AnalysisCheck{{Name: "smoke", Webhook: &windlassv1.WebHook{Url: "http://" + address(v.port)}, Interval: seconds(1)}}
	})
	f.goneBack(t, bad, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, before, "AnalysisFailed")
}

func strategyNewer(t *testing.T, f *strategyStack) {
	middle := f.move(t, nil, loads(2*time.Second))
	f.beginsIn(t, eu, middle)
	f.arrive(t, f.move(t, nil))
	for _, m := range f.movers {
		require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, f.rolloutOf(t, middle[m.app].RolloutId).Status, m.app)
	}
}

// strategyLost uses a first wave whose bake time ends only by a call. So the region is lost before the second
// wave begins, however long the loss takes.
func strategyLost(t *testing.T, f *strategyStack) {
	to := f.move(t, func(p *windlassv1.RolloutPolicy) { p.Waves[0].BakeTime = seconds(3600) }, loads(2*time.Second))
	f.beginsIn(t, eu, to)
	f.kill9(partAgent(eu))
	f.eventually(t, eu+" is unreachable", func(ctx context.Context) error {
		resp, err := f.owner.regions.GetRegion(ctx, &windlassv1.GetRegionRequest{Region: eu})
		if err == nil && resp.Region.Status != windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE {
			err = fmt.Errorf("it is %s", resp.Region.Status)
		}
		return err
	})
	exist, err := f.exist(t.Context())
	require.NoError(t, err)
	for _, m := range f.movers {
		require.Zero(t, exist[m.app][us][to[m.app].DeploymentId].all, "%s went on to the next wave", m.app)
	}
	f.start(partAgent(eu))
	for _, m := range f.movers {
		f.eventually(t, m.app+" bakes", func(ctx context.Context) error {
			r := f.rolloutOf(t, to[m.app].RolloutId)
			if waves := r.GetProgress().GetWaves(); len(waves) == 0 || waves[0].State != windlassv1.WaveProgress_STATE_BAKING {
				return errors.Join(fmt.Errorf("it is %v", waves), f.promoteWaiting(ctx, m, r))
			}
			return nil
		})
		must(t, f.owner.rollouts.SkipBake, &windlassv1.SkipBakeRequest{Mutation: mutation(), App: named(m.app)})
	}
	f.arrive(t, to)
}

// strategyKilled kills the control plane after each decision that it sees. On a busy machine, several
// decisions fall between two looks. So versions follow each other until every strategy was disturbed a few
// times.
func strategyKilled(t *testing.T, f *strategyStack) {
	const enough = 2
	kills := map[string]int{}
	disturbed := func(m *mover) bool { return kills[m.app] >= enough }
	for versions := 0; !every(f.movers, disturbed); versions++ {
		require.Less(t, versions, 6, "a strategy was hardly disturbed: %v", kills)
		f.killAtDecisions(t, kills)
	}
	t.Logf("kills between two decisions: %v", kills)
}

func every(movers []*mover, is func(*mover) bool) bool {
	return !slices.ContainsFunc(movers, func(m *mover) bool { return !is(m) })
}

// killAtDecisions moves every app to a new version, and counts for each app the kills between two decisions
// about it.
func (f *strategyStack) killAtDecisions(t *testing.T, kills map[string]int) {
	t.Helper()
	at := f.decisions(t)
	to := f.move(t, nil, loads(time.Second))
	f.eventually(t, "all have ended", func(ctx context.Context) error {
		now := f.decisions(t)
		if !maps.Equal(at, now) {
			f.kill9(partControlPlane)
			for _, m := range f.movers {
				if now[m.app] > at[m.app] {
					kills[m.app]++
				}
			}
			at = f.decisions(t)
			f.start(partControlPlane)
		}
		for _, m := range f.movers {
			r, err := f.owner.rollouts.GetRollout(ctx, &windlassv1.GetRolloutRequest{Rollout: to[m.app].RolloutId})
			if err != nil {
				return err
			}
			if r.Rollout.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
				return fmt.Errorf("%s is under way: %v", m.app, r.Rollout.GetProgress())
			}
		}
		return nil
	})
	f.arrive(t, to)
}

// strategyAborted aborts a rollout after its first decision, the next rollout after a later decision, and so
// on, until rollouts end before they can be aborted. With WINDLASS_ABORT_EVERY=1 it leaves out no decision.
func strategyAborted(t *testing.T, f *strategyStack) {
	stride := int64(4)
	if f.cfg.runtime == "kubernetes" {
		stride = 8 // pods take longer to start and to stop
	}
	if text := os.Getenv("WINDLASS_ABORT_EVERY"); text != "" {
		var err error
		stride, err = strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		require.Positive(t, stride)
	}
	before := f.lives(t)
	for after := int64(1); ; after += stride {
		require.Less(t, after, int64(100), "it never ends")
		at := f.decisions(t)
		to := f.move(t, nil, loads(200*time.Millisecond))
		ended := map[string]bool{}
		cancelled := map[string]bool{}
		f.eventually(t, "all were aborted, or have ended", func(context.Context) error {
			now := f.decisions(t)
			for _, m := range f.movers {
				switch {
				case ended[m.app]:
				case now[m.app]-at[m.app] >= after && !cancelled[m.app]:
					cancelled[m.app] = true
					_, err := f.owner.apps.Cancel(t.Context(), &windlassv1.CancelRequest{Mutation: mutation(), App: named(m.app), Why: "second thoughts"})
					if err != nil && !strings.Contains(err.Error(), "no rollout in flight") {
						return fatal{err}
					}
				}
				r := f.rolloutOf(t, to[m.app].RolloutId)
				if !cancelled[m.app] {
					if err := f.promoteWaiting(t.Context(), m, r); err != nil {
						return err
					}
				}
				ended[m.app] = r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING
			}
			for _, m := range f.movers {
				if !ended[m.app] {
					return fmt.Errorf("%s is under way", m.app)
				}
			}
			return nil
		})
		arrived := 0
		for _, m := range f.movers {
			r := f.rolloutOf(t, to[m.app].RolloutId)
			switch r.Status {
			case windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED:
				arrived++
				before[m.app], m.live = to[m.app].DeploymentId, to[m.app].Version
			case windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED:
			default:
				require.Fail(t, "neither aborted nor arrived", "%s is %s: %s", m.app, r.Status, r.Message)
			}
			f.waitLive(t, m.app, m.live)
			f.settle(t, m, before[m.app])
		}
		if arrived == len(f.movers) {
			t.Logf("aborted after up to %d decisions", after-stride)
			return
		}
	}
}

// loads makes instances load for d before they are ready, so that a rollout takes some time.
func loads(d time.Duration) func(*windlassv1.DeploymentSpec) {
	return args("--load-time", d.String())
}

func variable(value string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"GREETING": value} }
}
