// Package agent is the process in a region that pulls the state that the region should have,
// applies it, and reports the observed state. This file is the only wiring of a running agent.
//
//	control plane --Watch--> session -> inbox -> reconcile -> runtime
//	control plane <-Report-- report  <-----------'            (keeps running
//	                                             |             without us)
//	gateways <-----Watch, Report----- gateways <-'
//	                     load <-------'  (load of scaled apps, sent by report)
//	                     alone           (raises them while the control plane is away)
//	Envoy, gRPC clients <----ADS----- xds <----'
//
// An agent may be killed at any moment: no instance stops and nothing is lost. The inbox holds the
// desired state, and the runtime knows the running instances. A new agent on the same data
// directory continues from both.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/gateways"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/reconcile"
	"github.com/windlass-run/windlass/apps/agent/internal/report"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/series"
	"github.com/windlass-run/windlass/apps/agent/internal/session"
	"github.com/windlass-run/windlass/apps/agent/internal/xds"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/service"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
)

// Runtime runs instances; see package runtime for the contract.
type Runtime = runtime.Runtime

// Config configures an Agent.
type Config struct {
	// Server is the control plane's URL.
	Server string
	// HTTPClient calls the control plane.
	HTTPClient *http.Client
	// DataDir holds the inbox, the credential, and kept secrets.
	DataDir string
	// Memory replaces DataDir for agents without a disk, in fleets in virtual time.
	Memory *Memory
	// TokenFile holds the join token. It is needed until the agent has joined.
	TokenFile string
	// NewRuntime makes the runtime once the region's name is known. A runtime that is also an
	// io.Closer is closed with the agent.
	NewRuntime func(ctx context.Context, region string) (Runtime, error)
	// RuntimeName is the name of the runtime that the agent tells the control plane, such as
	// "process".
	RuntimeName string
	Version     string
	Log         *slog.Logger
	Registerer  prometheus.Registerer
	Tracer      *sdktrace.TracerProvider
	Rand        func() float64
	// NoSync allows a crash of the machine to lose the inbox, for simulated fleets.
	NoSync bool
	// Silence is how long the control plane may send nothing before the agent opens a new stream.
	// 0: the default.
	Silence time.Duration
	// Models is the store for the files of models. Without Dir, models with artifacts are refused.
	Models artifact.Config
	// Isolates means that instances of different workspaces cannot reach each other's secrets.
	Isolates bool
	// SpansHosts means that the runtime runs instances of several hosts.
	SpansHosts bool
	// Gateways is the number of gateways that must serve a route before the region acknowledges it.
	// 0: all connected gateways.
	Gateways int
	// GatewayListen is the host:port for gateways of other hosts. Empty: only gateways of this host
	// can connect, through the socket in DataDir.
	GatewayListen string
	// GatewayURL is the URL of this region's gateways. Empty: it is not known.
	GatewayURL string
	// XDSListen is the host:port for Envoys and gRPC clients. Empty: routes are not served over
	// xDS.
	XDSListen string
	// Connections limits the connections to GatewayListen, and separately those to XDSListen. Zero:
	// conns.Limits.Defaults.
	Connections conns.Limits
	// Listeners has the TLS settings of GatewayListen and XDSListen.
	Listeners Listeners
	// NewRoutes makes the writer of the region's routes, for another data plane than Windlass's
	// gateways. Nil: routes are not written.
	NewRoutes func(feed *gateways.Feed, region string) (RouteWriter, error)
}

// Agent is a running agent. Make it with New, and run it once.
type Agent struct {
	cfg        Config
	inbox      *inbox.Inbox
	runtime    Runtime
	reconciler *reconcile.Reconciler
	session    *session.Session
	gateways   *gateways.Gateways
	loads      *load.Collector
	series     *series.Recorder
	seen       annotated
	xds        *xds.Server // nil: routes are not served over xDS
	written    RouteWriter // nil: routes are not written
	conns      connTables
	secure     secure
	region     string
	health     service.Health
}

