package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Zero takes an app to zero and back repeatedly, with an agent, a gateway and instances that are real
// processes. In every other round requests come at random times around the decision to go to zero. In the
// other rounds the control plane is killed once the app is at zero, and requests come then. It fails if a
// request fails, if a request wakes nothing, or if p99 of the hold's overhead is above the floor. The
// overhead is the time from an instance's first answer to a health check until a waiting request arrives at
// the instance.
//
// What limits it: the agent checks the health of instances every 100 ms, and the overhead begins with the
// first answer that the agent gets.
type Zero struct {
	Times    int           `help:"How often it goes to zero and back." default:"100"`
	Requests int           `help:"Requests of a round." default:"5"`
	Start    time.Duration `help:"Maximum start time of an instance. The minimum is half of it." default:"600ms"`
	Spread   time.Duration `help:"Time within which the requests of a round come." default:"1s"`
	Floor    time.Duration `help:"p99 of the overhead up to which the run does not fail." default:"100ms"`
}

// ZeroInstanceCommand is the hidden command that runs this program as an instance of this scenario.
const ZeroInstanceCommand = "__cold-instance"

// Deadline implements Scenario.
func (s *Zero) Deadline() time.Duration { return 5*time.Minute + time.Duration(s.Times)*30*time.Second }

// coldAnswer is an instance's answer: when the request arrived, and the instance became healthy, in unix us.
type coldAnswer struct {
	Arrived, Healthy int64
}

// ColdInstance serves on PORT. It fails its health check for the time in the argument.
func ColdInstance(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("use one argument: how long the start takes")
	}
	start, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	ready := time.Now().Add(start/2 + time.Duration(rand.Float64()*float64(start/2)))
	var mu sync.Mutex
	var healthy int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/health" {
			if now.Before(ready) {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if healthy == 0 {
				healthy = now.UnixMicro()
			}
			return
		}
		_ = json.NewEncoder(w).Encode(coldAnswer{Arrived: now.UnixMicro(), Healthy: healthy}) // the client counts a failed answer
	})
	server := &http.Server{Addr: net.JoinHostPort("127.0.0.1", os.Getenv("PORT")), Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

// zeroRun is a run with one region and its gateway.
type zeroRun struct {
	*testbed.Testbed
	s       *Zero
	host    string
	gateway string
	client  *http.Client
	random  *rand.Rand

	mu       sync.Mutex
	asked    int
	failed   []string
	overhead measure.Durations
	held     measure.Durations
}

// Run implements Scenario.
func (s *Zero) Run(ctx context.Context, env Env) (err error) {
	if err := requirePositive("--times", s.Times, "--requests", s.Requests, "--start", s.Start, "--spread", s.Spread, "--floor", s.Floor); err != nil {
		return err
	}
	env.recordSizes("times", s.Times, "requests", s.Requests, "start", s.Start.String(), "spread", s.Spread.String())
	ctx, w, err := env.startTestbed(ctx, testbed.Config{Regions: 1, Idle: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	r := &zeroRun{Testbed: w, s: s, client: &http.Client{Transport: &http.Transport{}, Timeout: 2 * time.Minute}, random: rand.New(rand.NewPCG(env.Seed, 1))}
	defer r.client.CloseIdleConnections()
	stop, err := r.startParts(ctx, env.Self)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	wakes, killed := 0, 0
	for n := range s.Times {
		kill := n%2 == 1
		if err := r.goToZeroAndBack(ctx, kill); err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		wakes++
		if kill {
			killed++
		}
		if (n+1)%10 == 0 {
			r.mu.Lock()
			w.Progressf("%d times, %d requests, %d failed, overhead p99 %s", n+1, r.asked, len(r.failed), r.overhead.Quantile(0.99))
			r.mu.Unlock()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	env.Result.Figure("zero_wakes", float64(wakes), "times to zero and back")
	env.Result.Figure("zero_control_plane_killed", float64(killed), "of these times with the control plane killed")
	env.Result.Figure("zero_requests", float64(r.asked), "requests")
	env.Result.Figure("zero_failed", float64(len(r.failed)), "requests that failed")
	env.Result.Figure("zero_waited", float64(r.overhead.Len()), "requests that waited for an instance")
	env.Result.Figure("zero_overhead_p50_ms", measure.Millis(r.overhead.Quantile(0.5)), "ms from ready to the instance")
	env.Result.Figure("zero_overhead_p99_ms", measure.Millis(r.overhead.Quantile(0.99)), "ms from ready to the instance")
	env.Result.Figure("zero_cold_p99_ms", measure.Millis(r.held.Quantile(0.99)), "ms of a request that waited")
	switch {
	case len(r.failed) > 0:
		return fmt.Errorf("%d of %d requests failed: %s", len(r.failed), r.asked, r.failed[0])
	case r.overhead.Quantile(0.99) > s.Floor:
		return fmt.Errorf("p99 of the overhead is %s, above %s", r.overhead.Quantile(0.99), s.Floor)
	}
	return nil
}

// startParts starts the agent and the gateway, and deploys the app.
func (r *zeroRun) startParts(ctx context.Context, self string) (stop func() error, err error) {
	r.gateway, stop, err = startRegion(ctx, r.Testbed, self, r.Regions[0])
	if err != nil {
		return stop, err
	}
	_, err = testbed.Persist(ctx, r.API.Apps.Deploy, &windlassv1.DeployRequest{Mutation: testbed.Mutation(), App: testbed.Path("cold"), Spec: &windlassv1.DeploymentSpec{
		Command: []string{self}, Args: []string{ZeroInstanceCommand, r.s.Start.String()}, Regions: r.Regions, Replicas: new(int32(1)),
		Ports:            []*windlassv1.Port{{Name: "http"}},
		HealthCheck:      &windlassv1.HealthCheck{Path: "/health", Interval: durationpb.New(100 * time.Millisecond), HealthyThreshold: 1},
		TerminationGrace: durationpb.New(2 * time.Second),
		Routing:          &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{Hold: durationpb.New(time.Minute)}},
	}})
	if err != nil {
		return stop, fmt.Errorf("deploy: %w", err)
	}
	if err := r.waitReplicas(ctx, "the app is ready", 1); err != nil {
		return stop, err
	}
	if r.host, err = hostOf(ctx, r.Testbed); err != nil {
		return stop, err
	}
	// The first request is answered once the gateway serves the route.
	return stop, testbed.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		_, _, err := r.getAnswer(ctx)
		return err == nil, nil
	}, func() string { return "the gateway does not serve the app" })
}

// waitReplicas waits until the app has this number of replicas, in the database and in the region's reports.
func (r *zeroRun) waitReplicas(ctx context.Context, what string, replicas int) error {
	var wanted, ready, existing int
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("it takes too long"))
	defer cancel()
	return testbed.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		err := r.DB.QueryRowContext(ctx, `SELECT COALESCE(SUM(t.replicas), -1), COALESCE(SUM(o.ready), 0), COALESCE(SUM(o.pending+o.running+o.ready+o.draining), 0)
			FROM deployment_topology t LEFT JOIN deployment_observed o ON o.deployment_id = t.deployment_id AND o.region = t.region`).Scan(&wanted, &ready, &existing)
		return wanted == replicas && ready == replicas && existing == replicas, err
	}, func() string {
		return fmt.Sprintf("waits until %s: %d replicas are wanted, %d ready, %d instances exist", what, wanted, ready, existing)
	})
}

