package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/peers"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/seal"
	"github.com/windlass-run/windlass/pkg/service"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

const (
	// patience bounds every wait for a condition.
	patience = 2 * time.Minute
	// never is an interval longer than any test, so that only a nudge can deliver a change.
	never = time.Hour
)

// harness is one installation on a real database, with as many processes of the
// control plane as a test starts.
type harness struct {
	t      *testing.T
	dsn    string
	keyset []byte
	boot   BootstrapResult
}

func newHarness(t *testing.T, regions ...string) *harness {
	t.Helper()
	w := &harness{t: t, dsn: stacktest.MariaDB(t)}
	var err error
	w.keyset, err = seal.Generate()
	require.NoError(t, err)
	w.boot, err = Bootstrap(t.Context(), BootstrapConfig{MySQLDSN: w.dsn, Regions: regions})
	require.NoError(t, err)
	return w
}

// plane is one process of the control plane. All planes of a test share the test's process.
type plane struct {
	t        *testing.T
	core     *core
	url      string
	address  string // for peers
	registry *prometheus.Registry
	stop     func()
}

type planeConfig struct {
	beat time.Duration
	// deaf closes the listener that its peers call.
	deaf bool
}

// start starts a process, and stops it at the end of the test.
func (h *harness) start(cfg planeConfig) *plane {
	h.t.Helper()
	log := slog.New(slog.DiscardHandler)
	p := &plane{t: h.t, registry: prometheus.NewRegistry()}
	db, err := mysql.Open(h.t.Context(), mysql.Config{DSN: h.dsn, MaxOpen: 8})
	require.NoError(h.t, err)
	box, err := seal.New(h.keyset)
	require.NoError(h.t, err)
	api, peer := listen(h.t), listen(h.t)
	p.url, p.address = "http://"+api.Addr().String(), peer.Addr().String()
	if cfg.deaf {
		require.NoError(h.t, peer.Close())
	}
	peerServerTLS, peerClientTLS, err := peers.TLS(box, time.Now())
	require.NoError(h.t, err)
	peerHTTP := rpc.NewHTTPClient(rpc.HTTPClientConfig{TLS: peerClientTLS, DialTimeout: peerDialTimeout})
	p.core, err = newCore(parts{
		store: db, unavailable: mysql.IsUnavailable, images: rollout.Registry{}, box: box,
		newDriver: func(step rollout.Step, _ func(context.Context) error) (driver, error) {
			return rollout.NewMemory(step, log), nil
		},
		log: log, registerer: p.registry, tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
		rand: rand.Float64, domain: "windlass.local", leaseTTL: 15 * time.Second, beat: cfg.beat,
		peerID: ident.New("cp"), peerAddress: p.address, peerHTTP: peerHTTP,
	})
	require.NoError(h.t, err)
	components := append(slices.Clone(p.core.components), service.Component{Name: "api", Run: func(ctx context.Context) error {
		defer context.AfterFunc(ctx, p.core.dispatch.Drain)()
		return rpc.Serve(ctx, rpc.NewServer(rpc.ServerConfig{Handler: p.core.handler, Limits: newLimits(nil)}), api, drainGrace)
	}})
	if !cfg.deaf {
		components = append(components, service.Component{Name: "peer-calls", Run: func(ctx context.Context) error {
			return rpc.Serve(ctx, rpc.NewServer(rpc.ServerConfig{Handler: p.core.peerHandler, TLS: peerServerTLS, Limits: peers.Limits(nil)}), peer, drainGrace)
		}})
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- service.Run(ctx, log, stopGrace, components...) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("stop a control plane: %v", err)
		}
		peerHTTP.CloseIdleConnections()
		if err := db.Close(); err != nil {
			h.t.Errorf("close its database: %v", err)
		}
	})
	h.t.Cleanup(p.stop)
	return p
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// metric returns the sum of a metric over all series with the labels.
func (p *plane) metric(name string, labels ...string) (sum float64) {
	p.t.Helper()
	families, err := p.registry.Gather()
	require.NoError(p.t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetName()+"="+l.GetValue())
			}
			if slices.ContainsFunc(labels, func(want string) bool { return !slices.Contains(have, want) }) {
				continue
			}
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum
}

// waitFor waits until the metric has the value.
func (p *plane) waitFor(name string, value float64) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.metric(name) == value }, patience, 10*time.Millisecond,
		"%s never became %v", name, value)
}

// acquainted waits until each process knows all other processes.
func acquainted(planes ...*plane) {
	for _, p := range planes {
		p.t.Helper()
		p.waitFor("windlass_peers", float64(len(planes)-1))
	}
}

// user calls this process with a workspace owner's key.
type user struct {
	apps        windlassv1connect.AppServiceClient
	deployments windlassv1connect.DeploymentServiceClient
	scaling     windlassv1connect.ScalingServiceClient
}

func (h *harness) user(p *plane) user {
	client := rpc.NewHTTPClient(rpc.HTTPClientConfig{})
	h.t.Cleanup(client.CloseIdleConnections)
	options := rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return h.boot.APIKey }})
	return user{
		apps:        windlassv1connect.NewAppServiceClient(client, p.url, options...),
		deployments: windlassv1connect.NewDeploymentServiceClient(client, p.url, options...),
		scaling:     windlassv1connect.NewScalingServiceClient(client, p.url, options...),
	}
}

