// Package gateway is the data plane of a region: it takes requests for the hosts of apps and sends
// them to ready instances. This file connects its parts.
//
//	agent ──Watch──▶ routesync ──▶ table ◀── proxy ◀── clients
//	agent ◀─Report── routesync       └─▶ upstream: balance, health, queue ──▶ instances
//	                                         └─▶ prober: can the gateway reach them? ──▶ instances
//	clients ──▶ engine: plain HTTP/1.1, or other? ──▶ proxy
//	proxy ──▶ hold: requests that wait for an app at zero ──Wake──▶ agent
//	proxy ──▶ remoteregions: which is the nearest region with a ready instance? ──▶ gateways of other regions
//
// The region's agent is its only source of routes. While the agent is away, and with it the
// control plane, the gateway serves the routes that it last knew, also after a restart.
package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/gateway/internal/certificates"
	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/pace"
	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
	"github.com/windlass-run/windlass/apps/gateway/internal/prober"
	"github.com/windlass-run/windlass/apps/gateway/internal/proxy"
	"github.com/windlass-run/windlass/apps/gateway/internal/remoteregions"
	"github.com/windlass-run/windlass/apps/gateway/internal/routesync"
	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/service"
	"github.com/windlass-run/windlass/pkg/strict"
	"github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1/gatewayv1connect"
)

// Config configures a Gateway.
type Config struct {
	// Agent is the address at which the region's agent serves routes: "unix:PATH" or a URL.
	Agent string
	// AgentTLS is the TLS configuration for an https URL. Nil: Go's defaults.
	AgentTLS *tls.Config
	// Listen has the addresses (host:port) on which HTTP is served. Port 0 picks a free port. HTTP is also served on
	// Listeners.
	Listen    []string
	Listeners []net.Listener
	// Engine is the engine that reads the connections of Listen and Listeners: "auto", "net" (net/http) or "epoll".
	// New refuses "epoll" if the listeners do not allow it. Empty: "auto".
	Engine engine.Mode
	// TLSListen is the address (host:port) on which HTTPS is served. Empty: no TLS. TLSCert and TLSKey are PEM files
	// with the gateway's own certificate and its key. Hosts that this certificate does not cover get a certificate
	// from ACME. If TLSListen is set, TLSCert and TLSKey or ACME must be set, too.
	TLSListen       string
	TLSCert, TLSKey string
	ACME            *ACME
	// RedirectPort is the port at which clients reach TLSListen. Requests without TLS for a host of an app
	// are redirected to it. 0: they are served.
	RedirectPort int
	// HTTP3 serves HTTP/3 on the UDP port with TLSListen's number, with the same certificates. Answers by TLS
	// advertise it.
	HTTP3 bool
	// HSTS is how long browsers must use only HTTPS for a host that they reached by HTTPS. 0: answers do not have
	// the header.
	HSTS time.Duration
	// ID identifies the gateway to its agent. No other process may have the same ID. Empty: a new ID.
	ID string
	// StateFile is the file that keeps the last known table. Empty: after a restart the gateway has no table until
	// the agent sends it.
	StateFile string
	// MaxHeaderBytes limits the header of a request. 0: 64 KiB.
	MaxHeaderBytes int
	// HeaderTimeout is how long a client may take to send a request's header. 0: 10 s.
	HeaderTimeout time.Duration
	// SlowClient is how long a client may neither take nor send a byte. 0: 60 s.
	SlowClient time.Duration
	// MinBodyRate and MinAnswerRate are the slowest rates, in bytes a second, at which a client may send a body and
	// take an answer. The rate is the average over the time that the gateway waited for the client. It is checked
	// once the gateway has waited for RateAfter in all. 0: 1024, and 10 s for RateAfter. Below 0: any rate.
	MinBodyRate, MinAnswerRate int64
	RateAfter                  time.Duration
	// MaxHeld is how many requests may wait for apps at zero, of all apps together. 0: hold.DefaultMost.
	MaxHeld int
	// PairMemory limits the memory for the bodies of requests to pairs of a prefill and a decode server, in bytes.
	// 0: proxy.DefaultPairMemory.
	PairMemory int64
	// Connections limits the connections of clients, in total and by address. Zero: conns.Limits.Defaults.
	Connections conns.Limits
	// UpgradedIdle is how long a connection that switched protocols, such as a websocket, may be silent
	// in both directions. 0: 10 min.
	UpgradedIdle time.Duration
	// DrainDelay is how long the gateway still takes requests after Run's ctx has ended. Readiness is off in this
	// time, so that load balancers notice. DrainTimeout is how long requests may take to end after that. 0: no delay,
	// and 5 min.
	DrainDelay, DrainTimeout time.Duration
	// NeighbourRoots is a PEM file with the CAs of the gateways of other regions, to which requests may be
	// handed over. Empty: the CAs of this machine.
	NeighbourRoots string
	// Files gets the certificate files, for its metrics. Nil: there are no such metrics.
	Files *certfile.Files
	// NeighbourAllow are networks, in addition to public addresses, in which the gateways of other regions may be.
	// Gateways without TLS must be in one of these networks.
	NeighbourAllow guard.Networks
	// Near connects to the gateways of another region and returns how long that took. The region with the shortest
	// time is the nearest. Nil: it connects by TCP.
	Near func(context.Context, *url.URL) (time.Duration, error)
	// Access gets a line for one request in AccessEvery. Nil: there is no access log.
	Access      *slog.Logger
	AccessEvery uint64
	// Payloads gets the bodies of requests and answers, for apps whose policy enables a payload log. Nil: no body is
	// logged.
	Payloads io.Writer
	// Trusted are networks of proxies whose X-Forwarded-* fields are passed on.
	Trusted    []netip.Prefix
	Version    string
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random returns a random number, and Rand a random number in [0, 1). Both must be safe for concurrent use.
	Random func() uint64
	Rand   func() float64
}

