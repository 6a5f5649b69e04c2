package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/console"
	"github.com/windlass-run/windlass/apps/controlplane/internal/dispatch"
	"github.com/windlass-run/windlass/apps/controlplane/internal/fleet"
	"github.com/windlass-run/windlass/apps/controlplane/internal/ingest"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/notify"
	"github.com/windlass-run/windlass/apps/controlplane/internal/peers"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/traffic"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/webhook"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/scaler"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/seal"
	"github.com/windlass-run/windlass/pkg/service"
	"github.com/windlass-run/windlass/pkg/telemetry"
	"github.com/windlass-run/windlass/proto/gen/externalscaler/externalscalerconnect"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// parts are the parts of a core that differ between a real control plane and one in memory.
type parts struct {
	store store.Store
	// unavailable reports whether an error means that the store is out of reach. nil: it never is.
	unavailable func(error) bool
	newDriver   func(step rollout.Step, lost func(context.Context) error) (driver, error)
	images      rollout.ImageResolver
	box         *seal.Box
	log         *slog.Logger
	registerer  prometheus.Registerer
	tracer      *sdktrace.TracerProvider
	rand        func() float64
	domain      string
	// lookupTXT returns the TXT records of a name. nil: lookupTXT(""), which uses the host's resolver.
	lookupTXT func(ctx context.Context, name string) ([]string, error)
	leaseTTL  time.Duration
	// auditRetention is how long audit entries are kept. 0: fleet's default.
	auditRetention time.Duration
	// metrics measures apps for checks. nil: checks use what the apps' gateways measure.
	metrics rollout.Measurer
	// allowHooks are networks in which webhooks may be, in addition to public addresses.
	allowHooks guard.Networks
	// keep and forgetEvery configure how package fleet deletes old data. Zero values: the defaults of fleet.
	keep        keepFlags
	forgetEvery time.Duration
	// limits apply to workspaces without their own.
	limits model.Limits
	// callers bounds the load of one caller. Zero values: no limits on log-ins and reads, and the API's defaults for
	// watchers.
	callers callerFlags
	// sessions bounds the sessions of browsers. Its zero value means the API's defaults.
	sessions sessionFlags
	// signOn configures sign-ins of members. Its zero value means that there are none.
	signOn signOn
	// proxies are the networks whose X-Forwarded-Proto is trusted.
	proxies guard.Networks
	// beat is Config.Beat of package dispatch. 0: its default.
	beat time.Duration
	// peerID and peerAddress are this process's row in the table of peers, and peerHTTP calls other processes.
	// Without peerID, there are no other processes.
	peerID, peerAddress string
	peerHTTP            *http.Client
}

// driver is a rollout.Driver that runs as a component.
type driver interface {
	rollout.Driver
	Run(ctx context.Context) error
}

// core is a control plane without a listener.
type core struct {
	parts
	handler http.Handler
	// peerHandler serves other processes, on its own listener. nil: there are no other processes.
	peerHandler http.Handler
	dispatch    *dispatch.Service
	components  []service.Component
}

// The compiler checks here that a store's transaction satisfies the interfaces of its users.
var (
	_ dispatch.Tx      = store.Tx(nil)
	_ ingest.Tx        = store.Tx(nil)
	_ fleet.Tx         = store.Tx(nil)
	_ rollout.Tx       = store.Tx(nil)
	_ rollout.SweepTx  = store.Tx(nil)
	_ rollout.GaugesTx = store.Tx(nil)
	_ api.Tx           = store.Tx(nil)
	_ peers.Tx         = store.Tx(nil)
	_ trail.Tx         = store.Tx(nil)
	_ notify.Tx        = store.Tx(nil)
)

func (p parts) isUnavailable(err error) bool {
	return errors.Is(err, model.ErrOutcomeUnknown) || p.unavailable != nil && p.unavailable(err)
}

