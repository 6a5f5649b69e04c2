// Package api serves the user API: every RPC of windlass.v1.
//
//	call ─> find key and role (access table) ─> rules of the schema ─> rpc_*.go
//	                                                                   │
//	     one transaction: rows and their audit, history, idempotency record,
//	                      then quotas (package admission) and wake-ups of workflows
//
// Every call has these guarantees:
//
//   - A call sees only its own workspace. Ids and names of another workspace get the same answer as ids that
//     do not exist.
//   - A mutation is one transaction, together with its audit row, its history and the record of its
//     idempotency key. Of several calls with the same idempotency key, exactly one is done, because the key
//     is unique in the database. The transactions of the other calls fail, and these calls return the
//     answer from the record.
//   - Only RestartInstance waits for a region. Any other mutation stores the new desired state, wakes the app's
//     workflow in the same transaction, and answers.
//   - Values of secrets, keys and tokens are never stored in the clear, logged, audited or replayed.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/logrelay"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/sso"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/seal"
	"github.com/windlass-run/windlass/pkg/share"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// Config of an API.
type Config struct {
	Store Store
	// Box seals the values of secrets.
	Box    *seal.Box
	Agents Agents
	// RolloutEnded is called after the commit for each rollout that a call ended. It may be nil.
	RolloutEnded func(model.Rollout)

	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Version is the version of the control plane, for display.
	Version string

	// KeyCacheTTL is how long a valid key is cached. A key that was revoked through another process can still work
	// here for this time. A key that was revoked through this process stops working at once. Default: 5 s.
	KeyCacheTTL time.Duration
	// Limits apply to workspaces without their own. 0: no limit.
	Limits model.Limits
	// ReadsMetrics means that workflows can query a Prometheus.
	ReadsMetrics bool
	// AllowsHookAt reports whether workflows may call webhooks at the address. nil: all addresses are allowed.
	AllowsHookAt func(netip.Addr) bool
	// Scaling returns the newest scaling decisions. nil: there are none.
	Scaling ScalingDecisions
	// Domain is the parent domain of the apps' hosts.
	Domain string
	// LookupTXT returns the TXT records of a name. A name without records is no error.
	LookupTXT func(ctx context.Context, name string) ([]string, error)
	// MaxWatchers limits all watchers of this process, KeyWatchers the watchers of one key, and WorkspaceWatchers the
	// watchers of one workspace. Each watcher holds a stream and a picture of its app. Defaults: 10,000, 200 and
	// 2,000.
	MaxWatchers, KeyWatchers, WorkspaceWatchers int
	// FailedLogins limits failed log-ins per address. Reads limits reads per key. nil: no limit.
	FailedLogins, Reads *admission.Buckets
	// SessionIdle is how long a browser stays signed in while the page is not open (default: 12 h). SessionMax is how
	// long it stays signed in after the log-in, even while the page is open (default: 7 days).
	SessionIdle, SessionMax time.Duration
	// SSO verifies tokens of issuers. nil: members cannot sign in.
	SSO *sso.Service
	// SSOOrigins are the origins, such as https://windlass.example.com, at which browsers reach this API. A sign-in
	// at the issuer returns to one of them.
	SSOOrigins []string
	// MemberSessionMax is how long a person stays signed in after a sign-in at the issuer (default: 12 h), and
	// FederationTTL is how long the token of a service works (default: 1 h).
	MemberSessionMax, FederationTTL time.Duration
	// SignIns limits calls of the paths below /ui/sso/ per address. nil: no limit.
	SignIns *admission.Buckets
	// Proxies are networks whose X-Forwarded-Proto is trusted; nil: none.
	Proxies guard.Networks
	// IsUnavailable reports whether an error means that the store is out of reach. nil: no error means that.
	IsUnavailable func(error) bool
	// Presets are the built-in presets of engines. nil: the presets of this release.
	Presets *preset.Registry
	// Trail writes refused calls and reads of logs to the audit. nil: they are not written.
	Trail *trail.Trail
}

// API serves the services of windlass.v1.
type API struct{ *server }

// server is the state that all services share.
type server struct {
	cfg  Config
	keys *keyring
	hub  *hub
	// seriesSlots limits concurrent requests for series to regions.
	seriesSlots regionSlots
	logs        *logrelay.Relay
	limiter     *admission.Limiter
	// compilers limits concurrent requests that compile definitions of presets.
	compilers  *share.Slots
	operations *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	// featureRefusals counts refused features.
	featureRefusals *prometheus.CounterVec
	sessions        *prometheus.CounterVec
	signIns         *prometheus.CounterVec
}

