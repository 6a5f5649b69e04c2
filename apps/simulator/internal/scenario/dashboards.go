package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Dashboards measures what people who look at a fleet cost. Each has the page of an app open, which has a stream of the
// app and one of the fleet. The scenario measures the time from a committed change to its agent in turn without and
// with these people, in the same run, while apps are scaled all the time. So each change is shown to everybody.
//
// What limits it: the control plane reads the fleet and each watched app once for all viewers, and encodes a message
// for each of them. The viewers are a process of lower priority on the same processors.
type Dashboards struct {
	Regions  int     `help:"Regions, each with an agent." default:"10"`
	Apps     int     `help:"Apps, each in all regions." default:"500"`
	Replicas int     `help:"Replicas of an app in each region, in the beginning." default:"20"`
	Viewers  int     `help:"People with the page of an app open." default:"200"`
	Keys     int     `help:"Keys that they use, in turn." default:"20"`
	Rounds   int     `help:"Rounds, each of a window without and one with viewers." default:"5"`
	Changes  int     `help:"Calls that scale an app in a window. Each changes all its regions." default:"100"`
	Rate     float64 `help:"Calls a second, at random times." default:"5"`
}

// Deadline implements Scenario.
func (s *Dashboards) Deadline() time.Duration {
	return 20*time.Minute + time.Duration(4*float64(2*s.Rounds*s.Changes)/s.Rate*float64(time.Second))
}

// viewersWindow has p99 of the time from a commit to the agent, and what the control plane used.
type viewersWindow struct {
	p99      time.Duration
	cores    float64 // average, in processors
	rssMiB   float64 // at the end
	arrivals int
}

// Run implements Scenario.
func (s *Dashboards) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--regions", s.Regions, "--apps", s.Apps, "--replicas", s.Replicas, "--viewers", s.Viewers, "--keys", s.Keys,
		"--rounds", s.Rounds, "--changes", s.Changes, "--rate", s.Rate); err != nil {
		return err
	}
	if s.Regions > 32 {
		return errors.New("--regions: a deployment runs in at most 32")
	}
	env.recordSizes("regions", s.Regions, "apps", s.Apps, "replicas", s.Replicas, "viewers", s.Viewers, "rounds", s.Rounds, "changes", s.Changes, "rate", s.Rate)
	seen := newDeliveries()
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Applied: seen.recordApplied})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	apps, err := s.deploy(ctx, w)
	if err != nil {
		return err
	}
	paths := make([]string, len(apps))
	for i, a := range apps {
		paths[i] = testbed.Path(a.Name)
	}
	v, err := startableViewers(ctx, env.Self, w.Stack.APIKey(), s.Keys, viewersConfig{URL: w.URL(), Streams: 2 * s.Viewers, Again: time.Second, Apps: paths, Fleet: true})
	if err != nil {
		return err
	}
	defer v.stop()
	flips := newScaler(w, s.Replicas)
	if _, _, err := s.measureArrivals(ctx, w, seen, apps, flips); err != nil { // the first calls of an installation are slow
		return err
	}
	var without, with []viewersWindow
	var ratios []float64
	for round := 1; round <= s.Rounds; round++ {
		quiet, _, err := s.measureArrivals(ctx, w, seen, apps, flips)
		if err != nil {
			return err
		}
		if err := v.openStreams(ctx); err != nil {
			return err
		}
		watched, parts, err := s.measureArrivals(ctx, w, seen, apps, flips)
		if err != nil {
			return err
		}
		open := v.currentState().Open
		v.stop()
		if open < int64(2*s.Viewers) {
			return fmt.Errorf("%d of %d streams were open at the end of the window", open, 2*s.Viewers)
		}
		env.Result.Parts = parts
		without, with = append(without, quiet), append(with, watched)
		ratios = append(ratios, watched.p99.Seconds()/quiet.p99.Seconds())
		w.Progressf("round %d: p99 %s without viewers, %s with %d; the control plane used %.2f and %.2f processors, and has %.0f MiB", round,
			quiet.p99.Round(time.Microsecond), watched.p99.Round(time.Microsecond), s.Viewers, quiet.cores, watched.cores, watched.rssMiB)
		env.Result.Rounds = append(env.Result.Rounds, map[string]any{
			"round": round, "p99_ms_without": measure.Millis(quiet.p99), "p99_ms": measure.Millis(watched.p99), "cores_without": quiet.cores, "cores": watched.cores,
			"rss_mib_without": quiet.rssMiB, "rss_mib": watched.rssMiB, "changes": watched.arrivals,
		})
	}
	p99 := func(of viewersWindow) float64 { return measure.Millis(of.p99) }
	cores := func(of viewersWindow) float64 { return of.cores }
	rss := func(of viewersWindow) float64 { return of.rssMiB }
	env.Result.Figure("p99_ms_without", medianOf(without, p99), "ms from commit to agent, median of the rounds")
	env.Result.Figure("p99_ms", medianOf(with, p99), "ms with viewers")
	slices.Sort(ratios)
	env.Result.Figure("ratio", ratios[len(ratios)/2], "of p99 with viewers to p99 without them, median of the rounds")
	env.Result.Figure("millicores_per_viewer", 1000*(medianOf(with, cores)-medianOf(without, cores))/float64(s.Viewers), "thousandths of a processor of the control plane")
	env.Result.Figure("kib_per_viewer", 1024*(medianOf(with, rss)-medianOf(without, rss))/float64(s.Viewers), "KiB of memory of the control plane")
	env.Result.Figure("plane_growth_mib", with[len(with)-1].rssMiB-with[0].rssMiB, "MiB that the control plane grew from the first round to the last")
	return nil
}

