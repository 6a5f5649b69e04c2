package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// crossRegions removes the instances of a region while the region gets requests that another region can answer.
func (s *stack) crossRegions(t *testing.T, load *callers, host string) {
	t.Helper()
	crossing := func(usReplicas int32) func(*windlassv1.DeploymentSpec) {
		return func(d *windlassv1.DeploymentSpec) {
			d.Replicas = new(int32(2))
			d.Routing = &windlassv1.RoutingPolicy{CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER}
			if usReplicas != *d.Replicas {
				d.Overrides = []*windlassv1.Override{{Regions: []string{us}, Replicas: &usReplicas}}
			}
		}
	}
	servedBy := func(want string) {
		s.eventually(t, "requests in "+us+" are served by "+want, func(ctx context.Context) error {
			resp, err := askHealth(ctx, s.gateways[us], host, "")
			if err != nil {
				return err
			}
			if region := resp.Header.Get("Windlass-Region"); region != want {
				return fmt.Errorf("%s by %q", resp.Status, region)
			}
			return nil
		})
	}
	resp := s.deployBy(t, "chat", spec(crossing(2)), euThenUs())
	s.waitLive(t, "chat", resp.Version)
	s.reaches(t, us, 1)
	before := load.count()
	for _, replicas := range []int32{0, 2} {
		s.deployBy(t, "chat", spec(crossing(replicas)), euThenUs())
		s.waitReplicas(t, "chat", 2+replicas)
		servedBy(map[int32]string{0: eu, 2: ""}[replicas])
		load.requireNoneFailed(t, fmt.Sprintf("%d replicas in %s", replicas, us))
	}
	// No request is lost either when the app leaves the region and comes back.
	for _, c := range []struct {
		regions  []string
		servedBy string
	}{{[]string{eu}, eu}, {[]string{us, eu}, ""}} {
		resp := s.deployBy(t, "chat", spec(crossing(2), func(d *windlassv1.DeploymentSpec) { d.Regions = c.regions }), nil)
		s.waitLive(t, "chat", resp.Version)
		servedBy(c.servedBy)
		load.requireNoneFailed(t, fmt.Sprintf("it runs in %v", c.regions))
	}
	t.Logf("a region without instances, without the app, and with: %d requests", load.count()-before)
}

// reaches waits until the region's gateway reaches a number of other regions. It then knows that these
// regions have ready instances of an app that hands requests over, and is connected to their gateways.
func (s *stack) reaches(t *testing.T, region string, others int) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("the gateway of %s reaches %d other regions", region, others), func(ctx context.Context) error {
		_, metrics, err := get(ctx, s.metrics[partGateway(region)]+"/metrics")
		if err == nil && !strings.Contains(string(metrics), fmt.Sprintf("\nwindlass_gateway_regions_reached %d\n", others)) {
			err = errors.New("it does not")
		}
		return err
	})
}

// placed is the outcome of a request. region is empty if the region that got the request answered it itself.
// code is the gateway's error, if a gateway answered.
type placed struct {
	status       int
	region, code string
}

// ask sends a request for a stream of words to the region's gateway.
func (s *stack) ask(ctx context.Context, region, host string, words int) (*http.Response, error) {
	body := fmt.Sprintf(`{"model": "echo", "stream": true, "messages": [{"role": "user", "content": "%s"}]}`, strings.Repeat("word ", words))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateways[region]+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	return caller.Do(req)
}

// asked sends a short request and returns its outcome.
func (s *stack) asked(ctx context.Context, region, host string) (placed, error) {
	resp, err := s.ask(ctx, region, host, 2)
	if err != nil {
		return placed{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK && !strings.Contains(string(answer), "[DONE]") {
		err = fmt.Errorf("it ends with %.100s", answer[max(0, len(answer)-100):])
	}
	return placed{resp.StatusCode, resp.Header.Get("Windlass-Region"), resp.Header.Get("Windlass-Error")}, err
}

// hold opens a stream of tokens that the given region itself answers, until end is called.
func (s *stack) hold(t *testing.T, region, host string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s.eventually(t, "a stream in "+region, func(context.Context) error {
		resp, err := s.ask(ctx, region, host, 10_000)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Windlass-Region") != "" {
			_ = resp.Body.Close()
			return fmt.Errorf("it is %s of %q", resp.Status, resp.Header.Get("Windlass-Region"))
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		_, err = bufio.NewReader(resp.Body).ReadString('\n')
		return err
	})
	return cancel
}

// TestCrossRegion_RegionsHandRequestsToEachOther tests regions that are at their limit, and regions that do
// not run the app.
func TestCrossRegion_RegionsHandRequestsToEachOther(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true})
	s.atTheLimit(t)
	s.withoutTheApp(t)
}

