package xds_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	// The example's cluster needs this type for its protocol.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/status"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/gateways"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/xds"
	"github.com/windlass-run/windlass/pkg/conns"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// patience is the deadline of waits. On a machine that is not busy, they end at once.
const patience = time.Minute

// harness is the agent's table, served over xDS.
type harness struct {
	*gateways.Gateways
	t       *testing.T
	inbox   *inbox.Inbox
	address string
	table   *conns.Table
	// policy is the policy of the route that hold sets next.
	policy *windlassv1.RoutingPolicy
}

func start(t *testing.T, grace time.Duration) *harness {
	t.Helper()
	return startTLS(t, grace, nil)
}

func startTLS(t *testing.T, grace time.Duration, config *tls.Config) *harness {
	t.Helper()
	in, err := inbox.OpenMemory(inbox.NewMemory())
	require.NoError(t, err)
	r := &harness{t: t, inbox: in}
	log := slog.New(slog.DiscardHandler)
	r.Gateways, err = gateways.New(gateways.Config{
		Inbox: in, Files: disk.NewMemory(), Name: "gateways.json", Around: "neighbours.binpb", Versions: "versions.json", TableID: "tbl_1", Log: log, Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	server, err := xds.New(xds.Config{
		Feed: r.Follow("xds", true), Region: "eu", TableID: "tbl_1", Grace: grace, Log: log, Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.address, r.table = l.Addr().String(), conns.New(conns.Limits{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 2)
	go func() { done <- server.Run(ctx, r.table.ListenBusy("xds", l), config) }()
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
	})
	return r
}

// hold sets the region's desired state: deployments of one app, and their shares of its requests.
func (h *harness) hold(revision int64, shares ...int32) {
	h.t.Helper()
	route := &agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Policy: h.policy}
	var items []*agentv1.Item
	for i, share := range shares {
		id := fmt.Sprintf("dep_%d", i+1)
		items = append(items, &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: id, Generation: 1, Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
			Action: agentv1.DeploymentState_ACTION_APPLY, WorkloadKey: id,
			Deployment: &agentv1.Deployment{Id: id, AppId: "app_1", AppName: "chat", Version: int32(i + 1), PreviewHost: "chat-v" + id[4:] + ".test"},
		}}})
		route.Targets = append(route.Targets, &agentv1.RouteTarget{DeploymentId: id, Weight: share, WorkloadKey: id})
	}
	items = append(items, &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1", Generation: revision, Content: &agentv1.Item_Routes{Routes: route}})
	keys, err := h.inbox.Snapshot(&agentv1.SnapshotBegin{Revision: revision, Count: int64(len(items))}, items)
	require.NoError(h.t, err)
	h.Received(keys...)
	h.Route(route, 0, revision)
}

// instance is an instance that runs, or is about to stop.
type instance struct {
	address string
	status  windlassv1.InstanceStatus
}

// see sets the observed instances of the n-th deployment to the n-th argument.
func (h *harness) see(all ...[]instance) {
	var seen runtime.Observation
	for i, some := range all {
		d := runtime.ObservedDeployment{DeploymentID: fmt.Sprintf("dep_%d", i+1)}
		for _, in := range some {
			d.Instances = append(d.Instances, runtime.Instance{ID: "ins_" + in.address, Address: in.address, Status: in.status})
		}
		seen.Deployments = append(seen.Deployments, d)
	}
	h.See(seen)
}

func ready(addresses ...string) (out []instance) {
	for _, a := range addresses {
		out = append(out, instance{a, windlassv1.InstanceStatus_INSTANCE_STATUS_READY})
	}
	return out
}

// backend is a gRPC server that counts its calls.
type backend struct {
	address string
	calls   atomic.Int64
}

// serve starts a backend. Each call first runs the functions in before.
func serve(t *testing.T, before ...func(context.Context)) *backend {
	t.Helper()
	b := &backend{}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.address = l.Addr().String()
	server := grpc.NewServer(orca.CallMetricsServerOption(nil), grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		b.calls.Add(1)
		for _, do := range before {
			do(ctx)
		}
		return next(ctx, req)
	}))
	healthv1.RegisterHealthServer(server, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-done)
	})
	return b
}

