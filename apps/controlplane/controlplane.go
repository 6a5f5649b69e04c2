// Package controlplane is the control plane's program: it serves users and agents, and runs the apps' workflows. This
// package wires the other packages: core.go joins the parts, and this file adds a database, Restate and listeners.
//
// Any number of replicas may run on one database. Each replica serves everything, and there is no leader. When a
// replica dies, the other replicas find all state in the database.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/failover"
	"github.com/windlass-run/windlass/apps/controlplane/internal/keyset"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/peers"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/promql"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/restate"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/service"
	"github.com/windlass-run/windlass/pkg/telemetry"
)

// Version is the version of the build. The linker sets it.
var Version = "dev"

// databaseFlags are shared by all commands.
type databaseFlags struct {
	MySQLDSN     string `name:"mysql-dsn" help:"DSN of MySQL or MariaDB, as user:password@tcp(host:port)/name. With several addresses of one cluster, as tcp(a:3306,b:3306), the first one that is up and writable is used." required:"" env:"WINDLASS_MYSQL_DSN"`
	MySQLReadDSN string `name:"mysql-read-dsn" help:"DSN of a read replica, from which lists are read. It may have several addresses, too. Default: none." env:"WINDLASS_MYSQL_READ_DSN"`
	mysqlFlags   `embed:""`
}

type serveFlags struct {
	databaseFlags
	Listen             string          `help:"host:port of the API." default:"127.0.0.1:7700" env:"WINDLASS_LISTEN"`
	KeyFile            string          `help:"File with the keyset that seals secrets and credentials. It must be the same on all replicas and have mode 0600 or 0400. A file that root owns may also be readable by a group of this process, like a Secret in a pod with fsGroup. \"controlplane keyset create\" creates it." required:"" type:"path" env:"WINDLASS_KEY_FILE"`
	CreateKeyset       bool            `help:"Create the keyset if the file is missing. Do not use this with several replicas, because after a wrong mount each replica would seal with its own key." env:"WINDLASS_CREATE_KEYSET"`
	ReplaceKeyset      bool            `help:"Start although the keyset has no key that this database or other replicas use. Use this once, if the keyset is lost. Then set stored secrets again, and let agents join again." env:"WINDLASS_REPLACE_KEYSET"`
	RestateIngress     []string        `help:"URLs of Restate's ingress, separated by commas. Of several nodes of one cluster, the first one that is up is used." required:"" env:"WINDLASS_RESTATE_INGRESS"`
	RestateAdmin       []string        `help:"URLs of Restate's admin API, separated by commas. Of several nodes of one cluster, the first one that is up is used." required:"" env:"WINDLASS_RESTATE_ADMIN"`
	RestateListen      string          `help:"host:port that Restate calls." default:"127.0.0.1:7701" env:"WINDLASS_RESTATE_LISTEN"`
	RestateAdvertise   string          `help:"URL at which Restate reaches --restate-listen. Default: http:// and that address." env:"WINDLASS_RESTATE_ADVERTISE"`
	RestateIdentityKey []string        `help:"Public keys of Restate's request identity, publickeyv1_... Calls that none of these keys signed are refused. Without this flag, every client that reaches --restate-listen can start steps of workflows, which is safe but costs work." env:"WINDLASS_RESTATE_IDENTITY_KEY"`
	PeerListen         string          `help:"host:port for calls of other processes of the control plane. It uses TLS with certificates derived from --key-file. Port 0: a free one." default:"127.0.0.1:0" env:"WINDLASS_PEER_LISTEN"`
	PeerAdvertise      string          `help:"host:port at which other processes reach --peer-listen. Default: that address." env:"WINDLASS_PEER_ADVERTISE"`
	Connections        connFlags       `embed:""`
	Prometheus         metricsFlags    `embed:"" prefix:"prometheus-"`
	WebhookAllow       []string        `help:"Networks, such as 10.0.0.0/8, in which the control plane may call webhooks of rollouts and endpoints of notifications, besides public addresses. Every user who can deploy can make the control plane send requests to these networks." env:"WINDLASS_WEBHOOK_ALLOW"`
	RegistryAllow      []string        `help:"Networks, such as 10.0.0.0/8, in which the control plane may call image registries, besides public addresses with https. Every user who can deploy can make the control plane send requests to these networks." env:"WINDLASS_REGISTRY_ALLOW"`
	TrustedProxies     []string        `help:"Networks, such as 10.0.0.0/8, of proxies in front of the API whose X-Forwarded-For is trusted. Set this if the API is behind proxies, because limits on callers without a credential are per address, and the audit log shows the address." env:"WINDLASS_TRUSTED_PROXIES"`
	Domain             string          `help:"Parent domain of the hosts of apps." default:"windlass.local" env:"WINDLASS_DOMAIN"`
	DNSServer          string          `name:"dns-server" help:"DNS server (host:port) used to verify domains. Default: the host's resolver." env:"WINDLASS_DNS_SERVER"`
	LeaseTTL           time.Duration   `help:"How long an agent may be silent before its region counts as unreachable. With more than 270 agents, the time can grow up to a minute." default:"15s" env:"WINDLASS_LEASE_TTL"`
	AuditRetention     time.Duration   `help:"How long entries of the audit log are kept." default:"2160h" env:"WINDLASS_AUDIT_RETENTION"`
	Keep               keepFlags       `embed:"" prefix:"keep-"`
	ForgetEvery        time.Duration   `help:"Interval at which old data is deleted." default:"10m" env:"WINDLASS_FORGET_EVERY"`
	MetricsListen      string          `help:"host:port for /metrics, /healthz and /readyz. Default: none." env:"WINDLASS_METRICS_LISTEN"`
	Pprof              bool            `help:"Serve /debug/pprof on --metrics-listen." env:"WINDLASS_PPROF"`
	OTLPEndpoint       string          `name:"otlp-endpoint" help:"URL of an OpenTelemetry collector (OTLP/HTTP)." env:"WINDLASS_OTLP_ENDPOINT"`
	Limits             limitFlags      `embed:"" prefix:"limit-"`
	Callers            callerFlags     `embed:"" prefix:"max-"`
	Sessions           sessionFlags    `embed:"" prefix:"session-"`
	OIDC               oidcFlags       `embed:"" prefix:"oidc-"`
	Federation         federationFlags `embed:"" prefix:"federation-"`
	TraceFile          string          `help:"File to which every span is written, as a line of JSON." type:"path" env:"WINDLASS_TRACE_FILE"`

	TLS    certfile.ServerFlags `embed:"" envprefix:"WINDLASS_"`
	Remote remoteFlags          `embed:""`
}

