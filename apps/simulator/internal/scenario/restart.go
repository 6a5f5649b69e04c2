package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Restart restarts every replica of the control plane, one after the other, as a rolling update does, while
// users change apps. All replicas are behind one address, as the replicas of a service are. It measures the
// effect on changes under way, on the agents' streams and on the users' calls.
//
// What limits it: the processor, which starting replicas share with serving ones. Users do not have to repeat
// calls.
type Restart struct {
	Agents int           `help:"Agents, each with a region." default:"300"`
	Apps   int           `help:"Apps, each in one region, that are changed." default:"100"`
	Rate   float64       `help:"Changes per second, at random times." default:"10"`
	Quiet  time.Duration `help:"How long changes are made before anything is restarted, to compare with." default:"15s"`
	Pause  time.Duration `help:"How long a replica serves before the next one is restarted." default:"5s"`
	Even   time.Duration `help:"How long the streams may take, after the last restart, to be spread over the replicas." default:"1m"`
}

// Deadline implements Scenario.
func (s *Restart) Deadline() time.Duration { return 15*time.Minute + s.Quiet + s.Even + 10*s.Pause }

// A rolling restart needs at least two replicas.
const (
	minReplicas     = 2
	defaultReplicas = 3
)

// restarting is one run of the scenario.
type restarting struct {
	*Restart
	env   Env
	w     *testbed.Testbed
	apps  []testbed.App
	flips []int // by app
	calls calls

	mu        sync.Mutex
	snapshots int
}

// Run implements Scenario.
func (s *Restart) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--agents", s.Agents, "--apps", s.Apps, "--rate", s.Rate, "--quiet", s.Quiet, "--even", s.Even); err != nil {
		return err
	}
	if env.ControlPlanes < minReplicas {
		env.ControlPlanes = defaultReplicas
	}
	env.recordSizes("agents", s.Agents, "apps", s.Apps, "rate", s.Rate, "quiet", s.Quiet.String(), "pause", s.Pause.String())
	seen, began := newDeliveries(), &streams{}
	r := &restarting{Restart: s, env: env}
	var balancer *testbed.Balancer
	defer func() {
		if balancer != nil {
			balancer.Close()
		}
	}()
	ctx, w, err := env.startTestbed(ctx, testbed.Config{
		Regions: s.Agents, Applied: seen.recordApplied, Connected: began.recordConnected,
		Snapshot: func(string, int, time.Duration) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.snapshots++
		},
		Prepare: func(st *stack.Stack) (err error) {
			balancer, err = testbed.NewBalancer(ctx, st)
			return err
		},
		URL: func(*stack.Stack, int) string { return "http://" + balancer.Address() },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	r.w = w
	if r.apps, err = deployApps(ctx, w, s.Apps, 1); err != nil {
		return err
	}

	r.flips = make([]int, len(r.apps))
	w.Progressf("making %.0f changes a second for %s", s.Rate, s.Quiet)
	before, err := r.changesDuring(ctx, seen, func() error { return waitFor(ctx, s.Quiet) })
	if err != nil {
		return err
	}
	quiet := r.calls.takeCounts()
	r.setFigures("before", before)

	first := r.takenOver()
	began.reset()
	var during []arrival
	_, env.Result.Parts, err = measureWindow(ctx, w, func() (err error) {
		during, err = r.changesDuring(ctx, seen, func() error { return r.restartReplicas(ctx) })
		return err
	})
	if err != nil {
		return err
	}
	snapshots, busy := r.takenOver()-first, r.calls.takeCounts()
	_, resumed := began.timesSince(time.Now())
	r.setFigures("during", during)
	env.Result.Figure("missed", 0, "changes that never reached their agent")
	env.Result.Figure("snapshots", float64(snapshots), "snapshots that had to be sent")
	env.Result.Figure("resumed", float64(resumed), fmt.Sprintf("of %d sessions that resumed", s.Agents))
	env.Result.Figure("calls", float64(busy.made), "calls by users meanwhile")
	env.Result.Figure("repeated_calls", float64(busy.repeated), "calls that had to be made again")
	env.Result.Figure("failed_calls", float64(busy.failed), "calls that failed although they were repeated")
	env.Result.Figure("call_max_ms", measure.Millis(busy.took.Quantile(1)), "ms, the slowest call with its repetitions")
	env.Result.Figure("call_max_ms_before", measure.Millis(quiet.took.Quantile(1)), "ms, before")
	if err := r.waitSpread(ctx); err != nil {
		return err
	}
	switch {
	case len(during) == 0:
		return errors.New("nothing changed during the restart: use a larger --rate or --pause")
	case busy.failed > 0:
		return fmt.Errorf("%d of %d calls failed though they were repeated; first: %w", busy.failed, busy.made, busy.first)
	case snapshots > max(s.Agents/100, 1):
		return fmt.Errorf("%d snapshots were sent to %d agents: streams did not resume", snapshots, s.Agents)
	}
	return nil
}

