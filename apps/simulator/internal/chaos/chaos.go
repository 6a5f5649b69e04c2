// Package chaos breaks a running installation at random, and checks that every promise still holds.
//
//	users ----------------> balancer ---> controlplane-1 --.-- link --> MariaDB
//	agents -- link, ------->   |    `---> controlplane-2 --'-- link --> Restate
//	  ^       bad transports   |                             `- link <--
//	gateways <-- clients       |
//	                           faults: kill -9, freeze, cut, delay, half-open, double
//	                           and late reports, silent executors, full disks,
//	                           clocks, backups
//
// It works in rounds. In each, users change apps and clients send requests while faults occur. Then everything is mended,
// the users and the clients rest, and within some seconds everything must be settled and the same everywhere: see
// checker. Apps that may go to zero must go there, and one request must wake each. Servers load and unload models all the time,
// and clients call the models through the gateways. A seed decides what happens and when,
// but not how the parts react: runs of the same seed are similar.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/scenario"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// Chaos is the scenario.
//
// What limits it: time, because only correctness is checked. A round is the time of its faults and the time to settle.
// Most of that is waiting for leases, dead connections and retries that have backed off. Then come the
// rollouts that the faults left under way, region by region and replica by replica.
type Chaos struct {
	Minutes  float64       `help:"How long to run. The last round is completed." default:"5"`
	Regions  int           `help:"Regions, each with an agent." default:"8"`
	Users    int           `help:"Users who change apps all the time." default:"3"`
	Faults   time.Duration `help:"How long faults occur in a round." default:"30s"`
	Rest     time.Duration `help:"Longest rest between two faults." default:"2s"`
	Converge time.Duration `help:"How long everything may take to settle after all faults were mended." default:"10s"`
	Patience time.Duration `help:"How long to wait after that, to distinguish slow from stuck." default:"2m"`
	Idle     time.Duration `help:"How long apps may take to go to zero after that." default:"45s"`
	Restores bool          `help:"Restore the database from backups." default:"true" negatable:""`
}

// Deadline implements scenario.Scenario.
func (s *Chaos) Deadline() time.Duration {
	return 10*time.Minute + time.Duration(2*s.Minutes*float64(time.Minute)) + s.Faults + s.Patience
}

// run is one run of the scenario.
type run struct {
	*Chaos
	w        *testbed.Testbed
	net      *network
	disks    *disks
	injector *injector
	checker  *checker
	history  *history
	rnd      *rand.Rand
	load     load
	// requests are those to the apps that may go to zero and to models, through gateways. hosts are the hosts of these apps.
	requests *requests
	gateways *gateways
	hosts    map[string]string

	mu     sync.Mutex
	calls  map[string]int
	faults map[string]int
}

// Run implements scenario.Scenario.
func (s *Chaos) Run(ctx context.Context, env scenario.Env) (err error) {
	if s.Minutes <= 0 || s.Regions < 2 || s.Users < 1 || s.Faults <= 0 || s.Converge <= 0 || s.Idle <= 0 {
		return errors.New("--minutes, --users, --faults, --converge and --idle have to be above 0, --regions above 1")
	}
	env.ControlPlanes = max(env.ControlPlanes, 2)
	env.Result.Sizes = map[string]any{
		"minutes": s.Minutes, "regions": s.Regions, "users": s.Users, "faults": s.Faults.String(), "control_planes": env.ControlPlanes,
	}
	h := newHistory(time.Now)
	r := &run{
		Chaos: s, net: newNetwork(), disks: &disks{}, history: h, checker: newChecker(h, env.Seed),
		rnd: rand.New(rand.NewPCG(env.Seed, 7)), load: load{seed: env.Seed}, calls: map[string]int{}, faults: map[string]int{},
	}
	r.gateways = &gateways{self: env.Self, addresses: map[string]string{}, processes: map[string]*proc.Process{}}
	r.requests = newRequests(r.checker, h, r.gateways.addressOf)
	r.gateways.requests, r.checker.requests = r.requests, r.requests
	for i := range fixedApps {
		r.checker.fixed[appName(i)] = fixedReplicas
	}
	ctx, w, balancer, err := r.startTestbed(ctx, env)
	if balancer != nil {
		defer balancer.Close()
	}
	defer r.net.close()
	if err != nil {
		return errors.Join(err, r.disks.unmountAll())
	}
	r.w, r.checker.w, r.injector.w, r.gateways.w = w, w, w, w
	defer func() { err = errors.Join(err, r.gateways.stop(), r.disks.unmountAll(), w.Stop()) }()
	if s.Restores {
		r.injector.backup = &backup{data: filepath.Join(w.Stack.Folder(stack.MariaDB), "data"), copied: filepath.Join(w.Stack.Dir(), "backup")}
	}
	rounds, slowest, err := r.breakAndMend(ctx)
	violations := r.checker.foundViolations()
	r.writeResult(env, rounds, slowest, violations)
	if err != nil {
		return err
	}
	return violationsError(violations)
}

