package scenario

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Regions does the same work in a small fleet and in a large one, and compares the cost of a change. The cost
// may grow with the number of regions that a change touches, but not with the number of all regions. The cost
// of the idle fleet is measured separately and subtracted.
//
// What limits it: the processor, for the call and its workflow, and for each region that it touches. The idle
// cost is measured for five seconds before the changes.
type Regions struct {
	Exist   []int   `help:"Regions with agents, one fleet each." default:"10,1000"`
	Touch   []int   `help:"Regions that a change touches, one measurement each." default:"1,10"`
	Apps    int     `help:"Apps to change." default:"20"`
	Changes int     `help:"Calls of each measurement." default:"400"`
	Rate    float64 `help:"Calls per second, at random times." default:"20"`
}

// Deadline implements Scenario.
func (s *Regions) Deadline() time.Duration {
	one := time.Duration(4 * float64(s.Changes*len(s.Touch)) / s.Rate * float64(time.Second))
	return time.Duration(len(s.Exist)) * (5*time.Minute + one)
}

// Run implements Scenario.
func (s *Regions) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--apps", s.Apps, "--changes", s.Changes, "--rate", s.Rate, "--exist", len(s.Exist), "--touch", len(s.Touch)); err != nil {
		return err
	}
	if slices.Max(s.Touch) > min(slices.Min(s.Exist), 32) || slices.Min(s.Touch) < 1 {
		return errors.New("--touch: from 1 to the smallest of --exist, and 32 at most")
	}
	env.recordSizes("exist", s.Exist, "touch", s.Touch, "apps", s.Apps, "changes", s.Changes, "rate", s.Rate)
	// cost is the processor time of a call in ms, by the regions that exist and that it touches.
	cost := map[[2]int]float64{}
	for _, exist := range s.Exist {
		if err := s.measureFleet(ctx, env, exist, cost); err != nil {
			return err
		}
	}
	few, many := s.Exist[0], s.Exist[len(s.Exist)-1]
	one, more := s.Touch[0], s.Touch[len(s.Touch)-1]
	env.Result.Figure("ratio", cost[[2]int{many, more}]/cost[[2]int{few, more}], "cost of a change in the largest fleet to the smallest")
	env.Result.Figure("touched_ratio", cost[[2]int{many, more}]/cost[[2]int{many, one}], "cost of a change that touches the most regions to the fewest")
	env.Result.Figure("cpu_ms_per_change", cost[[2]int{many, more}], "ms of all parts except the agents, largest fleet, most regions")
	return nil
}

func (s *Regions) measureFleet(ctx context.Context, env Env, exist int, cost map[[2]int]float64) (err error) {
	seen := newDeliveries()
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: exist, Applied: seen.recordApplied})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	plane := []string{stack.MariaDB, stack.Restate}
	for _, p := range w.Stack.Planes() {
		plane = append(plane, p.Name)
	}
	for i, touch := range s.Touch {
		apps := make([]testbed.App, s.Apps)
		for k := range apps {
			apps[k] = testbed.App{Name: testbed.AppName(i*s.Apps + k), Replicas: 1, Version: "v1"}
			for r := range touch {
				apps[k].Regions = append(apps[k].Regions, w.Regions[(k+r)%exist])
			}
		}
		if _, err := w.DeployAll(ctx, apps, setupConcurrency); err != nil {
			return err
		}
		if err := w.WaitReady(ctx, 1, (i+1)*s.Apps); err != nil {
			return err
		}
		if err := waitFor(ctx, 2*time.Second); err != nil {
			return err
		}
		rest := 5 * time.Second
		_, idle, err := measureWindow(ctx, w, func() error { return waitFor(ctx, rest) })
		if err != nil {
			return err
		}
		feed, err := watchFeed(ctx, w, seen)
		if err != nil {
			return err
		}
		w.Progressf("%d regions: %d changes in %d region(s) each", exist, s.Changes, touch)
		var arrivals []arrival
		took, parts, err := measureWindow(ctx, w, func() error {
			if err := makeChanges(ctx, w, apps, s.Changes, s.Rate); err != nil {
				return err
			}
			arrivals, err = feed.waitArrivals(ctx)
			return err
		})
		if err != nil {
			return err
		}
		gross := cpuSeconds(parts, plane...)
		net := gross - cpuSeconds(idle, plane...)*took.Seconds()/rest.Seconds()
		perChange := 1000 * max(net, 0) / float64(s.Changes)
		cost[[2]int{exist, touch}] = perChange
		env.Result.Parts = parts
		env.Result.Rounds = append(env.Result.Rounds, map[string]any{
			"exist": exist, "touch": touch, "cpu_ms_per_change": perChange, "gross_cpu_ms_per_change": 1000 * gross / float64(s.Changes),
			"delivered": len(arrivals), "p99_ms": measure.Millis(latenciesOf(arrivals).Quantile(0.99)),
		})
	}
	return nil
}