// client returns grpc-go's own client, with the agent as its only source of configuration.
func (h *harness) client(host string) healthv1.HealthClient {
	return h.clientWith(host, `{"type": "insecure"}`)
}

func (h *harness) clientWith(host, channel string) healthv1.HealthClient {
	h.t.Helper()
	resolver, err := grpcxds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil,
		`{"xds_servers": [{"server_uri": %q, "channel_creds": [%s], "server_features": ["xds_v3"]}], "node": {"id": "a-client"}}`, h.address, channel))
	require.NoError(h.t, err)
	conn, err := grpc.NewClient("xds:///"+host, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, conn.Close()) })
	return healthv1.NewHealthClient(conn)
}

func call(t *testing.T, c healthv1.HealthClient, n int) {
	t.Helper()
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := c.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		cancel()
		require.NoError(t, err)
	}
}

func TestGRPCClient_FollowsRoutes(t *testing.T) {
	r, one, two, spare := start(t, time.Minute), serve(t), serve(t), serve(t)
	r.hold(1, 80, 20)
	r.see(ready(one.address), ready(two.address, spare.address))
	c := r.client("chat.test")
	const calls = 1000
	call(t, c, calls)
	// The tolerance is six standard deviations of a fair choice.
	require.InDelta(t, 0.2*calls, two.calls.Load()+spare.calls.Load(), 80)
	require.Positive(t, spare.calls.Load())

	// The client does not get an instance that drains. The other instance of its deployment gets
	// all requests.
	r.see(ready(one.address), append(ready(two.address), instance{spare.address, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING}))
	require.Eventually(t, func() bool {
		before := spare.calls.Load()
		call(t, c, 50)
		return spare.calls.Load() == before
	}, patience, time.Millisecond)

	r.hold(2, 0, 100)
	require.Eventually(t, func() bool {
		before := one.calls.Load()
		call(t, c, 50)
		return one.calls.Load() == before
	}, patience, time.Millisecond)
	before := one.calls.Load()
	call(t, r.client("chat-v1.test"), 10)
	require.Equal(t, before+10, one.calls.Load(), "a version without a share has its preview")

	require.Empty(t, r.Routed("app_1", 0, 2), "routes do not wait for gRPC clients")
	r.hold(3, 0, 0)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := c.Check(ctx, &healthv1.HealthCheckRequest{})
		return status.Code(err) == codes.Unavailable
	}, patience, time.Millisecond, "a request for a route that leads nowhere is refused at once")
}

// grpc-go's own client uses the load that instances report. If they report none, it uses plain
// round robin.
func TestGRPCClient_WeighsInstancesByReportedLoad(t *testing.T) {
	reporting := func(utilization float64) *backend {
		return serve(t, func(ctx context.Context) {
			recorder := orca.CallMetricsRecorderFromContext(ctx)
			recorder.SetApplicationUtilization(utilization)
			recorder.SetQPS(100)
		})
	}
	silent, silent2, idle, busy := serve(t), serve(t), reporting(0.2), reporting(0.8)
	r := start(t, time.Minute)
	r.policy = &windlassv1.RoutingPolicy{Balancing: windlassv1.RoutingPolicy_BALANCING_WEIGHTED}
	r.hold(1, 100)
	r.see(ready(silent.address, silent2.address))
	c := r.client("chat.test")
	share := func(a, b *backend) float64 {
		beforeA, beforeB := a.calls.Load(), b.calls.Load()
		call(t, c, 100)
		a100, b100 := a.calls.Load()-beforeA, b.calls.Load()-beforeB
		return float64(a100) / float64(max(a100+b100, 1))
	}
	require.Eventually(t, func() bool { return share(silent, silent2) == 0.5 }, patience, time.Millisecond)
	r.see(ready(idle.address, busy.address))
	require.Eventually(t, func() bool {
		got := share(idle, busy)
		return got > 0.77 && got < 0.83
	}, patience, 50*time.Millisecond, "the client uses the reported load after ten seconds")
}