// startTestbed starts the testbed, with everything between its parts that can be broken.
func (r *run) startTestbed(ctx context.Context, env scenario.Env) (context.Context, *testbed.Testbed, *testbed.Balancer, error) {
	var balancer *testbed.Balancer
	r.injector = &injector{net: r.net, history: r.history, checker: r.checker, disks: r.disks, gateways: r.gateways, transports: map[string]*unreliableTransport{}}
	ctx, w, err := testbed.Start(ctx, testbed.Config{
		Options: env.Options, Name: env.Result.Scenario, Regions: r.Regions,
		Route: func(from, to, address string) (string, error) { return r.net.addLink(linkBetween(from, to), address) },
		// Users make more versions of an app than are usually kept, and an acknowledged version must not be
		// deleted.
		ServeFlags: []string{"--keep-versions=100000"},
		Prepare: func(s *stack.Stack) (err error) {
			balancer, err = testbed.NewBalancer(ctx, s)
			for n := range r.Regions {
				if err == nil {
					_, err = r.net.addLink(linkToControlPlane(testbed.RegionName(n)), balancer.Address())
				}
			}
			return err
		},
		URL: func(_ *stack.Stack, n int) string {
			if n < 0 {
				return "http://" + balancer.Address()
			}
			return "http://" + r.net.linkOf(linkToControlPlane(testbed.RegionName(n))).proxy.Listen
		},
		Folder: r.disks.makeDisk,
		Transport: func(region string, next http.RoundTripper) http.RoundTripper {
			m := &unreliableTransport{next: next, rnd: rand.New(rand.NewPCG(env.Seed, uint64(len(r.injector.transports))))}
			r.injector.transports[region] = m
			return m
		},
		Runtime: func(n int, rnd *rand.Rand) agent.SimulatedConfig {
			return r.regionRuntime(testbed.RegionName(n), n == 0 || n == r.Regions/2, rnd)
		},
		Applied: r.checker.onApplied,
	})
	return ctx, w, balancer, err
}

// regionRuntime returns the runtime of a region: instances take random short times to start and to stop, and some
// starts fail. serves means that the region has a gateway, so its instances need servers.
func (r *run) regionRuntime(region string, serves bool, rnd *rand.Rand) agent.SimulatedConfig {
	var mu sync.Mutex
	float := func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return rnd.Float64()
	}
	cfg := agent.SimulatedConfig{
		// A rollout may wait for twelve starts, one after the other, and must end within the time in which
		// everything has to settle.
		Start:   func() time.Duration { return time.Duration((0.01 + float()) * float64(time.Second/2)) },
		Stop:    func() time.Duration { return time.Duration(float() * float64(time.Second/2)) },
		Crashes: func(label string) bool { return label == crashes },
		CPU:     func(app, role string) (float64, bool) { return r.load.cpuOf(region, app, role) },
		Failures: func() int {
			if float() < 0.05 {
				return 1
			}
			return 0
		},
		Removed: func(deployment string) { r.checker.onRemoved(region, deployment) },
		Ready: func(deployment, instance string) {
			r.checker.onReady(region, deployment, instance)
			r.requests.models.noteReady(region, deployment, instance)
		},
	}
	if serves {
		cfg.Serve = func(app, instance string) (string, func(bool)) { return r.requests.serve(region, app, instance) }
	}
	return cfg
}

// breakAndMend breaks and mends, until the time is over or a promise is broken.
func (r *run) breakAndMend(ctx context.Context) (n int, slowest time.Duration, err error) {
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.checker.watchDatabase(watching) })
	defer func() { stop(); wg.Wait() }()
	if err := r.startScaled(ctx); err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	for time.Since(begin).Minutes() < r.Minutes && len(r.checker.foundViolations()) == 0 {
		n++
		if err := r.backUp(ctx); err != nil {
			return n, slowest, err
		}
		r.w.Progressf("round %d: causing faults for %s", n, r.Faults)
		if err := r.breakThings(ctx, uint64(n)); err != nil {
			return n, slowest, fmt.Errorf("round %d: %w", n, err)
		}
		took, err := r.waitSettled(ctx)
		if err != nil {
			return n, slowest, fmt.Errorf("round %d: %w", n, err)
		}
		slowest = max(slowest, took)
		r.w.Progressf("round %d: settled after %s", n, took.Round(10*time.Millisecond))
		if len(r.checker.foundViolations()) > 0 {
			continue
		}
		if took, err = r.goToZeroAndBack(ctx); err != nil {
			return n, slowest, fmt.Errorf("round %d: %w", n, err)
		}
		r.w.Progressf("round %d: at zero after %s", n, took.Round(10*time.Millisecond))
	}
	return n, slowest, nil
}