// ACME configures how certificates are ordered and kept.
type ACME struct {
	// Directory is the URL of the ACME server's directory. The gateway agrees to the server's terms of service. Email
	// is the address for the account. Empty: none.
	Directory, Email string
	// Roots is a PEM file with the CAs of the ACME server's own certificate. Empty: the CAs of this machine.
	Roots string
	// Folder keeps the certificates. Gateways of a region may share it.
	Folder string
}

// Gateway takes requests. Make it with New, and call Run once.
type Gateway struct {
	cfg    Config
	table  *table.Table
	routes *routesync.Source
	proxy  *proxy.Proxy
	prober *prober.Prober
	// ejections counts and logs ejections of instances.
	ejections *ejections
	// regions are the other regions, to which requests may be handed over.
	regions *remoteregions.Regions
	// holds are the requests that wait for apps at zero.
	holds *hold.Holds
	// bound are the listeners that New bound itself, without the layer for TLS.
	listeners, bound []net.Listener
	// secure is the listener with TLS. Nil: none.
	secure   net.Listener
	health   service.Health
	leaving  atomic.Bool
	agent    *http.Client
	http3    *http3Server       // nil: none
	acme     *certificates.ACME // nil: none
	payloads *payload.Log       // nil: none
	conns    *conns.Table
}