// envoy is a client that speaks the protocol as an Envoy does: it acknowledges responses, and asks
// for the endpoints of its clusters.
type envoy struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	// received has the responses in their order. It is closed when the stream has ended.
	received chan *discoveryv3.DiscoveryResponse
	node     *corev3.Node
	cancel   context.CancelFunc
	names    map[string][]string
	last     map[string]*discoveryv3.DiscoveryResponse // acknowledged
}

func (h *harness) envoy(id string) *envoy { return h.envoyWith(id, insecure.NewCredentials()) }

func (h *harness) envoyWith(id string, security credentials.TransportCredentials) *envoy {
	h.t.Helper()
	conn, err := grpc.NewClient(h.address, grpc.WithTransportCredentials(security))
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, conn.Close()) })
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*patience)
	h.t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	require.NoError(h.t, err)
	e := &envoy{
		t: h.t, stream: stream, received: make(chan *discoveryv3.DiscoveryResponse), node: &corev3.Node{Id: id, UserAgentName: "envoy"}, cancel: cancel,
		names: map[string][]string{}, last: map[string]*discoveryv3.DiscoveryResponse{},
	}
	go func() {
		defer close(e.received)
		for {
			res, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case e.received <- res:
			case <-ctx.Done():
				return
			}
		}
	}()
	return e
}

func (e *envoy) ask(typeURL string, names ...string) {
	e.t.Helper()
	e.names[typeURL] = names
	require.NoError(e.t, e.stream.Send(&discoveryv3.DiscoveryRequest{Node: e.node, TypeUrl: typeURL, ResourceNames: names}))
	e.node = nil // only the first request has the node
}

// until returns the first response of the type for which wanted returns true. It acknowledges all
// earlier responses, but not this one.
func (e *envoy) until(typeURL string, wanted func(*discoveryv3.DiscoveryResponse) bool) *discoveryv3.DiscoveryResponse {
	e.t.Helper()
	for {
		res, ok := <-e.received
		require.True(e.t, ok, "the stream has ended")
		if res.TypeUrl == typeURL && wanted(res) {
			return res
		}
		e.ack(res)
	}
}

// eventually waits for the condition, and acknowledges every response meanwhile. The test may wait
// for a response that follows a response of another type, because the agent sends a newer response
// of a type only after the older one was acknowledged.
func (e *envoy) eventually(condition func() bool) {
	e.t.Helper()
	end, look := time.NewTimer(patience), time.NewTicker(time.Millisecond)
	defer end.Stop()
	defer look.Stop()
	for !condition() {
		select {
		case res, ok := <-e.received:
			require.True(e.t, ok, "the stream has ended")
			e.ack(res)
		case <-look.C:
		case <-end.C:
			require.FailNow(e.t, "the condition did not come true")
		}
	}
}

// ack acknowledges a response. After a response with clusters, it asks for their endpoints.
func (e *envoy) ack(res *discoveryv3.DiscoveryResponse) {
	e.t.Helper()
	e.send(res)
	e.last[res.TypeUrl] = res
	if res.TypeUrl != resource.ClusterType {
		return
	}
	if e.names[resource.EndpointType] = clusters(e.t, res); e.last[resource.EndpointType] != nil {
		e.send(e.last[resource.EndpointType])
		return
	}
	e.ask(resource.EndpointType, e.names[resource.EndpointType]...)
}

func (e *envoy) send(res *discoveryv3.DiscoveryResponse) {
	e.t.Helper()
	require.NoError(e.t, e.stream.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: res.TypeUrl, ResourceNames: e.names[res.TypeUrl], VersionInfo: res.VersionInfo, ResponseNonce: res.Nonce,
	}))
}