// metricsFlags configure the Prometheus from which checks of rollouts and scaling get their metrics.
type metricsFlags struct {
	URL                  string `name:"url" help:"URL of the Prometheus that checks of rollouts query, for series with the label windlass_deployment, and that scaling metrics of type prometheus query. It may contain a user and a password. Default: checks use only what gateways measure." env:"WINDLASS_PROMETHEUS_URL"`
	TokenFile            string `help:"File with a bearer token for Prometheus." type:"path" env:"WINDLASS_PROMETHEUS_TOKEN_FILE"`
	certfile.RemoteFlags `embed:"" envprefix:"WINDLASS_PROMETHEUS_"`
	Raw                  bool `help:"Send queries of tenants unchanged. Every user who can deploy can then read everything in this Prometheus, including data of other workspaces." env:"WINDLASS_PROMETHEUS_RAW"`
}

func (f metricsFlags) metricsSource(registry prometheus.Registerer, files *certfile.Files, log *slog.Logger) (rollout.Measurer, error) {
	if f.URL == "" {
		return nil, nil //nolint:nilnil // nil means that no Prometheus is configured
	}
	remote, err := f.Transport("prometheus-", files)
	if err != nil {
		return nil, err
	}
	source, err := promql.New(promql.Config{URL: f.URL, TokenFile: f.TokenFile, Raw: f.Raw, Remote: remote, Log: log, Registerer: registry})
	if err != nil {
		return nil, fmt.Errorf("--prometheus-url: %w", err)
	}
	return source, nil
}

// keepFlags bound how much old data the database keeps. Package fleet has the reasons.
type keepFlags struct {
	Ended    time.Duration `help:"How long ended instances, stopped topology rows and deleted apps are kept." default:"24h" env:"WINDLASS_KEEP_ENDED"`
	Changes  int64         `help:"How many changes of a region are kept. An agent that is further behind gets a snapshot." default:"20000" env:"WINDLASS_KEEP_CHANGES"`
	Versions int32         `help:"How many versions of an app are kept." default:"100" env:"WINDLASS_KEEP_VERSIONS"`
	History  int           `help:"How many entries of an app's history are kept." default:"1000" env:"WINDLASS_KEEP_HISTORY"`
}