// New joins the region if necessary and connects the parts. It returns an error if ctx ends before
// the agent has a credential.
func New(ctx context.Context, cfg Config) (_ *Agent, err error) {
	if cfg.Server == "" || cfg.HTTPClient == nil || (cfg.DataDir == "") == (cfg.Memory == nil) || cfg.NewRuntime == nil || cfg.Log == nil || cfg.Registerer == nil || cfg.Tracer == nil || cfg.Rand == nil {
		return nil, errors.New("agent: Server, HTTPClient, DataDir or Memory, NewRuntime, Log, Registerer, Tracer and Rand are required")
	}
	if err := checkGatewayURL(cfg.GatewayURL); err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.conns, err = newConnTables(cfg.Connections, cfg.Registerer); err != nil {
		return nil, err
	}
	if a.inbox, err = openInbox(cfg); err != nil {
		return nil, err
	}
	credentials, client, info, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	if err := credentials.EnsureJoined(ctx, client, cfg.TokenFile, info, backoff.Policy{}, cfg.Rand, cfg.Log); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	a.region = credentials.Region()

	values, err := openSecrets(cfg, client.GetSecrets)
	if err != nil {
		return nil, err
	}
	// A failed NewRuntime may return a nil pointer, which a.runtime would hold as a value that is not nil.
	made, err := cfg.NewRuntime(ctx, a.region)
	if err != nil {
		return nil, fmt.Errorf("start runtime: %w", err)
	}
	if a.runtime, err = wrapModels(cfg, made); err != nil {
		return nil, err
	}
	atZero, err := zero.Open(cfg.ownFiles(), zeroFile)
	if err != nil {
		return nil, err
	}
	a.series = series.New(time.Now())
	tableID := ident.New("tbl")
	a.gateways, err = gateways.New(gateways.Config{
		Inbox: a.inbox, Zero: atZero, Files: cfg.ownFiles(), Name: gatewaysFile, Around: neighboursFile, Versions: versionsFile, TableID: tableID, Expected: cfg.Gateways,
		Counted: a.series.Count, Log: cfg.Log, Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	if err := a.openXDS(tableID); err != nil {
		return nil, err
	}
	if cfg.NewRoutes != nil {
		if a.written, err = cfg.NewRoutes(a.gateways.Follow(gatewayAPI, true), a.region); err != nil {
			return nil, err
		}
	}
	a.reconciler, err = reconcile.New(reconcile.Config{
		Inbox: a.inbox, Runtime: a.runtime, Zero: atZero,
		Secrets: values.Values, ForgetSecrets: values.Forget,
		Gateways: a.gateways,
		Features: cfg.featureNames(),
		Log:      cfg.Log,
		Tracer:   cfg.Tracer.Tracer("windlass/agent"),
		Region:   credentials.Region,
		Rand:     cfg.Rand,
	})
	if err != nil {
		return nil, err
	}
	a.drain()
	a.seen = annotated{a.reconciler, a.gateways}
	if a.loads, err = a.newLoads(a.seen, atZero); err != nil {
		return nil, err
	}
	reporter, err := report.New(report.Config{
		Source: a.seen, Loads: a.loads, Send: client.Report,
		Received:   func() int64 { return a.inbox.Cursor().Revision },
		Log:        cfg.Log,
		Registerer: cfg.Registerer,
		Rand:       cfg.Rand,
	})
	if err != nil {
		return nil, err
	}
	a.session, err = session.New(session.Config{
		Client: client, Credentials: credentials, TokenFile: cfg.TokenFile, Info: info, Elsewhere: cfg.HTTPClient.CloseIdleConnections,
		Inbox: a.inbox, Reporter: reporter, Changed: a.tellChanged, Neighbours: a.gateways.Around, Instances: a.runtime, Traffic: a.gateways.Traffic, Series: a.series.Answer,
		Log: cfg.Log, Registerer: cfg.Registerer, Rand: cfg.Rand, Silence: cfg.Silence,
	})
	if err != nil {
		return nil, err
	}
	a.health.Add("control plane", func(context.Context) error {
		if !a.session.Connected() {
			return errors.New("no stream from the control plane; what runs keeps running")
		}
		return nil
	})
	return a, nil
}

// featureNames returns the names of the agent's features beyond the base protocol.
func (c Config) featureNames() []string {
	out := append(runtime.Features(), agentv1.Feature_FEATURE_SESSION_PROOF.String())
	if c.Isolates {
		out = append(out, agentv1.Feature_FEATURE_INSTANCE_ISOLATION.String())
	}
	if c.SpansHosts {
		out = append(out, agentv1.Feature_FEATURE_UNIT_HOSTS.String(), agentv1.Feature_FEATURE_GANG.String(), agentv1.Feature_FEATURE_TOPOLOGY.String())
	}
	return out
}

// connect returns the agent's credentials and the client that uses them. The credentials are empty
// before the agent has joined.
func connect(cfg Config) (*session.Credentials, agentv1connect.AgentServiceClient, *agentv1.AgentInfo, error) {
	credentials, err := session.OpenCredentials(cfg.ownFiles(), credentialFile)
	if err != nil {
		return nil, nil, nil, err
	}
	client := agentv1connect.NewAgentServiceClient(cfg.HTTPClient, cfg.Server, rpc.ClientOptions(rpc.ClientConfig{
		Token:     credentials.Token,
		Sign:      credentials.Sign,
		Refused:   credentials.Refused,
		UserAgent: "windlass-agent/" + cfg.Version,
		// A frame holds up to a megabyte of items, and one item may be large.
		ReadMaxBytes: 32 << 20,
	})...)
	hostname, err := os.Hostname()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("hostname: %w", err)
	}
	return credentials, client, &agentv1.AgentInfo{
		Version: cfg.Version, Runtime: cfg.RuntimeName, Hostname: hostname, Features: cfg.featureNames(), GatewayUrl: cfg.GatewayURL,
	}, nil
}

// Region returns the name of the region that the agent joined.
func (a *Agent) Region() string { return a.region }

// Connected reports whether a stream from the control plane is open.
func (a *Agent) Connected() bool { return a.session.Connected() }

// Health reports whether the control plane is connected.
func (a *Agent) Health() *service.Health { return &a.health }

// Components returns the parts to run together.
func (a *Agent) Components() []service.Component {
	return []service.Component{
		{Name: "runtime", Run: a.runtime.Run},
		{Name: "reconcile", Run: a.reconciler.Run},
		{Name: "gateways", Run: a.gateways.Run},
		{Name: "load", Run: a.loads.Run},
		{Name: "series", Run: a.runSeries},
		{Name: "routes for gateways", Run: a.serveGateways},
		{Name: "routes over xDS", Run: a.serveXDS},
		{Name: "routes of the Gateway API", Run: a.writeRoutes},
		{Name: "session", Run: a.session.Run},
		{Name: "renewal", Run: a.session.Renew},
	}
}

// Abandon simulates a kill of the agent, for processes that run several agents. From then on, the
// agent no longer changes its inbox, which stays as kill -9 would leave it. The agent's other files
// need no such care, because each is replaced as a whole. After Abandon, run the agent to its end,
// and then call Close.
func (a *Agent) Abandon() { a.inbox.Abandon() }

// Close releases the data directory. Instances keep running.
func (a *Agent) Close() error {
	var err error
	if closer, ok := a.runtime.(interface{ Close() error }); ok {
		// A runtime that ran to its end has closed itself.
		if err = closer.Close(); errors.Is(err, os.ErrClosed) {
			err = nil
		}
	}
	if a.inbox != nil {
		err = errors.Join(err, a.inbox.Close())
	}
	return err
}