// New returns an API, or an error if the config lacks a required field.
func New(cfg Config) (*API, error) {
	for name, missing := range map[string]bool{
		"Store": cfg.Store == nil, "Box": cfg.Box == nil, "Agents": cfg.Agents == nil,
		"LookupTXT": cfg.LookupTXT == nil, "Log": cfg.Log == nil, "Registerer": cfg.Registerer == nil,
	} {
		if missing {
			return nil, fmt.Errorf("api: %s is required", name)
		}
	}
	if cfg.RolloutEnded == nil {
		cfg.RolloutEnded = func(model.Rollout) {}
	}
	if cfg.Presets == nil {
		cfg.Presets = preset.Builtin()
	}
	if cfg.KeyCacheTTL <= 0 {
		cfg.KeyCacheTTL = 5 * time.Second
	}
	if cfg.MaxWatchers <= 0 {
		cfg.MaxWatchers = 10_000
	}
	if cfg.KeyWatchers <= 0 {
		cfg.KeyWatchers = 200
	}
	if cfg.WorkspaceWatchers <= 0 {
		cfg.WorkspaceWatchers = 2_000
	}
	if cfg.SessionIdle <= 0 {
		cfg.SessionIdle = 12 * time.Hour
	}
	if cfg.SessionMax <= 0 {
		cfg.SessionMax = 7 * 24 * time.Hour
	}
	if cfg.MemberSessionMax <= 0 {
		cfg.MemberSessionMax = 12 * time.Hour
	}
	if cfg.FederationTTL <= 0 {
		cfg.FederationTTL = time.Hour
	}
	if cfg.SignIns == nil {
		cfg.SignIns = admission.NewBuckets(admission.Rate{})
	}
	if cfg.IsUnavailable == nil {
		cfg.IsUnavailable = func(error) bool { return false }
	}
	if cfg.FailedLogins == nil {
		cfg.FailedLogins = admission.NewBuckets(admission.Rate{})
	}
	if cfg.Reads == nil {
		cfg.Reads = admission.NewBuckets(admission.Rate{})
	}
	s := &server{
		cfg:       cfg,
		limiter:   admission.NewLimiter(),
		compilers: share.NewSlots(maxCompilers),
	}
	s.keys = newKeyring(s)
	s.hub = newHub(cfg.MaxWatchers, cfg.KeyWatchers, cfg.WorkspaceWatchers)
	var err error
	if s.logs, err = logrelay.New(cfg.Agents, cfg.Log, cfg.Registerer); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	if err := s.registerMetrics(); err != nil {
		return nil, fmt.Errorf("api: register metrics: %w", err)
	}
	return &API{s}, nil
}

// Notify wakes the watchers of changed apps. It does not block. Call it after each commit.
func (a *API) Notify(appIDs []string) { a.hub.notify(appIDs) }

// Handler serves the requests whose paths begin with Path.
type Handler struct {
	Path string
	http.Handler
}

// Run waits until ctx ends, and then ends all watchers.
func (a *API) Run(ctx context.Context) error {
	<-ctx.Done()
	a.hub.stop()
	return nil
}

// Handlers returns the handlers of all services. The options must include an interceptor that calls Admit. Without it,
// every call is refused.
func (a *API) Handlers(options ...connect.HandlerOption) []Handler {
	options = append(options, strictJSON())
	handler := func(path string, h http.Handler) Handler { return Handler{Path: path, Handler: h} }
	return []Handler{
		handler(windlassv1connect.NewAppServiceHandler(appService{a.server}, options...)),
		handler(windlassv1connect.NewDeploymentServiceHandler(deploymentService{a.server}, options...)),
		handler(windlassv1connect.NewLogServiceHandler(logService{a.server}, options...)),
		handler(windlassv1connect.NewSeriesServiceHandler(seriesService{a.server}, options...)),
		handler(windlassv1connect.NewRolloutServiceHandler(rolloutService{a.server}, options...)),
		handler(windlassv1connect.NewFleetServiceHandler(fleetService{a.server}, options...)),
		handler(windlassv1connect.NewRegionServiceHandler(regionService{a.server}, options...)),
		handler(windlassv1connect.NewAccessServiceHandler(accessService{a.server}, options...)),
		handler(windlassv1connect.NewMemberServiceHandler(memberService{a.server}, options...)),
		handler(windlassv1connect.NewWorkspaceServiceHandler(workspaceService{a.server}, options...)),
		handler(windlassv1connect.NewProjectServiceHandler(projectService{a.server}, options...)),
		handler(windlassv1connect.NewEnvironmentServiceHandler(environmentService{a.server}, options...)),
		handler(windlassv1connect.NewPresetServiceHandler(presetService{a.server}, options...)),
		handler(windlassv1connect.NewHistoryServiceHandler(historyService{a.server}, options...)),
		handler(windlassv1connect.NewFreezeServiceHandler(freezeService{a.server}, options...)),
		handler(windlassv1connect.NewProtectionServiceHandler(protectionService{a.server}, options...)),
		handler(windlassv1connect.NewNotificationServiceHandler(notificationService{a.server}, options...)),
		handler(windlassv1connect.NewRouteServiceHandler(routeService{a.server}, options...)),
		handler(windlassv1connect.NewScalingServiceHandler(scalingService{a.server}, options...)),
	}
}

// nowMillis returns the time in unix milliseconds.
func nowMillis() int64 { return time.Now().UnixMilli() }

// countOperation counts a call that changes workloads, by its outcome: "ok" or the code of err.
func (a *server) countOperation(operation string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = connect.CodeOf(err).String()
	}
	a.operations.WithLabelValues(operation, outcome).Inc()
}