// New binds the addresses and reads the last known table. Connections queue until Run is called.
func New(ctx context.Context, cfg Config) (_ *Gateway, err error) {
	if cfg.Agent == "" || cfg.Log == nil || cfg.Registerer == nil || cfg.Random == nil || cfg.Rand == nil {
		return nil, errors.New("gateway: Agent, Log, Registerer, Random and Rand are required")
	}
	if len(cfg.Listen)+len(cfg.Listeners) == 0 && cfg.TLSListen == "" {
		return nil, errors.New("gateway: no address to listen on: Listen, Listeners or TLSListen is required")
	}
	cfg.MaxHeaderBytes = orDefault(cfg.MaxHeaderBytes, 64<<10)
	cfg.HeaderTimeout = orDefault(cfg.HeaderTimeout, 10*time.Second)
	cfg.SlowClient = orDefault(cfg.SlowClient, time.Minute)
	cfg.MinBodyRate = orDefault(cfg.MinBodyRate, minRate)
	cfg.MinAnswerRate = orDefault(cfg.MinAnswerRate, minRate)
	cfg.RateAfter = orDefault(cfg.RateAfter, 10*time.Second)
	cfg.UpgradedIdle = orDefault(cfg.UpgradedIdle, 10*time.Minute)
	cfg.DrainTimeout = orDefault(cfg.DrainTimeout, 5*time.Minute)
	g := &Gateway{cfg: cfg, prober: prober.New(cfg.Rand)}
	if err := g.limitConnections(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, l := range g.listeners {
				_ = l.Close() // no connection was accepted from it
			}
		}
	}()
	client, base, err := agentClient(cfg.Agent, cfg.AgentTLS)
	if err != nil {
		return nil, err
	}
	g.agent = client
	if g.ejections, err = newEjections(cfg.Log, cfg.Registerer); err != nil {
		return nil, err
	}
	g.table = table.New(upstream.Config{
		Now: time.Now, Random: cfg.Random,
		Ejected: func(e upstream.Ejection) {
			g.ejections.countEjection(e)
			g.routes.Changed()
		},
		Drained: func(string) { g.routes.Changed() },
		Arrived: g.prober.Add,
		Proven:  func() { g.routes.Changed() },
	})
	// The TLS server name is the host of each request.
	neighbourTLS, err := certfile.Client{CA: cfg.NeighbourRoots, CAFlag: "--neighbour-roots"}.Config("https://", cfg.Files)
	if err != nil {
		return nil, fmt.Errorf("roots of other regions' gateways: %w", err)
	}
	g.regions = remoteregions.New(remoteregions.Config{
		Log: cfg.Log, Now: time.Now, Rand: cfg.Rand, Allow: cfg.NeighbourAllow, Near: cfg.Near, Gone: func(gatewayURL string) { g.proxy.Forget(gatewayURL) },
	})
	if err := registerRegionsReached(cfg.Registerer, g.regions.Reached); err != nil {
		return nil, err
	}
	counts := &traffic.Traffic{}
	g.routes, err = routesync.Open(routesync.Config{
		Client: gatewayv1connect.NewRouteServiceClient(client, base, rpc.ClientOptions(rpc.ClientConfig{
			UserAgent: "windlass-gateway/" + cfg.Version,
			// A frame has about 1 MiB. It is larger only if a single app needs more.
			ReadMaxBytes: 32 << 20,
		})...),
		GatewayID: cmp.Or(cfg.ID, newID()), ProcessID: ident.New("run"), Another: newID,
		Version: cfg.Version, Table: g.table, Traffic: counts, Neighbours: g.regions.Put, File: cfg.StateFile, Log: cfg.Log, Rand: cfg.Rand,
	})
	if err != nil {
		// The gateway starts without the file, because the agent has all routes.
		cfg.Log.ErrorContext(ctx, "the last known routes are lost: waiting for routes from the agent", "error", err)
	}
	g.holds, err = hold.New(hold.Config{
		Wake: g.routes.Wake, AtZero: g.table.IsHeld, Most: cfg.MaxHeld, Now: time.Now, Rand: cfg.Rand, Log: cfg.Log, Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if cfg.Payloads != nil {
		if g.payloads, err = payload.New(cfg.Payloads, cfg.Rand, cfg.Registerer); err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
	}
	g.proxy, err = proxy.New(proxy.Config{
		Table: g.table, Log: cfg.Log, Access: cfg.Access, AccessEvery: cfg.AccessEvery,
		Trusted: cfg.Trusted, SlowClient: cfg.SlowClient, UpgradedIdle: cfg.UpgradedIdle,
		Bodies: pace.Least{Rate: cfg.MinBodyRate, After: cfg.RateAfter}, Answers: pace.Least{Rate: cfg.MinAnswerRate, After: cfg.RateAfter}, Registerer: cfg.Registerer, Complete: g.routes.Complete, HSTS: cfg.HSTS,
		Conns: g.conns, Advertise: g.advertiseHTTP3, Traffic: counts, Payloads: g.payloads, Regions: g.regions, Holds: g.holds, PairMemory: cfg.PairMemory, NeighbourTLS: neighbourTLS, Allow: cfg.NeighbourAllow,
	})
	if err != nil {
		return nil, err
	}
	if err := g.bindListeners(ctx); err != nil {
		return nil, err
	}
	g.health.Add("routes", func(context.Context) error {
		if !g.routes.Complete() {
			return errors.New("no table of routes yet: neither from the agent nor from disk")
		}
		return nil
	})
	g.health.Add("serving", func(context.Context) error {
		if g.leaving.Load() {
			return errors.New("the gateway is stopping: it finishes the requests that it has")
		}
		return nil
	})
	return g, nil
}

func (g *Gateway) bindListeners(ctx context.Context) error {
	g.listeners = append(g.listeners, g.cfg.Listeners...)
	for _, address := range g.cfg.Listen {
		l, err := listenOn(ctx, "HTTP", address)
		if err != nil {
			return err
		}
		g.listeners, g.bound = append(g.listeners, l), append(g.bound, l)
	}
	if err := g.checkEngine(); err != nil {
		return err
	}
	if g.cfg.TLSListen == "" {
		return nil
	}
	choose, err := g.certificateChooser()
	if err != nil {
		return err
	}
	l, err := listenOn(ctx, "HTTPS", g.cfg.TLSListen)
	if err != nil {
		return err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: choose.Get, NextProtos: []string{"h2", "http/1.1", certificates.NextProto}}
	g.bound = append(g.bound, l)
	g.secure = strict.ListenTLS(g.conns.ListenAs("https", l), strict.TLSConfig{
		TLS: config, MaxHead: g.cfg.MaxHeaderBytes, Handshake: g.cfg.HeaderTimeout,
		Failed: func(client net.Addr, err error) {
			g.cfg.Log.Debug("a TLS handshake failed", "client", client.String(), "error", err)
		},
	})
	g.listeners = append(g.listeners, g.secure)
	if g.cfg.HTTP3 {
		g.http3 = newHTTP3(conns.Handler(g.proxy), l.Addr().String(), config, g.cfg, g.conns) //nolint:contextcheck // handshakes have contexts of their own
	}
	return nil
}

// checkEngine returns an error if the engine of Config cannot serve the listeners.
func (g *Gateway) checkEngine() error {
	if g.cfg.Engine != engine.Epoll {
		return nil
	}
	const instead = "use --engine=auto, which uses net/http where epoll cannot be used, or --engine=net"
	switch {
	case len(g.listeners) == 0:
		return fmt.Errorf("--engine=epoll needs --listen, which is not set: %s", instead)
	case g.cfg.RedirectPort != 0 || g.cfg.ACME != nil:
		return fmt.Errorf("--engine=epoll cannot be combined with --https-redirect or --acme-directory, because net/http serves --listen then: %s", instead)
	}
	for _, l := range g.listeners {
		if err := g.cfg.Engine.Fits(l); err != nil {
			return fmt.Errorf("--engine=epoll: %w: %s", err, instead)
		}
	}
	return nil
}

// agentClient returns the client and the base URL for Config.Agent.
func agentClient(agent string, config *tls.Config) (*http.Client, string, error) {
	client := rpc.NewHTTPClient(rpc.HTTPClientConfig{TLS: config})
	path, unix := strings.CutPrefix(agent, "unix:")
	switch {
	case unix && path != "":
		transport := &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", path)
			},
			Protocols: new(http.Protocols),
			HTTP2:     &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 4 * time.Second},
		}
		transport.Protocols.SetUnencryptedHTTP2(true)
		client.Transport = transport
		return client, "http://agent", nil
	case strings.HasPrefix(agent, "http://"), strings.HasPrefix(agent, "https://"):
		return client, agent, nil
	default:
		return nil, "", fmt.Errorf("agent %q: use unix:PATH of the agent's gateway.sock, or a URL like https://agent:7720", agent)
	}
}