func (e *envoy) refuse(res *discoveryv3.DiscoveryResponse, version, why string) {
	e.t.Helper()
	require.NoError(e.t, e.stream.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: res.TypeUrl, ResourceNames: e.names[res.TypeUrl], VersionInfo: version, ResponseNonce: res.Nonce,
		ErrorDetail: &statuspb.Status{Message: why},
	}))
}

func clusters(t *testing.T, res *discoveryv3.DiscoveryResponse) (out []string) {
	t.Helper()
	for _, r := range res.Resources {
		c := &clusterv3.Cluster{}
		require.NoError(t, r.UnmarshalTo(c))
		require.NoError(t, c.ValidateAll())
		out = append(out, c.Name)
	}
	return out
}

func weights(t *testing.T, res *discoveryv3.DiscoveryResponse) map[string]uint32 {
	t.Helper()
	out := map[string]uint32{}
	require.Len(t, res.Resources, 1)
	config := &routev3.RouteConfiguration{}
	require.NoError(t, res.Resources[0].UnmarshalTo(config))
	require.NoError(t, config.ValidateAll())
	for _, host := range config.VirtualHosts {
		if host.Name != "app_1" {
			continue
		}
		action := host.Routes[0].GetRoute()
		if name := action.GetCluster(); name != "" {
			out[name] = 100
		}
		for _, c := range action.GetWeightedClusters().GetClusters() {
			out[c.Name] = c.Weight.GetValue()
		}
	}
	return out
}

// routes returns a function that reports whether a response has these shares.
func routes(t *testing.T, want map[string]uint32) func(*discoveryv3.DiscoveryResponse) bool {
	return func(res *discoveryv3.DiscoveryResponse) bool { return maps.Equal(weights(t, res), want) }
}

// endpoints returns how many endpoints a deployment has in a response, or -1 if it is not in the
// response.
func endpoints(t *testing.T, res *discoveryv3.DiscoveryResponse, deployment string) int {
	t.Helper()
	for _, r := range res.Resources {
		assignment := &endpointv3.ClusterLoadAssignment{}
		require.NoError(t, r.UnmarshalTo(assignment))
		require.NoError(t, assignment.ValidateAll())
		if assignment.ClusterName != deployment {
			continue
		}
		n := 0
		for _, locality := range assignment.Endpoints {
			n += len(locality.LbEndpoints)
		}
		return n
	}
	return -1
}

// come asks for all types that an Envoy asks for.
func (e *envoy) come() {
	e.t.Helper()
	e.ask(resource.ClusterType)
	e.ask(resource.RouteType, xds.RouteName)
}

func TestStages_WaitForEveryEnvoy(t *testing.T) {
	r := start(t, 10*time.Minute)
	r.hold(1, 100)
	r.see(ready("127.0.0.1:4001"))
	require.Empty(t, r.Routed("app_1", 0, 1))
	e := r.envoy("edge-1")
	e.come()
	first := e.until(resource.RouteType, routes(t, map[string]uint32{"dep_1": 100}))
	require.Eventually(t, func() bool { return strings.Contains(r.Routed("app_1", 0, 1), "waits for gateway xds") }, patience, time.Millisecond)
	e.ack(first)
	e.eventually(func() bool { return r.Routed("app_1", 0, 1) == "" })

	// There is a second version. The Envoy must acknowledge its endpoints before a route leads
	// there.
	r.see(ready("127.0.0.1:4001"), ready("127.0.0.1:4002"))
	r.hold(2, 90, 10)
	res := e.until(resource.EndpointType, func(res *discoveryv3.DiscoveryResponse) bool { return endpoints(t, res, "dep_2") == 1 })
	require.Contains(t, r.Routed("app_1", 0, 2), "waits for gateway xds")
	e.ack(res)
	res = e.until(resource.RouteType, routes(t, map[string]uint32{"dep_1": 90, "dep_2": 10}))
	require.Contains(t, r.Routed("app_1", 0, 2), "waits for gateway xds")
	e.ack(res)
	e.eventually(func() bool { return r.Routed("app_1", 0, 2) == "" })

	// An instance that will stop waits until the Envoy has acknowledged that it is not an endpoint
	// any more.
	require.False(t, r.Released("ins_127.0.0.1:4001"))
	r.see([]instance{{"127.0.0.1:4001", windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING}}, ready("127.0.0.1:4002"))
	res = e.until(resource.EndpointType, func(res *discoveryv3.DiscoveryResponse) bool { return endpoints(t, res, "dep_1") == 0 })
	require.False(t, r.Released("ins_127.0.0.1:4001"))
	e.ack(res)
	e.eventually(func() bool { return r.Released("ins_127.0.0.1:4001") })

	// The Envoy leaves. The routes that it may still serve count.
	e.cancel()
	r.hold(3, 0, 100)
	require.Eventually(t, func() bool {
		return r.Routed("app_1", 0, 3) != "" && strings.Contains(r.notes(), "Envoy edge-1 is away")
	}, patience, time.Millisecond)
	require.NotContains(t, r.notes(), "gateway xds", "there is only one note about it")
}

