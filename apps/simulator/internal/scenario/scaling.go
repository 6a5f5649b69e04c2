package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Scaling measures what it costs to scale many apps by their load, and how soon a change of the load becomes a decision.
// First the load of all apps stays the same, and then it jumps at random times. It fails if a jump is followed by no
// decision, if p99 is above the floor, or if looking at apps whose load stays the same needs queries.
//
// What limits it: agents measure the load every 5 s, which causes most of a decision's delay. The control
// plane makes one transaction for each changed number, and reads apps that did not change once a minute, 500
// in one query.
type Scaling struct {
	Apps    int           `help:"Scaled apps." default:"1000"`
	Regions int           `help:"Regions." default:"10"`
	Each    int           `help:"Regions of each app." default:"1"`
	Window  time.Duration `help:"How long each part is measured." default:"2m"`
	Period  time.Duration `help:"Mean time between two changes of the load of one app in a region." default:"2m"`
	Settle  time.Duration `help:"Pause before the first part." default:"60s"`
	Floor   time.Duration `help:"p99 from a jump to the agent's new assignment, up to which the run does not fail." default:"10s"`
}

// Deadline implements Scenario.
func (s *Scaling) Deadline() time.Duration { return 10*time.Minute + 2*s.Window + s.Settle }

const (
	scaledCPU = 500 // millicores that an instance asks for
	scaledFor = 50  // the target, in percent of scaledCPU
	// fewReplicas and manyReplicas are the replicas that the load needs before and after a jump. The jump is
	// so large that the policy waits for no window.
	fewReplicas, manyReplicas = 1, 3
	// jumpTimeout is how long a decision may take before it counts as missing.
	jumpTimeout = time.Minute
)

// appRegion is an app in a region.
type appRegion struct{ app, region string }

// scaled is the state of an app in a region.
type scaled struct {
	deployment string
	// needs is how many replicas the load needs.
	needs int
	// began is when the load jumped; zero: an assignment has followed since.
	began time.Time
}

// jumps has the load of apps in their regions, and measures what follows its jumps.
type jumps struct {
	mu    sync.Mutex
	pairs map[appRegion]*scaled
	// apps are by deployment.
	apps  map[string]string
	delay measure.Durations
	made  int
}

// cpuOf returns the processor time that all instances of the app in the region use together.
func (j *jumps) cpuOf(region, app string) (millicores float64, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := j.pairs[appRegion{app, region}]
	if at == nil {
		return 0, false
	}
	return float64(at.needs) * scaledCPU * scaledFor / 100, true
}

// endJump ends a jump.
func (j *jumps) endJump(region, deployment string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if at := j.pairs[appRegion{j.apps[deployment], region}]; at != nil && !at.began.IsZero() {
		j.delay.Add(time.Since(at.began))
		at.began = time.Time{}
	}
}

// changeLoad makes the load of an app in a region jump, or lets it go back if it has jumped. It does nothing while
// replicas start or stop. running returns how many instances a deployment has in a region.
func (j *jumps) changeLoad(at appRegion, running func(region, deployment string) int) {
	j.mu.Lock()
	state := j.pairs[at]
	j.mu.Unlock()
	have := running(at.region, state.deployment)
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case !state.began.IsZero() || have != state.needs:
	case state.needs == manyReplicas:
		state.needs = fewReplicas
	default:
		state.needs, state.began = manyReplicas, time.Now()
		j.made++
	}
}

// open returns a jump before the time that no assignment has followed.
func (j *jumps) open(before time.Time) (at appRegion, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for at, state := range j.pairs {
		if !state.began.IsZero() && state.began.Before(before) {
			return at, true
		}
	}
	return at, false
}