// setFigures sets the figures of the changes in one window.
func (r *restarting) setFigures(name string, arrivals []arrival) {
	late := latenciesOf(arrivals)
	r.env.Result.Figure("changes_"+name, float64(late.Len()), "changes, none missing")
	r.env.Result.Figure("p50_ms_"+name, measure.Millis(late.Quantile(0.5)), "ms from commit to agent")
	r.env.Result.Figure("p99_ms_"+name, measure.Millis(late.Quantile(0.99)), "ms")
	r.env.Result.Figure("max_ms_"+name, measure.Millis(late.Quantile(1)), "ms")
}

func (r *restarting) takenOver() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshots
}

// changesDuring makes changes while fn runs, and returns them when each has arrived at its agent.
func (r *restarting) changesDuring(ctx context.Context, seen *deliveries, fn func() error) ([]arrival, error) {
	feed, err := watchFeed(ctx, r.w, seen)
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	made := make(chan error, 1)
	go func() { made <- r.changeAtRandom(ctx, over) }()
	err = fn()
	close(over)
	if err := errors.Join(err, <-made); err != nil {
		return nil, err
	}
	arrivals, err := feed.waitArrivals(ctx)
	if err != nil {
		missed := 0
		for _, a := range arrivals {
			if a.at.IsZero() {
				missed++
			}
		}
		r.env.Result.Figure("missed", float64(missed), fmt.Sprintf("of %d changes that never reached their agent", len(arrivals)))
	}
	return arrivals, err
}

// changeAtRandom changes apps at random times, each from one replica to two or back, until over is closed. It
// returns once every call was answered.
func (r *restarting) changeAtRandom(ctx context.Context, over <-chan struct{}) error {
	rnd := rand.New(rand.NewPCG(r.w.Rand.Uint64(), 0))
	order := rnd.Perm(len(r.apps))
	var open sync.WaitGroup
	defer open.Wait()
	slots := make(chan struct{}, maxInFlight)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return nil
		case <-time.After(time.Duration(rnd.ExpFloat64() / r.Rate * float64(time.Second))):
		}
		n := order[i%len(order)]
		r.flips[n]++
		req := &windlassv1.ScaleRequest{
			Mutation: testbed.Mutation(), App: testbed.Path(r.apps[n].Name), Replicas: int32(1 + r.flips[n]%2),
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case slots <- struct{}{}:
		}
		open.Go(func() {
			defer func() { <-slots }()
			r.calls.makeCall(ctx, r.w, req)
		})
	}
}

// calls counts the calls of users.
type calls struct {
	mu sync.Mutex
	called
}

type called struct {
	made, repeated, failed int
	took                   measure.Durations
	first                  error
}

