package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// callers send streaming requests, which may not be repeated, to an app's host in every region. Requests
// begin at fixed times, however long earlier requests take.
type callers struct {
	stop func()
	mu   sync.Mutex
	sent int
	// open is the number of requests that wait for their answer, by region.
	open map[string]int
	// failed has the errors of the first few failed requests. failures counts all of them.
	failed   []string
	failures int
}

// callsEach is the minimum number of requests during each change of TestGateways_AnswerEveryRequest. The test
// repeats the change until it has seen this number. 0: the test makes each change once.
var callsEach, _ = strconv.Atoi(os.Getenv("WINDLASS_E2E_REQUESTS"))

// callEvery is the time between two requests to a region.
func callEvery() time.Duration {
	if callsEach > 0 {
		return 4 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// buried is the number of waiting requests at which a region counts as not answering any more.
const buried = 5000

func (s *stack) callers(host string) *callers {
	return s.callersOf(func(ctx context.Context, client *http.Client, url string) error {
		return completeBy(ctx, client, url, host)
	})
}

// callersOf returns callers that make each request with send. send gets a gateway's URL, and must have a
// deadline.
func (s *stack) callersOf(send func(ctx context.Context, client *http.Client, url string) error) *callers {
	ctx, cancel := context.WithCancel(s.t.Context())
	c := &callers{open: map[string]int{}}
	var all sync.WaitGroup
	for region, url := range s.gateways {
		all.Go(func() {
			due := time.Now()
			for n := 1; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Until(due)):
				}
				if c.begin(region) == buried {
					c.end(region, fmt.Errorf("%d others wait", buried))
					return
				}
				client := caller
				if n%freshEvery == 0 {
					client = freshCaller
				}
				all.Go(func() { c.end(region, send(context.WithoutCancel(ctx), client, url)) })
				due = due.Add(callEvery())
			}
		})
	}
	c.stop = func() { cancel(); all.Wait() }
	return c
}

// begin counts a new request, and returns how many requests of the region waited before it.
func (c *callers) begin(region string) (before int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.open[region]
	c.open[region]++
	return before
}

func (c *callers) end(region string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[region]--
	if c.sent++; err == nil {
		return
	}
	if c.failures++; len(c.failed) < 10 {
		c.failed = append(c.failed, fmt.Sprintf("%s at %s: %v", region, time.Now().Format("15:04:05.000"), err))
	}
}

// begun returns the number of requests that were answered or wait for their answer, in all regions.
func (c *callers) begun() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.sent
	for _, open := range c.open {
		n += open
	}
	return n
}

func (c *callers) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// requireNoneFailed asserts that no request has failed so far.
func (c *callers) requireNoneFailed(t *testing.T, meanwhile string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.failed, "%s, of %d", meanwhile, c.sent)
}

// requireFewFailed fails if more than most requests were lost, and forgets them.
func (c *callers) requireFewFailed(t *testing.T, most int, meanwhile string) (lost int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.LessOrEqual(t, c.failures, most, "%s: %v", meanwhile, c.failed)
	lost, c.failures, c.failed = c.failures, 0, nil
	return lost
}

// caller closes an idle connection earlier than a replaced gateway does. If the gateway closed first, a
// client that sends at that moment could not know whether its request arrived, and the request would be lost.
var caller = &http.Client{Transport: &http.Transport{
	IdleConnTimeout: time.Second, MaxIdleConnsPerHost: mostConnections, MaxConnsPerHost: mostConnections, DialTLSContext: dialTLS,
}}

// freshCaller opens a connection for each request. callers send one of freshEvery requests by freshCaller, so that
// gateways get new connections during each change, although caller keeps its connections.
var freshCaller = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, MaxConnsPerHost: mostConnections, DialTLSContext: dialTLS}}

const (
	freshEvery = 10
	// mostConnections is how many connections a client has to a gateway. Held requests need one each.
	mostConnections = 256
	// mostHandshakes is the number of TLS handshakes that the clients of all tests make at the same time. Without a
	// bound, clients on a slow machine dial for each waiting request. Thousands of handshakes at once take so long
	// that gateways end them (after 10 s). In TLS 1.3 the client's part of a handshake ends before the gateway's
	// part. So the client may already use such a connection, and loses its request.
	mostHandshakes = 8
)

var handshakes = make(chan struct{}, mostHandshakes)

// clientTLS is the TLS of the clients that dial with dialTLS. trustHere sets it.
var clientTLS *tls.Config