// newCore makes the parts in the order of their dependencies, and joins them.
func newCore(p parts) (*core, error) {
	if p.lookupTXT == nil {
		p.lookupTXT = lookupTXT("")
	}
	c := &core{parts: p}
	lease := dispatch.NewLease(p.leaseTTL)
	scalings, err := scaler.New(scaler.Config{Metrics: p.scalingMetrics(), Log: p.log, Registerer: p.registerer})
	if err != nil {
		return nil, err
	}
	ingestion, err := ingest.New(ingest.Config{
		Store: store.Bind[ingest.Tx](p.store), Caller: fleet.Caller, Edges: rollup.Edges, RouteEdges: rollup.RouteEdges,
		Loads: scalings.Observe,
		Log:   p.log, Registerer: p.registerer, Lease: lease.Length,
	})
	if err != nil {
		return nil, err
	}
	c.dispatch, err = dispatch.New(dispatch.Config{
		Store: store.Bind[dispatch.Tx](p.store), Caller: fleet.Caller,
		Log: p.log, Registerer: p.registerer, Random: p.rand, Lease: lease,
		Limits: ingestion.Limits, Version: Version, Peer: p.peerID, Beat: p.beat, Domain: p.domain, Quota: p.limits,
	})
	if err != nil {
		return nil, err
	}
	notifier, err := notify.New(notify.Config{
		Store: store.Bind[notify.Tx](p.store), Box: p.box, Allow: p.allowHooks, UserAgent: "windlass/" + Version,
		Log: p.log, Registerer: p.registerer, Random: p.rand,
	})
	if err != nil {
		return nil, err
	}
	audited, err := trail.New(store.Bind[trail.Tx](p.store), p.log, p.registerer)
	if err != nil {
		return nil, err
	}
	fleets, err := fleet.New(fleet.Config{
		Store: store.Bind[fleet.Tx](p.store), Box: p.box,
		Log: p.log, Registerer: p.registerer, Lease: lease.Length, LeaseTTL: p.leaseTTL, AuditRetention: p.auditRetention,
		Retention: p.keep.Ended, KeepChanges: p.keep.Changes, KeepVersions: p.keep.Versions, KeepHistory: p.keep.History,
		MaintainEvery: p.forgetEvery, LookupTXT: p.lookupTXT, FailedJoins: admission.NewBuckets(admission.PerMinute(p.callers.FailedLogins)), Trail: audited,
	})
	if err != nil {
		return nil, err
	}
	// The API and workflows reach agents and scalers on all processes. Peers reach only the agents and scalers of
	// this process.
	var agents api.Agents = c.dispatch
	var decisions api.ScalingDecisions = scalingHere{scalings}
	needs := scaler.Needs{Holds: c.dispatch.Connected}
	var others *peers.Service
	if p.peerID != "" {
		others, err = peers.New(peers.Config{
			ID: p.peerID, Address: p.peerAddress, Store: store.Bind[peers.Tx](p.store), Box: p.box, Agents: c.dispatch, Scaler: scalings,
			HTTP: p.peerHTTP, Log: p.log, Registerer: p.registerer, Random: p.rand,
		})
		if err != nil {
			return nil, err
		}
		agents, decisions, needs.PassOn = others, others, others.PassLoads
	}
	flows, err := p.newWorkflows(agents)
	if err != nil {
		return nil, err
	}
	users, err := api.New(api.Config{
		Store: store.Bind[api.Tx](p.store), Box: p.box,
		Limits: p.limits, ReadsMetrics: p.metrics != nil, AllowsHookAt: p.allowHooks.Allows, Agents: agents, RolloutEnded: flows.stepper.Ended, Log: p.log, Registerer: p.registerer, Version: Version,
		Domain: p.domain, LookupTXT: p.lookupTXT,
		FailedLogins: admission.NewBuckets(admission.PerMinute(p.callers.FailedLogins)), Reads: admission.NewBuckets(admission.PerMinute(p.callers.Reads)),
		KeyWatchers: p.callers.WatchersPerKey, WorkspaceWatchers: p.callers.WatchersPerWorkspace, Trail: audited,
		Scaling:     decisions,
		SessionIdle: p.sessions.Idle, SessionMax: p.sessions.Max, Proxies: p.proxies, IsUnavailable: p.isUnavailable,
		SSO: p.signOn.service, SSOOrigins: p.signOn.origins, MemberSessionMax: p.signOn.sessionMax, FederationTTL: p.signOn.federationTTL,
		SignIns: admission.NewBuckets(admission.PerMinute(p.callers.SignIns)),
	})
	if err != nil {
		return nil, err
	}
	needs.Apps = users

	// nudged makes streams and watchers on this process read what this process or another one committed.
	nudged := func(n peers.Nudge) {
		switch {
		case n.AllRegions:
			c.dispatch.Nudge()
		case len(n.Regions) > 0:
			c.dispatch.Nudge(n.Regions...)
		}
		users.Notify(n.Apps)
		scalings.Changed(n.Apps)
	}
	p.store.OnCommit(func(commit store.Commit) {
		nudge := peers.Nudge{Regions: slices.Collect(maps.Keys(commit.Revisions)), Apps: commit.Apps}
		nudged(nudge)
		flows.waker.Notify(commit.Woken)
		if others != nil && (len(nudge.Regions) > 0 || len(nudge.Apps) > 0) {
			others.Tell(nudge)
		}
	})

	if c.handler, err = p.newHandler(agentService{fleets, c.dispatch, ingestion}, users); err != nil {
		return nil, err
	}
	c.components = append(flows.serviceComponents(), []service.Component{
		{Name: "dispatch", Run: c.dispatch.Run},
		{Name: "ingest", Run: ingestion.Run},
		{Name: "leases", Run: fleets.Sweep},
		{Name: "retention", Run: fleets.Maintain},
		{Name: "watches", Run: users.Run},
		{Name: "scaling", Run: func(ctx context.Context) error { return scalings.Run(ctx, needs) }},
		{Name: "audit", Run: audited.Run},
		{Name: "notifications", Run: notifier.Run},
	}...)
	if others != nil {
		c.peerHandler = p.newPeerHandler(others, nudged)
		c.components = append(c.components, service.Component{Name: "peers", Run: others.Run})
	}
	return c, nil
}