// atTheLimit fills a region's instances with streams. With spillover, further requests are answered by
// another region. With failover, they wait in their region.
func (s *stack) atTheLimit(t *testing.T) {
	t.Helper()
	limited := func(cross windlassv1.RoutingPolicy_CrossRegion) *windlassv1.DeploymentSpec {
		return spec(args("--token-rate", "10"), func(d *windlassv1.DeploymentSpec) {
			d.Routing = &windlassv1.RoutingPolicy{CrossRegion: cross, MaxInFlight: new(int32(1)), QueueSize: new(int32(1)), QueueWait: seconds(30)}
		})
	}
	s.deployReady(t, "chat", limited(windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER))
	host := s.host(t, "chat", windlassv1.Route_KIND_STABLE, 0)
	for _, region := range s.cfg.regions {
		s.reaches(t, region, 1)
	}
	is := func(region string, want placed) {
		t.Helper()
		s.eventually(t, fmt.Sprintf("a request in %s is %v", region, want), func(ctx context.Context) error {
			got, err := s.asked(ctx, region, host)
			if err == nil && got != want {
				err = fmt.Errorf("it is %v", got)
			}
			return err
		})
	}
	// later sends a request that waits in us, and returns its outcome.
	later := func() <-chan placed {
		t.Helper()
		out := make(chan placed, 1)
		go func() {
			got, err := s.asked(t.Context(), us, host)
			if err != nil {
				got.code = err.Error()
			}
			out <- got
		}()
		s.waits(t, us, 1)
		return out
	}
	home, busy := placed{status: http.StatusOK}, placed{status: http.StatusTooManyRequests, code: "busy"}
	is(us, home)
	endUs := s.hold(t, us, host)
	for range 5 {
		got, err := s.asked(t.Context(), us, host)
		require.NoError(t, err)
		require.Equal(t, placed{status: http.StatusOK, region: eu}, got)
	}
	is(eu, home)

	// With both regions at their limit, the request waits in the region that got it, and is not handed back.
	endEu := s.hold(t, eu, host)
	waits := later()
	got, err := s.asked(t.Context(), us, host)
	require.NoError(t, err)
	require.Equal(t, busy, got)
	s.waits(t, eu, 0)
	endUs()
	require.Equal(t, home, <-waits)
	is(us, home)
	is(eu, placed{status: http.StatusOK, region: us})
	endEu()
	is(eu, home)

	// With failover, no request of the same load leaves the region.
	resp := s.deployBy(t, "chat", limited(windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER), euThenUs())
	s.waitLive(t, "chat", resp.Version)
	for _, region := range s.cfg.regions {
		s.reaches(t, region, 1)
	}
	endUs = s.hold(t, us, host)
	waits = later()
	for range 3 {
		got, err := s.asked(t.Context(), us, host)
		require.NoError(t, err)
		require.Equal(t, busy, got)
	}
	is(eu, home)
	endUs()
	require.Equal(t, home, <-waits)
	is(us, home)
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named("chat")})
}

// withoutTheApp sends requests to a region for an app that runs only in another region and requires keys. The
// region's gateway hands them over, even without its agent and the control plane, as long as the app's policy
// says so.
func (s *stack) withoutTheApp(t *testing.T) {
	t.Helper()
	deploy := func(cross windlassv1.RoutingPolicy_CrossRegion) {
		t.Helper()
		resp := s.deployBy(t, "far", spec(func(d *windlassv1.DeploymentSpec) {
			d.Regions = []string{eu}
			d.Routing = &windlassv1.RoutingPolicy{CrossRegion: cross, RequireApiKey: true, MaxInFlight: new(int32(100))}
		}), nil)
		s.waitLive(t, "far", resp.Version)
	}
	deploy(windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER)
	host := s.host(t, "far", windlassv1.Route_KIND_STABLE, 0)
	key := must(t, s.owner.routes.CreateAppKey, &windlassv1.CreateAppKeyRequest{Mutation: mutation(), App: named("far"), Name: "mobile"}).Value
	is := func(key string, want placed) {
		t.Helper()
		s.eventually(t, fmt.Sprintf("a request in %s is %v", us, want), func(ctx context.Context) error {
			resp, err := askHealth(ctx, s.gateways[us], host, key)
			if err != nil {
				return err
			}
			if got := (placed{resp.StatusCode, resp.Header.Get("Windlass-Region"), resp.Header.Get("Windlass-Error")}); got != want {
				return fmt.Errorf("it is %v", got)
			}
			return nil
		})
	}
	open, closed := placed{status: http.StatusOK, region: eu}, placed{http.StatusUnauthorized, eu, "api_key"}
	none := placed{status: http.StatusNotFound, code: "no_route"}
	is(key, open)
	is("", closed)
	for _, file := range []string{filepath.Join(s.dir, partGateway(us), "data", "routes"), filepath.Join(s.agentDir(us), "data", "neighbours.binpb")} {
		s.eventually(t, file+" has "+host, func(context.Context) error { // the gateway writes the file within a second
			data, err := os.ReadFile(file)
			if err == nil && !strings.Contains(string(data), host) {
				err = errors.New("it does not")
			}
			return err
		})
	}
	s.kill9(partControlPlane, partAgent(us), partGateway(us))
	s.launch(partGateway(us))
	is(key, open)
	is("", closed)

	// A gateway without a file learns it from the agent.
	s.kill9(partGateway(us))
	require.NoError(t, os.RemoveAll(filepath.Join(s.dir, partGateway(us), "data")))
	s.start(partAgent(us))
	s.launch(partGateway(us))
	is(key, open)

	// A region that was unreachable when the app's policy changed learns of the change.
	s.kill9(partAgent(us))
	s.start(partControlPlane)
	s.waitConnected(eu)
	deploy(windlassv1.RoutingPolicy_CROSS_REGION_OFF)
	s.start(partAgent(us))
	s.waitConnected(us)
	is(key, none)
	deploy(windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER)
	is(key, open)
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: named("far")})
	is(key, none)
}

// waits waits until n requests wait for an instance in the region's gateway.
func (s *stack) waits(t *testing.T, region string, n int) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("%d requests wait in %s", n, region), func(ctx context.Context) error {
		_, metrics, err := get(ctx, s.metrics[partGateway(region)]+"/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(metrics)) {
			if strings.HasPrefix(line, "windlass_gateway_queue") {
				if strings.HasSuffix(line, fmt.Sprintf(" %d\n", n)) {
					return nil
				}
				return errors.New(strings.TrimSpace(line))
			}
		}
		if n > 0 {
			return errors.New("none does")
		}
		return nil
	})
}
