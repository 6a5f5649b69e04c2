package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Ingest measures how many states of instances a second become durable while all instances of all regions
// change constantly. A state counts when the control plane has stored it. At the end the database must have
// the last state of each instance.
//
// The reporting agents share the machine. With --bare a client that only speaks the protocol sends prepared
// reports, which shows the limit of the control plane and the database.
//
// What limits it: the processor, of which MariaDB takes the most. The agents and the control plane share the
// rest. The control plane spends much of its time on building the text of the statement.
//
// An upsert of all twenty columns spends most of its time on reading the values, finding the row and changing
// it, and little on the guard. Columns with their usual value are left out. The five secondary indexes cost
// nothing while their columns do not change.
type Ingest struct {
	Instances int           `help:"Instances in all." default:"20000"`
	Regions   int           `help:"Regions." default:"10"`
	Window    time.Duration `help:"How long it is measured." default:"10s"`
	Bare      bool          `help:"Send prepared reports, without agents."`
}

// Deadline implements Scenario.
func (s *Ingest) Deadline() time.Duration {
	return 10*time.Minute + s.Window + time.Duration(s.Instances)*2*time.Millisecond
}

// replicasEach is the number of a deployment's instances in a region: the size of a report.
const replicasEach = 1000

// Run implements Scenario.
func (s *Ingest) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--instances", s.Instances, "--regions", s.Regions, "--window", s.Window); err != nil {
		return err
	}
	each := s.Instances / s.Regions
	deployments := max(1, each/replicasEach)
	replicas := each / deployments
	if replicas < 1 || s.Regions > 32 {
		return errors.New("--instances and --regions: at least one instance in each region, and at most 32 regions")
	}
	total := replicas * deployments * s.Regions
	env.recordSizes("instances", total, "regions", s.Regions, "deployments", deployments, "replicas", replicas, "window", s.Window.String(), "bare", s.Bare)
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Idle: s.Bare, BufferPoolMiB: min(512+total/500, 4096)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	apps := make([]testbed.App, deployments)
	for i := range apps {
		apps[i] = testbed.App{Name: testbed.AppName(i), Regions: w.Regions, Replicas: replicas, Version: "v1"}
	}
	w.Progressf("deploying %d apps of %d instances in %d regions", deployments, replicas, s.Regions)
	ids, err := w.DeployAll(ctx, apps, setupConcurrency)
	if err != nil {
		return err
	}
	churn := s.changeInstances
	if s.Bare {
		churn, err = s.joinReporters(ctx, w, ids, replicas)
	} else if err = w.WaitReady(ctx, 1, deployments); err == nil {
		err = allInstancesReady(ctx, w, 1, total)
	}
	if err != nil {
		return err
	}

	w.Progressf("reporting for %s", s.Window)
	var rows, reports float64
	took, parts, err := measureWindow(ctx, w, func() error {
		before, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		if err := churn(ctx, w); err != nil {
			return err
		}
		after, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		delta := func(name string) float64 { return after.Sum(name, "") - before.Sum(name, "") }
		rows, reports = delta("windlass_report_instances_total"), delta("windlass_report_batch_size_sum")
		return nil
	})
	if err != nil {
		return err
	}
	env.Result.Parts = parts
	env.Result.Figure("rows_per_s", rows/took.Seconds(), "states of instances made durable")
	env.Result.Figure("reports_per_s", reports/took.Seconds(), "reports that contained them")
	env.Result.Figure("cpu_us_per_row", 1e6*cpuSeconds(parts)/rows, "us of processor time, all parts")
	w.Progressf("measuring bare upserts")
	alone, err := w.DB.Upserts(ctx, 3*time.Second, 4, 1000)
	if err != nil {
		return err
	}
	env.Result.Figure("upserts_per_s", alone, "by the database alone")
	env.Result.Figure("ratio", rows/took.Seconds()/alone, "of them")
	return nil
}

// churnEvery is shorter than the time that an agent needs to report its region, so that there is always
// something new to report.
const churnEvery = 100 * time.Millisecond

// changeInstances changes every instance until the window ends, and then waits until the last states are stored.
func (s *Ingest) changeInstances(ctx context.Context, w *testbed.Testbed) error {
	begin := time.Now()
	restarts := int64(0)
	for time.Since(begin) < s.Window {
		for _, m := range w.Fleet.Members() {
			restarts += int64(m.Runtime.Churn())
		}
		if err := waitFor(ctx, churnEvery); err != nil {
			return err
		}
	}
	return waitRestarts(ctx, w, restarts)
}

// waitRestarts waits until the sum of the instances' restart counters is n, which means that the last state
// of each is stored.
func waitRestarts(ctx context.Context, w *testbed.Testbed, n int64) error {
	var stored int64
	return testbed.Until(ctx, 20*time.Millisecond, func() (_ bool, err error) {
		begin := time.Now()
		stored, err = w.DB.Count(ctx, "SELECT COALESCE(SUM(restarts), 0) FROM instances WHERE terminated_at = 0")
		if err != nil || stored == n {
			return err == nil, err
		}
		return false, waitFor(ctx, 2*time.Since(begin))
	}, func() string {
		return fmt.Sprintf("the sum of the stored restart counters is %d, and must become %d", stored, n)
	})
}

// joinReporters joins each region with a client that reports prepared states, and returns a function that makes
// all of them report until the window ends.
func (s *Ingest) joinReporters(ctx context.Context, w *testbed.Testbed, deployments []string, replicas int) (func(context.Context, *testbed.Testbed) error, error) {
	// Reports about a deployment count only once it is assigned to the region.
	places := len(deployments) * len(w.Regions)
	var assigned int64
	err := testbed.Until(ctx, 10*time.Millisecond, func() (_ bool, err error) {
		assigned, err = w.DB.Count(ctx, "SELECT COUNT(*) FROM deployment_topology")
		return assigned == int64(places), err
	}, func() string { return fmt.Sprintf("%d of %d places are assigned", assigned, places) })
	if err != nil {
		return nil, err
	}
	all := make([]*bare.Reporter, 0, len(w.Regions))
	for n, region := range w.Regions {
		planes := w.Stack.Planes()
		r, err := bare.NewReporter(ctx, planes[n%len(planes)].URL, w.Stack.JoinToken(region), deployments, replicas)
		if err != nil {
			return nil, fmt.Errorf("region %s: %w", region, err)
		}
		all = append(all, r)
	}
	return func(ctx context.Context, w *testbed.Testbed) error {
		begin := time.Now()
		var wg sync.WaitGroup
		failed := make([]error, len(all))
		for i, r := range all {
			wg.Go(func() {
				for time.Since(begin) < s.Window && failed[i] == nil {
					failed[i] = r.Report(ctx)
				}
			})
		}
		wg.Wait()
		restarts, closed := int64(0), []error(nil)
		for _, r := range all {
			restarts += r.Restarts()
			closed = append(closed, r.Close())
		}
		if err := errors.Join(errors.Join(failed...), errors.Join(closed...)); err != nil {
			return err
		}
		return waitRestarts(ctx, w, restarts)
	}, nil
}