// Addresses returns the addresses that the gateway listens on, Config.Listeners first.
func (g *Gateway) Addresses() []net.Addr {
	var out []net.Addr
	for _, l := range g.listeners {
		out = append(out, l.Addr())
	}
	return out
}

// advertiseHTTP3 adds the header that advertises HTTP/3 to clients that came by TLS, while it is served.
func (g *Gateway) advertiseHTTP3(h http.Header) {
	if g.http3 != nil && !g.leaving.Load() {
		g.http3.advertiseHTTP3(h)
	}
}

// Health reports whether requests should be sent to this gateway.
func (g *Gateway) Health() *service.Health { return &g.health }

// farewell is how long a gateway that stops waits until the agent knows that it leaves. That is enough for a slow
// agent, because it is on the same host or network.
const farewell = 2 * time.Second

// Run serves until ctx ends, and then until all requests have ended or DrainTimeout has passed. The components that
// inform the agent and the components in beside run until then, too.
func (g *Gateway) Run(ctx context.Context, beside ...service.Component) error {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	parts := append([]service.Component{
		{Name: "watch", Run: g.routes.Watch},
		{Name: "report", Run: g.routes.Report},
		{Name: "save", Run: g.routes.Save},
		{Name: "sweep", Run: g.proxy.Sweep},
		{Name: "probes", Run: g.prober.Run},
		{Name: "ejections", Run: g.ejections.Run},
		{Name: "other regions", Run: g.regions.Run},
		{Name: "apps at zero", Run: g.holds.Run},
	}, beside...)
	if g.acme != nil {
		parts = append(parts, service.Component{Name: "certificates", Run: g.acme.Keep})
	}
	if g.payloads != nil {
		parts = append(parts, service.Component{Name: "payload log", Run: g.payloads.Run})
	}
	ended := make(chan error, 1)
	go func() { ended <- service.Run(inner, g.cfg.Log, 5*time.Second, parts...) }()
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	served := make(chan error, 1)
	go func() { served <- g.serveListeners(serving) }()
	var err error
	select {
	case err = <-served:
		if ctx.Err() != nil {
			told, cancel := context.WithTimeout(inner, farewell)
			g.routes.Part(told)
			cancel()
		}
		stop()
		err = errors.Join(err, <-ended)
	case err = <-ended: // one of the parts failed
		end(err)
		err = errors.Join(err, <-served)
	}
	g.proxy.Close()
	g.agent.CloseIdleConnections()
	return err
}

// minRate is the default of the slowest rates, in bytes a second. It is the rate of clients on the slowest networks.
const minRate = 1 << 10

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