// Validate implements kong's check.
func (f keepFlags) Validate() error {
	switch {
	case f.Ended < time.Minute:
		return fmt.Errorf("--keep-ended=%s: use at least 1m, because users and agents must have time to see that an instance or app ended", f.Ended)
	case f.Changes < 1 || f.Versions < 1 || f.History < 1:
		return errors.New("--keep-changes, --keep-versions, --keep-history: use at least 1")
	}
	return nil
}

// limitFlags are the limits of workspaces without their own. With the defaults, a pipeline can deploy a large
// workspace at once, but an endless loop is stopped.
type limitFlags struct {
	Apps        int64 `help:"Limit on apps of a workspace. This and the other --limit flags apply to workspaces without their own limit. 0: no limit." default:"10000" env:"WINDLASS_LIMIT_APPS"`
	Deployments int64 `help:"Limit on a workspace's apps with a deployment that is live or in flight. 0: no limit." default:"10000" env:"WINDLASS_LIMIT_DEPLOYMENTS"`
	Instances   int64 `help:"Limit on instances of a workspace's apps, in all regions. 0: no limit." default:"100000" env:"WINDLASS_LIMIT_INSTANCES"`
	GPUs        int64 `name:"gpus" help:"Limit on GPUs of a workspace's instances, in all regions. 0: no limit." default:"10000" env:"WINDLASS_LIMIT_GPUS"`
	Rollouts    int64 `help:"Limit on a workspace's rollouts in flight. 0: no limit." default:"1000" env:"WINDLASS_LIMIT_ROLLOUTS"`
	// The default is less than one replica's capacity, so that one workspace leaves capacity for other workspaces.
	StartsPerMinute int64 `help:"Limit on calls that start work per minute, as a long-term average. 0: no limit." default:"1200" env:"WINDLASS_LIMIT_STARTS_PER_MINUTE"`
	StartsBurst     int64 `help:"How many calls that start work may come at once. 0: the limit per minute." default:"300" env:"WINDLASS_LIMIT_STARTS_BURST"`
}

// Validate implements kong's check.
func (f limitFlags) Validate() error {
	limits := map[string]int64{
		"apps": f.Apps, "deployments": f.Deployments, "instances": f.Instances, "gpus": f.GPUs, "rollouts": f.Rollouts,
		"starts-per-minute": f.StartsPerMinute, "starts-burst": f.StartsBurst,
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if v := limits[name]; v < 0 || v > maxLimit {
			return fmt.Errorf("--limit-%s=%d: use 0 for no limit, or up to %d", name, v, maxLimit)
		}
	}
	return nil
}

// callerFlags bound the load that one caller puts on one process, independent of workspace quotas. The defaults are
// far above the needs of people and pipelines.
type callerFlags struct {
	FailedLogins         int64 `help:"Limit on failed log-ins and joins from one address per minute, on each replica. IPv6 addresses count by /64. 0: no limit." default:"60" env:"WINDLASS_MAX_FAILED_LOGINS"`
	SignIns              int64 `help:"Limit on requests for sign-ins of members from one address per minute, on each replica. IPv6 addresses count by /64. 0: no limit." default:"600" env:"WINDLASS_MAX_SIGN_INS"`
	Reads                int64 `help:"Limit on reads with one key per minute, on each replica. 0: no limit." default:"12000" env:"WINDLASS_MAX_READS"`
	WatchersPerKey       int   `help:"Limit on open streams with one key, on each replica. WatchApp, WatchFleet, WatchSeries, FollowLogs and streams of KEDA count." default:"200" env:"WINDLASS_MAX_WATCHERS_PER_KEY"`
	WatchersPerWorkspace int   `help:"Limit on open streams of one workspace, on each replica. WatchApp, WatchFleet, WatchSeries, FollowLogs and streams of KEDA count." default:"2000" env:"WINDLASS_MAX_WATCHERS_PER_WORKSPACE"`
}

