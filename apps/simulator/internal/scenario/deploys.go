package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Deploys measures how many deployments per second complete, from the call until the deployment is ready.
// Each deployment is of a new app in one region. Each of a number of users waits until its deployment is
// ready before it makes the next.
//
// All deployments must complete. The same run measures Restate and MariaDB without Windlass. The rate of bare
// invocations is the first bound, because a deployment needs at least two. The second bound is the rate of
// deployments that only write the rows that must survive a crash: each by itself (see bare.DB.Deployments),
// or sharing all work that can be shared (see bare.DB.Shared).
//
// What limits it: the processor, which the control plane, MariaDB and Restate share. A deployment takes
// longer in a region with thousands of deployments, because the agent looks through all of them for each
// report. Many deployments at once share the transactions of calls, steps and reports. If they are made one
// at a time, each needs many more statements.
//
// shared_per_s is the upper bound: only the work that two steps need, with shared commits, and without
// checks, plans and instances.
type Deploys struct {
	Apps        int   `help:"Apps to deploy at each concurrency." default:"1000"`
	Concurrency []int `help:"Deployments under way at once." default:"1,4,16,64"`
}

// wedged is how long one deployment may take before it counts as stuck.
const wedged = time.Minute

// Deadline implements Scenario.
func (s *Deploys) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(s.Apps*len(s.Concurrency))*time.Second/2
}

// Run implements Scenario.
func (s *Deploys) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--apps", s.Apps); err != nil {
		return err
	}
	for _, c := range s.Concurrency {
		if err := requirePositive("--concurrency", c); err != nil {
			return err
		}
	}
	env.recordSizes("apps", s.Apps, "concurrency", s.Concurrency, "regions", 1)
	// Each concurrency has its own region, so that nothing is left from the one before.
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: len(s.Concurrency)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	w.Progressf("measuring bare invocations")
	ingress, admin := w.Stack.RestateURLs()
	const window = 3 * time.Second
	var invocations float64
	_, parts, err := measureWindow(ctx, w, func() (err error) {
		invocations, err = bare.Invocations(ctx, ingress, admin, window, 16, 64)
		return err
	})
	if err != nil {
		return err
	}
	invocation := 1000 * cpuSeconds(parts) / (invocations * window.Seconds())
	underWay := slices.Max(s.Concurrency)
	w.Progressf("measuring bare deployments")
	least, err := w.DB.Deployments(ctx, ingress, admin, window, underWay, true)
	if err != nil {
		return err
	}
	plain, err := w.DB.Deployments(ctx, ingress, admin, window, underWay, false)
	if err != nil {
		return err
	}
	shared, err := w.DB.Shared(ctx, ingress, admin, window, underWay, 1)
	if err != nil {
		return err
	}
	best := 0.0
	for n, concurrency := range s.Concurrency {
		w.Progressf("deploying %d apps, %d at a time", s.Apps, concurrency)
		var times measure.Durations
		before, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		took, parts, err := measureWindow(ctx, w, func() error { return s.deployRound(ctx, w, w.Regions[n], concurrency, &times) })
		if err != nil {
			return fmt.Errorf("at concurrency %d: %w", concurrency, err)
		}
		after, err := w.Metrics(ctx)
		if err != nil {
			return err
		}
		perSecond := float64(times.Len()) / took.Seconds()
		best = max(best, perSecond)
		env.Result.Parts = parts
		round := costsOf(before, after, parts, times.Len(), "deploy")
		maps.Copy(round, map[string]any{
			"concurrency": concurrency, "deploys_per_s": perSecond, "complete": times.Len(),
			"p50_ms": measure.Millis(times.Quantile(0.5)), "p99_ms": measure.Millis(times.Quantile(0.99)),
		})
		env.Result.Rounds = append(env.Result.Rounds, round)
	}
	last := env.Result.Rounds[len(env.Result.Rounds)-1]
	env.Result.Figure("deploys_per_s", best, "deployments, at the best concurrency")
	env.Result.Figure("p50_ms", last["p50_ms"].(float64), "ms, at the highest concurrency")
	env.Result.Figure("p99_ms", last["p99_ms"].(float64), "ms, at the highest concurrency")
	env.Result.Figure("invocations_per_s", invocations, "bare invocations, by Restate alone")
	env.Result.Figure("invocation_cpu_ms", invocation, "ms of processor time of a bare invocation")
	env.Result.Figure("ratio", best/(invocations/2), "of half the rate of bare invocations")
	env.Result.Figure("least_per_s", least, "bare deployments: two invocations and one commit")
	env.Result.Figure("plain_per_s", plain, "bare deployments: two invocations, and commits of all rows that must survive a crash")
	env.Result.Figure("of_plain", best/plain, "of those")
	env.Result.Figure("shared_per_s", shared, "bare deployments: two invocations, a call, an event and a report, which share all work that can be shared")
	env.Result.Figure("of_shared", best/shared, "of those")
	return nil
}