// dialTLS connects and makes the handshake once fewer than mostHandshakes other handshakes are under way.
func dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	select {
	case handshakes <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-handshakes }()
	return (&tls.Dialer{Config: clientTLS}).DialContext(ctx, network, address)
}

// complete requests a completion as a stream, and returns an error unless the stream is complete.
func complete(ctx context.Context, gateway, host string) error {
	return completeBy(ctx, caller, gateway, host)
}

func completeBy(ctx context.Context, client *http.Client, gateway, host string) error {
	return completeText(ctx, client, gateway, host, "one two three four five")
}

func completeText(ctx context.Context, client *http.Client, gateway, host, text string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body := fmt.Sprintf(`{"model": "echo", "stream": true, "messages": [{"role": "user", "content": %q}]}`, text)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("after %d bytes: %w", len(answer), err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %.200s", resp.Status, answer)
	case !strings.Contains(string(answer), "[DONE]"):
		return fmt.Errorf("it ends with %.100s", answer[max(0, len(answer)-100):])
	}
	return nil
}

// askHealth requests /health of the app with this host, with the key unless it is empty.
func askHealth(ctx context.Context, gateway, host, key string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway+"/health", nil)
	if err != nil {
		return nil, err
	}
	req.Host = host
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := caller.Do(req)
	if err != nil {
		return nil, err
	}
	return resp, resp.Body.Close()
}

// host returns the app's host of that kind, once it is served.
func (s *stack) host(t *testing.T, app string, kind windlassv1.Route_Kind, version int32) (host string) {
	t.Helper()
	s.eventually(t, "a route of "+app, func(ctx context.Context) error {
		resp, err := s.owner.routes.ListRoutes(ctx, &windlassv1.ListRoutesRequest{App: named(app)})
		if err != nil {
			return err
		}
		for _, r := range resp.Routes {
			if r.Kind == kind && r.Version == version {
				if host = r.Host; r.State != windlassv1.RouteState_ROUTE_STATE_RUNNING {
					return fmt.Errorf("it is %v", r)
				}
				return nil
			}
		}
		return fmt.Errorf("there are %v", resp.Routes)
	})
	return host
}

// TestGateways_AnswerEveryRequest replaces versions, replicas, gateways and agents under a load of requests
// that may not be repeated.
func TestGateways_AnswerEveryRequest(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true})
	load, host := s.loseNoRequest(t, spec)
	s.crossRegions(t, load, host)

	// A restarted gateway serves its last routes, although no agent runs.
	load.stop()
	load.requireNoneFailed(t, "until the end")
	s.kill9(partControlPlane, partAgent(us), partGateway(us))
	s.launch(partGateway(us))
	s.eventually(t, "the gateway serves alone", func(ctx context.Context) error {
		return complete(ctx, s.gateways[us], host)
	})
	s.start(partControlPlane)
	s.start(partAgent(us))
	s.waitConnected(s.cfg.regions...)
	s.appKeys(t, host)
	s.tokenByToken(t)
	s.tellsKEDA(t)
	s.ownDomain(t, "chat")
}

// testGatewaysOfClusters is TestGateways_AnswerEveryRequest with pods.
func testGatewaysOfClusters(t *testing.T) {
	s := newStack(t, stackConfig{gateways: true, runtime: "kubernetes", groups: []string{"name=cpu,nodes=2,pods=250"}})
	load, _ := s.loseNoRequest(t, podSpec)
	load.stop()
	load.requireNoneFailed(t, "until the end")
	t.Run("pairs of pods", func(t *testing.T) { testPairsOnKubernetes(t, s) })
}