// backUp takes a backup of the database while everything is in order.
func (r *run) backUp(ctx context.Context) error {
	if r.injector.backup == nil {
		return nil
	}
	r.history.add(event{part: stack.MariaDB, text: "a backup is taken"})
	return errors.Join(r.w.Stack.Kill(stack.MariaDB), r.injector.backup.takeCopy(), r.w.Stack.Launch(ctx, stack.MariaDB))
}

func (r *run) newUser(number uint64) *user {
	return &user{
		api:     testbed.NewClient(r.w.URL(), r.w.Stack.APIKey()),
		checker: r.checker, history: r.history, regions: r.w.Regions,
		rnd: rand.New(rand.NewPCG(r.rnd.Uint64(), number)), mu: &r.mu, calls: r.calls,
	}
}

// startScaled deploys the scaled apps and models, so that they change during the first faults, and starts the gateways.
func (r *run) startScaled(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the scaled apps do not start"))
	defer cancel()
	if err := openLedger(ctx, r.w.DB); err != nil {
		return err
	}
	u := r.newUser(0)
	defer u.api.Close()
	for i := scaledApp; i < allApps; i++ {
		if _, err := u.deployApp(ctx, i, appName(i), "good"); err != nil {
			return fmt.Errorf("deploy %s: %w", appName(i), err)
		}
	}
	for _, region := range gatewayRegions(r.w.Regions) {
		if err := r.gateways.start(region); err != nil {
			return err
		}
	}
	r.hosts = map[string]string{}
	for _, app := range requestedApps() {
		if err := testbed.Until(ctx, 50*time.Millisecond, func() (done bool, err error) {
			r.hosts[app], err = hostOf(ctx, r.w.DB, app)
			return r.hosts[app] != "", err
		}, func() string { return app + " has no host" }); err != nil {
			return err
		}
	}
	// The first request is answered once the gateway serves the route.
	for _, c := range r.newClients() {
		if err := testbed.Until(ctx, 50*time.Millisecond, func() (bool, error) { return c.get(ctx, http.MethodGet) == nil, nil }, func() string {
			return c.at.app + " is not served in " + c.at.region
		}); err != nil {
			return err
		}
	}
	return nil
}

// requestedApps returns the apps that get requests: those that may go to zero, and models.
func requestedApps() []string {
	out := []string{zeroName, poolName}
	for i := range modelApps {
		out = append(out, modelName(i))
	}
	return out
}

// newClients returns a client for each app that gets requests in each of its regions.
func (r *run) newClients() (out []*client) {
	for _, app := range requestedApps() {
		for _, region := range gatewayRegions(r.w.Regions) {
			out = append(out, r.requests.newClient(appRegion{app, region}, r.hosts[app], rand.New(rand.NewPCG(r.rnd.Uint64(), 0))))
		}
	}
	return out
}

