package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Overload changes instances ten times as often as their states can be stored, and measures edges, which are
// the changes that users wait for. An edge is the loss of a replica, or that it is ready again. Its time ends
// when the counts in the database show it. First the scenario measures how many states can be stored, and
// then it offers more. Each change of an instance counts as one offered state, even if the agent never reads
// it.
//
// At the end the changes stop, and the database must have the last state of each instance. A missing or
// different state fails the run, and so does a control plane that uses more memory than allowed. The times of
// edges do not fail the run.
//
// What limits it: the processor, which agents, executors and MariaDB share. In the overload, agents must wait
// between reports. The control plane stores edges before other states: they wait for the batch that is being
// stored, but not for states that came before them.
type Overload struct {
	Instances   int           `help:"Instances that change, in all." default:"30000"`
	Regions     int           `help:"Regions." default:"30"`
	Edges       int           `help:"Replicas in each region that crash and come back." default:"2"`
	Factor      float64       `help:"Ratio of the reported states to the states that can be stored." default:"10"`
	Calm        time.Duration `help:"Duration of each calibration: first the delay of important changes while nothing else changes, then how many states can be stored." default:"10s"`
	Window      time.Duration `help:"How long the overload lasts." default:"40s"`
	Start       time.Duration `help:"How long an instance takes to start." default:"2s"`
	MaxPlaneMiB float64       `name:"max-plane-mib" help:"Memory that a control plane may use." default:"400"`
}

// Deadline implements Scenario.
func (s *Overload) Deadline() time.Duration {
	return 10*time.Minute + 2*s.Calm + 3*s.Window + time.Duration(s.Instances)*2*time.Millisecond
}

