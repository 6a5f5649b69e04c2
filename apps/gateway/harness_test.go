package gateway_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/pkg/guard"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1/gatewayv1connect"
)

// patience limits every wait of a test. Usually a wait takes less than a hundredth of it.
const patience = 2 * time.Minute

// TestMain discards the process's log, because net/http writes to it about instances that misbehave, as many
// instances of these tests do. It also sets the environment variables of pebble, the ACME server of the tests,
// because parallel tests cannot set them.
//
// More parallel tests than cores may run at once, because they mostly wait for connections.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	for name, value := range map[string]string{
		"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_AUTHZREUSE": "0",
		"PEBBLE_WFE_NONCEREJECT": "0", // because orders with a rejected nonce would be counted twice
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	m.Run()
}

// agent serves routes as a region's agent does, by the comments in gateway.proto.
type agent struct {
	gatewayv1connect.UnimplementedRouteServiceHandler

	socket string
	mu     sync.Mutex
	// changed is closed with every change, and replaced.
	changed chan struct{}
	table   string
	change  int64
	apps    map[string]*gatewayv1.AppRoutes
	log     []string                // the app of each change
	around  []*gatewayv1.Neighbours // the messages about other regions
	sent    map[string]int64        // the last change that was sent on the running stream, by gateway and app
	watches map[string]int          // number of the running stream, by gateway
	served  map[string]int64        // the change that a gateway acknowledged, by app
	health  map[string]*gatewayv1.InstanceHealth
	leaving map[string]bool
	loads   map[string]*gatewayv1.AppLoad // the last reported load, by app
	reports int
	// woken counts the calls of Wake, by app. Each call of Wake calls onWake, if it is not nil.
	woken  map[string]int
	onWake func(appID string) error
	// replaced is the error code of a stream that another stream has replaced. 0: the code for a stream of another
	// process.
	replaced connect.Code
}

// startAgent starts an agent that listens on the socket. stop ends it and its connections.
func startAgent(t testing.TB, socket, table string) (_ *agent, stop func()) {
	a := &agent{
		socket: socket, table: table, changed: make(chan struct{}), apps: map[string]*gatewayv1.AppRoutes{},
		sent: map[string]int64{}, watches: map[string]int{}, served: map[string]int64{},
		health: map[string]*gatewayv1.InstanceHealth{}, leaving: map[string]bool{}, loads: map[string]*gatewayv1.AppLoad{},
	}
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(gatewayv1connect.NewRouteServiceHandler(a))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	stop = sync.OnceFunc(func() {
		_ = server.Close()
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
	})
	t.Cleanup(stop)
	return a, stop
}

func (a *agent) Watch(ctx context.Context, req *gatewayv1.WatchRequest, stream *connect.ServerStream[gatewayv1.WatchResponse]) error {
	a.mu.Lock()
	a.watches[req.GatewayId]++
	number := a.watches[req.GatewayId]
	for key := range a.sent {
		if strings.HasPrefix(key, req.GatewayId+" ") {
			delete(a.sent, key)
		}
	}
	held := map[string]bool{}
	for _, h := range req.Have {
		held[h.AppId] = true
		if req.TableId == a.table {
			a.sent[req.GatewayId+" "+h.AppId] = h.Change
		}
	}
	a.mu.Unlock()
	beat := &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Heartbeat{Heartbeat: &gatewayv1.Heartbeat{Interval: durationpb.New(time.Second)}}}
	if err := stream.Send(beat); err != nil {
		return err
	}
	if err := stream.Send(&gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Begin{Begin: &gatewayv1.Begin{TableId: a.table}}}); err != nil {
		return err
	}
	ended, told, read := false, 0, 0
	for {
		a.mu.Lock()
		changed := a.changed
		around := a.around[told:]
		told = len(a.around)
		var apps []*gatewayv1.AppRoutes
		for id := range held {
			if a.apps[id] == nil {
				a.note(&gatewayv1.AppRoutes{AppId: id})
			}
		}
		held = nil
		// As the region's agent does, this handles only the apps that changed.
		fresh := slices.Compact(slices.Sorted(slices.Values(a.log[read:])))
		read = len(a.log)
		for _, id := range fresh {
			if key := req.GatewayId + " " + id; a.sent[key] != a.apps[id].Change {
				a.sent[key] = a.apps[id].Change
				apps = append(apps, a.apps[id])
			}
		}
		stale := a.watches[req.GatewayId] != number
		a.mu.Unlock()
		if stale {
			return connect.NewError(cmp.Or(a.replaced, connect.CodeAborted), fmt.Errorf("watched again"))
		}
		for _, n := range around {
			if err := stream.Send(&gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Neighbours{Neighbours: n}}); err != nil {
				return err
			}
		}
		if len(apps) > 0 {
			if err := stream.Send(&gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Apps{Apps: &gatewayv1.Apps{Apps: apps}}}); err != nil {
				return err
			}
		}
		if !ended {
			ended = true
			if err := stream.Send(&gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_End{End: &gatewayv1.End{}}}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(time.Second):
			if err := stream.Send(beat); err != nil {
				return err
			}
		}
	}
}