// Validate implements kong's check.
func (f callerFlags) Validate() error {
	switch {
	case f.FailedLogins < 0 || f.FailedLogins > maxLimit || f.Reads < 0 || f.Reads > maxLimit || f.SignIns < 0 || f.SignIns > maxLimit:
		return fmt.Errorf("--max-failed-logins, --max-sign-ins, --max-reads: use 0 for no limit, or up to %d", maxLimit)
	case f.WatchersPerKey < 1 || f.WatchersPerWorkspace < 1:
		return errors.New("--max-watchers-per-key, --max-watchers-per-workspace: use at least 1")
	}
	return nil
}

// sessionFlags bound how long browsers stay signed in.
type sessionFlags struct {
	Idle time.Duration `help:"How long a browser stays signed in to the dashboard while the page is not open." default:"12h" env:"WINDLASS_SESSION_IDLE"`
	Max  time.Duration `help:"How long a browser stays signed in to the dashboard after the log-in, even while the page is open." default:"168h" env:"WINDLASS_SESSION_MAX"`
}

// Validate implements kong's check.
func (f sessionFlags) Validate() error {
	if f.Idle < 5*time.Minute || f.Max < f.Idle {
		return fmt.Errorf("--session-idle=%s, --session-max=%s: use at least 5m for --session-idle, and at least as much for --session-max", f.Idle, f.Max)
	}
	return nil
}

// maxLimit is far below the values at which sums and microseconds overflow.
const maxLimit = 1_000_000_000

func (f limitFlags) callLimits() model.Limits {
	return model.Limits{
		Apps: f.Apps, Deployments: f.Deployments, Instances: f.Instances, GPUs: f.GPUs, Rollouts: f.Rollouts,
		StartsPerMinute: f.StartsPerMinute, StartsBurst: f.StartsBurst,
	}
}

type cli struct {
	LogFormat string `help:"${enum}." enum:"text,json" default:"text" env:"WINDLASS_LOG_FORMAT"`
	LogLevel  string `help:"${enum}." enum:"debug,info,warn,error" default:"info" env:"WINDLASS_LOG_LEVEL"`
	Version   kong.VersionFlag

	Serve     serveFlags     `cmd:"" help:"Serve users and agents, and run workflows."`
	Migrate   databaseFlags  `cmd:"" help:"Migrate the database's schema to this version, and exit."`
	Keyset    keysetFlags    `cmd:"" help:"Create and rotate the keyset that seals secrets, and seal secrets again with a new key."`
	Backup    backupFlags    `cmd:"" help:"Back up the database, verify a backup, and restore one."`
	Doctor    doctorFlags    `cmd:"" help:"Check what \"serve\" needs: keyset, database, schema, rights, clock, Restate. Nothing is changed. The exit code is 1 if a check fails."`
	Bootstrap bootstrapFlags `cmd:"" help:"Create a workspace with an owner's key, an operator's key, and regions, and print them as JSON."`
}

// gcPercent replaces GOGC's default of 100, because the live heap is small and the allocation rate
// high. It costs memory for processor time.
const gcPercent = 200

// stopGrace is how long the parts may take to stop.
const stopGrace = 20 * time.Second

