package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/modelserver"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Follow changes the load of an app, and checks that its replicas follow. In each region an agent, a gateway and instances of
// the model server are real processes. The load is open: requests come independently of how long answers take. A client is
// one request a second, because an answer takes a second unless it waits.
//
// It fails if a request fails, and in each region if one of these does not hold:
//
//   - p95 of the first token is back at the target within --within after each step of the load.
//   - In a step, the number of wanted replicas changes its direction at most once.
//   - At the end of a step there are as many replicas as the load needs. Too many are no fault in a step that is
//     shorter than --within.
//   - A replica that was ready stays ready while it is wanted.
//
// With --rollouts, versions roll while the load rises and falls. Then it fails if a request fails, if a replica is
// missing, or if a rollout does not end as expected. It also fails if no replica is added while a version rolls, or
// if none is removed afterwards.
//
// What limits it: agents measure the load every 5 s, and the time until a new replica is ready. Meanwhile requests wait
// at the gateway.
type Follow struct {
	Regions  int           `help:"Regions of the app. Each has an equal share of the load." default:"1"`
	Steps    []string      `help:"Steps of the load, each as CLIENTS:DURATION." default:"1:30s,64:85s,1:75s"`
	Target   time.Duration `help:"p95 of the time to the first token up to which the run does not fail." default:"1s"`
	Within   time.Duration `help:"Time after a step within which p95 has to be back at the target." default:"60s"`
	Rollouts []string      `help:"Rollouts during which the load rises from --low to --high and falls again, instead of --steps: rolling, canary, blue-green, rollback."`
	Low      int           `help:"Clients before and after each of --rollouts." default:"8"`
	High     int           `help:"Clients during each of --rollouts." default:"64"`
	Plot     string        `help:"Folder for the plot (SVG) and its series (CSV)." type:"path" default:".cache/bench"`
}

// FollowInstanceCommand is the hidden command that runs this program as a model server.
const FollowInstanceCommand = "__modelserver"

const (
	followApp = "follow"
	// followConcurrency is the number of requests that an instance serves at a time. followInFlight is the number
	// that a gateway sends to it at a time. followTarget is the number for which the policy aims.
	followConcurrency = 8
	followInFlight    = 12
	followTarget      = 6
	// followMax is the maximum of replicas in a region.
	followMax = 20
	// followSampleEvery is the time between two samples.
	followSampleEvery = 500 * time.Millisecond
	// followReady bounds the wait for an app that is ready, and for decisions about it.
	followReady = time.Minute
)

