package scenario

import (
	"context"
	"errors"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Latency measures how long a committed change takes to reach its agent, while a large fleet is connected and
// little happens.
//
// The time begins when the change gets its revision, inside the transaction, so that it includes the commit.
// It ends when the agent passes the assignment to its runtime. Both times are read from the same clock.
//
// What limits it: round trips to the database. floor_p50_ms is the time of the commit and of the two
// reads that follow it, measured in the same run.
type Latency struct {
	Regions int     `help:"Regions, each with an agent." default:"1000"`
	Apps    int     `help:"Apps, each in one region, that are changed." default:"200"`
	Changes int     `help:"Changes to make." default:"1000"`
	Rate    float64 `help:"Changes per second, at random times." default:"20"`
}

// floorTrips is enough for a 99th percentile.
const floorTrips = 200

// Deadline implements Scenario.
func (s *Latency) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(4*float64(s.Changes)/s.Rate*float64(time.Second))
}

// Run implements Scenario.
func (s *Latency) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--regions", s.Regions, "--apps", s.Apps, "--changes", s.Changes, "--rate", s.Rate); err != nil {
		return err
	}
	env.recordSizes("regions", s.Regions, "apps", s.Apps, "changes", s.Changes, "rate", s.Rate)
	seen := newDeliveries()
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Applied: seen.recordApplied})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()

	apps, err := deployApps(ctx, w, s.Apps, 1)
	if err != nil {
		return err
	}
	feed, err := watchFeed(ctx, w, seen)
	if err != nil {
		return err
	}
	w.Progressf("making %d changes, %.0f a second", s.Changes, s.Rate)
	var arrivals []arrival
	_, env.Result.Parts, err = measureWindow(ctx, w, func() error {
		if err := makeChanges(ctx, w, apps, s.Changes, s.Rate); err != nil {
			return err
		}
		arrivals, err = feed.waitArrivals(ctx)
		return err
	})
	if err != nil {
		return err
	}
	late := latenciesOf(arrivals)
	committed, _ := spanOf(arrivals)
	env.Result.Figure("p50_ms", measure.Millis(late.Quantile(0.5)), "ms from commit to agent")
	env.Result.Figure("p99_ms", measure.Millis(late.Quantile(0.99)), "ms")
	env.Result.Figure("max_ms", measure.Millis(late.Quantile(1)), "ms")
	env.Result.Figure("delivered", float64(late.Len()), "changes, none missing")
	env.Result.Figure("changes_per_s", float64(late.Len())/committed.Seconds(), "committed")
	w.Progressf("measuring the same in the database alone")
	regions, err := w.DB.Regions(ctx)
	if err != nil {
		return err
	}
	trips, err := w.DB.Trips(ctx, floorTrips, time.Duration(float64(time.Second)/s.Rate), regions[w.Regions[0]])
	if err != nil {
		return err
	}
	env.Result.Figure("floor_p50_ms", measure.Millis(trips.Quantile(0.5)), "ms to commit and read it again, by the database alone")
	env.Result.Figure("floor_p99_ms", measure.Millis(trips.Quantile(0.99)), "ms")
	return nil
}