// goToZeroAndBack waits until each app that may go to zero is at zero, and wakes it with one request. It returns how
// long the apps took to go to zero. An app that is not at zero in time is a violation, and so is a request that
// fails.
func (r *run) goToZeroAndBack(ctx context.Context) (time.Duration, error) {
	r.requests.forgetKills()
	begin := time.Now()
	for {
		bounded, cancel := context.WithTimeout(ctx, r.Converge)
		b, err := readBooks(bounded, r.w.DB)
		cancel()
		awake := b.wronglyAwake()
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case err != nil:
			return 0, err
		case awake == nil:
			took := time.Since(begin)
			for _, c := range r.newClients() {
				_ = c.send(ctx, http.MethodPost) // it records a failure, which ends the run
			}
			_, err := r.waitSettled(ctx)
			return took, err
		case time.Since(begin) > r.Idle:
			r.checker.recordViolationf(awake.kind, awake.app, awake.place, "%s after the last request: %s", r.Idle, awake)
			return 0, nil
		}
		if err := backoff.Sleep(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

func (r *run) breakThings(ctx context.Context, round uint64) error {
	users, rest := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i := range r.Users {
		u := r.newUser(round<<8 + uint64(i))
		wg.Go(func() {
			u.makeCalls(users, 2*time.Second)
			u.api.Close()
		})
	}
	for _, c := range r.newClients() {
		wg.Go(func() { c.sendBursts(users) })
	}
	wg.Go(func() {
		changes := time.NewTicker(newLoadEvery)
		defer changes.Stop()
		for {
			select {
			case <-users.Done():
				return
			case <-changes.C:
				r.load.at.Add(1)
			}
		}
	})
	counts, err := r.injector.breakAtRandom(ctx, rand.New(rand.NewPCG(r.rnd.Uint64(), round)), r.Faults, r.Rest)
	rest()
	wg.Wait()
	for name, n := range counts {
		r.faults[name] += n
	}
	return err
}

// waitSettled waits until everything is in order, and returns how long that took. Not settling in time is a
// violation. Never settling is a violation of another kind.
func (r *run) waitSettled(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	var why, last *disagreement
	var waits []string // the disagreements that it waited for, in order
	slow := false
	for {
		if why != nil && (last == nil || last.String() != why.String()) {
			waits = append(waits, fmt.Sprintf("%5.2fs %s", time.Since(begin).Seconds(), why))
		}
		last = why
		bounded, cancel := context.WithTimeout(ctx, r.Converge)
		// Workloads that a restored database does not know run on until its operator reviews them.
		err := r.checker.stopUnknown(bounded)
		if err == nil {
			why, err = r.checker.compareAll(bounded)
		}
		cancel()
		took := time.Since(begin)
		switch {
		case ctx.Err() != nil:
			return took, context.Cause(ctx)
		case err != nil:
			why = &disagreement{kind: "not healed", text: err.Error()}
		case why == nil:
			if err := errors.Join(r.checker.checkDatabase(ctx), r.checker.checkLedger(ctx)); err != nil {
				return took, err
			}
			if len(r.checker.foundViolations()) == 0 {
				r.history.deleteEvents()
			}
			if took < r.Converge/2 {
				waits = waits[max(len(waits)-1, 0):]
			}
			for _, wait := range waits {
				r.w.Progressf("waited for: %s", wait)
			}
			return took, nil
		}
		late, stuck := r.checker.recordUnsettled(took, patience{r.Converge, r.Patience}, why)
		if late && !slow {
			slow = true
			r.w.Progressf("not settled after %s: %s", r.Converge, why)
		}
		if stuck {
			return took, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// writeResult writes the result.
func (r *run) writeResult(env scenario.Env, rounds int, slowest time.Duration, violations []Violation) {
	faults := 0
	for _, n := range r.faults {
		faults += n
	}
	env.Result.Figure("violations", float64(len(violations)), "promises broken")
	env.Result.Figure("rounds", float64(rounds), "times that everything was mended")
	env.Result.Figure("faults", float64(faults), "times that something was broken")
	env.Result.Figure("calls", float64(r.calls["done"]), "changes that users made")
	env.Result.Figure("slowest_ms", measure.Millis(slowest), "ms until all was settled, the slowest round")
	env.Result.Figure("scalings", float64(r.checker.countScalings()), "decisions to scale that were seen")
	env.Result.Figure("zeros", float64(r.checker.zeros), "decisions for zero that were seen")
	env.Result.Figure("decided", float64(r.checker.audited.decided), "changes of counts outside of rollouts, each made by one decision")
	env.Result.Figure("delayed", float64(r.checker.audited.delayed), "changes that followed a decision later, where a region lagged behind its rollout")
	env.Result.Figure("woken", float64(r.checker.audited.woken), "changes of counts that followed a request to an app at zero")
	env.Result.Figure("requests", float64(r.requests.answered), "requests that were answered")
	env.Result.Figure("requests_waited", float64(r.requests.waited), "of these took "+slowAnswer.String()+" or longer")
	env.Result.Figure("requests_slowest_ms", measure.Millis(r.requests.slowest), "ms, the slowest")
	env.Result.Figure("requests_killed", float64(r.requests.excused), "requests that failed with the instance or the gateway that had them")
	loads, unloads, failed := r.requests.models.counts()
	env.Result.Figure("model_loads", float64(loads), "loads of models")
	env.Result.Figure("model_unloads", float64(unloads), "unloads of models")
	env.Result.Figure("model_loads_failed", float64(failed), "loads that servers refused")
	env.Result.Figure("events", float64(r.history.total), "events in the history")
	reports := map[string]int64{}
	for _, m := range r.injector.transports {
		m.addCounts(reports)
	}
	env.Result.Figure("reports", float64(reports["doubled"]+reports["delayed"]+reports["lost"]), "reports that were doubled, delayed or lost")
	env.Result.Details = map[string]any{"faults": r.faults, "calls": r.calls, "reports": reports, "requests": r.requests.ofApp, "violations": violations}
	if r.disks.failed != nil {
		env.Result.Details["left_out"] = "full disks: " + r.disks.failed.Error()
	}
}
