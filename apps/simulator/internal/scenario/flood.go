package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/apps/simulator/internal/fleet"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// Flood measures how a workspace that deploys far too fast slows another workspace. It measures the time from
// call to ready of the other workspace's deployments, in turn without and with the flood. The flood makes
// calls at a fixed rate, whatever the answers are. The admitted calls must match its quota, and each refusal
// must contain how long to wait.
//
// What limits it: the processor. A refused call is authenticated and then refused in memory, by the rate
// limit of the process that got it. An admitted call is a normal deployment, and the other workspace waits
// behind at most a burst of them (--burst).
type Flood struct {
	Deploys         int `help:"Deployments of the other workspace, in each phase." default:"100"`
	Concurrency     int `help:"Deployments of the other workspace in flight at once." default:"2"`
	Calls           int `help:"Calls of the flood per second." default:"300"`
	StartsPerMinute int `help:"Calls that the flooding workspace may make." default:"300"`
	Burst           int `help:"Calls that it may make at once. The other workspace's calls wait behind them." default:"5"`
	Apps            int `help:"Apps that it deploys in turn." default:"20"`
	Rounds          int `help:"Pairs of phases, without and with the flood." default:"2"`

	made int // apps of the workspace that does not flood
}

// Deadline implements Scenario.
func (s *Flood) Deadline() time.Duration {
	return 5*time.Minute + time.Duration(2*s.Rounds*s.Deploys)*time.Second
}

// Run implements Scenario.
func (s *Flood) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--deploys", s.Deploys, "--concurrency", s.Concurrency, "--calls", s.Calls,
		"--starts-per-minute", s.StartsPerMinute, "--burst", s.Burst, "--apps", s.Apps, "--rounds", s.Rounds); err != nil {
		return err
	}
	env.recordSizes("deploys", s.Deploys, "concurrency", s.Concurrency, "calls_per_s", s.Calls, "starts_per_minute", s.StartsPerMinute,
		"burst", s.Burst, "apps", s.Apps, "rounds", s.Rounds)
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	f, err := s.newFlooder(ctx, w, env.Seed)
	if err != nil {
		return err
	}
	defer f.stop()

	if _, err := s.deployBeside(ctx, w, "nothing", warmUp, new(measure.Durations)); err != nil {
		return err
	}
	var calm, flooded measure.Durations
	var admitted, refused int
	var lasted time.Duration
	for range s.Rounds {
		if _, err := s.deployBeside(ctx, w, "no flood", s.Deploys, &calm); err != nil {
			return err
		}
		if err := f.beginFlood(ctx); err != nil {
			return err
		}
		parts, err := s.deployBeside(ctx, w, "a flood", s.Deploys, &flooded)
		if err != nil {
			return err
		}
		took, err := f.endFlood()
		if err != nil {
			return err
		}
		admitted, refused, lasted = admitted+f.admitted, refused+f.refused, lasted+took
		env.Result.Parts = parts
	}
	env.Result.Figure("ratio", float64(flooded.Quantile(0.99))/float64(calm.Quantile(0.99)), "p99 during a flood, relative to p99 without")
	env.Result.Figure("p99_ms", measure.Millis(flooded.Quantile(0.99)), "ms from call to ready, during a flood")
	env.Result.Figure("p99_ms_without", measure.Millis(calm.Quantile(0.99)), "ms, without")
	env.Result.Figure("p50_ms", measure.Millis(flooded.Quantile(0.5)), "ms")
	env.Result.Figure("p50_ms_without", measure.Millis(calm.Quantile(0.5)), "ms")
	env.Result.Figure("admitted_per_s", float64(admitted)/lasted.Seconds(), "calls of the flood that passed")
	env.Result.Figure("refused", float64(refused), "calls of the flood that were refused")
	env.Result.Figure("refused_per_s", float64(refused)/lasted.Seconds(), "of them")
	return nil
}

// allowedCalls returns how many calls may pass within a time. It adds one, because the token bucket may have
// been about to gain a token.
func (s *Flood) allowedCalls(took time.Duration) int {
	return s.Burst + int(took.Minutes()*float64(s.StartsPerMinute)) + 1
}

// warmUp is the number of deployments before the measured ones, because the first deployments of an
// installation are slow.
const warmUp = 5

// deployBeside deploys new apps of the workspace that does not flood, and waits until each is ready.
func (s *Flood) deployBeside(ctx context.Context, w *testbed.Testbed, beside string, count int, times *measure.Durations) (map[string]measure.Part, error) {
	w.Progressf("making %d deployments during %s", count, beside)
	watch := newReadiness(w.DB)
	stopWatch := watch.startAsking(ctx)
	defer stopWatch()
	var mu sync.Mutex
	_, parts, err := measureWindow(ctx, w, func() error {
		return testbed.InParallel(count, s.Concurrency, func(int) error {
			mu.Lock()
			s.made++
			app := testbed.App{Name: testbed.AppName(s.made), Regions: w.Regions, Replicas: 1, Version: "v1"}
			mu.Unlock()
			begin := time.Now()
			id, err := w.Deploy(ctx, app)
			if err != nil {
				return err
			}
			if err := watch.waitReady(ctx, id, app.Name); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			times.Add(time.Since(begin))
			return nil
		})
	})
	return parts, err
}