// medianOf returns the median of a figure of the windows.
func medianOf(all []viewersWindow, figure func(viewersWindow) float64) float64 {
	values := make([]float64, len(all))
	for i, w := range all {
		values[i] = figure(w)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// deploy deploys the apps and waits until they are ready.
func (s *Dashboards) deploy(ctx context.Context, w *testbed.Testbed) ([]testbed.App, error) {
	apps := make([]testbed.App, s.Apps)
	for i := range apps {
		apps[i] = testbed.App{Name: testbed.AppName(i), Regions: w.Regions, Replicas: s.Replicas, Version: "v1", Rollout: testbed.AtOnce()}
	}
	w.Progressf("deploying %d apps with %d instances", s.Apps, s.Apps*s.Regions*s.Replicas)
	if _, err := w.DeployAll(ctx, apps, setupConcurrency); err != nil {
		return nil, err
	}
	if err := w.WaitReady(ctx, 1, len(apps)); err != nil {
		return nil, err
	}
	return apps, allInstancesReady(ctx, w, 1, s.Apps*s.Regions*s.Replicas)
}

// measureArrivals scales apps, one after the other at random times, and measures when the changes reach their agents.
func (s *Dashboards) measureArrivals(ctx context.Context, w *testbed.Testbed, seen *deliveries, apps []testbed.App, flips *scaler) (out viewersWindow, parts map[string]measure.Part, err error) {
	feed, err := watchFeed(ctx, w, seen)
	if err != nil {
		return out, nil, err
	}
	var arrivals []arrival
	took, parts, err := measureWindow(ctx, w, func() error {
		if err := makeChangesWith(ctx, w, flips, apps, s.Changes, s.Rate); err != nil {
			return err
		}
		arrivals, err = feed.waitArrivals(ctx)
		return err
	})
	if err != nil {
		return out, nil, err
	}
	plane := parts[stack.ControlPlane(1)]
	return viewersWindow{p99: latenciesOf(arrivals).Quantile(0.99), cores: plane.CPUSeconds / took.Seconds(), rssMiB: plane.RSSMiB, arrivals: len(arrivals)}, parts, nil
}