// Run implements Scenario.
func (s *Overload) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--instances", s.Instances, "--regions", s.Regions, "--edges", s.Edges, "--factor", s.Factor,
		"--calm", s.Calm, "--window", s.Window, "--start", s.Start, "--max-plane-mib", s.MaxPlaneMiB); err != nil {
		return err
	}
	each := s.Instances / s.Regions
	deployments := max(1, each/replicasEach)
	replicas := each / deployments
	if replicas < 1 || s.Regions > 32 {
		return errors.New("--instances and --regions: at least one instance in each region, and at most 32 regions")
	}
	total := replicas * deployments * s.Regions
	env.recordSizes("instances", total, "regions", s.Regions, "edges", s.Edges*s.Regions, "factor", s.Factor,
		"calm", s.Calm.String(), "window", s.Window.String(), "start", s.Start.String(), "max_plane_mib", s.MaxPlaneMiB)
	edges := newEdges()
	ctx, w, err := env.startTestbed(ctx, testbed.Config{
		Regions: s.Regions, BufferPoolMiB: min(512+total/500, 4096),
		Runtime: func(n int, _ *rand.Rand) agent.SimulatedConfig {
			region := testbed.RegionName(n)
			return agent.SimulatedConfig{
				Start: func() time.Duration { return s.Start },
				Ready: func(deployment, _ string) { edges.replicaReady(place{region, deployment}) },
			}
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	if err := s.deployWorkload(ctx, w, edges, deployments, replicas); err != nil {
		return err
	}

	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	watch.Go(func() { edges.watchCounts(watching, w) })

	w.Progressf("%d replicas crash for %s while nothing else changes", s.Edges*s.Regions, s.Calm)
	calm, err := edges.crashReplicas(ctx, w, s.Calm)
	if err != nil {
		return err
	}
	w.Progressf("measuring for %s how many states can be stored", s.Calm)
	able, err := s.churnInstances(ctx, w, s.Calm, churnEvery)
	if err != nil {
		return err
	}
	if able.stored == 0 {
		return fmt.Errorf("nothing was stored in %s: --calm has to be longer", able.took)
	}
	capacity := able.stored / able.took.Seconds()
	every := time.Duration(float64(total) / (s.Factor * capacity) * float64(time.Second))
	w.Progressf("%.0f states a second are stored; offering %.0f for %s", capacity, s.Factor*capacity, s.Window)
	var over churned
	var under *measure.Durations
	_, parts, err := measureWindow(ctx, w, func() error {
		var wg sync.WaitGroup
		var crashed error
		wg.Go(func() { under, crashed = edges.crashReplicas(ctx, w, s.Window) })
		var churned error
		over, churned = s.churnInstances(ctx, w, s.Window, every)
		wg.Wait()
		return errors.Join(crashed, churned)
	})
	if err != nil {
		return err
	}
	w.Progressf("waiting for the last states")
	level, err := s.waitStored(ctx, w, over.ended)
	if err != nil {
		return err
	}

	env.Result.Parts = parts
	plane := parts[stack.ControlPlane(1)]
	offered := over.offered / over.took.Seconds()
	env.Result.Figure("capacity_per_s", capacity, "states of instances made durable before")
	env.Result.Figure("offered_per_s", offered, "states that were offered in the overload")
	env.Result.Figure("factor", offered/capacity, "times what can be stored")
	env.Result.Figure("durable_per_s", over.stored/over.took.Seconds(), "states made durable in the overload")
	env.Result.Figure("edges", float64(under.Len()), "losses and recoveries of replicas in the overload")
	env.Result.Figure("edge_p50_ms", measure.Millis(under.Quantile(0.5)), "ms until the database shows it")
	env.Result.Figure("edge_p99_ms", measure.Millis(under.Quantile(0.99)), "ms")
	env.Result.Figure("edge_max_ms", measure.Millis(under.Quantile(1)), "ms")
	env.Result.Figure("edge_p50_ms_calm", measure.Millis(calm.Quantile(0.5)), "ms, while nothing else changed")
	env.Result.Figure("edge_p99_ms_calm", measure.Millis(calm.Quantile(0.99)), "ms")
	env.Result.Figure("refused", over.refused, "reports refused, whose states came later")
	env.Result.Figure("delay_ms", 1000*over.delay, "ms that reports waited at most")
	env.Result.Figure("interval_ms", 1000*over.interval, "ms between reports, the longest requested interval")
	env.Result.Figure("pause_ms", 1000*over.pause, "ms between instances, the longest requested pause")
	env.Result.Figure("instances_per_report", over.instances, "the smallest requested number of instances")
	env.Result.Figure("plane_peak_mib", plane.PeakRSSMiB, "MiB, control plane at its highest")
	env.Result.Figure("plane_growth_mib", plane.RSSMiB-over.halfMiB, "MiB that it grew in the second half")
	env.Result.Figure("agents_growth_mib", parts[testbed.Simulator].RSSMiB-parts[testbed.Simulator].RSSBeginMiB, "MiB, all agents and their executors")
	env.Result.Figure("level_s", level.Seconds(), "s from the last change until the database is level")
	env.Result.Figure("lost", 0, "lost states; otherwise the run fails")
	if peak := plane.PeakRSSMiB; peak > s.MaxPlaneMiB {
		return fmt.Errorf("the control plane used %.0f MiB, and --max-plane-mib is %.0f", peak, s.MaxPlaneMiB)
	}
	return nil
}

// deployWorkload deploys the apps that change and the apps that crash.
func (s *Overload) deployWorkload(ctx context.Context, w *testbed.Testbed, edges *edges, deployments, replicas int) error {
	var apps []testbed.App
	for i := range deployments + s.Edges {
		app := testbed.App{Name: testbed.AppName(i), Regions: w.Regions, Replicas: replicas, Version: "v1"}
		if i >= deployments {
			app.Replicas = 1
		}
		apps = append(apps, app)
	}
	w.Progressf("deploying %d apps of %d instances and %d of one in %d regions", deployments, replicas, s.Edges, s.Regions)
	ids, err := w.DeployAll(ctx, apps, setupConcurrency)
	if err != nil {
		return err
	}
	if err := w.WaitReady(ctx, 1, len(apps)); err != nil {
		return err
	}
	edges.deployments = ids[deployments:]
	return allInstancesReady(ctx, w, 1, (replicas*deployments+s.Edges)*s.Regions)
}

// churned is the outcome of changing instances for a while.
type churned struct {
	ended            time.Time
	took             time.Duration
	offered, stored  float64
	refused, halfMiB float64
	// These are the highest delays and pauses that agents were given, and the lowest limit of instances per
	// report.
	delay, interval, pause, instances float64
}

// sampleLimits is the interval between readings of the limits that agents are given.
const sampleLimits = 250 * time.Millisecond

// churnInstances changes each instance once per interval, which is the parameter every, until the window
// ends.
func (s *Overload) churnInstances(ctx context.Context, w *testbed.Testbed, window, every time.Duration) (out churned, err error) {
	before, err := w.Metrics(ctx)
	if err != nil {
		return out, err
	}
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { out.sampleLimits(sampling, w) })
	begin := time.Now()
	for n := 1; time.Since(begin) < window && err == nil; n++ {
		for _, m := range w.Fleet.Members() {
			out.offered += float64(m.Runtime.Churn())
		}
		if out.halfMiB == 0 && time.Since(begin) > window/2 {
			out.halfMiB = planeMiB(w)
		}
		// The times are fixed, so that a busy machine does not offer less.
		err = waitFor(ctx, time.Until(begin.Add(time.Duration(n)*every)))
	}
	out.ended = time.Now()
	out.took = out.ended.Sub(begin)
	stop()
	wg.Wait()
	after, failed := w.Metrics(ctx)
	if err = errors.Join(err, failed); err != nil {
		return out, err
	}
	out.stored = after.Sum("windlass_report_instances_total", "") - before.Sum("windlass_report_instances_total", "")
	out.refused = after.Sum("windlass_report_refused_total", "") - before.Sum("windlass_report_refused_total", "")
	return out, nil
}

// sampleLimits records the limits that agents are given until ctx ends.
func (c *churned) sampleLimits(ctx context.Context, w *testbed.Testbed) {
	planes := float64(len(w.Stack.Planes()))
	for waitFor(ctx, sampleLimits) == nil {
		m, err := w.Metrics(ctx)
		if err != nil {
			continue // the next reading replaces this one
		}
		c.delay = max(c.delay, m.Sum("windlass_report_delay_seconds", "")/planes)
		c.interval = max(c.interval, m.Sum("windlass_report_interval_seconds", "")/planes)
		c.pause = max(c.pause, m.Sum("windlass_report_pause_seconds", "")/planes)
		if n := m.Sum("windlass_report_instances", "") / planes; c.instances == 0 || n < c.instances {
			c.instances = n
		}
	}
}

// planeMiB returns the memory of the first control plane.
func planeMiB(w *testbed.Testbed) float64 {
	usage, err := measure.ReadUsage(w.Stack.PIDs()[stack.ControlPlane(1)])
	if err != nil {
		return 0
	}
	return float64(usage.RSS) / (1 << 20)
}

// state is the state of a living instance.
type state struct {
	restarts int
	status   windlassv1.InstanceStatus
}

// waitStored waits until the database and the executors have the same state of every instance. It returns the
// time from since until then.
func (s *Overload) waitStored(ctx context.Context, w *testbed.Testbed, since time.Time) (time.Duration, error) {
	want := map[string]state{}
	for _, m := range w.Fleet.Members() {
		seen, err := m.Runtime.Observe(ctx)
		if err != nil {
			return 0, fmt.Errorf("look at region %s: %w", m.Region, err)
		}
		for _, d := range seen.Deployments {
			for _, i := range d.Instances {
				want[i.ID] = state{i.Restarts, i.Status}
			}
		}
	}
	bounded, cancel := context.WithTimeoutCause(ctx, grace, fmt.Errorf("states are lost: the database was not level %s after the last change", grace))
	defer cancel()
	wrong, example := 0, ""
	err := testbed.Until(bounded, 20*time.Millisecond, func() (_ bool, err error) {
		asked := time.Now()
		if wrong, example, err = findDifferences(bounded, w, want); err != nil || wrong == 0 {
			return err == nil, err
		}
		return false, waitFor(bounded, 2*time.Since(asked))
	}, func() string {
		return fmt.Sprintf("%d of %d stored instances differ from the running ones: %s", wrong, len(want), example)
	})
	return time.Since(since), err
}

// findDifferences compares the living instances with the rows of the database.
func findDifferences(ctx context.Context, w *testbed.Testbed, want map[string]state) (wrong int, example string, err error) {
	rows, err := w.DB.QueryContext(ctx, "SELECT id, restarts, status FROM instances WHERE terminated_at = 0")
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	found := 0
	for rows.Next() {
		var id string
		var is state
		if err := rows.Scan(&id, &is.restarts, &is.status); err != nil {
			return 0, "", err
		}
		was, ok := want[id]
		if ok {
			found++
		}
		if !ok || was != is {
			wrong++
			example = fmt.Sprintf("%s is %+v and stored as %+v", id, was, is)
		}
	}
	if missing := len(want) - found; missing > 0 {
		wrong += missing
		example = fmt.Sprintf("%d are missing", missing)
	}
	return wrong, example, rows.Err()
}