// scalingHere implements api.ScalingDecisions for a process without peers.
type scalingHere struct{ *scaler.Service }

func (s scalingHere) Scaling(_ context.Context, regionID, appID string) (*windlassv1.RegionScaling, error) {
	return s.Current(regionID, appID), nil
}

func (s scalingHere) ScalingNow(_ context.Context, appID string) map[string]*windlassv1.RegionScaling {
	return s.Live(appID)
}

// scalingMetrics returns the source of scaling metrics of type prometheus, or nil if there is none.
func (p parts) scalingMetrics() scaler.Measurer {
	if p.metrics == nil {
		return nil
	}
	return p.metrics
}

// workflows are the parts that run rollouts.
type workflows struct {
	stepper *rollout.Stepper
	waker   *rollout.Waker
	sweeper *rollout.Sweeper
	gauges  *rollout.Gauges
	driver  driver
}

// newWorkflows makes the parts. Checks get their figures from agents, unless p.metrics is set.
func (p parts) newWorkflows(agents api.Agents) (*workflows, error) {
	hooks, err := webhook.New(webhook.Config{
		Lookup: p.hookFacts, Allow: p.allowHooks, UserAgent: "windlass/" + Version, Log: p.log, Registerer: p.registerer,
	})
	if err != nil {
		return nil, err
	}
	metrics := p.metrics
	if metrics == nil {
		metrics = traffic.Source{Ask: agents.Ask}
	}
	w := &workflows{waker: rollout.NewWaker(p.log)}
	w.stepper, err = rollout.NewStepper(rollout.Config{
		Store: store.Bind[rollout.Tx](p.store), Images: p.images, Logins: p.registryLogins, Metrics: metrics, Hooks: hooks,
		Domain: p.domain,
		Log:    p.log, Registerer: p.registerer, Tracer: p.tracer.Tracer("windlass/controlplane"), Random: p.rand,
	})
	if err != nil {
		return nil, err
	}
	w.sweeper, err = rollout.NewSweeper(rollout.SweeperConfig{Store: store.Bind[rollout.SweepTx](p.store), Log: p.log, Registerer: p.registerer})
	if err != nil {
		return nil, err
	}
	if w.gauges, err = rollout.NewGauges(store.Bind[rollout.GaugesTx](p.store), p.log, p.registerer); err != nil {
		return nil, err
	}
	w.driver, err = p.newDriver(w.runStep, w.sweeper.Lost)
	return w, err
}

// runStep runs one step of an app. It reports the step's duration to the waker, which spaces out steps by it.
func (w *workflows) runStep(ctx context.Context, appID string) error {
	begin := time.Now()
	defer func() { w.waker.Took(time.Since(begin)) }()
	return w.stepper.Step(ctx, appID)
}

func (w *workflows) serviceComponents() []service.Component {
	return []service.Component{
		{Name: "workflows", Run: w.driver.Run},
		{Name: "waker", Run: func(ctx context.Context) error { return w.waker.Run(ctx, w.driver) }},
		{Name: "sweeper", Run: func(ctx context.Context) error { return w.sweeper.Run(ctx, w.driver) }},
		{Name: "gauges", Run: w.gauges.Run},
	}
}

// rpcConfig returns the config that the handlers of agents, users and peers share.
func (p parts) rpcConfig() rpc.Config {
	return rpc.Config{Log: p.log, Registerer: p.registerer, Tracer: p.tracer, Propagator: telemetry.Propagator(), IsUnavailable: p.isUnavailable}
}

