package xds

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	sotw "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/windlass-run/windlass/pkg/certfile"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const (
	// maxStreams is the maximum number of streams of clients, so that a client with a fault does
	// not use up the agent's memory.
	maxStreams = 1000
	// stagePatience is how long one stage waits for its acknowledgements before the next stage is
	// sent. Slower Envoys get the same data later.
	stagePatience = 5 * time.Second
	// pingAfter is the silence before a ping. A connection that does not answer a ping within
	// pingTimeout is dead.
	pingAfter, pingTimeout = 10 * time.Second, 5 * time.Second
	// handshakeTimeout limits the TLS handshake of a connection and its wait for a turn, because
	// the number of connections is limited.
	handshakeTimeout = 10 * time.Second
	// drain is how long streams may take to end when the agent stops.
	drain = time.Second
)

// Each of the two kinds of clients has its own snapshot.
const (
	forEnvoy = "envoy"
	forGRPC  = "grpc"
)

// Feed is the region's table of routes; see gateways.Feed.
type Feed interface {
	Known() <-chan struct{}
	Changed() <-chan struct{}
	Take() []*gatewayv1.AppRoutes
	Serves(changes map[string]int64, anybody bool, notes []string)
}

// Config configures a Server.
type Config struct {
	Feed Feed
	// Region is the locality of all endpoints.
	Region string
	// TableID is the id of the table, a new one for each start of the agent. Versions can be
	// compared only within one table.
	TableID string
	// Grace is how long an Envoy counts while it is away or does not acknowledge.
	Grace      time.Duration
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Server serves the table over xDS. Make it with New, and run it once.
type Server struct {
	cfg   Config
	cache cache.SnapshotCache
	// said is signalled when an Envoy has sent a request, has connected or has left.
	said chan struct{}

	mu        sync.Mutex
	clients   *clients
	streams   map[int64]client
	published published
}

// New returns a server that sends nothing before Run.
func New(cfg Config) (*Server, error) {
	if cfg.Feed == nil || cfg.Region == "" || cfg.TableID == "" || cfg.Grace <= 0 || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("xds: every field of Config is required")
	}
	s := &Server{
		cfg: cfg, cache: cache.NewSnapshotCache(false, kinds{}, nil), said: make(chan struct{}, 1),
		clients: newClients(cfg.Grace), streams: map[int64]client{},
	}
	registerStreams(cfg.Registerer, s.count)
	return s, nil
}

func (s *Server) count(kind string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.streams {
		if c.kind == kind {
			n++
		}
	}
	return n
}

// client is the client of a stream. kind is empty before its first request. name is the name in its
// certificate.
type client struct{ kind, name string }

// nodeName returns the name under which an Envoy counts. Envoys with different names in their
// certificates are different nodes, whatever id they send.
func (c client) nodeName(id string) string {
	if c.name == "" {
		return id
	}
	return id + "@" + c.name
}

// certificateName returns the name in the certificate of a stream's client.
func certificateName(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			return certfile.Holder(&info.State)
		}
	}
	return ""
}

// kinds gives all clients of a kind the same snapshot.
type kinds struct{}

// ID implements cache.NodeHash.
func (kinds) ID(node *corev3.Node) string {
	if strings.HasPrefix(node.GetUserAgentName(), "envoy") {
		return forEnvoy
	}
	return forGRPC
}

// Run serves on the listener until ctx ends. Without config it serves without TLS.
func (s *Server) Run(ctx context.Context, l net.Listener, config *tls.Config) error {
	streams, end := context.WithCancel(ctx)
	defer end()
	security := insecure.NewCredentials()
	if config != nil {
		security = inTurn{credentials.NewTLS(config), ctx}
	}
	g := grpc.NewServer(
		grpc.Creds(security),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, aggregated{server.NewServer(streams, s.cache, s.callbackFuncs(), sotw.WithOrderedADS())})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	err := s.followFeed(ctx, served)
	end()
	force := time.AfterFunc(drain, g.Stop)
	defer force.Stop()
	g.GracefulStop()
	return err
}

// aggregated refuses the variant of the protocol whose acknowledgements are not counted.
type aggregated struct{ server.Server }

// DeltaAggregatedResources implements the discovery service.
func (aggregated) DeltaAggregatedResources(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return status.Error(codes.Unimplemented, "incremental xDS is not served: set api_type: GRPC in ads_config")
}

func (s *Server) callbackFuncs() server.CallbackFuncs {
	return server.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, id int64, _ string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.streams) >= maxStreams {
				return status.Errorf(codes.ResourceExhausted, "%d streams are open already", maxStreams)
			}
			s.streams[id] = client{name: certificateName(ctx)}
			return nil
		},
		StreamRequestFunc: func(id int64, req *discoveryv3.DiscoveryRequest) error {
			came := false
			// An Envoy counts before anything is sent to it.
			defer func() {
				if came {
					s.cfg.Feed.Serves(nil, true, nil)
				}
			}()
			s.mu.Lock()
			defer s.mu.Unlock()
			kind := kinds{}.ID(req.GetNode())
			who := client{kind: kind, name: s.streams[id].name}
			s.streams[id] = who
			if kind != forEnvoy {
				if detail := req.GetErrorDetail(); detail != nil {
					s.cfg.Log.Warn("a gRPC client refuses its configuration", "client", req.GetNode().GetId(), "type", req.GetTypeUrl(), "error", detail.GetMessage())
				}
				return nil
			}
			came = !s.clients.hasClients()
			refused := s.clients.handleRequest(id, who.nodeName(req.GetNode().GetId()), request{
				typeURL: req.GetTypeUrl(), nonce: req.GetResponseNonce(), version: req.GetVersionInfo(), names: req.GetResourceNames(),
				refusal: refusalOf(req),
			}, time.Now())
			if refused != "" {
				s.cfg.Log.Warn("an Envoy refuses its configuration", "node", req.GetNode().GetId(), "type", req.GetTypeUrl(), "error", refusalOf(req))
				// If a request has another version than the newest, the cache answers it at once.
				// After a refusal, that would repeat without end.
				req.VersionInfo = refused
			}
			signalOn(s.said)
			return nil
		},
		StreamResponseFunc: func(_ context.Context, id int64, req *discoveryv3.DiscoveryRequest, res *discoveryv3.DiscoveryResponse) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.clients.noteSent(id, res.GetTypeUrl(), response{nonce: res.GetNonce(), version: res.GetVersionInfo(), names: req.GetResourceNames()})
		},
		StreamClosedFunc: func(id int64, _ *corev3.Node) {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.streams, id)
			s.clients.noteClosed(id, time.Now())
			signalOn(s.said)
		},
	}
}