func (a *agent) Report(_ context.Context, req *gatewayv1.ReportRequest) (*gatewayv1.ReportResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watches[req.GatewayId] == 0 || req.TableId != a.table {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("no watch of %s", req.GatewayId))
	}
	for _, s := range req.Served {
		a.served[s.AppId] = s.InstancesChange
	}
	a.health = map[string]*gatewayv1.InstanceHealth{}
	for _, h := range req.Instances {
		a.health[h.InstanceId] = h
	}
	a.leaving[req.GatewayId] = req.Leaving
	for _, l := range req.Loads {
		a.loads[l.AppId] = l
	}
	a.reports++
	a.signal()
	return &gatewayv1.ReportResponse{}, nil
}

func (a *agent) Wake(_ context.Context, req *gatewayv1.WakeRequest) (*gatewayv1.WakeResponse, error) {
	a.mu.Lock()
	if a.woken == nil {
		a.woken = map[string]int{}
	}
	a.woken[req.AppId]++
	f := a.onWake
	a.mu.Unlock()
	if f != nil {
		if err := f(req.AppId); err != nil {
			return nil, err
		}
	}
	return &gatewayv1.WakeResponse{}, nil
}

func (a *agent) signal() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// put sends the app to the gateways, and waits until a gateway has acknowledged it.
func (a *agent) put(t testing.TB, app *gatewayv1.AppRoutes) {
	t.Helper()
	change := a.set(app)
	a.until(t, func() bool { return a.served[app.AppId] == change })
}

func (a *agent) set(apps ...*gatewayv1.AppRoutes) (change int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, app := range apps {
		a.note(app)
	}
	a.signal()
	return a.change
}

// note records a change of the app. The caller holds the lock.
func (a *agent) note(app *gatewayv1.AppRoutes) {
	a.change++
	app.Change = a.change
	a.apps[app.AppId] = app
	a.log = append(a.log, app.AppId)
}

// until waits until holds returns true. It calls holds with the lock held, after every report.
func (a *agent) until(t testing.TB, holds func() bool) {
	t.Helper()
	end := time.After(patience)
	for {
		a.mu.Lock()
		ok, changed := holds(), a.changed
		a.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-end:
			t.Fatal("the gateway did not report it in time")
		}
	}
}

// harness is an agent and a gateway.
type harness struct {
	*agent

	url string
	dir string
	// stopAgent ends the agent and its connections.
	stopAgent func()
	client    *http.Client
	// tls is the TLS configuration for dial. nil: dial connects without TLS.
	tls *tls.Config
	*running
}

// running is one gateway.
type running struct {
	gateway  *gateway.Gateway
	registry *prometheus.Registry
	// stop makes the gateway stop, and returns at once. ended gets the result of Run.
	stop  func()
	ended chan error
}

// wait waits until a gateway that stops has ended.
func (r *running) wait(t testing.TB) {
	t.Helper()
	select {
	case err := <-r.ended:
		require.NoError(t, err)
		r.ended <- nil
	case <-time.After(patience):
		t.Fatal("the gateway does not stop")
	}
}

// thisMachine is the network of the gateways of other regions in these tests.
var thisMachine = guard.Networks{netip.MustParsePrefix("127.0.0.0/8")}

