package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Slow measures how an agent that stops reading slows the other agents. It measures the time from the commit
// of a change until it arrives at its agent, in turn without and with the stall. The control plane sends the
// stalled agent far more than the buffers between them hold, so that it must wait for the agent. At the end,
// the stalled agent must have received everything.
//
// What limits it: streams share the processor, the database and the reads of items. The large specs for the
// stalled region use these, too. No stream waits for another's connection.
//
// A p99 of 300 changes is the third highest, and a pause of the machine can halve or double it. So the ratio
// is the median over many pairs of phases, with and without a stalled agent.
type Slow struct {
	Agents  int     `help:"Agents, one of which stalls." default:"100"`
	Changes int     `help:"Changes at the other agents, in each phase." default:"300"`
	Rate    float64 `help:"Changes per second at the other agents, at random times." default:"30"`
	Rounds  int     `help:"Pairs of phases, without and with the stall." default:"9"`
}

// Deadline implements Scenario.
func (s *Slow) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(float64(8*s.Rounds*s.Changes)/s.Rate*float64(time.Second))
}

// heavyBytes is the size of a variable of the stalled region's app, near the limit of a spec. A hundred such
// changes are more than the windows and buffers of a connection hold.
const heavyBytes = 120 << 10

// Run implements Scenario.
func (s *Slow) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--agents", s.Agents-1, "--changes", s.Changes, "--rate", s.Rate, "--rounds", s.Rounds); err != nil {
		return err
	}
	env.recordSizes("agents", s.Agents, "changes", s.Changes, "rate", s.Rate, "rounds", s.Rounds)
	seen := newDeliveries()
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Agents, Applied: seen.recordApplied})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	apps, err := deployApps(ctx, w, s.Agents, 1)
	if err != nil {
		return err
	}
	stalled := w.Fleet.Members()[0]
	others := apps[1:]
	heavy := testbed.App{Name: "heavy", Regions: []string{stalled.Region}, Replicas: 1, Version: "v1"}
	spec := heavy.Spec()
	spec.Env["LARGE"] = strings.Repeat("x", heavyBytes)
	if _, err := testbed.Persist(ctx, w.API.Apps.Deploy, &windlassv1.DeployRequest{Mutation: testbed.Mutation(), App: testbed.Path(heavy.Name), Spec: spec}); err != nil {
		return fmt.Errorf("deploy %s: %w", heavy.Name, err)
	}
	if err := w.WaitReady(ctx, 1, len(apps)+1); err != nil {
		return err
	}

	var without, with measure.Durations
	var ratios []float64
	for range s.Rounds {
		var pair [2]measure.Durations
		for _, stall := range []bool{false, true} {
			w.Progressf("making %d changes, one agent stalled: %v", s.Changes, stall)
			feed, err := watchFeed(ctx, w, seen)
			if err != nil {
				return err
			}
			stalled.Stall(stall)
			_, parts, err := measureWindow(ctx, w, func() error { return s.changeApps(ctx, w, others, heavy) })
			stalled.Stall(false)
			if err != nil {
				return err
			}
			arrivals, err := feed.waitArrivals(ctx)
			if err != nil {
				return err
			}
			for _, a := range arrivals {
				if a.region == stalled.Region {
					continue
				}
				if stall {
					with.Add(a.latencyOf())
					pair[1].Add(a.latencyOf())
				} else {
					without.Add(a.latencyOf())
					pair[0].Add(a.latencyOf())
				}
			}
			env.Result.Parts = parts
		}
		p99, stalling := measure.Millis(pair[0].Quantile(0.99)), measure.Millis(pair[1].Quantile(0.99))
		ratios = append(ratios, stalling/p99)
		env.Result.Rounds = append(env.Result.Rounds, map[string]any{"p99_ms_without": p99, "p99_ms": stalling, "ratio": stalling / p99})
	}
	slices.Sort(ratios)
	env.Result.Figure("ratio", ratios[len(ratios)/2], "p99 with a stalled agent to p99 without, the median of the pairs")
	env.Result.Figure("p99_ms", measure.Millis(with.Quantile(0.99)), "ms, other agents during a stall")
	env.Result.Figure("p99_ms_without", measure.Millis(without.Quantile(0.99)), "ms, none stalled")
	env.Result.Figure("p50_ms", measure.Millis(with.Quantile(0.5)), "ms")
	env.Result.Figure("p50_ms_without", measure.Millis(without.Quantile(0.5)), "ms")
	return nil
}

// changeApps changes the apps of the other regions. Meanwhile it changes the heavy app all the time.
func (s *Slow) changeApps(ctx context.Context, w *testbed.Testbed, others []testbed.App, heavy testbed.App) error {
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	flood := make(chan error, 1)
	go func() {
		flips := newScaler(w, 1)
		for flooding.Err() == nil {
			if err := flips.flipReplicas(flooding, heavy); err != nil && flooding.Err() == nil {
				flood <- err
				return
			}
			_ = waitFor(flooding, 20*time.Millisecond) // the loop checks the end of flooding
		}
		flood <- nil
	}()
	err := makeChanges(ctx, w, others, s.Changes, s.Rate)
	stop()
	return errors.Join(err, <-flood)
}