const stepsMetric = "deployment_workflow_step_duration_seconds_count"

// costsOf returns the costs of each of n pieces of work: statements, steps and processor time, in total and by
// part.
func costsOf(before, after measure.Metrics, parts map[string]measure.Part, n int, piece string) map[string]any {
	all, byName := statementsOf(before, after, n)
	out := map[string]any{
		"statements_per_" + piece: all, "statements": byName,
		"steps_per_" + piece:  (after.Sum(stepsMetric, "") - before.Sum(stepsMetric, "")) / float64(n),
		"cpu_ms_per_" + piece: 1000 * cpuSeconds(parts) / float64(n),
	}
	for name := range parts {
		out[name+"_cpu_ms"] = 1000 * cpuSeconds(parts, name) / float64(n)
	}
	return out
}

// statementsOf returns the control plane's statements between two readings of its metrics, for each of n pieces
// of work: in total and by the query's name. It does not count statements that begin and end transactions,
// and leaves out queries with less than one statement in twenty pieces.
func statementsOf(before, after measure.Metrics, n int) (all float64, byName map[string]float64) {
	byName = map[string]float64{}
	for key, value := range after {
		labels, ok := strings.CutPrefix(key, "windlass_store_queries_total{query=\"")
		if !ok {
			continue
		}
		each := (value - before[key]) / float64(n)
		all += each
		if each >= 0.05 {
			byName[strings.TrimSuffix(labels, "\"}")] = math.Round(100*each) / 100
		}
	}
	return all, byName
}

func (s *Deploys) deployRound(ctx context.Context, w *testbed.Testbed, region string, concurrency int, times *measure.Durations) error {
	watch := newReadiness(w.DB)
	stopWatch := watch.startAsking(ctx)
	defer stopWatch()
	var mu sync.Mutex
	return testbed.InParallel(s.Apps, concurrency, func(i int) error {
		begin := time.Now()
		app := testbed.App{Name: fmt.Sprintf("c%d-%05d", concurrency, i), Regions: []string{region}, Replicas: 1, Version: "v1"}
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
}

// readiness asks the database whether deployments have become ready, with one query for all waiting callers.
type readiness struct {
	db *bare.DB

	mu      sync.Mutex
	waiting map[string]chan error
}

const (
	// askEvery is much shorter than a deployment.
	askEvery = 5 * time.Millisecond
	// askShare limits the time that queries take to a tenth, so that they do not change what is measured.
	askShare = 9
)

func newReadiness(db *bare.DB) *readiness {
	return &readiness{db: db, waiting: map[string]chan error{}}
}

// startAsking asks about the deployments that callers of waitReady wait for, until stop is called.
func (r *readiness) startAsking(ctx context.Context) (stop func()) {
	asking, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { r.askUntilStopped(asking) })
	return func() { cancel(); running.Wait() }
}

// waitReady waits until the deployment is ready, but at most for wedged. The error names app.
func (r *readiness) waitReady(ctx context.Context, id, app string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wedged, fmt.Errorf("%s is not ready after %s", app, wedged))
	defer cancel()
	done := make(chan error, 1)
	r.mu.Lock()
	r.waiting[id] = done
	r.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *readiness) askUntilStopped(ctx context.Context) {
	for wait := askEvery; waitFor(ctx, wait) == nil; {
		r.mu.Lock()
		ids := slices.Sorted(maps.Keys(r.waiting))
		r.mu.Unlock()
		if len(ids) == 0 {
			continue
		}
		begin := time.Now()
		statuses, err := r.askStatuses(ctx, ids)
		wait = max(askEvery, askShare*time.Since(begin))
		r.mu.Lock()
		for _, id := range ids {
			status := statuses[id]
			switch {
			case err != nil:
				r.waiting[id] <- err
			case status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY:
				r.waiting[id] <- nil
			case status > windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY:
				r.waiting[id] <- fmt.Errorf("deployment %s is %s", id, status)
			default:
				continue
			}
			delete(r.waiting, id)
		}
		r.mu.Unlock()
	}
}

func (r *readiness) askStatuses(ctx context.Context, ids []string) (map[string]windlassv1.DeploymentStatus, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	found, err := r.db.Strings(ctx, "SELECT CONCAT(status, ' ', id) FROM deployments WHERE id IN (?"+strings.Repeat(", ?", len(ids)-1)+")", args...)
	out := map[string]windlassv1.DeploymentStatus{}
	for _, line := range found {
		var status int32
		var id string
		if _, err := fmt.Sscan(line, &status, &id); err != nil {
			return nil, err
		}
		out[id] = windlassv1.DeploymentStatus(status)
	}
	return out, err
}