// loseNoRequest makes all changes to an app with specs of this kind, and asserts that no request fails. It
// returns the load, which is still running.
func (s *stack) loseNoRequest(t *testing.T, spec func(...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec) (load *callers, host string) {
	t.Helper()
	built, err := programs()
	require.NoError(t, err)
	replicas := int32(2)
	two := func(d *windlassv1.DeploymentSpec) { d.Replicas = &replicas }
	first := s.deployReady(t, "chat", spec(two))
	host = s.host(t, "chat", windlassv1.Route_KIND_STABLE, 0)
	preview := s.host(t, "chat", windlassv1.Route_KIND_PREVIEW, first.Version)
	for _, url := range s.gateways {
		require.NoError(t, complete(t.Context(), url, host))
		require.NoError(t, complete(t.Context(), url, preview))
		err := complete(t.Context(), url, "no-such-app.windlass.local")
		require.ErrorContains(t, err, "404")
	}
	load = s.callers(host)
	t.Cleanup(load.stop)
	changes := 0
	fresh := func(value string) string { // another version each time
		changes++
		return fmt.Sprint(value, " ", changes)
	}

	// Pods are slow. So changes in which the region's runtime has no part are left out for pods, unless
	// callsEach is set.
	short := s.cfg.runtime == "kubernetes" && callsEach == 0
	for _, change := range []struct {
		name string
		do   func()
	}{
		{"a rolling change", func() {
			resp := s.deployBy(t, "chat", spec(two, variable(fresh("rolling"))), euThenUs())
			s.waitLive(t, "chat", resp.Version)
		}},
		{"blue-green", func() {
			p := euThenUs()
			p.MaxSurge, p.Strategy, p.Retain = "", windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, seconds(1)
			resp := s.deployBy(t, "chat", spec(two, variable(fresh("green"))), p)
			s.waitLive(t, "chat", resp.Version)
		}},
		{"a canary", func() {
			p := euThenUs()
			p.Strategy, p.Steps = windlassv1.RolloutPolicy_STRATEGY_CANARY, []*windlassv1.CanaryStep{{Weight: 30, Pause: "1s"}}
			resp := s.deployBy(t, "chat", spec(two, variable(fresh("canary"))), p)
			s.waitLive(t, "chat", resp.Version)
		}},
		{"an in-place update", func() {
			p := euThenUs()
			p.MaxSurge, p.Strategy = "", windlassv1.RolloutPolicy_STRATEGY_IN_PLACE
			resp := s.deployBy(t, "chat", spec(two, variable(fresh("in place"))), p)
			s.waitLive(t, "chat", resp.Version)
		}},
		{"nodes that are drained", func() {
			for _, region := range s.cfg.regions {
				s.drainNode(t, region, "chat")
				s.waitReplicas(t, "chat", 4)
			}
		}},
		{"more replicas, and fewer", func() {
			for _, n := range []int32{4, 1, 2} {
				must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named("chat"), Replicas: n})
				s.waitReplicas(t, "chat", 2*n)
			}
		}},
		{"a version that goes back", func() {
			app := must(t, s.owner.apps.GetApp, &windlassv1.GetAppRequest{App: named("chat")}).App
			bad := s.deployBy(t, "chat", spec(two, args("--fault-exit-code", "3", "--fault-crash-after", "200ms", "--load-time", "1m")), euThenUs())
			s.eventually(t, "it has gone back", func(context.Context) error {
				if r := s.rolloutOf(t, bad.RolloutId); r.Status != windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED {
					return fmt.Errorf("it is %s", r.Status)
				}
				return nil
			})
			s.waitLive(t, "chat", app.LiveVersion)
		}},
		{"agents that are killed", func() {
			for _, region := range s.cfg.regions {
				s.restart(partAgent(region))
			}
			s.waitConnected(s.cfg.regions...)
			resp := s.deployBy(t, "chat", spec(two, variable(fresh("after agents"))), euThenUs())
			s.waitLive(t, "chat", resp.Version)
		}},
		{"gateways that are replaced", func() {
			for _, region := range s.cfg.regions {
				beside := partGateway(region) + "-beside"
				if s.parts[beside] == nil {
					s.addGateway(built, beside, region)
				}
				s.start(beside)
				s.stop(partGateway(region))
				s.start(partGateway(region))
				s.stop(beside)
			}
		}},
		{"a control plane that is gone", func() {
			s.kill9(partControlPlane)
			before := load.count()
			s.eventually(t, "requests go on", func(context.Context) error {
				if load.count() < before+100 {
					return errors.New("no request is answered")
				}
				return nil
			})
			s.start(partControlPlane)
			s.waitConnected(s.cfg.regions...)
		}},
	} {
		before, times := load.count(), 0
		if short && slices.Contains([]string{"blue-green", "a canary", "a version that goes back", "a control plane that is gone"}, change.name) {
			continue
		}
		if change.name == "nodes that are drained" && s.cfg.runtime != "kubernetes" {
			continue
		}
		for times == 0 || load.count()-before < callsEach {
			change.do()
			load.requireNoneFailed(t, change.name)
			times++
		}
		t.Logf("%s, %d times: %d requests", change.name, times, load.count()-before)
	}

	// Only requests of the killed instance may be lost. These are some of the requests that wait at that
	// time, and some that begin until the instance has ended.
	before, killed, lost := load.count(), 0, 0
	for killed == 0 || load.count()-before < callsEach {
		answered := load.count()
		s.killOne(t, "chat")
		own := load.begun() - answered
		after := load.count() + 100
		s.eventually(t, "requests go on", func(context.Context) error {
			if load.count() < after {
				return errors.New("no request is answered")
			}
			return nil
		})
		s.waitReplicas(t, "chat", 4)
		killed++
		lost += load.requireFewFailed(t, own, "an instance that is killed")
	}
	t.Logf("an instance that is killed, %d times: %d requests, %d lost", killed, load.count()-before, lost)
	return load, host
}

