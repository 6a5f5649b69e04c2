package scenario

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// Burst makes many changes as fast as possible, and measures how many arrive per second between the first
// commit and the last arrival.
//
// It does this in two ways. Calls of the API are each authorised, audited and safe to repeat. Changes that are
// committed with SQL alone look like changes of another control plane. They show the limit of the feed and its
// streams.
//
// What limits it: the processor, which MariaDB, the control plane and the agents share. shared_events_per_s
// is the upper bound, measured in the same run: deployments of two steps each that share all work that can be
// shared. In them, nothing is authorised, checked, planned or run. Calls share reads and writes, so that two
// statements are left for each call. Reports about an app without a rollout are handled after the burst, by
// one step for all of them.
//
// The figures are the limit of a burst. Under constant load, steps run at the same time as calls, and an
// agent looks through all its deployments.
type Burst struct {
	Changes     int `help:"Changes to make." default:"2000"`
	Regions     int `help:"Regions; a call makes a change in each." default:"10"`
	Concurrency int `help:"Calls in flight." default:"64"`
	Rounds      int `help:"Bursts of each kind, a second apart. The rates are the rates of the median burst." default:"5"`
}

// Deadline implements Scenario.
func (s *Burst) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(s.Changes*s.Rounds)*50*time.Millisecond
}

// Run implements Scenario.
func (s *Burst) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--changes", s.Changes, "--regions", s.Regions, "--concurrency", s.Concurrency, "--rounds", s.Rounds); err != nil {
		return err
	}
	if s.Regions > 32 {
		return errors.New("--regions: an app has at most 32")
	}
	count := max(s.Changes/s.Regions, 1)
	env.recordSizes("changes", count*s.Regions, "regions", s.Regions, "apps", count, "concurrency", s.Concurrency, "rounds", s.Rounds)
	seen := newDeliveries()
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Applied: seen.recordApplied})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	apps, err := deployApps(ctx, w, count, s.Regions)
	if err != nil {
		return err
	}

	flips := newScaler(w, 1)
	byAPI, late, err := s.makeBursts(ctx, env, w, seen, "call", count, func(_, i int) error { return flips.flipReplicas(ctx, apps[i]) })
	if err != nil {
		return err
	}
	env.Result.Figure("events_per_s", byAPI.arrived, "changes delivered, made by the API")
	env.Result.Figure("committed_per_s", byAPI.committed, "changes committed by the API")
	env.Result.Figure("p50_ms", measure.Millis(late.Quantile(0.5)), "ms from commit to agent")
	env.Result.Figure("p99_ms", measure.Millis(late.Quantile(0.99)), "ms")

	writer := bare.NewFeedWriter(w.DB)
	deployments, err := w.DB.Strings(ctx, "SELECT id FROM deployments ORDER BY id")
	if err != nil {
		return err
	}
	regions, err := w.DB.Strings(ctx, "SELECT id FROM regions ORDER BY id")
	if err != nil {
		return err
	}
	bySQL, late, err := s.makeBursts(ctx, env, w, seen, "transaction", len(deployments), func(round, i int) error {
		return writer.Commit(ctx, deployments[i], regions, 3-round%2)
	})
	if err != nil {
		return err
	}
	env.Result.Figure("feed_events_per_s", bySQL.arrived, "changes delivered, made by SQL")
	env.Result.Figure("feed_committed_per_s", bySQL.committed, "changes committed by SQL")
	env.Result.Figure("feed_p99_ms", measure.Millis(late.Quantile(0.99)), "ms from commit to agent")

	// This measurement is the last one, because the database still cleans up when it has ended.
	w.Progressf("measuring bare calls")
	ingress, admin := w.Stack.RestateURLs()
	shared, err := w.DB.Shared(ctx, ingress, admin, 3*time.Second, s.Concurrency, s.Regions)
	if err != nil {
		return err
	}
	env.Result.Figure("shared_events_per_s", shared*float64(s.Regions), "changes of bare deployments of two steps, which share all work that can be shared")
	env.Result.Figure("of_shared", byAPI.arrived/(shared*float64(s.Regions)), "of that")
	return nil
}

// pace has the rates at which changes were committed and arrived, per second.
type pace struct{ committed, arrived float64 }

// makeBursts makes s.Rounds bursts, each with count changes in each region, and returns the rate of
// the median burst and the latencies of all changes.
func (s *Burst) makeBursts(ctx context.Context, env Env, w *testbed.Testbed, seen *deliveries, piece string, count int, change func(round, i int) error) (pace, *measure.Durations, error) {
	var paces []pace
	var all []arrival
	for n := range s.Rounds {
		// The pause lets the workflows finish the changes of the burst before.
		if err := waitFor(ctx, time.Second); err != nil {
			return pace{}, nil, err
		}
		before, err := w.Metrics(ctx)
		if err != nil {
			return pace{}, nil, err
		}
		arrivals, parts, err := s.makeBurst(ctx, w, seen, piece, func(i int) error { return change(n, i) }, count)
		if err != nil {
			return pace{}, nil, err
		}
		after, err := w.Metrics(ctx)
		if err != nil {
			return pace{}, nil, err
		}
		committed, arrived := spanOf(arrivals)
		paces = append(paces, pace{float64(len(arrivals)) / committed.Seconds(), float64(len(arrivals)) / arrived.Seconds()})
		all = append(all, arrivals...)
		round := costsOf(before, after, parts, count, piece)
		round[piece+"s"], round["events_per_s"] = count, paces[n].arrived
		env.Result.Rounds = append(env.Result.Rounds, round)
		env.Result.Parts = parts
	}
	slices.SortFunc(paces, func(a, b pace) int { return cmp.Compare(a.arrived, b.arrived) })
	return paces[len(paces)/2], latenciesOf(all), nil
}

func (s *Burst) makeBurst(ctx context.Context, w *testbed.Testbed, seen *deliveries, piece string, change func(i int) error, count int) (arrivals []arrival, parts map[string]measure.Part, err error) {
	feed, err := watchFeed(ctx, w, seen)
	if err != nil {
		return nil, nil, err
	}
	w.Progressf("making %d changes, %d with each %s", count*s.Regions, s.Regions, piece)
	_, parts, err = measureWindow(ctx, w, func() error {
		if err := testbed.InParallel(count, s.Concurrency, change); err != nil {
			return err
		}
		arrivals, err = feed.waitArrivals(ctx)
		return err
	})
	return arrivals, parts, err
}
