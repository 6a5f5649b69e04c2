package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Converge deploys a number of instances at once and measures the time from the first call until every
// deployment and every instance is ready in the database. Further rounds also deploy in all regions at once:
// another version of the same apps, first next to the old version and then instead of it, or as many new
// apps. With --again=groups, every second round deploys apps whose replicas are groups of --units instances,
// with the same number of instances in all. The figures groups_ratio and groups_cpu_ratio compare these
// rounds with the rounds of apps with one role.
//
// What limits it: the processor. Another version of the same number of instances takes longer, because the
// instances of the old version are stopped meanwhile, which doubles the number of states. A round is slower
// if the control plane refused a report because it would have waited too long. The agent must then send it
// again. A new control plane is ready only after the runtime of its workflows is compiled, so that the first
// deployment does not wait for that.
type Converge struct {
	Instances   int    `help:"Instances in all." default:"1000"`
	Regions     int    `help:"Regions; each deployment runs in all of them." default:"10"`
	Deployments int    `help:"Apps to deploy at once." default:"1"`
	Concurrency int    `help:"Calls in flight." default:"16"`
	Rounds      int    `help:"Number of rounds, one after the other." default:"1"`
	BufferPool  int    `name:"buffer-pool-mib" help:"Memory of MariaDB in MiB; 0: by the number of instances." default:"0"`
	Again       string `help:"What rounds after the first deploy: another version of the apps, the same number of new apps, or new apps of which those of every second round are groups." enum:"version,apps,groups" default:"version"`
	Units       int    `help:"Instances of each group, of the roles prefill and decode, with --again=groups." default:"8"`
	Strict      bool   `help:"Fail when a later round is slower than the first by more than a tenth."`
	Executors
}

// Deadline implements Scenario. It allows two milliseconds for each instance of a round.
func (s *Converge) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(s.Rounds*s.Instances)*2*time.Millisecond
}

// Run implements Scenario.
func (s *Converge) Run(ctx context.Context, env Env) (err error) {
	each, err := s.checkSizes()
	if err != nil {
		return err
	}
	instances := each * s.Regions * s.Deployments
	env.recordSizes("instances", instances, "regions", s.Regions, "deployments", s.Deployments, "replicas", each, "rounds", s.Rounds, "again", s.Again,
		"start_p50", s.StartP50.String(), "start_p99", s.StartP99.String(), "fail", s.Fail)
	pool := s.BufferPool
	if pool == 0 {
		// A MiB has room for more than 1,000 instances with their indexes, while versions overlap, too.
		pool = 512 + instances/1000
	}
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Runtime: s.simulatedRuntime, BufferPoolMiB: min(pool, 4096)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()

	first := 0.0
	var one, groups roundCost
	for round := 1; round <= s.Rounds; round++ {
		// At the end of the round, times*instances instances of this version are alive.
		version, times, units := round, 1, 1
		if s.Again != "version" {
			version, times = 1, round
		}
		if s.Again == "groups" && round%2 == 0 {
			units = s.Units
		}
		apps := make([]testbed.App, s.Deployments)
		for i := range apps {
			apps[i] = testbed.App{
				Name: testbed.AppName((times-1)*len(apps) + i), Regions: w.Regions, Replicas: each / units, Units: units,
				Version: fmt.Sprintf("v%d", version), Rollout: testbed.AtOnce(),
			}
		}
		w.Progressf("round %d: deploying %d app(s), %d instances", round, len(apps), instances)
		var accepted time.Duration
		took, parts, err := measureWindow(ctx, w, func() error {
			begin := time.Now()
			if _, err := w.DeployAll(ctx, apps, s.Concurrency); err != nil {
				return err
			}
			accepted = time.Since(begin)
			if err := w.WaitReady(ctx, version, times*len(apps)); err != nil {
				return err
			}
			return allInstancesReady(ctx, w, version, times*instances)
		})
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		w.Progressf("round %d: %d instances ready after %s", round, instances, took.Round(time.Millisecond))
		begin := time.Now()
		if err := waitSettled(ctx, w, times*len(apps)*s.Regions, times*instances); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		env.Result.Parts = parts
		peak := 0.0
		for _, p := range parts {
			peak += p.PeakRSSMiB
		}
		env.Result.Rounds = append(env.Result.Rounds, map[string]any{
			"round": round, "units": units, "seconds": took.Seconds(), "cpu_s": cpuSeconds(parts), "accepted_s": accepted.Seconds(),
			"settled_s": time.Since(begin).Seconds(), "peak_rss_mib": peak,
		})
		if round == 1 {
			first = took.Seconds()
		}
		env.Result.Figure("seconds", took.Seconds(), "s from the first call to all ready, last round")
		env.Result.Figure("cpu_s", cpuSeconds(parts), "s of processor time, all parts")
		env.Result.Figure("peak_rss_mib", peak, "MiB, all parts")
		env.Result.Figure("instances_per_s", float64(instances)/took.Seconds(), "made ready")
		if round == 2 {
			env.Result.Figure("second_ratio", took.Seconds()/first, "times the duration of the first round, the second round")
		}
		if round > 2 || s.Rounds < 4 { // the first rounds of a longer run also fill caches
			of := map[bool]*roundCost{false: &one, true: &groups}[units > 1]
			of.seconds, of.cpu = of.seconds+took.Seconds(), of.cpu+cpuSeconds(parts)
		}
		if s.Strict && took.Seconds() > 1.1*first {
			return fmt.Errorf("round %d took %.2f s, the first %.2f s", round, took.Seconds(), first)
		}
	}
	env.compareGroups(one, groups)
	return nil
}

