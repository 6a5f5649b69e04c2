package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Rollouts moves many apps to a new version at the same time, each under a policy with waves. It measures
// what a rollout costs the database and the workflow's runtime. The cost does not depend on the number of
// replicas that move in a step. At the end all apps get a version that crashes in one wave. That wave and the
// waves before it go back, and no region of a later wave gets that version.
//
// What limits it: the processor. A smaller surge needs more steps, statements and processor time per rollout:
// a region that may move at once needs the fewest.
//
// A rollout ends with its last wave. The figures of a run do not count if a rollout failed, or left an
// instance of the old version.
type Rollouts struct {
	Apps        int           `help:"Apps that move at once." default:"200"`
	Regions     int           `help:"Regions of each app." default:"10"`
	Waves       int           `help:"Waves; the first is one region." default:"4"`
	Replicas    []int         `help:"Replicas in each region, one measurement each, ascending." default:"2,8,32"`
	Surge       string        `help:"Replicas beyond the wanted number, a number or percent." default:"100%"`
	Bake        time.Duration `help:"How long each wave bakes." default:"0s"`
	BadWave     int           `help:"Wave in which the last version crashes; 0: there is no such version." default:"2"`
	Concurrency int           `help:"Calls in flight." default:"16"`
	Executors
}

// Deadline implements Scenario.
func (s *Rollouts) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(len(s.Replicas)*s.Apps*s.Regions)*50*time.Millisecond + time.Duration(len(s.Replicas)*s.Waves)*s.Bake
}

// Run implements Scenario.
func (s *Rollouts) Run(ctx context.Context, env Env) (err error) {
	if err := s.checkSizes(); err != nil {
		return err
	}
	env.recordSizes("apps", s.Apps, "regions", s.Regions, "waves", s.Waves, "replicas", s.Replicas, "surge", s.Surge, "bake", s.Bake.String(),
		"start_p50", s.StartP50.String(), "start_p99", s.StartP99.String(), "fail", s.Fail)
	seen := &sightings{}
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Applied: seen.recordApplied, Runtime: func(n int, rnd *rand.Rand) agent.SimulatedConfig {
		cfg := s.simulatedRuntime(n, rnd)
		cfg.Crashes = func(label string) bool { return label == badVersion && s.waveOf(n) == s.BadWave }
		return cfg
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	instances := 0
	for i, replicas := range s.Replicas {
		round, err := s.moveRound(ctx, env, w, i, &instances)
		if err != nil {
			return fmt.Errorf("with %d replicas: %w", replicas, err)
		}
		env.Result.Rounds = append(env.Result.Rounds, round)
	}
	if s.BadWave > 0 {
		if err := s.goBack(ctx, env, w, seen, instances); err != nil {
			return fmt.Errorf("with a version that crashes in wave %d: %w", s.BadWave, err)
		}
	}
	first, last := env.Result.Rounds[0], env.Result.Rounds[len(env.Result.Rounds)-1]
	figure := func(name, of, unit string) { env.Result.Figure(name, last[of].(float64), unit) }
	ratio := func(name, of, unit string) {
		env.Result.Figure(name, last[of].(float64)/max(first[of].(float64), 1e-9), unit)
	}
	figure("seconds", "seconds", "s from the first call to the end of the last rollout, most replicas")
	figure("rollouts_per_s", "rollouts_per_s", "that ended")
	figure("statements_per_rollout", "statements_per_rollout", "statements of the database, including background work")
	figure("steps_per_rollout", "steps_per_rollout", "steps of the workflow, each an invocation")
	figure("cpu_ms_per_rollout", "cpu_ms_per_rollout", "ms of processor time, all parts")
	ratio("statements_ratio", "statements_per_rollout", "most replicas to fewest")
	ratio("steps_ratio", "steps_per_rollout", "most replicas to fewest")
	return nil
}

func (s *Rollouts) checkSizes() error {
	if err := requirePositive("--apps", s.Apps, "--regions", s.Regions, "--waves", s.Waves, "--concurrency", s.Concurrency, "--replicas", len(s.Replicas)); err != nil {
		return err
	}
	switch {
	case s.Regions > 32:
		return errors.New("--regions: an app has at most 32")
	case s.Waves > s.Regions:
		return fmt.Errorf("--waves: %d waves need as many regions, and there are %d", s.Waves, s.Regions)
	case s.BadWave < 0 || s.BadWave > s.Waves:
		return fmt.Errorf("--bad-wave: 0 to the %d of --waves", s.Waves)
	case !slices.IsSorted(s.Replicas) || s.Replicas[0] < 1:
		return errors.New("--replicas: ascending numbers from 1 on")
	case s.Bake < 0:
		return errors.New("--bake: has to be 0 or more")
	}
	return s.Executors.checkTimes()
}

// waveOf returns the wave of region n. One region is the first wave, and the others are in equal parts.
func (s *Rollouts) waveOf(n int) int {
	if n == 0 || s.Waves == 1 {
		return 1
	}
	return 2 + (n-1)*(s.Waves-1)/(s.Regions-1)
}

func (s *Rollouts) rolloutPolicy(regions []string) *windlassv1.RolloutPolicy {
	p := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING, MaxSurge: s.Surge}
	for range s.Waves {
		p.Waves = append(p.Waves, &windlassv1.Wave{BakeTime: durationpb.New(s.Bake)})
	}
	for n, region := range regions {
		wave := p.Waves[s.waveOf(n)-1]
		wave.Regions = append(wave.Regions, region)
		wave.MaxParallel++
	}
	return p
}