func (u user) deploy(t *testing.T, app string, regions ...string) *windlassv1.DeployResponse {
	t.Helper()
	res, err := u.apps.Deploy(t.Context(), &windlassv1.DeployRequest{App: app, Spec: &windlassv1.DeploymentSpec{
		Command: []string{"serve"}, Regions: regions, Replicas: new(int32(1)), Env: map[string]string{"TRY": ident.New("x")},
	}})
	require.NoError(t, err)
	return res
}

// agent is a minimal agent of a region.
type agent struct {
	t          *testing.T
	client     *http.Client
	region     string
	credential string
	session    string
	hello      *agentv1.Hello
	frames     chan *agentv1.WatchResponse
	leave      func()
	calls      agentv1connect.AgentServiceClient
	sequence   int64
}

// join calls Join on the process for the region's agent.
func (h *harness) join(p *plane, region string) *agent {
	h.t.Helper()
	a := &agent{t: h.t, client: rpc.NewHTTPClient(rpc.HTTPClientConfig{}), session: ident.New("ses"), leave: func() {}}
	h.t.Cleanup(a.client.CloseIdleConnections)
	res, err := a.dial(p).Join(h.t.Context(), &agentv1.JoinRequest{Token: h.boot.JoinTokens[region], JoinId: "join_0123456789abcdef"})
	require.NoError(h.t, err)
	a.region, a.credential = res.RegionId, res.Credential.Value
	return a
}

func (a *agent) dial(p *plane) agentv1connect.AgentServiceClient {
	return agentv1connect.NewAgentServiceClient(a.client, p.url, rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return a.credential }})...)
}

// watch opens the session's stream on the process, and closes the session's earlier stream.
func (a *agent) watch(p *plane) {
	a.t.Helper()
	a.leave()
	a.calls = a.dial(p)
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.t.Context()))
	stream, err := a.calls.Watch(ctx, &agentv1.WatchRequest{SessionId: a.session})
	require.NoError(a.t, err)
	frames, ended := make(chan *agentv1.WatchResponse, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		for stream.Receive() {
			frames <- stream.Msg()
		}
		_ = stream.Close()
	}()
	a.frames = frames
	a.leave = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	a.t.Cleanup(a.leave)
	a.hello = a.until(func(f *agentv1.WatchResponse) bool { return f.GetHello() != nil }).GetHello()
	a.until(func(f *agentv1.WatchResponse) bool { return f.GetSnapshotEnd() != nil })
}

// until returns the first frame for which wanted returns true.
func (a *agent) until(wanted func(*agentv1.WatchResponse) bool) *agentv1.WatchResponse {
	a.t.Helper()
	late := time.After(patience)
	for {
		select {
		case f := <-a.frames:
			if wanted(f) {
				return f
			}
		case <-late:
			require.FailNow(a.t, "the frame never came")
		}
	}
}

// assigned waits until the stream brings the deployment.
func (a *agent) assigned(deployment string) *agentv1.Item {
	a.t.Helper()
	var found *agentv1.Item
	a.until(func(f *agentv1.WatchResponse) bool {
		for _, it := range f.GetDelta().GetItems() {
			if it.Key == deployment {
				found = it
			}
		}
		return found != nil
	})
	return found
}

// runs reports that the instance of the deployment is ready.
func (a *agent) runs(instance, deployment string) {
	a.t.Helper()
	a.sequence++
	_, err := a.calls.Report(a.t.Context(), &agentv1.ReportRequest{
		SessionId: a.session, Epoch: a.hello.Epoch, Fence: a.hello.Fence, Sequence: a.sequence,
		Instances: []*agentv1.InstanceState{{Id: instance, DeploymentId: deployment, Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY}},
	})
	require.NoError(a.t, err)
}

// answer answers the next request of the control plane in one chunk.
func (a *agent) answer(data, refusal string) *agentv1.Request {
	a.t.Helper()
	req := a.until(func(f *agentv1.WatchResponse) bool { return f.GetRequest() != nil }).GetRequest()
	_, err := a.calls.UploadLogs(a.t.Context(), &agentv1.UploadLogsRequest{RequestId: req.Id, Data: []byte(data), End: true, Error: refusal})
	require.NoError(a.t, err)
	return req
}

// write runs a transaction outside of all processes of the control plane.
func (h *harness) write(fn func(store.Tx) error) {
	h.t.Helper()
	db, err := mysql.Open(h.t.Context(), mysql.Config{DSN: h.dsn, MaxOpen: 2})
	require.NoError(h.t, err)
	err = db.Update(h.t.Context(), fn)
	require.NoError(h.t, errors.Join(err, db.Close()))
}

// peerRow inserts the row of a process that does not exist, with the id and address.
func (h *harness) peerRow(id, address string) {
	h.t.Helper()
	h.write(func(tx store.Tx) error { return tx.PutPeer(model.Peer{ID: id, Address: address}) })
}
