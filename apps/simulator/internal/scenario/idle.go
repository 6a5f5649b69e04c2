package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Idle measures what agents cost while nothing happens: statements of the database, and processor time and
// memory of the control plane, by the number of agents.
//
// What limits it: wake-ups. An idle process pays mostly for waking up, and little for the work that it then
// does. So the control plane does the work for all agents that are due in one wake-up: pings twice a second,
// and bookmarks twice a second, which agents answer with their sign of life. Answers arrive together only if
// all agents are equally far away, as here.
//
// In their first minute agents report what they run, which needs more statements. After that, the number of
// statements does not depend on the number of agents. Five times a second, one statement reads the sum of the
// regions' heads. Each batch of signs of life needs two statements.
type Idle struct {
	Agents []int         `help:"Agents, one measurement each, ascending." default:"0,100,1000"`
	Window time.Duration `help:"How long each is measured." default:"30s"`
	Settle time.Duration `help:"Pause before each measurement, because agents report a lot in the first minute after they connect." default:"60s"`
}

// Deadline implements Scenario.
func (s *Idle) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(len(s.Agents))*(s.Window+s.Settle)
}

// Run implements Scenario.
func (s *Idle) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--agents", len(s.Agents), "--window", s.Window); err != nil {
		return err
	}
	if !slices.IsSorted(s.Agents) || s.Agents[0] < 0 {
		return errors.New("--agents: ascending numbers from 0 on")
	}
	most := slices.Max(s.Agents)
	env.recordSizes("agents", s.Agents, "window", s.Window.String())
	// An agent is at rest once it has its first snapshot. The control plane limits how many snapshots it
	// sends a second.
	var synced atomic.Int64
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: max(most, 1), Idle: true, Snapshot: func(string, int, time.Duration) { synced.Add(1) }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	plane := stack.ControlPlane(1)
	var base map[string]any
	for _, agents := range s.Agents {
		w.Progressf("%d agents", agents)
		if err := w.Fleet.StartFirst(ctx, agents); err != nil {
			return err
		}
		if err := w.WaitConnected(ctx, agents); err != nil {
			return err
		}
		if err := testbed.Until(ctx, 10*time.Millisecond, func() (bool, error) { return synced.Load() >= int64(agents), nil },
			func() string { return fmt.Sprintf("%d of %d agents have a snapshot", synced.Load(), agents) }); err != nil {
			return err
		}
		if err := waitFor(ctx, s.Settle); err != nil {
			return err
		}
		var before, after int64
		metrics, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		took, parts, err := measureWindow(ctx, w, func() (err error) {
			if before, err = w.DB.Questions(ctx); err != nil {
				return err
			}
			if err = waitFor(ctx, s.Window); err != nil {
				return err
			}
			after, err = w.DB.Questions(ctx)
			return err
		})
		if err != nil {
			return err
		}
		if connected := w.Fleet.Connected(); connected != agents {
			return fmt.Errorf("%d of %d agents are connected at the end", connected, agents)
		}
		metricsAfter, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		_, byName := statementsOf(metrics, metricsAfter, 1)
		// One of these statements is the second query of the counter itself.
		qps := float64(after-before-1) / took.Seconds()
		round := map[string]any{
			"agents": agents, "snapshots": synced.Load(), "qps": qps, "cpu_percent": parts[plane].CPUPercent, "rss_mib": parts[plane].RSSMiB,
			"mariadb_cpu_percent": parts[stack.MariaDB].CPUPercent, "restate_cpu_percent": parts[stack.Restate].CPUPercent,
			"simulator_rss_mib": parts[testbed.Simulator].RSSMiB, "statements": byName,
		}
		if base == nil {
			base = round
		}
		env.Result.Rounds = append(env.Result.Rounds, round)
		env.Result.Parts = parts
		env.Result.Figure("qps", qps, "statements a second, with the most agents")
		env.Result.Figure("cpu_percent", parts[plane].CPUPercent, "of a core, control plane")
		if more := agents - base["agents"].(int); more > 0 {
			env.Result.Figure("qps_per_agent", (qps-base["qps"].(float64))/float64(more), "statements a second more for each agent")
			env.Result.Figure("rss_per_agent_kib", 1024*(parts[plane].RSSMiB-base["rss_mib"].(float64))/float64(more), "KiB of the control plane")
			env.Result.Figure("simulator_rss_per_agent_kib", 1024*(parts[testbed.Simulator].RSSMiB-base["simulator_rss_mib"].(float64))/float64(more), "KiB of an agent")
		}
	}
	return nil
}