// badVersion is the label of the version that crashes.
const badVersion = "bad"

// sightings are the deployments that each region ever received.
type sightings struct {
	mu sync.Mutex
	at map[string]map[string]bool
}

func (s *sightings) recordApplied(region, deployment string, _, _ int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string]map[string]bool{}
	}
	if s.at[region] == nil {
		s.at[region] = map[string]bool{}
	}
	s.at[region][deployment] = true
}

func (s *sightings) wasSeen(region, deployment string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[region][deployment]
}

// goBack gives the apps of the last round a version that crashes in one wave, and waits until the version
// before runs everywhere again.
func (s *Rollouts) goBack(ctx context.Context, env Env, w *testbed.Testbed, seen *sightings, instances int) error {
	n := len(s.Replicas) - 1
	apps := s.appsOfRound(w, n, badVersion)
	w.Progressf("moving all of them to a version that crashes in wave %d", s.BadWave)
	begin := time.Now()
	ids, err := w.DeployAll(ctx, apps, s.Concurrency)
	if err != nil {
		return err
	}
	if err := s.waitEnded(ctx, w, ids, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED); err != nil {
		return err
	}
	if err := waitSettled(ctx, w, len(s.Replicas)*s.Apps*s.Regions, instances); err != nil {
		return err
	}
	took := time.Since(begin)
	times, err := s.rolloutTimes(ctx, w, ids)
	if err != nil {
		return err
	}
	for i, region := range w.Regions {
		for _, id := range ids {
			if saw := seen.wasSeen(region, id); saw != (s.waveOf(i) <= s.BadWave) {
				return fmt.Errorf("region %s of wave %d received the bad deployment %s: %t", region, s.waveOf(i), id, saw)
			}
		}
	}
	stays, err := w.DB.Count(ctx, "SELECT COUNT(*) FROM apps a JOIN deployments d ON d.id = a.live_deployment_id WHERE d.version = 2")
	if err != nil {
		return err
	}
	if want := int64(len(s.Replicas) * s.Apps); stays != want {
		return fmt.Errorf("%d of %d apps are at the version before", stays, want)
	}
	env.Result.Figure("back_s", took.Seconds(), "s from the first call of a bad version until all is as before")
	env.Result.Figure("back_p50_ms", measure.Millis(times.Quantile(0.5)), "ms from a bad version's rollout to its end")
	env.Result.Figure("back_p99_ms", measure.Millis(times.Quantile(0.99)), "ms")
	return nil
}

// appsOfRound returns the apps of round n.
func (s *Rollouts) appsOfRound(w *testbed.Testbed, n int, version string) []testbed.App {
	apps := make([]testbed.App, s.Apps)
	for i := range apps {
		apps[i] = testbed.App{
			Name: testbed.AppName(n*s.Apps + i), Regions: w.Regions, Replicas: s.Replicas[n], Version: version, Rollout: s.rolloutPolicy(w.Regions),
		}
	}
	return apps
}