// roundCost is what some rounds took.
type roundCost struct{ seconds, cpu float64 }

// compareGroups records how many times as long the rounds of groups took as the rounds of apps with one role, and how many
// times as much processor time. All rounds have the same number of instances.
func (e Env) compareGroups(one, groups roundCost) {
	if one.seconds == 0 || groups.seconds == 0 {
		return
	}
	e.Result.Figure("groups_ratio", groups.seconds/one.seconds, "times the time for each instance, groups to apps with one role")
	if one.cpu == 0 {
		return // short rounds take no whole tick
	}
	e.Result.Figure("groups_cpu_ratio", groups.cpu/one.cpu, "times the processor time for each instance, groups to apps with one role")
}

func (s *Converge) checkSizes() (each int, err error) {
	if err := requirePositive("--instances", s.Instances, "--regions", s.Regions, "--deployments", s.Deployments, "--concurrency", s.Concurrency, "--rounds", s.Rounds); err != nil {
		return 0, err
	}
	each = s.Instances / (s.Regions * s.Deployments)
	switch {
	case s.Regions > 32:
		return 0, errors.New("--regions: a deployment runs in at most 32")
	case s.Again == "groups" && (s.Units < 2 || each%s.Units != 0):
		return 0, fmt.Errorf("--units: %d instances of each deployment and region are no groups of %d: use 2 or more, and change --instances", each, s.Units)
	case s.Again == "groups" && s.Rounds < 2:
		return 0, errors.New("--rounds: --again=groups needs 2 or more")
	case each < 1 || each > 10_000:
		return 0, fmt.Errorf("--instances: %d are %d for each deployment and region: use 1 to 10000 for each", s.Instances, each)
	}
	return each, s.Executors.checkTimes()
}

// allInstancesReady waits until the rows of a version's instances are ready.
func allInstancesReady(ctx context.Context, w *testbed.Testbed, version, want int) error {
	var ready int64
	return testbed.Until(ctx, 10*time.Millisecond, func() (done bool, err error) {
		begin := time.Now()
		ready, err = w.DB.Count(ctx, "SELECT COUNT(*) FROM instances WHERE status = ? AND deployment_id IN (SELECT id FROM deployments WHERE version = ?)",
			int32(windlassv1.InstanceStatus_INSTANCE_STATUS_READY), version)
		if err != nil || ready >= int64(want) {
			return err == nil, err
		}
		// The pause keeps the database from being busy with counting millions of rows.
		return false, waitFor(ctx, 2*time.Since(begin))
	}, func() string { return fmt.Sprintf("%d of %d instances are ready", ready, want) })
}

// waitSettled waits until the given number of topology rows is started, the given number of instances is
// alive, and no topology row is starting or stopping.
func waitSettled(ctx context.Context, w *testbed.Testbed, rows, instances int) error {
	var started, moving, alive int64
	return testbed.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		err := w.DB.QueryRowContext(ctx, "SELECT COALESCE(SUM(status = ?), 0), COALESCE(SUM(status IN (?, ?)), 0) FROM deployment_topology",
			int32(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED), int32(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING),
			int32(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING)).Scan(&started, &moving)
		if err != nil || started != int64(rows) || moving > 0 {
			return false, err
		}
		begin := time.Now()
		if alive, err = w.DB.Count(ctx, "SELECT COUNT(*) FROM instances WHERE terminated_at = 0"); err != nil || alive == int64(instances) {
			return err == nil, err
		}
		return false, waitFor(ctx, 2*time.Since(begin))
	}, func() string {
		return fmt.Sprintf("%d of %d places run, %d are on their way, %d of %d instances live", started, rows, moving, alive, instances)
	})
}