// Main runs the program with the command line's arguments until ctx ends.
func Main(ctx context.Context, args []string) error {
	var flags cli
	parser, err := newParser(&flags)
	if err != nil {
		return err
	}
	command, err := parser.Parse(args)
	if err != nil {
		return fmt.Errorf("%w (try --help)", err)
	}
	log, err := telemetry.NewLogger(os.Stderr, flags.LogFormat, flags.LogLevel)
	if err != nil {
		return err
	}
	switch command.Command() {
	case "migrate":
		db, err := mysql.Open(ctx, flags.Migrate.storeConfig(certfile.NewFiles(log)))
		if err != nil {
			return err
		}
		log.InfoContext(ctx, "schema is up to date")
		return db.Close()
	case "doctor":
		return flags.Doctor.run(ctx, os.Stdout, log)
	case "bootstrap":
		return bootstrapCommand(ctx, flags.Bootstrap, log)
	}
	if name, ok := strings.CutPrefix(command.Command(), "keyset "); ok {
		return flags.Keyset.run(ctx, name, os.Stdout, log)
	}
	if name, ok := strings.CutPrefix(command.Command(), "backup "); ok {
		return flags.Backup.run(ctx, name, os.Stdout, log)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return serve(ctx, flags.Serve, log)
}

// CommandLine returns the program's commands and flags. The reference page is generated from them.
func CommandLine() (*kong.Application, error) {
	parser, err := newParser(&cli{})
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

func newParser(flags *cli) (*kong.Kong, error) {
	parser, err := kong.New(flags, kong.Name("windlass-controlplane"), kong.Vars{"version": Version},
		kong.Description("The Windlass control plane."))
	if err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	return parser, nil
}

// openPatience is how long the program waits for a database that is not reachable yet.
const openPatience = 2 * time.Minute

func serve(ctx context.Context, f serveFlags, log *slog.Logger) (err error) {
	registry := telemetry.NewRegistry()
	tracer, flush, err := telemetry.NewTracer(ctx, telemetry.TracerConfig{
		ServiceName: "controlplane", Version: Version, Endpoint: f.OTLPEndpoint, File: f.TraceFile, Log: log,
	})
	if err != nil {
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, flush(bounded))
	}()
	files := certfile.NewFiles(log)
	registry.MustRegister(files)
	metrics, err := f.Prometheus.metricsSource(registry, files, log)
	if err != nil {
		return err
	}
	allowHooks, err := guard.Parse(f.WebhookAllow)
	if err != nil {
		return fmt.Errorf("--webhook-allow: %w", err)
	}
	allowRegistries, err := guard.Parse(f.RegistryAllow)
	if err != nil {
		return fmt.Errorf("--registry-allow: %w", err)
	}
	proxies, err := guard.Parse(f.TrustedProxies)
	if err != nil {
		return fmt.Errorf("--trusted-proxies: %w", err)
	}
	tlsConfig, err := f.TLS.Config(certfile.Listener{Flag: "--listen", Address: f.Listen}, files)
	if err != nil {
		return err
	}
	remote, err := f.Remote.open(files)
	if err != nil {
		return err
	}
	box, err := f.loadKeyset()
	if err != nil {
		return err
	}
	peerServerTLS, peerClientTLS, err := peers.TLS(box, time.Now())
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", f.Listen)
	if err != nil {
		return fmt.Errorf("listen for the API on %q: %w", f.Listen, err)
	}
	// The server closes the listener, too. This line matters if an error occurs before the server runs.
	defer listener.Close()
	peerListener, peerAddress, err := listenForPeers(ctx, f)
	if err != nil {
		return err
	}
	defer peerListener.Close()

	failovers := failover.NewMetrics()
	registry.MustRegister(failovers)
	db, err := openDatabase(ctx, f, registry, failovers, files, log)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	signOn, err := f.signOn(files)
	if err != nil {
		return err
	}
	if err := f.checkKeyset(ctx, store.Bind[keyset.Tx](db), box, log); err != nil {
		return err
	}

	clients, restateConns := conns.New(f.Connections.connLimits(proxies)), conns.New(f.Connections.restateLimits())
	registry.MustRegister(conns.NewCollector(clients, restateConns))
	var workflows *restate.Driver
	c, err := newCore(parts{
		store: db, unavailable: mysql.IsUnavailable, images: rollout.Registry{Allow: allowRegistries}, metrics: metrics, allowHooks: allowHooks, box: box,
		newDriver: func(step rollout.Step, lost func(context.Context) error) (driver, error) {
			workflows, err = restate.New(restate.Config{
				Step: step, Lost: lost, Ingress: f.RestateIngress, Admin: f.RestateAdmin, Failover: failovers,
				Listen: f.RestateListen, Advertise: f.RestateAdvertise, IdentityKeys: f.RestateIdentityKey,
				TLS: remote.restateTLS, Remote: remote.restate, Conns: restateConns,
				Log: log,
			})
			return workflows, err
		},
		log: log, registerer: registry, tracer: tracer, rand: rand.Float64,
		domain: f.Domain, lookupTXT: lookupTXT(f.DNSServer), leaseTTL: f.LeaseTTL, auditRetention: f.AuditRetention, keep: f.Keep, forgetEvery: f.ForgetEvery, limits: f.Limits.callLimits(), callers: f.Callers, sessions: f.Sessions, signOn: signOn, proxies: proxies,
		peerID: ident.New("cp"), peerAddress: "https://" + peerAddress, peerHTTP: rpc.NewHTTPClient(rpc.HTTPClientConfig{TLS: peerClientTLS, DialTimeout: peerDialTimeout}),
	})
	if err != nil {
		return err
	}
	var health service.Health
	health.Add("database", db.Ping)
	health.Add("restate", workflows.Reachable)
	health.Add("workflows", workflows.Ready)

	// Drain closes streams before the server stops, so that agents do not all reconnect at the same moment.
	server := rpc.NewServer(rpc.ServerConfig{Handler: c.handler, TLS: tlsConfig, Limits: newLimits(registry), Proxies: proxies, Log: log})
	api := service.Component{Name: "api", Run: func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, c.dispatch.Drain)
		defer stop()
		return rpc.Serve(ctx, server, clients.ListenAs("api", listener), drainGrace)
	}}
	peerMessages := rpc.NewBudget("peers", peerBudget, registry)
	peerServer := rpc.NewServer(rpc.ServerConfig{Handler: c.peerHandler, TLS: peerServerTLS, Log: log, Limits: peers.Limits(peerMessages)})
	peering := service.Component{Name: "peer-calls", Run: func(ctx context.Context) error {
		return rpc.Serve(ctx, peerServer, clients.ListenAs("peers", peerListener), drainGrace)
	}}
	components := slices.Concat(c.components, []service.Component{api, peering})
	if f.MetricsListen != "" {
		components = append(components, service.AdminServer(service.AdminConfig{
			Listen: f.MetricsListen, Registry: registry, Health: &health, Pprof: f.Pprof, Log: log,
			TLS: remote.metricsTLS, TokenFile: f.Remote.Metrics.TokenFile,
		}))
	}
	log.InfoContext(ctx, "control plane started", "api", listener.Addr().String(), "peers", peerAddress, "version", Version)
	return service.Run(ctx, log, stopGrace, components...)
}