// moveRound deploys apps with s.Replicas[n] replicas, moves all of them, and checks their end.
func (s *Rollouts) moveRound(ctx context.Context, env Env, w *testbed.Testbed, n int, instances *int) (map[string]any, error) {
	replicas := s.Replicas[n]
	apps := s.appsOfRound(w, n, "v1")
	w.Progressf("deploying %d apps of %d replicas in %d regions", s.Apps, replicas, s.Regions)
	first, err := w.DeployAll(ctx, apps, setupConcurrency)
	if err != nil {
		return nil, err
	}
	if err := s.waitEnded(ctx, w, first, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED); err != nil {
		return nil, err
	}
	*instances += s.Apps * s.Regions * replicas
	if err := waitSettled(ctx, w, (n+1)*s.Apps*s.Regions, *instances); err != nil {
		return nil, err
	}
	for i := range apps {
		apps[i].Version = "v2"
	}
	before, err := readCosts(ctx, w)
	if err != nil {
		return nil, err
	}
	w.Progressf("moving all of them, in %d waves", s.Waves)
	var ids []string
	took, parts, err := measureWindow(ctx, w, func() error {
		if ids, err = w.DeployAll(ctx, apps, s.Concurrency); err != nil {
			return err
		}
		return s.waitEnded(ctx, w, ids, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED)
	})
	if err != nil {
		return nil, err
	}
	after, err := readCosts(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := waitSettled(ctx, w, (n+1)*s.Apps*s.Regions, *instances); err != nil {
		return nil, err
	}
	times, err := s.rolloutTimes(ctx, w, ids)
	if err != nil {
		return nil, err
	}
	env.Result.Parts = parts
	each := float64(s.Apps)
	round := map[string]any{
		"replicas": replicas, "seconds": took.Seconds(), "rollouts_per_s": each / took.Seconds(),
		"p50_ms": measure.Millis(times.Quantile(0.5)), "p99_ms": measure.Millis(times.Quantile(0.99)),
		"statements_per_rollout": (after.statements - before.statements) / each,
		"steps_per_rollout":      (after.steps - before.steps) / each,
		"cpu_ms_per_rollout":     1000 * cpuSeconds(parts) / each,
	}
	for name := range parts {
		round[name+"_cpu_ms"] = 1000 * cpuSeconds(parts, name) / each
	}
	return round, nil
}

// cost is the number of statements that the database received, and of the workflow's steps.
type cost struct{ statements, steps float64 }

func readCosts(ctx context.Context, w *testbed.Testbed) (cost, error) {
	statements, err := w.DB.Questions(ctx)
	if err != nil {
		return cost{}, err
	}
	metrics, err := w.Metrics(ctx)
	return cost{float64(statements), metrics.Sum("deployment_workflow_step_duration_seconds_count", "")}, err
}

// waitEnded waits until the rollouts of deployments have ended with the given status. Another final status is
// an error.
func (s *Rollouts) waitEnded(ctx context.Context, w *testbed.Testbed, deployments []string, as windlassv1.RolloutStatus) error {
	args := make([]any, len(deployments))
	for i, id := range deployments {
		args[i] = id
	}
	query := "SELECT CONCAT(status, ' ', COUNT(*)) FROM rollouts WHERE deployment_id IN (?" + strings.Repeat(", ?", len(args)-1) + ") GROUP BY status"
	byStatus := map[windlassv1.RolloutStatus]int{}
	return testbed.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		lines, err := w.DB.Strings(ctx, query, args...)
		if err != nil {
			return false, err
		}
		clear(byStatus)
		for _, line := range lines {
			var status int32
			var count int
			if _, err := fmt.Sscan(line, &status, &count); err != nil {
				return false, err
			}
			byStatus[windlassv1.RolloutStatus(status)] = count
		}
		for status, count := range byStatus {
			if status > windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING && status != as {
				return false, fmt.Errorf("%d ended as %s", count, status)
			}
		}
		return byStatus[as] == len(deployments), nil
	}, func() string {
		var out []string
		for _, status := range slices.Sorted(maps.Keys(byStatus)) {
			out = append(out, fmt.Sprintf("%d %s", byStatus[status], status))
		}
		return fmt.Sprintf("of %d rollouts: %s", len(deployments), strings.Join(out, ", "))
	})
}

// rolloutTimes returns how long rollouts took from their creation to their end, by the database.
func (s *Rollouts) rolloutTimes(ctx context.Context, w *testbed.Testbed, deployments []string) (*measure.Durations, error) {
	var out measure.Durations
	for chunk := range slices.Chunk(deployments, 500) {
		args := make([]any, len(chunk))
		for i, id := range chunk {
			args[i] = id
		}
		took, err := w.DB.Strings(ctx, "SELECT finished_at - created_at FROM rollouts WHERE deployment_id IN (?"+strings.Repeat(", ?", len(args)-1)+")", args...)
		if err != nil {
			return nil, err
		}
		for _, ms := range took {
			n, err := strconv.ParseInt(ms, 10, 64)
			if err != nil {
				return nil, err
			}
			out.Add(time.Duration(n) * time.Millisecond)
		}
	}
	return &out, nil
}