// ModelServer serves a model on PORT, with the arguments of the model server.
func ModelServer(ctx context.Context, args []string) error {
	cfg, _, err := modelserver.ParseArgs(args, os.LookupEnv)
	if err != nil {
		return err
	}
	cfg.Logger = cfg.NewLogger(os.Stderr)
	server, err := modelserver.New(cfg)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// loadStep is a load and how long it lasts.
type loadStep struct {
	clients float64
	lasts   time.Duration
}

func parseStep(text string) (s loadStep, err error) {
	clients, lasts, ok := strings.Cut(text, ":")
	if !ok {
		return s, fmt.Errorf("--steps=%s: use CLIENTS:DURATION, such as 64:90s", text)
	}
	if s.clients, err = strconv.ParseFloat(clients, 64); err != nil || s.clients < 0 || s.clients > 1000 {
		return s, fmt.Errorf("--steps=%s: CLIENTS has to be a number from 0 to 1000", text)
	}
	if s.lasts, err = time.ParseDuration(lasts); err != nil || s.lasts <= 0 {
		return s, fmt.Errorf("--steps=%s: DURATION has to be a time above 0, such as 90s", text)
	}
	return s, nil
}

func (s *Follow) parseSteps() (steps []loadStep, err error) {
	for _, text := range s.Steps {
		step, err := parseStep(text)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	if len(steps) == 0 {
		return nil, errors.New("--steps: there are none")
	}
	return steps, nil
}

// Deadline implements Scenario.
func (s *Follow) Deadline() time.Duration {
	deadline := 5*time.Minute + time.Duration(len(s.Rollouts))*5*time.Minute
	for _, text := range s.Steps {
		step, _ := parseStep(text) // Run returns the error
		deadline += step.lasts
	}
	return deadline
}

// leastReplicas returns the minimum of replicas in a region.
func (s *Follow) leastReplicas() int {
	if len(s.Rollouts) > 0 {
		return 2
	}
	return 1
}

// followRun is a run.
type followRun struct {
	*testbed.Testbed
	s    *Follow
	self string
	// loads are by the number of the region.
	loads []*openLoad

	mu      sync.Mutex
	series  followSeries
	begun   time.Time
	newest  *windlassv1.App
	sampled chan struct{} // closed and replaced at each sample
}

// Run implements Scenario.
func (s *Follow) Run(ctx context.Context, env Env) (err error) {
	steps, err := s.parseSteps()
	if err != nil {
		return err
	}
	rollouts, err := s.parseRollouts()
	if err != nil {
		return err
	}
	if err := requirePositive("--regions", s.Regions, "--target", s.Target, "--within", s.Within, "--low", s.Low, "--high", s.High); err != nil {
		return err
	}
	if err := os.MkdirAll(s.Plot, 0o755); err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	env.recordSizes("regions", s.Regions, "target", s.Target.String())
	if len(rollouts) > 0 {
		env.recordSizes("rollouts", strings.Join(s.Rollouts, ","), "low", s.Low, "high", s.High)
	} else {
		env.recordSizes("steps", strings.Join(s.Steps, ","), "within", s.Within.String())
	}
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: s.Regions, Idle: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	r := &followRun{Testbed: w, s: s, self: env.Self, sampled: make(chan struct{})}
	r.series = followSeries{title: "Replicas follow the load: " + env.Result.Scenario, regions: w.Regions, samples: make([][]followSample, s.Regions), target: s.Target}
	stop, err := r.start(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	_, parts, err := measureWindow(ctx, w, func() error {
		return r.underLoad(ctx, func(ctx context.Context) error {
			if len(rollouts) > 0 {
				return r.runRollouts(ctx, rollouts)
			}
			return r.climbSteps(ctx, steps)
		})
	})
	env.Result.Parts = parts
	plotted := r.plotSeries(env)
	if err != nil {
		return oneLine([]error{err, plotted, r.recordRequests(env)})
	}
	if plotted != nil {
		return plotted
	}
	if len(rollouts) > 0 {
		return r.concludeRollouts(env, rollouts)
	}
	return r.concludeSteps(env)
}

// start starts agents and gateways, deploys the app, and waits until its gateways serve it and the load is decided on.
func (r *followRun) start(ctx context.Context) (stop func() error, err error) {
	var stops []func() error
	stop = func() error {
		errs := make([]error, len(stops))
		var all sync.WaitGroup
		for i, stop := range stops {
			all.Go(func() { errs[i] = stop() })
		}
		all.Wait()
		return errors.Join(errs...)
	}
	var gateways []string
	for _, region := range r.Regions {
		gateway, stopRegion, err := startRegion(ctx, r.Testbed, r.self, region)
		stops = append(stops, stopRegion)
		if err != nil {
			return stop, err
		}
		gateways = append(gateways, gateway)
	}
	if err := r.deployVersion(ctx, "v1", nil, nil); err != nil {
		return stop, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, followReady, errors.New("it takes too long"))
	defer cancel()
	if err := r.WaitReady(ctx, 1, 1); err != nil {
		return stop, err
	}
	host, err := hostOf(ctx, r.Testbed)
	if err != nil {
		return stop, err
	}
	for i, gateway := range gateways {
		l := newOpenLoad(gateway, host, rand.New(rand.NewPCG(r.Rand.Uint64(), uint64(i))))
		var last error
		err := testbed.Until(ctx, 50*time.Millisecond, func() (bool, error) {
			_, last = l.sendRequest(ctx, func() {})
			return last == nil, nil
		}, func() string { return fmt.Sprintf("the gateway of %s does not serve the app: %v", r.Regions[i], last) })
		if err != nil {
			return stop, err
		}
		r.loads = append(r.loads, l)
	}
	return stop, testbed.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		res, err := testbed.Persist(ctx, r.API.Scaling.GetScaling, &windlassv1.GetScalingRequest{App: testbed.Path(followApp)})
		decided := 0
		for _, at := range res.GetRegions() {
			if at.GetReady() > 0 {
				decided++
			}
		}
		return decided == len(r.Regions), err
	}, func() string { return "not every region has a decision about the app" })
}

// deployVersion deploys a version of the app. args are arguments of the model server in
// addition to the usual ones.
func (r *followRun) deployVersion(ctx context.Context, label string, args []string, rollout *windlassv1.RolloutPolicy) error {
	seconds := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
	spec := &windlassv1.DeploymentSpec{
		Command: []string{r.self},
		Args: append([]string{
			FollowInstanceCommand, "--version-label=" + label, "--load-time=1s", "--concurrency=" + strconv.Itoa(followConcurrency), "--queue=64",
			"--time-to-first-token=" + followFirst.String(), "--token-rate=" + strconv.Itoa(followTokenRate),
		}, args...),
		VersionLabel: label, Regions: r.Regions,
		Ports:            []*windlassv1.Port{{Name: "http"}},
		Resources:        &windlassv1.Resources{CpuMillicores: 1000, MemoryMib: 512},
		HealthCheck:      &windlassv1.HealthCheck{Path: "/health", Interval: durationpb.New(500 * time.Millisecond), HealthyThreshold: 1, StartupBudget: seconds(60)},
		TerminationGrace: seconds(35),
		ProgressDeadline: seconds(120),
		// Requests beyond what instances take wait at the gateway, so that replicas that start later serve them.
		Routing: &windlassv1.RoutingPolicy{MaxInFlight: new(int32(followInFlight)), QueueSize: new(int32(10_000)), QueueWait: seconds(60)},
	}
	// The paces suit replicas that are ready within seconds.
	policy := &windlassv1.ScalingPolicy{
		Min: new(int32(r.s.leastReplicas())), Max: followMax,
		Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: strconv.Itoa(followTarget)}},
		Up:      &windlassv1.ScalingPace{Window: seconds(20), Step: "100%", Every: seconds(10)},
		Down:    &windlassv1.ScalingPace{Window: seconds(20), Step: "50%", Every: seconds(8)},
	}
	_, err := testbed.Persist(ctx, r.API.Apps.Deploy, &windlassv1.DeployRequest{
		Mutation: testbed.Mutation(), App: testbed.Path(followApp), Spec: spec, Rollout: rollout, Scaling: policy,
	})
	if err != nil {
		return fmt.Errorf("deploy %s: %w", label, err)
	}
	return nil
}