// flooder is a workspace with its own region and user.
type flooder struct {
	s          *Flood
	workspace  string
	api        *testbed.Client
	workspaces windlassv1connect.WorkspaceServiceClient
	fleet      *fleet.Fleet
	dir        string

	// These fields are about the flood under way: when it began, and its answers.
	ended    context.CancelFunc
	done     chan struct{}
	began    time.Time
	version  int
	mu       sync.Mutex
	admitted int
	refused  int
	failed   error
}

const floodRegion = "flooded"

func (s *Flood) newFlooder(ctx context.Context, w *testbed.Testbed, seed uint64) (_ *flooder, err error) {
	made, err := controlplane.Bootstrap(ctx, controlplane.BootstrapConfig{
		MySQLDSN: w.Stack.DSN(), Workspace: "flood", Regions: []string{floodRegion},
	})
	if err != nil {
		return nil, err
	}
	f := &flooder{s: s, workspace: made.WorkspaceID, api: testbed.NewClient(w.URL(), made.APIKey)}
	f.workspaces = windlassv1connect.NewWorkspaceServiceClient(rpc.NewHTTPClient(rpc.HTTPClientConfig{}), w.URL(),
		rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return made.OperatorKey }, UserAgent: "windlass-simulator"})...)
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	f.dir = filepath.Join(w.Stack.Dir(), "flood")
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the flooded region: %w", err)
	}
	f.fleet, err = fleet.New(fleet.Config{
		Dir: f.dir, Seed: seed, URL: func(int) string { return w.URL() },
		Token: func(region string) string { return made.JoinTokens[region] },
	}, []string{floodRegion})
	if err != nil {
		return nil, err
	}
	return f, f.fleet.Start(ctx)
}

func (f *flooder) stop() {
	if f.ended != nil {
		f.ended()
		<-f.done
	}
	if f.fleet != nil {
		f.fleet.Stop()
	}
	f.api.Close()
}

// beginFlood begins a flood.
func (f *flooder) beginFlood(ctx context.Context) error {
	have, err := f.workspaces.GetQuota(ctx, &windlassv1.GetQuotaRequest{Workspace: f.workspace})
	if err != nil {
		return fmt.Errorf("read the quota of the flooding workspace: %w", err)
	}
	_, err = f.workspaces.SetQuota(ctx, &windlassv1.SetQuotaRequest{
		Mutation: testbed.Mutation(), Workspace: f.workspace, ResourceVersion: have.Quota.ResourceVersion,
		Own: &windlassv1.Limits{StartsPerMinute: new(int64(f.s.StartsPerMinute)), StartsBurst: new(int64(f.s.Burst))},
	})
	if err != nil {
		return fmt.Errorf("limit the flooding workspace: %w", err)
	}
	ctx, f.ended = context.WithCancel(ctx)
	f.done, f.began = make(chan struct{}), time.Now()
	f.admitted, f.refused, f.failed = 0, 0, nil
	go f.makeCalls(ctx, f.done)
	return nil
}

// makeCalls makes calls at its rate until ctx ends, and waits for all answers.
func (f *flooder) makeCalls(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	var calls sync.WaitGroup
	defer calls.Wait()
	tick := time.NewTicker(time.Second / time.Duration(f.s.Calls))
	defer tick.Stop()
	slots := make(chan struct{}, 4*maxInFlight)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.version++
		app := testbed.App{
			Name: testbed.AppName(f.version % f.s.Apps), Regions: []string{floodRegion}, Replicas: 1, Version: fmt.Sprint("v", f.version),
		}
		select {
		case slots <- struct{}{}:
		default:
			continue // the limit of unanswered calls is reached
		}
		calls.Go(func() {
			defer func() { <-slots }()
			// Calls that are under way when the flood ends still get an answer.
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), wedged)
			defer cancel()
			_, err := f.api.Apps.Deploy(bounded, &windlassv1.DeployRequest{Mutation: testbed.Mutation(), App: testbed.Path(app.Name), Spec: app.Spec()})
			f.countAnswer(err)
		})
	}
}

func (f *flooder) countAnswer(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.admitted++
	case connect.CodeOf(err) == connect.CodeResourceExhausted && rpc.ReasonOf(err) == windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED &&
		rpc.DetailOf(err).GetLimit().GetRetryAfterMs() > 0:
		f.refused++
	default:
		f.failed = errors.Join(f.failed, err)
	}
}

// endFlood ends the flood and returns how long it lasted. It fails if more calls passed than the quota allows, or
// if no call was refused.
func (f *flooder) endFlood() (time.Duration, error) {
	f.ended()
	<-f.done
	took := time.Since(f.began)
	switch {
	case f.failed != nil:
		return took, fmt.Errorf("the flood was answered with %w", f.failed)
	case f.admitted > f.s.allowedCalls(took):
		return took, fmt.Errorf("%d calls of the flood passed in %s, and the quota allows %d", f.admitted, took, f.s.allowedCalls(took))
	case f.refused == 0:
		return took, fmt.Errorf("none of %d calls was refused", f.admitted)
	}
	return took, nil
}