// waitReplicas waits until n replicas are wanted and ready, over all regions.
func (s *stack) waitReplicas(t *testing.T, app string, n int32) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("%d replicas of %s", n, app), func(ctx context.Context) error {
		resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: named(app)})
		if err != nil {
			return err
		}
		running := len(s.runningOf(app))
		if s.cfg.runtime == "kubernetes" {
			running = len(s.podsOf(t, app))
		}
		if resp.App.Replicas != n || resp.App.ReadyReplicas != n || running != int(n) {
			return fmt.Errorf("%d of %d are ready, %d run", resp.App.ReadyReplicas, resp.App.Replicas, running)
		}
		return nil
	})
}

// killOne kills one instance of an app.
func (s *stack) killOne(t *testing.T, app string) {
	t.Helper()
	if s.cfg.runtime != "kubernetes" {
		p := s.runningOf(app)[0]
		require.NoError(t, p.kill9())
		// Until its last thread has ended, its port accepts connections whose data is not read.
		s.eventually(t, "it has ended", func(context.Context) error {
			if p.alive() {
				return errors.New("the process still exists")
			}
			return nil
		})
		return
	}
	for _, region := range s.cfg.regions {
		c := s.cluster(t, region)
		pods, err := c.list(t.Context(), "api/v1/pods", "app.kubernetes.io/name="+app)
		require.NoError(t, err)
		for _, pod := range pods {
			if m := pod.Metadata; m.DeletionTimestamp == "" {
				require.NoError(t, c.call(t.Context(), http.MethodDelete, "/api/v1/namespaces/"+m.Namespace+"/pods/"+m.Name+"?gracePeriodSeconds=0", nil, nil))
				return
			}
		}
	}
	t.Fatal("no pod runs")
}

// appKeys makes an app require keys, revokes its only key, and then removes the requirement.
func (s *stack) appKeys(t *testing.T, host string) {
	t.Helper()
	const required, open = http.StatusUnauthorized, http.StatusOK
	answers := func(host, key string, want int) {
		t.Helper()
		for region, url := range s.gateways {
			s.eventually(t, fmt.Sprintf("%d at %s in %s", want, host, region), func(ctx context.Context) error {
				resp, err := askHealth(ctx, url, host, key)
				if err != nil {
					return err
				}
				if resp.StatusCode != want {
					return fmt.Errorf("it is %s, %s", resp.Status, resp.Header.Get("Windlass-Error"))
				}
				return nil
			})
		}
	}
	keyed := func(d *windlassv1.DeploymentSpec) {
		d.Replicas, d.Routing = new(int32(2)), &windlassv1.RoutingPolicy{RequireApiKey: true}
	}
	resp := s.deployBy(t, "chat", spec(keyed), euThenUs())
	s.waitLive(t, "chat", resp.Version)
	preview := s.host(t, "chat", windlassv1.Route_KIND_PREVIEW, resp.Version)
	key := must(t, s.owner.routes.CreateAppKey, &windlassv1.CreateAppKeyRequest{Mutation: mutation(), App: named("chat"), Name: "mobile"}).Value
	for _, h := range []string{host, preview} {
		answers(h, key, open)
		answers(h, "", required)
		answers(h, key+"x", required)
	}
	must(t, s.owner.routes.RevokeAppKey, &windlassv1.RevokeAppKeyRequest{Mutation: mutation(), App: named("chat"), Name: "mobile"})
	answers(host, key, required)
	answers(preview, key, required)
	resp = s.deployBy(t, "chat", spec(replicas(2)), euThenUs())
	s.waitLive(t, "chat", resp.Version)
	answers(host, "", open)
}