func (h *harness) notes() string {
	return strings.Join(h.Annotate(&agentv1.Capacity{}).GetNotes(), " ")
}

func TestRefusal_HasANoteAndDelaysARouteForALimitedTime(t *testing.T) {
	r := start(t, 10*time.Second)
	r.hold(1, 100)
	r.see(ready("127.0.0.1:4001"))
	e := r.envoy("edge-1")
	e.come()
	e.refuse(e.until(resource.RouteType, routes(t, map[string]uint32{"dep_1": 100})), "", "no such thing as windlass")
	require.Eventually(t, func() bool {
		return strings.Contains(r.notes(), "Envoy edge-1 refuses routes: no such thing as windlass")
	}, patience, time.Millisecond)
	require.Contains(t, r.Routed("app_1", 0, 1), "waits for gateway xds")
	// The Envoy gets changed endpoints once it has acknowledged the earlier ones, at about the same
	// time as the next routes.
	r.see(ready("127.0.0.1:4001", "127.0.0.1:4002"))
	require.Eventually(t, func() bool { return r.Routed("app_1", 0, 1) == "" }, patience, 10*time.Millisecond, "the route waits for the grace, and no longer")

	// The refused response is not sent again. The next one is sent.
	r.hold(2, 0)
	res := e.until(resource.RouteType, func(res *discoveryv3.DiscoveryResponse) bool {
		require.NotContains(t, weights(t, res), "dep_1")
		return true
	})
	e.ack(res)
	e.eventually(func() bool { return r.Routed("app_1", 0, 2) == "" && r.notes() == "" })
}

func TestIncremental_IsRefusedWithTheFix(t *testing.T) {
	r := start(t, time.Minute)
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.ErrorContains(t, err, "api_type: GRPC")
}

// The example is the configuration that an Envoy's operator starts with.
func TestBootstrap_OfTheGuideIsValid(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/guides/xds.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "```yaml\nnode: {id: edge-1")
	require.True(t, ok)
	example, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	data, err := yaml.YAMLToJSONStrict([]byte("node: {id: edge-1" + example))
	require.NoError(t, err)
	got := &bootstrapv3.Bootstrap{}
	require.NoError(t, protojson.Unmarshal(data, got))
	require.NoError(t, got.ValidateAll())
	tlsContext := &tlsv3.UpstreamTlsContext{}
	require.NoError(t, got.StaticResources.Clusters[0].TransportSocket.GetTypedConfig().UnmarshalTo(tlsContext))
	require.Len(t, tlsContext.CommonTlsContext.TlsCertificates, 1)
	manager := &hcmv3.HttpConnectionManager{}
	require.NoError(t, got.StaticResources.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(manager))
	require.Equal(t, xds.RouteName, manager.GetRds().GetRouteConfigName())
	require.True(t, manager.GetNormalizePath().GetValue() && manager.GetMergeSlashes(), "routes match normalized paths")
	require.Equal(t, hcmv3.HttpConnectionManager_UNESCAPE_AND_REDIRECT, manager.GetPathWithEscapedSlashesAction())
}