// listenForPeers opens the listener for peers, and returns it with the address that other processes call.
func listenForPeers(ctx context.Context, f serveFlags) (net.Listener, string, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", f.PeerListen)
	if err != nil {
		return nil, "", fmt.Errorf("listen for other processes of the control plane on %q: %w", f.PeerListen, err)
	}
	address := listener.Addr().String()
	if tcp, ok := listener.Addr().(*net.TCPAddr); f.PeerAdvertise == "" && ok && tcp.IP.IsUnspecified() {
		return nil, "", errors.Join(fmt.Errorf(
			"--peer-listen %s listens on every address of this machine: set --peer-advertise to the address that other processes can call", f.PeerListen),
			listener.Close())
	}
	if f.PeerAdvertise == "" {
		return listener, address, nil
	}
	if _, _, err := net.SplitHostPort(f.PeerAdvertise); err != nil {
		return nil, "", errors.Join(fmt.Errorf("--peer-advertise is not host:port: %w", err), listener.Close())
	}
	return listener, f.PeerAdvertise, nil
}

// openDatabase opens the database, and waits while it is not reachable yet. It fails at once if the database refuses
// the connection, for example because the password is wrong.
func openDatabase(ctx context.Context, f serveFlags, registry prometheus.Registerer, failovers *failover.Metrics, files *certfile.Files, log *slog.Logger) (db *mysql.Store, err error) {
	err = retryDatabase(ctx, log, func(ctx context.Context) (err error) {
		cfg := f.storeConfig(files)
		cfg.Registerer, cfg.Failover, cfg.Log = registry, failovers, log
		db, err = mysql.Open(ctx, cfg)
		return err
	})
	return db, err
}

// retryDatabase calls use again while the database is not reachable, for up to openPatience. It returns any other error
// at once.
func retryDatabase(ctx context.Context, log *slog.Logger, use func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	said := false
	return backoff.Retry(ctx, backoff.Policy{Max: time.Second}, func(ctx context.Context) error {
		err := use(ctx)
		if err != nil && !mysql.IsUnavailable(err) {
			return backoff.Permanent(err)
		}
		if err != nil && !said {
			said = true
			log.WarnContext(ctx, "database is not reachable yet, waiting", "error", err, "at_most", openPatience)
		}
		return err
	})
}

// peerBudget is the limit in bytes on all running calls of peers. Two of the largest calls fit.
const peerBudget = 64 << 20

// peerDialTimeout is shorter than the timeout of a nudge.
const peerDialTimeout = time.Second

// drainGrace is how long running calls may take to end.
const drainGrace = 10 * time.Second