func startGateway(t testing.TB, dir, address string, change func(*gateway.Config)) *running {
	t.Helper()
	r := &running{ended: make(chan error, 1)}
	cfg := gateway.Config{
		Agent: "unix:" + filepath.Join(dir, "gateway.sock"), Listen: []string{address},
		StateFile: filepath.Join(dir, "routes"), DrainTimeout: patience, Version: "test",
		Log: slog.New(slog.DiscardHandler), Random: rand.Uint64, Rand: rand.Float64,
		NeighbourAllow: thisMachine, Engine: engineOf(t),
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	for end := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		// A connection may use the port of a stopped gateway for a moment.
		r.registry = prometheus.NewRegistry()
		cfg.Registerer = r.registry
		if r.gateway, err = gateway.New(t.Context(), cfg); !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			break
		}
	}
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.ended <- r.gateway.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		r.wait(t)
	})
	return r
}

func start(t testing.TB, change func(*gateway.Config)) *harness {
	t.Helper()
	// The path of t.TempDir is too long for a socket.
	dir, err := os.MkdirTemp("", "gw") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a, stopAgent := startAgent(t, filepath.Join(dir, "gateway.sock"), "table-1")
	g := startGateway(t, dir, "127.0.0.1:0", change)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &harness{
		agent: a, stopAgent: stopAgent, dir: dir, running: g, url: "http://" + g.gateway.Addresses()[0].String(),
		client: &http.Client{Transport: transport, Timeout: patience},
	}
}

// startTLS is start for tests whose clients use TLS and HTTP/1.
func startTLS(t *testing.T) *harness {
	t.Helper()
	return startTLSWith(t, func(*gateway.Config) {})
}

func startTLSWith(t *testing.T, change func(*gateway.Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	roots := certify(t, dir)
	r := start(t, func(c *gateway.Config) {
		change(c)
		c.TLSListen, c.TLSCert, c.TLSKey = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	})
	r.tls = &tls.Config{RootCAs: roots, ServerName: "echo.local", NextProtos: []string{"http/1.1"}}
	return r
}

// engines are the engines of a gateway. Tests outside of bothEngines run once, with auto.
var engines = []string{"epoll", "net"}

// bothEngines runs a test with each engine, because its result must not depend on the engine. startGateway finds the
// engine in the test's name.
func bothEngines(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for _, name := range engines {
		t.Run(name, test)
	}
}

// engineOf returns the engine that bothEngines gave a test.
func engineOf(t testing.TB) engine.Mode {
	for part := range strings.SplitSeq(t.Name(), "/") {
		if slices.Contains(engines, part) {
			return engine.Mode(part)
		}
	}
	return engine.Auto
}

// request returns a request for the host of the app.
func (h *harness) request(t testing.TB, method, path, body string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), method, h.url+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Host = "echo.local"
	return req
}

func (h *harness) do(t testing.TB, req *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := h.client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(body)
}

// instance starts an instance with the handler, and returns its address.
func instance(t testing.TB, handler http.HandlerFunc) string {
	s := httptest.NewServer(handler)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.Listener.Addr().String()
}

func named(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, name)
	}
}

// raw starts an instance that is not an HTTP server: it reads the first bytes of a request, and then calls then. It
// returns its address.
func raw(t testing.TB, then func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buffer := make([]byte, 4096)
				if _, err := c.Read(buffer); err == nil {
					then(c)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// echo returns the routes of an app with one deployment and these instances, which are all ready.
func echo(addresses ...string) *gatewayv1.AppRoutes {
	app := &gatewayv1.AppRoutes{
		AppId: "app_1", AppName: "echo", Epoch: 1, Generation: 1, Hosts: []string{"echo.local"},
		Targets: []*gatewayv1.Target{target("dep_1", 1, 100, addresses...)},
		Policy:  &gatewayv1.RoutePolicy{Balancing: gatewayv1.Balancing_BALANCING_ROUND_ROBIN},
	}
	return app
}

func target(id string, version, weight int32, addresses ...string) *gatewayv1.Target {
	t := &gatewayv1.Target{DeploymentId: id, Version: version, Weight: weight, WorkloadKey: id}
	for i, address := range addresses {
		t.Instances = append(t.Instances, &gatewayv1.Instance{
			InstanceId: fmt.Sprintf("%s-%d", id, i), Address: address, State: gatewayv1.Instance_STATE_READY,
		})
	}
	return t
}