// underLoad calls drive while the loads run and samples are taken. It returns when every request is answered.
func (r *followRun) underLoad(ctx context.Context, drive func(ctx context.Context) error) error {
	sampling, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.begun = time.Now()
	end := make(chan struct{})
	var running sync.WaitGroup
	for _, l := range r.loads {
		running.Go(func() { l.run(ctx, end) })
	}
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if failed = r.sampleUntil(sampling); failed != nil {
			stop(failed)
		}
	}()
	err := drive(sampling)
	close(end)
	running.Wait()
	stop(nil)
	<-done
	return errors.Join(err, failed)
}

// sampleUntil takes samples until ctx ends.
func (r *followRun) sampleUntil(ctx context.Context) error {
	tick := time.NewTicker(followSampleEvery)
	defer tick.Stop()
	for {
		if err := r.takeSamples(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("take a sample: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// takeSamples takes a sample of each region.
func (r *followRun) takeSamples(ctx context.Context) error {
	// Ready replicas are read before wanted replicas, so that a replica that ends between the two reads does not
	// count as missing.
	path := testbed.Path(followApp)
	deployments, err := testbed.Persist(ctx, r.API.Deployments.ListDeployments, &windlassv1.ListDeploymentsRequest{App: path})
	if err != nil {
		return err
	}
	decisions, err := testbed.Persist(ctx, r.API.Scaling.GetScaling, &windlassv1.GetScalingRequest{App: path})
	if err != nil {
		return err
	}
	app, err := testbed.Persist(ctx, r.API.Apps.GetApp, &windlassv1.GetAppRequest{App: path})
	if err != nil {
		return err
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, region := range r.Regions {
		s := followSample{at: now.Sub(r.begun), load: r.loads[i].lookAt(now), rolling: app.GetApp().GetRolloutId() != "", versions: map[int32]followVersion{}}
		for _, d := range deployments.GetDeployments() {
			for _, at := range d.GetRegions() {
				if at.GetRegion() != region || at.GetReplicas() == 0 && at.GetReady() == 0 && at.GetWeight() == 0 {
					continue
				}
				s.versions[d.GetVersion()] = followVersion{int(at.GetReplicas()), int(at.GetReady()), int(at.GetWeight())}
				if at.GetWeight() > 0 {
					s.ready += int(at.GetReady())
				}
			}
		}
		for _, d := range decisions.GetRegions() {
			if d.GetRegion() == region {
				s.wanted, s.limit = int(d.GetWanted()), d.GetLimit()
			}
		}
		r.series.samples[i] = append(r.series.samples[i], s)
	}
	r.newest = app.GetApp()
	close(r.sampled)
	r.sampled = make(chan struct{})
	return nil
}

// setLoad divides a load among the regions.
func (r *followRun) setLoad(clients float64) {
	for _, l := range r.loads {
		l.set(clients / float64(len(r.loads)))
	}
}

// beginSpan begins a span, and ends the span before it.
func (r *followRun) beginSpan(name string, clients float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.begun)
	r.endSpan(now)
	r.series.spans = append(r.series.spans, followSpan{name: name, from: now, to: 1 << 62, clients: clients / float64(len(r.loads))})
}

// endSpan ends the last span. Called with mu held.
func (r *followRun) endSpan(now time.Duration) {
	if n := len(r.series.spans); n > 0 {
		r.series.spans[n-1].to = min(r.series.spans[n-1].to, now)
	}
}

// climbSteps takes the steps of the load.
func (r *followRun) climbSteps(ctx context.Context, steps []loadStep) error {
	for _, step := range steps {
		name := strconv.FormatFloat(step.clients, 'f', -1, 64) + " clients"
		if step.clients == 1 {
			name = "1 client"
		}
		r.Progressf("%s for %s", name, step.lasts)
		r.beginSpan(name, step.clients)
		r.setLoad(step.clients)
		if err := waitFor(ctx, step.lasts); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSpan(time.Since(r.begun))
	return nil
}

// recordRequests records the figures of the requests. It returns an error if one failed.
func (r *followRun) recordRequests(env Env) error {
	sent, answers := 0, map[string]int{}
	var failed []string
	for i, l := range r.loads {
		n, wrong, by := l.outcomeSoFar()
		sent += n
		for _, text := range wrong {
			failed = append(failed, r.Regions[i]+": "+text)
		}
		for label, n := range by {
			answers[label] += n
		}
	}
	env.Result.Figure("requests", float64(sent), "requests")
	env.Result.Figure("failed", float64(len(failed)), "requests that failed")
	if env.Result.Details == nil {
		env.Result.Details = map[string]any{}
	}
	env.Result.Details["answers"] = answers
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d requests failed, the first in %s", len(failed), sent, failed[0])
	}
	if sent == 0 {
		return errors.New("no request was sent")
	}
	return nil
}

// concludeSteps records the results of the steps, and returns the requirements that did not hold as an error.
func (r *followRun) concludeSteps(env Env) error {
	errs := []error{r.recordRequests(env)}
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var recovered, worst time.Duration
	turns, most := 0, 0
	for i, region := range r.Regions {
		all := r.series.samples[i]
		for n, span := range r.series.spans {
			samples := span.samplesIn(all)
			if len(samples) < 2 {
				fail("%s, step %d of %s: there are no samples", region, n+1, span.name)
				continue
			}
			v := judgeSpan(samples, span, r.s.Target)
			at := fmt.Sprintf("%s, step %d of %s", region, n+1, span.name)
			low, high := neededReplicas(0.85*span.clients, r.s.leastReplicas()), neededReplicas(1.5*span.clients, r.s.leastReplicas())
			env.Result.Rounds = append(env.Result.Rounds, map[string]any{
				"region": region, "step": float64(n + 1), "clients": span.clients, "recovered_s": v.recovered.Seconds(), "turns": float64(v.turns), "most_wanted": float64(v.most),
				"wanted": float64(v.last.wanted), "ready": float64(v.last.ready), "p95_ms": measure.Millis(v.last.load.p95), "worst_p95_ms": measure.Millis(v.worst),
			})
			recovered, worst, turns, most = max(recovered, v.recovered), max(worst, v.worst), max(turns, v.turns), max(most, v.most)
			switch {
			case !v.back:
				fail("%s: p95 of the first token is %s at the end, above %s", at, v.last.load.p95.Round(time.Millisecond), r.s.Target)
			case v.recovered > r.s.Within:
				fail("%s: p95 of the first token was back at %s after %s, later than %s", at, r.s.Target, v.recovered.Round(100*time.Millisecond), r.s.Within)
			}
			if v.turns > 1 {
				fail("%s: the number of wanted replicas changed its direction %d times", at, v.turns)
			}
			settled := span.to-span.from >= r.s.Within // replicas are removed later than they are added
			if n := min(v.last.wanted, v.last.ready); n < low || v.last.wanted > high && settled {
				fail("%s: %d replicas are wanted and %d ready at the end, and the load needs %d to %d", at, v.last.wanted, v.last.ready, low, high)
			}
		}
		if wrong, _ := belowFloor(all, r.s.leastReplicas()); wrong != "" {
			fail("%s: %s", region, wrong)
		}
	}
	env.Result.Figure("recovered_s", recovered.Seconds(), "s after a step until p95 of the first token was back, at most")
	env.Result.Figure("turns", float64(turns), "changes of direction in a step, at most")
	env.Result.Figure("most_replicas", float64(most), "replicas in a region, at most")
	env.Result.Figure("worst_p95_ms", measure.Millis(worst), "ms, the highest p95 of the first token")
	return oneLine(errs)
}

// oneLine joins errors in one line.
func oneLine(errs []error) error {
	var texts []string
	for _, err := range errs {
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// plotSeries writes the plot and its series, and records where they are.
func (r *followRun) plotSeries(env Env) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSpan(time.Since(r.begun))
	table, err := r.series.toCSV()
	if err != nil {
		return fmt.Errorf("write the series: %w", err)
	}
	name := filepath.Join(r.s.Plot, env.Result.Started.UTC().Format("20060102T150405Z")+"-"+env.Result.Scenario)
	files := map[string][]byte{name + ".svg": r.series.chartOf().SVG(), name + ".csv": table}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(file, files[file], 0o644); err != nil {
			return fmt.Errorf("write the plot: %w", err)
		}
		r.Progressf("wrote %s", file)
	}
	if env.Result.Details == nil {
		env.Result.Details = map[string]any{}
	}
	env.Result.Details["plot"] = slices.Sorted(maps.Keys(files))
	return nil
}
