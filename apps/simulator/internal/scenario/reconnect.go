package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Reconnect cuts the connections of a whole fleet at once. It measures the time until every agent has a
// stream again, and the cost.
//
// What limits it: the agents, whose first attempts come at random times. A session costs a transaction on its
// region's row. It does not read the region's items before its first bookmark. After an outage (--dead), the
// last agent is back after the longest delay between attempts. A snapshot fails the run, because an agent
// that has its inbox needs none.
type Reconnect struct {
	Agents int           `help:"Agents, each with a region." default:"1000"`
	Apps   int           `help:"Apps, each in one region, so that there is something to send." default:"100"`
	Cuts   int           `help:"How often the fleet is cut; the worst counts." default:"3"`
	Dead   time.Duration `help:"How long the control plane is down each time; 0: only connections are cut." default:"0s"`
}

// Deadline implements Scenario.
func (s *Reconnect) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(s.Cuts)*(time.Minute+s.Dead)
}

// Run implements Scenario.
func (s *Reconnect) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--agents", s.Agents, "--apps", s.Apps, "--cuts", s.Cuts); err != nil {
		return err
	}
	env.recordSizes("agents", s.Agents, "apps", s.Apps, "cuts", s.Cuts)
	streams := &streams{}
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Agents, Connected: streams.recordConnected})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	if _, err := deployApps(ctx, w, s.Apps, 1); err != nil {
		return err
	}
	plane := stack.ControlPlane(1)
	worst, sent := 0.0, 0.0
	for range s.Cuts {
		// After ten seconds a stream counts as settled, and its agent's next attempt as the first.
		if err := waitFor(ctx, 11*time.Second); err != nil {
			return err
		}
		before, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		w.Progressf("cutting %d agents", s.Agents)
		streams.reset()
		begin, cut := time.Now(), w.Fleet.Members()
		if s.Dead > 0 {
			if begin, err = causeOutage(ctx, w, plane, s.Dead); err != nil {
				return err
			}
			before, cut = nil, nil // the metrics begin at 0 again, and all connections are cut
		}
		_, parts, err := measureWindow(ctx, w, func() error {
			for _, m := range cut {
				m.Cut()
			}
			return testbed.Until(ctx, 5*time.Millisecond, func() (bool, error) { return streams.count() >= s.Agents, nil },
				func() string { return fmt.Sprintf("%d of %d agents are back", streams.count(), s.Agents) })
		})
		if err != nil {
			return err
		}
		after, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		times, resumed := streams.timesSince(begin)
		snapshots := after.Sum("windlass_feed_snapshots_total", "") - before.Sum("windlass_feed_snapshots_total", "")
		sent += snapshots
		seconds := times.Quantile(1).Seconds()
		env.Result.Rounds = append(env.Result.Rounds, map[string]any{
			"seconds": seconds, "p50_ms": measure.Millis(times.Quantile(0.5)), "snapshots": snapshots, "resumed": float64(resumed),
			"peak_cpu_percent": parts[plane].PeakCPUPercent, "cpu_s": parts[plane].CPUSeconds,
		})
		if seconds >= worst {
			worst = seconds
			env.Result.Parts = parts
			env.Result.Figure("seconds", seconds, "s until the last agent is back")
			env.Result.Figure("resumed", float64(resumed), "sessions that resumed")
			env.Result.Figure("peak_cpu_percent", parts[plane].PeakCPUPercent, "of a core, control plane")
			env.Result.Figure("cpu_s", parts[plane].CPUSeconds, "s, control plane")
		}
	}
	env.Result.Figure("snapshots", sent, "snapshots that had to be sent, all cuts together")
	if sent > 0 {
		return fmt.Errorf("%.0f snapshots were sent to agents that had lost nothing but a connection", sent)
	}
	return nil
}

// causeOutage kills the part and starts it again after a while. then is when it started again.
func causeOutage(ctx context.Context, w *testbed.Testbed, part string, lasts time.Duration) (then time.Time, err error) {
	if err := errors.Join(w.Stack.Kill(part), waitFor(ctx, lasts)); err != nil {
		return time.Time{}, err
	}
	then = time.Now()
	return then, w.Stack.Launch(ctx, part)
}

// streams counts the streams that begin.
type streams struct {
	mu      sync.Mutex
	at      map[string]time.Time // by region: the first since the reset
	resumed int
}

func (s *streams) recordConnected(region string, resumed bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.at[region]; ok || s.at == nil {
		return
	}
	s.at[region] = now
	if resumed {
		s.resumed++
	}
}

func (s *streams) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.resumed = map[string]time.Time{}, 0
}

func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at)
}

func (s *streams) timesSince(begin time.Time) (*measure.Durations, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var d measure.Durations
	for _, at := range s.at {
		d.Add(at.Sub(begin))
	}
	return &d, s.resumed
}