func refusalOf(req *discoveryv3.DiscoveryRequest) string {
	detail := req.GetErrorDetail()
	if detail == nil {
		return ""
	}
	if message := strings.TrimSpace(detail.GetMessage()); message != "" {
		return message
	}
	return "the Envoy gives no reason"
}

// followFeed serves the content of the feed, stage by stage, until ctx or the server ends.
func (s *Server) followFeed(ctx context.Context, served <-chan error) error {
	var now *config
	var at versions
	parts := map[string]*part{}
	tell := teller{feed: s.cfg.Feed, owed: map[string]int64{}}
	known := s.cfg.Feed.Known()
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return fmt.Errorf("serve xDS: %w", err)
		case <-known:
			known = nil
		case <-s.cfg.Feed.Changed():
		case <-s.said:
		case <-look.C:
		}
		if known != nil {
			continue
		}
		if apps := s.cfg.Feed.Take(); len(apps) > 0 || now == nil {
			for _, app := range apps {
				tell.owed[app.AppId] = app.Change
				if parts[app.AppId] = partOf(app, s.cfg.Region); len(app.Hosts) == 0 && len(app.Previews) == 0 {
					delete(parts, app.AppId)
				}
			}
			for _, next := range stagesBetween(now, assembleConfig(parts)) {
				at = at.versionsAfter(now, next)
				if err := s.showConfig(ctx, next, at); err != nil {
					return err
				}
				now = next
				s.awaitStage(ctx)
			}
		}
		is := s.serve()
		tell.tellState(parts, is)
		if is.next.IsZero() {
			look.Stop()
		} else {
			look.Reset(max(time.Until(is.next), time.Millisecond))
		}
	}
}

// showConfig sends the config to all clients.
func (s *Server) showConfig(ctx context.Context, c *config, at versions) error {
	version := func(n int64) string { return fmt.Sprintf("%s-%d", s.cfg.TableID, n) }
	s.mu.Lock()
	s.published = published{
		versions: map[string]string{
			resource.ClusterType: version(at.clusters), resource.EndpointType: version(at.endpoints), resource.RouteType: version(at.routes),
		},
		clusters: slices.Collect(maps.Keys(c.clusters)),
	}
	s.mu.Unlock()
	envoy, client := &cache.Snapshot{}, &cache.Snapshot{}
	for _, snapshot := range []*cache.Snapshot{envoy, client} {
		snapshot.Resources[types.Cluster] = cache.NewResources(version(at.clusters), resourceList(c.clusters))
		snapshot.Resources[types.Endpoint] = cache.NewResources(version(at.endpoints), resourceList(c.endpoints))
	}
	envoy.Resources[types.Route] = cache.NewResources(version(at.routes), []types.Resource{c.routes})
	client.Resources[types.Listener] = cache.NewResources(version(at.routes), resourceList(c.listeners))
	for kind, snapshot := range map[string]*cache.Snapshot{forEnvoy: envoy, forGRPC: client} {
		if err := s.cache.SetSnapshot(ctx, kind, snapshot); err != nil && ctx.Err() == nil {
			return fmt.Errorf("tell %s clients: %w", kind, err)
		}
	}
	return nil
}

func resourceList[M types.Resource](all map[string]M) []types.Resource {
	out := make([]types.Resource, 0, len(all))
	for _, m := range all {
		out = append(out, m)
	}
	return out
}

// awaitStage waits until the connected Envoys have acknowledged or refused a stage, for stagePatience
// at most.
func (s *Server) awaitStage(ctx context.Context) {
	patience := time.NewTimer(stagePatience)
	defer patience.Stop()
	for {
		if !s.serve().soon {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.said:
		case <-patience.C:
			return
		}
	}
}

func (s *Server) serve() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients.serve(s.published, time.Now())
}

// teller tells the feed what is served, when that has changed.
type teller struct {
	feed Feed
	owed map[string]int64
	// came means that an Envoy has connected since the last report of what all Envoys serve.
	came, anybody bool
	notes         []string
}

func (t *teller) tellState(parts map[string]*part, is state) {
	if is.anybody && !t.anybody {
		t.came = true
		for id, p := range parts {
			t.owed[id] = max(t.owed[id], p.change)
		}
	}
	var changes map[string]int64
	if is.all && (t.came || len(t.owed) > 0) {
		changes, t.owed, t.came = t.owed, map[string]int64{}, false
	}
	if changes == nil && is.anybody == t.anybody && slices.Equal(is.notes, t.notes) {
		return
	}
	t.anybody, t.notes = is.anybody, is.notes
	t.feed.Serves(changes, is.anybody, is.notes)
}

func signalOn(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