// Run implements Scenario.
func (s *Scaling) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--apps", s.Apps, "--regions", s.Regions, "--each", s.Each, "--window", s.Window, "--period", s.Period, "--floor", s.Floor); err != nil {
		return err
	}
	if s.Each > s.Regions {
		return errors.New("--each: an app is at most once in each of --regions")
	}
	env.recordSizes("apps", s.Apps, "regions", s.Regions, "each", s.Each, "window", s.Window.String(), "period", s.Period.String())
	j := &jumps{pairs: map[appRegion]*scaled{}, apps: map[string]string{}}
	ctx, w, err := env.startTestbed(ctx, testbed.Config{
		Regions: s.Regions,
		Runtime: func(n int, _ *rand.Rand) agent.SimulatedConfig {
			return agent.SimulatedConfig{CPU: func(app, _ string) (float64, bool) { return j.cpuOf(testbed.RegionName(n), app) }}
		},
		Applied: func(region, deployment string, _, _ int64) { j.endJump(region, deployment) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	pairs, err := s.deployAll(ctx, w, j)
	if err != nil {
		return err
	}
	if err := waitFor(ctx, s.Settle); err != nil {
		return err
	}
	w.Progressf("the load stays the same for %s", s.Window)
	quiet, err := s.measurePart(ctx, w, env, "quiet", func() error { return waitFor(ctx, s.Window) })
	if err != nil {
		return err
	}
	w.Progressf("the load jumps for %s", s.Window)
	if _, err := s.measurePart(ctx, w, env, "jumps", func() error { return s.jumpAtRandom(ctx, w, j, pairs) }); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	env.Result.Figure("jumps", float64(j.made), "jumps of a load, each followed by a decision")
	env.Result.Figure("p50_ms", measure.Millis(j.delay.Quantile(0.5)), "ms from a jump to the agent's new assignment")
	env.Result.Figure("p99_ms", measure.Millis(j.delay.Quantile(0.99)), "ms from a jump to the agent's new assignment")
	switch p99 := j.delay.Quantile(0.99); {
	case j.made == 0:
		return errors.New("no load jumped: make --window longer, or --period shorter")
	case p99 > s.Floor:
		return fmt.Errorf("p99 from a jump to the assignment is %s, above %s", p99, s.Floor)
	case quiet > 20+float64(len(pairs))/20:
		return fmt.Errorf("%.0f queries a second while no load changed: looks at apps need queries", quiet)
	}
	return nil
}

// deployAll deploys the apps, and waits until they are ready.
func (s *Scaling) deployAll(ctx context.Context, w *testbed.Testbed, j *jumps) (pairs []appRegion, err error) {
	w.Progressf("deploying %d scaled apps to %d region(s) each", s.Apps, s.Each)
	seconds := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
	policy := &windlassv1.ScalingPolicy{
		Max: 2 * manyReplicas, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: strconv.Itoa(scaledFor)}},
		Up: &windlassv1.ScalingPace{Window: seconds(60), Step: "200%", Every: seconds(30)}, Down: &windlassv1.ScalingPace{Window: seconds(30), Step: "100%", Every: seconds(10)},
	}
	var mu sync.Mutex
	err = testbed.InParallel(s.Apps, setupConcurrency, func(i int) error {
		a := testbed.App{Name: testbed.AppName(i), Version: "v1"}
		for r := range s.Each {
			a.Regions = append(a.Regions, w.Regions[(i+r)%s.Regions])
		}
		spec := a.Spec()
		spec.Replicas, spec.Resources = nil, &windlassv1.Resources{CpuMillicores: scaledCPU}
		res, err := testbed.Persist(ctx, w.API.Apps.Deploy, &windlassv1.DeployRequest{Mutation: testbed.Mutation(), App: testbed.Path(a.Name), Spec: spec, Scaling: policy})
		if err != nil {
			return fmt.Errorf("deploy %s: %w", a.Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		j.mu.Lock()
		defer j.mu.Unlock()
		j.apps[res.GetDeploymentId()] = a.Name
		for _, region := range a.Regions {
			at := appRegion{a.Name, region}
			j.pairs[at] = &scaled{deployment: res.GetDeploymentId(), needs: fewReplicas}
			pairs = append(pairs, at)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return pairs, w.WaitReady(ctx, 1, s.Apps)
}

// jumpAtRandom makes loads jump at random times for the window, and waits until each was followed by a decision.
func (s *Scaling) jumpAtRandom(ctx context.Context, w *testbed.Testbed, j *jumps, pairs []appRegion) error {
	running := func(region, deployment string) int { return w.Fleet.Member(region).Runtime.Running()[deployment] }
	end := time.Now().Add(s.Window)
	pause := s.Period / time.Duration(len(pairs))
	for next := time.Now(); time.Now().Before(end); next = next.Add(time.Duration(w.Rand.ExpFloat64() * float64(pause))) {
		if err := waitFor(ctx, time.Until(next)); err != nil {
			return err
		}
		j.changeLoad(pairs[w.Rand.IntN(len(pairs))], running)
		if at, late := j.open(time.Now().Add(-jumpTimeout)); late {
			return fmt.Errorf("the load of %s in %s jumped, and no decision followed within %s", at.app, at.region, jumpTimeout)
		}
	}
	bounded, cancel := context.WithTimeoutCause(ctx, jumpTimeout, errors.New("no decision followed a jump of the load"))
	defer cancel()
	return testbed.Until(bounded, 10*time.Millisecond, func() (bool, error) {
		_, open := j.open(time.Now())
		return !open, nil
	}, func() string {
		at, _ := j.open(time.Now())
		return fmt.Sprintf("%s in %s", at.app, at.region)
	})
}

// measurePart records what a part costs. It returns the queries of the control plane a second.
func (s *Scaling) measurePart(ctx context.Context, w *testbed.Testbed, env Env, name string, part func() error) (queries float64, err error) {
	before, err := w.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	took, parts, err := measureWindow(ctx, w, part)
	if err != nil {
		return 0, err
	}
	after, err := w.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	all, byName := statementsOf(before, after, 1)
	queries = all / took.Seconds()
	plane := parts[stack.ControlPlane(1)]
	env.Result.Rounds = append(env.Result.Rounds, map[string]any{
		"part": name, "queries_per_s": queries, "cpu_percent": plane.CPUPercent, "rss_mib": plane.RSSMiB,
		"loads_per_s": (after.Sum("windlass_load_reports_total", "") - before.Sum("windlass_load_reports_total", "")) / took.Seconds(),
		"statements":  byName,
	})
	env.Result.Parts = parts
	env.Result.Figure(name+"_cpu_percent", plane.CPUPercent, "of a core, control plane")
	env.Result.Figure(name+"_queries_per_s", queries, "queries a second")
	return queries, nil
}