func (c *calls) makeCall(ctx context.Context, w *testbed.Testbed, req *windlassv1.ScaleRequest) {
	tries := 0
	begin := time.Now()
	_, err := testbed.Persist(ctx, func(ctx context.Context, req *windlassv1.ScaleRequest) (*windlassv1.ScaleResponse, error) {
		tries++
		return w.API.Apps.Scale(ctx, req)
	}, req)
	took := time.Since(begin)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	c.took.Add(took)
	if tries > 1 {
		c.repeated++
	}
	if err != nil {
		c.failed++
		if c.first == nil {
			c.first = err
		}
	}
}

// takeCounts returns the counts and resets them.
func (c *calls) takeCounts() *called {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.called
	c.called = called{}
	return &was
}

// restartReplicas restarts the replicas, one after the other.
func (r *restarting) restartReplicas(ctx context.Context) error {
	slowest := 0.0
	for _, p := range r.w.Stack.Planes() {
		begin := time.Now()
		if err := r.w.Stack.Terminate(ctx, p.Name); err != nil {
			return err
		}
		drained := time.Since(begin)
		if err := errors.Join(r.w.Stack.Launch(ctx, p.Name), r.w.Stack.WaitReady(ctx, p.Name)); err != nil {
			return err
		}
		serving := time.Since(begin)
		if err := r.w.WaitConnected(ctx, r.Agents); err != nil {
			return fmt.Errorf("after %s was restarted: %w", p.Name, err)
		}
		back := time.Since(begin)
		r.w.Progressf("%s drained in %s, served again after %s, all agents connected after %s",
			p.Name, drained.Round(time.Millisecond), serving.Round(time.Millisecond), back.Round(time.Millisecond))
		r.env.Result.Rounds = append(r.env.Result.Rounds, map[string]any{
			"replica": p.Name, "drain_ms": measure.Millis(drained), "serving_ms": measure.Millis(serving), "connected_ms": measure.Millis(back),
		})
		slowest = max(slowest, measure.Millis(drained))
		if err := waitFor(ctx, r.Pause); err != nil {
			return err
		}
	}
	r.env.Result.Figure("drain_ms", slowest, "ms from SIGTERM to the end, the slowest replica")
	return nil
}

// waitSpread waits until the streams are spread over the replicas, so that no replica has many more than its
// share.
func (r *restarting) waitSpread(ctx context.Context) error {
	begin := time.Now()
	counts := map[string]float64{}
	// In a small fleet, a few streams above the share are not worth moving.
	uneven := unevenness + few*float64(len(r.w.Stack.Planes()))/float64(r.Agents)
	look := func() (all bool, share float64, err error) {
		sum, most := 0.0, 0.0
		for _, p := range r.w.Stack.Planes() {
			m, err := measure.Scrape(ctx, p.Admin+"/metrics")
			if err != nil {
				return false, 0, err
			}
			n := m.Sum("windlass_watch_streams", "")
			counts[p.Name] = n
			sum, most = sum+n, max(most, n)
		}
		return sum >= float64(r.Agents), most / float64(r.Agents) * float64(len(counts)), nil
	}
	_, share, err := look()
	if err != nil {
		return err
	}
	r.env.Result.Figure("uneven_after", share, "times its share, the fullest replica right after the last restart")
	bounded, cancel := context.WithTimeoutCause(ctx, r.Even, fmt.Errorf("streams were not spread within %s", r.Even))
	defer cancel()
	err = testbed.Until(bounded, 250*time.Millisecond, func() (bool, error) {
		all, now, err := look()
		share = now
		return err == nil && all && share <= uneven, err
	}, func() string { return fmt.Sprintf("streams by replica: %v", counts) })
	r.env.Result.Figure("uneven", share, "times its share, the fullest replica in the end")
	r.env.Result.Figure("even_s", time.Since(begin).Seconds(), "s until streams were spread")
	if r.env.Result.Details == nil {
		r.env.Result.Details = map[string]any{}
	}
	r.env.Result.Details["streams"] = counts
	return err
}

// A replica may have unevenness times its share of the streams, and few streams more. Both allow for chance,
// because each new stream goes to the next replica in turn.
const (
	unevenness = 1.5
	few        = 2.0
)