// newHandler returns the handler of agents, users and their browsers on one listener.
func (p parts) newHandler(agents agentService, users *api.API) (http.Handler, error) {
	agentSide, userSide, kedaSide := p.rpcConfig(), p.rpcConfig(), p.rpcConfig()
	// An agent's report may hold a large region's inventory.
	agentSide.ReadMaxBytes = maxReportBytes
	agentSide.Admit = agents.Admit
	userSide.Admit, userSide.HoldBack = users.Admit, true
	userSide.Interceptors = []connect.Interceptor{users.Interceptor()}

	kedaSide.Admit, kedaSide.HoldBack = users.AdmitScaler, true

	mux := http.NewServeMux()
	path, handler := agentv1connect.NewAgentServiceHandler(agents, rpc.HandlerOptions(agentSide)...)
	mux.Handle(path, rpc.WithWriteDeadline(handler))
	for _, h := range users.Handlers(rpc.HandlerOptions(userSide)...) {
		mux.Handle(h.Path, h.Handler)
	}
	scalers := users.ExternalScaler(rpc.HandlerOptions(kedaSide)...)
	mux.Handle(scalers.Path, scalers.Handler)
	page, err := console.New(p.domain)
	if err != nil {
		return nil, err
	}
	mux.Handle(console.Path, page)
	mux.Handle("POST "+console.Path, users.Sessions())
	mux.Handle("GET "+api.SSOPath, users.SSO())
	mux.HandleFunc("GET /{$}", serveWelcome)
	return users.Browser(mux), nil
}

// newPeerHandler returns the handler of other processes of the control plane.
func (p parts) newPeerHandler(others *peers.Service, nudged func(peers.Nudge)) http.Handler {
	peerSide := p.rpcConfig()
	peerSide.Timeout = peerTimeout
	path, handler := others.Handler(peerSide, nudged)
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	return mux
}

// peerTimeout bounds a peer's call that has no deadline of its own.
const peerTimeout = 10 * time.Second

const (
	// maxReportBytes fits 20,000 instances with reasons and messages.
	maxReportBytes = 32 << 20
	// maxReportElements fits the same report with 60,000 assignments.
	maxReportElements = 500_000
	// Anyone can call Join. Its fields have at most 4 KiB, besides up to 256 names of features.
	maxJoinBytes    = 16 << 10
	maxJoinElements = 300
	// Anyone can call KEDA's methods, because the credential is in the message. The message has a reference and the
	// metadata of a trigger.
	maxScalerBytes    = 8 << 10
	maxScalerElements = 100
	scalerBudget      = 4 << 20
	// Running requests of agents and of users have separate budgets, so that agents cannot block users, or users
	// agents. Four of the largest reports fit.
	agentBudget = 256 << 20
	userBudget  = 64 << 20
)

// newLimits returns the limits of requests to the API.
func newLimits(registerer prometheus.Registerer) func(procedure string) rpc.Limits {
	agents, users := rpc.NewBudget("agents", agentBudget, registerer), rpc.NewBudget("users", userBudget, registerer)
	scalers := rpc.NewBudget("external_scaler", scalerBudget, registerer)
	return func(procedure string) rpc.Limits {
		switch {
		case procedure == agentv1connect.AgentServiceJoinProcedure:
			return rpc.Limits{WireBytes: maxJoinBytes, MessageBytes: maxJoinBytes, Elements: maxJoinElements, Budget: agents}
		case strings.HasPrefix(procedure, "/"+externalscalerconnect.ExternalScalerName+"/"):
			return rpc.Limits{WireBytes: maxScalerBytes, MessageBytes: maxScalerBytes, Elements: maxScalerElements, Budget: scalers}
		case strings.HasPrefix(procedure, "/"+agentv1connect.AgentServiceName+"/"):
			return rpc.Limits{MessageBytes: maxReportBytes, Elements: maxReportElements, Budget: agents}
		}
		return rpc.Limits{Budget: users}
	}
}

// agentService serves the agent API. Three packages implement its methods.
type agentService struct {
	*fleet.Service
	dispatch *dispatch.Service
	ingest   *ingest.Service
}

func (s agentService) Watch(ctx context.Context, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) error {
	return s.dispatch.Watch(ctx, req, out)
}

func (s agentService) UploadLogs(ctx context.Context, req *agentv1.UploadLogsRequest) (*agentv1.UploadLogsResponse, error) {
	return s.dispatch.UploadLogs(ctx, req)
}

func (s agentService) Report(ctx context.Context, req *agentv1.ReportRequest) (*agentv1.ReportResponse, error) {
	return s.ingest.Report(ctx, req)
}

// serveWelcome redirects browsers to the dashboard, and explains this address to other clients. It does not show the
// version, because callers are not authenticated.
func serveWelcome(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Redirect(w, r, console.Path, http.StatusSeeOther)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, "Windlass control plane\n\nThis address serves the API: Connect, gRPC and plain JSON over HTTP.\nThe command `windlass` calls it: see `windlass --help`.\n") //nolint:errcheck // a client that is gone needs no answer
}
