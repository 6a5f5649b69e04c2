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

// Idle measures what agents cost while nothing happens: statements of the database,
// processor time and memory of the control plane, by the number of agents.
//
// What limits it: waking up. A process that rests pays for each time that it does, some 0.25
// ms here, and little for what it does then. So what 1,000 agents need is done for all that
// are due at once: pings twice a second, 200 of them, and bookmarks twice a second, 75, in
// answer to which agents give their sign of life: 2.0 to 2.5 % of a core in all as the kernel
// counts it, of which pings are 0.7 %. It was some 8 % while 60 signs of life a
// second came one by one, and pings alone were 8 % while each connection had timers of its
// own. Answers come together only as far as ways are equally long, as here.
//
// For the most of their first minute agents tell what they run, and 60 statements a second
// are what that takes; after it 12 are, for 100 agents as for 1,000: the sum of their heads,
// five times a second, which is hardly seen here and 1 % of MariaDB, and two for each batch
// of signs of life.
type Idle struct {
	Agents []int         `help:"Agents, one measurement each, ascending." default:"0,100,1000"`
	Window time.Duration `help:"How long each is measured." default:"30s"`
	Settle time.Duration `help:"Rest before each measurement: agents that have come have much to tell for most of a minute." default:"60s"`
}

// Deadline implements Scenario.
func (s *Idle) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(len(s.Agents))*(s.Window+s.Settle)
}

// Run implements Scenario.
func (s *Idle) Run(ctx context.Context, env Env) (err error) {
	if err := positive("--agents", len(s.Agents), "--window", s.Window); err != nil {
		return err
	}
	if !slices.IsSorted(s.Agents) || s.Agents[0] < 0 {
		return errors.New("--agents: ascending numbers from 0 on")
	}
	most := slices.Max(s.Agents)
	env.sizes("agents", s.Agents, "window", s.Window.String())
	// An agent is at rest once it has its first snapshot: the control plane limits how many it
	// sends a second.
	var synced atomic.Int64
	ctx, w, err := env.start(ctx, testbed.Config{Regions: max(most, 1), Idle: true, Snapshot: func(string, int, time.Duration) { synced.Add(1) }})
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
		if err := pause(ctx, s.Settle); err != nil {
			return err
		}
		var before, after int64
		metrics, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		took, parts, err := measured(ctx, w, func() (err error) {
			if before, err = w.DB.Questions(ctx); err != nil {
				return err
			}
			if err = pause(ctx, s.Window); err != nil {
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
		_, byName := statements(metrics, metricsAfter, 1)
		// One of them is our own second question.
		qps := float64(after-before-1) / took.Seconds()
		round := map[string]any{
			"agents": agents, "qps": qps, "cpu_percent": parts[plane].CPUPercent, "rss_mib": parts[plane].RSSMiB,
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
			env.Result.Figure("qps_per_agent", (qps-base["qps"].(float64))/float64(more), "more for each agent")
			env.Result.Figure("rss_per_agent_kib", 1024*(parts[plane].RSSMiB-base["rss_mib"].(float64))/float64(more), "KiB of the control plane")
			env.Result.Figure("simulator_rss_per_agent_kib", 1024*(parts[testbed.Simulator].RSSMiB-base["simulator_rss_mib"].(float64))/float64(more), "KiB of an agent")
		}
	}
	return nil
}