// goToZeroAndBack takes the app to zero and back.
func (r *zeroRun) goToZeroAndBack(ctx context.Context, kill bool) error {
	if err := r.Scale(ctx, "cold", "", 0); err != nil {
		return err
	}
	plane := stack.ControlPlane(1)
	if kill {
		if err := r.waitReplicas(ctx, "it is at zero", 0); err != nil {
			return err
		}
		if err := r.Stack.Kill(plane); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	for range r.s.Requests {
		at := time.Duration(r.random.Float64() * float64(r.s.Spread))
		wg.Go(func() {
			if waitFor(ctx, at) == nil {
				r.sendRequest(ctx)
			}
		})
	}
	wg.Wait()
	if kill {
		if err := r.Stack.Launch(ctx, plane); err != nil {
			return err
		}
		if err := r.Stack.WaitReady(ctx, plane); err != nil {
			return err
		}
		return r.waitReplicas(ctx, "the control plane wants the woken replica", 1)
	}
	// All requests may have come before the decision took effect. A request after it wakes the app.
	if err := waitFor(ctx, r.s.Spread); err != nil {
		return err
	}
	r.sendRequest(ctx)
	return r.waitReplicas(ctx, "the control plane wants the woken replica", 1)
}

func (r *zeroRun) sendRequest(ctx context.Context) {
	begun := time.Now()
	status, answer, err := r.getAnswer(ctx)
	took := time.Since(begun)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if err != nil {
		r.failed = append(r.failed, fmt.Sprintf("after %s: %s: %v", took, status, err))
		return
	}
	if begun.UnixMicro() < answer.Healthy {
		r.overhead.Add(time.Duration(answer.Arrived-answer.Healthy) * time.Microsecond)
		r.held.Add(took)
	}
}

func (r *zeroRun) getAnswer(ctx context.Context) (status string, answer coldAnswer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.gateway+"/", http.NoBody)
	if err != nil {
		return "", answer, err
	}
	req.Host = r.host
	res, err := r.client.Do(req)
	if err != nil {
		return "", answer, err
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return res.Status, answer, err
	}
	if res.StatusCode != http.StatusOK {
		return res.Status, answer, fmt.Errorf("%s: %.200s", res.Header.Get("Windlass-Error"), body)
	}
	return res.Status, answer, json.Unmarshal(body, &answer)
}
