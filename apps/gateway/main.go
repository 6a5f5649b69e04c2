package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/proxy"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/service"
	"github.com/windlass-run/windlass/pkg/telemetry"
)

// Version is the version of the build. The linker sets it.
var Version = "dev"

// flags are the program's flags. Each has an environment variable.
type flags struct {
	Agent          string        `help:"Address of the region's agent: unix:PATH of gateway.sock in its data directory, or a URL." required:"" env:"WINDLASS_GATEWAY_AGENT"`
	AgentTLS       agentFlags    `embed:"" prefix:"agent-"`
	Listen         []string      `help:"host:port for HTTP/1.1 and HTTP/2." default:"127.0.0.1:8080" env:"WINDLASS_GATEWAY_LISTEN"`
	Engine         string        `help:"Engine that reads connections of --listen. net: net/http. epoll: epoll for plain HTTP/1.1 requests; the gateway does not start if that is not possible. auto: epoll if possible. net/http always reads TLS connections." enum:"auto,net,epoll" default:"auto" env:"WINDLASS_GATEWAY_ENGINE"`
	TLSListen      string        `help:"host:port for HTTPS. Default: none." env:"WINDLASS_GATEWAY_TLS_LISTEN"`
	TLSCert        string        `help:"PEM file with the certificate and its chain. Read again when it changes." type:"path" env:"WINDLASS_GATEWAY_TLS_CERT"`
	TLSKey         string        `help:"PEM file of the certificate's key." type:"path" env:"WINDLASS_GATEWAY_TLS_KEY"`
	ACME           acmeFlags     `embed:"" prefix:"acme-"`
	HTTPSRedirect  int           `name:"https-redirect" help:"Port at which clients reach --tls-listen, such as 443. Requests without TLS are redirected to it with 308. 0: they are served without TLS." default:"0" env:"WINDLASS_GATEWAY_HTTPS_REDIRECT"`
	HTTP3          bool          `name:"http3" help:"Also serve HTTP/3, on the UDP port of --tls-listen. While a new gateway replaces another on this host, clients use TCP until the port is free." env:"WINDLASS_GATEWAY_HTTP3"`
	HSTS           time.Duration `name:"hsts" help:"How long browsers must use only HTTPS for a host that they reached with HTTPS (Strict-Transport-Security). 0: the header is not sent." default:"0s" env:"WINDLASS_GATEWAY_HSTS"`
	DataDir        string        `help:"Folder for the last known routes, which are served after a restart, and for the gateway's id. With the id, a gateway that restarts after a crash takes the place of the crashed one, so that the agent does not wait for the crashed one. Default: nothing is stored." type:"path" env:"WINDLASS_GATEWAY_DATA_DIR"`
	MaxHeaderBytes int           `help:"Maximum size of a request's header, in bytes." default:"65536" env:"WINDLASS_GATEWAY_MAX_HEADER_BYTES"`
	SlowClient     time.Duration `help:"How long a client may neither receive nor send a byte." default:"60s" env:"WINDLASS_GATEWAY_SLOW_CLIENT"`
	MinBodyRate    int64         `help:"Minimum rate at which a client must send a request's body, in bytes per second. It is an average over the time that the gateway waits for the client, and is checked after 10s of waiting. 0: no minimum." default:"1024" env:"WINDLASS_GATEWAY_MIN_BODY_RATE"`
	MinAnswerRate  int64         `help:"Minimum rate at which a client must receive an answer, in bytes per second. It is an average over the time that the gateway waits for the client, and is checked after 10s of waiting. 0: no minimum." default:"1024" env:"WINDLASS_GATEWAY_MIN_ANSWER_RATE"`
	MaxConnections int           `help:"Maximum number of connections of clients. When it is reached, the longest idle connection is closed. 0: half of the process' limit of file descriptors, at most 32768. -1: no limit." default:"0" env:"WINDLASS_GATEWAY_MAX_CONNECTIONS"`
	MaxPerAddress  int           `name:"max-connections-per-address" help:"Maximum number of connections from one address, or from one /64 of IPv6. Does not apply to --trusted-proxies. 0: a quarter of --max-connections. -1: no limit." default:"0" env:"WINDLASS_GATEWAY_MAX_CONNECTIONS_PER_ADDRESS"`
	MaxHeld        int           `help:"Maximum number of requests that wait for apps at zero, for all apps together. One app may take a place only while it has fewer places than are free. Further requests are refused with 503 and a Retry-After." default:"4096" env:"WINDLASS_GATEWAY_MAX_HELD"`
	MaxPairMiB     int64         `name:"max-pair-mib" help:"Maximum memory, in MiB, for the bodies of requests to pairs of a prefill and a decode server, until their answers begin: four times the bodies' size. One app may use at most as much as it leaves free. Further requests wait as long as the route's queue allows, and are then refused with 503." default:"256" env:"WINDLASS_GATEWAY_MAX_PAIR_MIB"`
	UpgradedIdle   time.Duration `help:"How long a connection that switched protocols, such as a websocket, may be silent in both directions." default:"10m" env:"WINDLASS_GATEWAY_UPGRADED_IDLE"`
	DrainDelay     time.Duration `help:"How long the gateway accepts requests after SIGTERM. During this time /readyz fails, so that load balancers stop sending requests." default:"0s" env:"WINDLASS_GATEWAY_DRAIN_DELAY"`
	DrainTimeout   time.Duration `help:"How long requests, including streams, may take to end after --drain-delay." default:"5m" env:"WINDLASS_GATEWAY_DRAIN_TIMEOUT"`
	AccessLog      string        `help:"File to which a line of JSON is written for each request. - means standard output. Default: none." env:"WINDLASS_GATEWAY_ACCESS_LOG"`
	AccessLogEvery uint64        `help:"Log one of this many requests. Requests that the gateway itself answered with an error are always logged." default:"1" env:"WINDLASS_GATEWAY_ACCESS_LOG_EVERY"`
	Payloads       payloadFlags  `embed:""`
	TrustedProxies []string      `help:"Networks, such as 10.0.0.0/8, of proxies whose headers X-Forwarded-*, X-Real-IP and similar are trusted and passed on to instances. Other clients' headers of this kind are dropped." env:"WINDLASS_GATEWAY_TRUSTED_PROXIES"`
	NeighbourRoots string        `help:"PEM file with the CAs of the gateways in other regions to which requests are handed over (routing.crossRegion). Read again when it changes. Default: the CAs of this machine." type:"path" env:"WINDLASS_GATEWAY_NEIGHBOUR_ROOTS"`
	NeighbourAllow []string      `help:"Networks, such as 10.0.0.0/8, in which gateways of other regions may be, in addition to public addresses. http is allowed only in these networks. The list is needed because tenants choose the gateway addresses of their own regions." env:"WINDLASS_GATEWAY_NEIGHBOUR_ALLOW"`
	MetricsListen  string        `help:"host:port for /metrics, /healthz and /readyz. Default: none." env:"WINDLASS_METRICS_LISTEN"`
	Pprof          bool          `help:"Serve /debug/pprof on --metrics-listen." env:"WINDLASS_PPROF"`
	LogFormat      string        `help:"${enum}." enum:"text,json" default:"text" env:"WINDLASS_LOG_FORMAT"`
	LogLevel       string        `help:"${enum}." enum:"debug,info,warn,error" default:"info" env:"WINDLASS_LOG_LEVEL"`
	Version        kong.VersionFlag

	Metrics certfile.MetricsFlags `embed:"" prefix:"metrics-" envprefix:"WINDLASS_METRICS_"`
}

// agentFlags are for an --agent that is an https URL. The agent creates the files in the folder gateway-access of its
// data directory or in a Secret. They can also come from the operator's own CA.
type agentFlags struct {
	CA       string `name:"ca" help:"PEM file with the CAs of the agent's certificate: ca.crt of the agent's gateway-access. Read again when it changes. Default: the CAs of this machine." type:"path" env:"WINDLASS_GATEWAY_AGENT_CA"`
	Cert     string `name:"cert" help:"PEM file with this gateway's certificate for the agent: tls.crt of the agent's gateway-access. Read again when it changes." type:"path" env:"WINDLASS_GATEWAY_AGENT_CERT"`
	Key      string `name:"key" help:"PEM file with the key of --agent-cert: tls.key of the agent's gateway-access." type:"path" env:"WINDLASS_GATEWAY_AGENT_KEY"`
	Insecure bool   `name:"insecure" help:"Allow an http:// URL of another machine, for an agent with --listen-insecure." env:"WINDLASS_GATEWAY_AGENT_INSECURE"`
}

// openTLS returns the TLS configuration for the agent's connection, nil for the defaults.
func (f agentFlags) openTLS(agent string, files *certfile.Files) (*tls.Config, error) {
	if u, err := url.Parse(agent); err == nil && u.Scheme == "http" && !f.Insecure && !certfile.Loopback(u.Host) {
		return nil, fmt.Errorf("--agent=%s: anyone on the network path could change the routes: use https:// with --agent-ca, --agent-cert and --agent-key, or --agent-insecure if the path is private", agent)
	}
	if !strings.HasPrefix(agent, "https://") {
		if f.CA != "" || f.Cert != "" || f.Key != "" {
			return nil, fmt.Errorf("--agent=%s: --agent-ca, --agent-cert and --agent-key are for an https:// URL", agent)
		}
		return nil, nil //nolint:nilnil // the connection has no TLS
	}
	return certfile.Client{CA: f.CA, Cert: f.Cert, Key: f.Key, CAFlag: "--agent-ca", CertFlag: "--agent-cert", KeyFlag: "--agent-key"}.Config(agent, files)
}

// payloadFlags say where payloads are logged, for apps that enable a payload log.
type payloadFlags struct {
	PayloadLog       string `help:"File to which the bodies of requests and answers are written, for apps that set routing.payloadLog. It contains what users write. Default: no payloads are logged." type:"path" env:"WINDLASS_GATEWAY_PAYLOAD_LOG"`
	PayloadLogMaxMiB int    `name:"payload-log-max-mib" help:"Size in MiB at which a new payload log begins." default:"100" env:"WINDLASS_GATEWAY_PAYLOAD_LOG_MAX_MIB"`
	PayloadLogKeep   int    `help:"Number of old payload logs that are kept, compressed." default:"5" env:"WINDLASS_GATEWAY_PAYLOAD_LOG_KEEP"`
}

// openLog opens the log of payloads. It returns nil if payloads are not logged.
func (f payloadFlags) openLog() (io.Writer, func() error) {
	if f.PayloadLog == "" {
		return nil, func() error { return nil }
	}
	to := &lumberjack.Logger{Filename: f.PayloadLog, MaxSize: f.PayloadLogMaxMiB, MaxBackups: f.PayloadLogKeep, Compress: true}
	return to, to.Close
}

// acmeFlags are about certificates for hosts that --tls-cert does not cover.
type acmeFlags struct {
	Directory string `help:"URL of an ACME directory, such as https://acme-v02.api.letsencrypt.org/directory. The gateway orders certificates there for hosts that --tls-cert does not cover. The ACME server must reach this gateway at port 80 or 443 of the host. Default: no certificates are ordered." env:"WINDLASS_GATEWAY_ACME_DIRECTORY"`
	Agree     bool   `help:"Agree to the terms of service of the ACME server." env:"WINDLASS_GATEWAY_ACME_AGREE"`
	Email     string `help:"E-mail address to which the ACME server may write, for example about certificates that expire." env:"WINDLASS_GATEWAY_ACME_EMAIL"`
	Roots     string `help:"PEM file with the CAs of a private ACME server. Read again when it changes." type:"path" env:"WINDLASS_GATEWAY_ACME_ROOTS"`
	Folder    string `help:"Folder for the ACME account, certificates and their keys. Gateways of a region may share it. Default: the folder certificates in --data-dir." type:"path" env:"WINDLASS_GATEWAY_ACME_FOLDER"`
}

func (f flags) acmeConfig() *ACME {
	if f.ACME.Directory == "" {
		return nil
	}
	folder := f.ACME.Folder
	if folder == "" {
		folder = filepath.Join(f.DataDir, "certificates")
	}
	return &ACME{Directory: f.ACME.Directory, Email: f.ACME.Email, Roots: f.ACME.Roots, Folder: folder}
}

// checkACME returns an error that names an ACME flag with an invalid value.
func (f flags) checkACME() error {
	if f.ACME.Directory == "" {
		if f.ACME != (acmeFlags{}) {
			return errors.New("--acme-agree, --acme-email, --acme-roots and --acme-folder need --acme-directory")
		}
		return nil
	}
	u, err := url.Parse(f.ACME.Directory)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("--acme-directory=%q: use an https URL such as https://acme-v02.api.letsencrypt.org/directory", f.ACME.Directory)
	case f.TLSListen == "":
		return errors.New("--acme-directory needs --tls-listen")
	case !f.ACME.Agree:
		return errors.New("--acme-directory needs --acme-agree: read the terms of service that the directory names, and agree to them")
	case f.ACME.Folder == "" && f.DataDir == "":
		return errors.New("--acme-directory needs --acme-folder or --data-dir: otherwise each restart would order all certificates again")
	}
	return nil
}

// Main runs the gateway with the command line's arguments until ctx ends.
func Main(ctx context.Context, args []string) error {
	var f flags
	parser, err := newParser(&f)
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return fmt.Errorf("%w (try --help)", err)
	}
	return run(ctx, f)
}

// CommandLine describes the program's flags, for its reference.
func CommandLine() (*kong.Application, error) {
	parser, err := newParser(&flags{})
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

func newParser(f *flags) (*kong.Kong, error) {
	parser, err := kong.New(f, kong.Name("windlass-gateway"), kong.Vars{"version": Version},
		kong.Description("Serves the routes of a region: requests for the hosts of its apps go to instances that are ready. "+
			"Defaults of a route: power-of-two balancing, 5m to the first byte of an answer, 1m between bytes, no limit for the whole request, "+
			"256 requests that wait up to 10s for an instance, 2 retries, bodies up to 64 MiB, any number of requests per instance."))
	if err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	return parser, nil
}

func run(ctx context.Context, f flags) (err error) {
	log, err := telemetry.NewLogger(os.Stderr, f.LogFormat, f.LogLevel)
	if err != nil {
		return err
	}
	// The process's log is for debugging only, because net/http may quote bytes there that an instance sent without a
	// request. They may be the answer to another client's request.
	slog.SetLogLoggerLevel(slog.LevelDebug)
	slog.SetDefault(log)
	registry := telemetry.NewRegistry()
	files := certfile.NewFiles(log)
	registry.MustRegister(files)
	cfg := Config{
		Agent: f.Agent, Listen: f.Listen, Engine: engine.Mode(f.Engine), TLSListen: f.TLSListen, TLSCert: f.TLSCert, TLSKey: f.TLSKey, HTTP3: f.HTTP3, HSTS: f.HSTS,
		ACME: f.acmeConfig(), RedirectPort: f.HTTPSRedirect, NeighbourRoots: f.NeighbourRoots, Files: files,
		MaxHeaderBytes: f.MaxHeaderBytes, SlowClient: f.SlowClient, UpgradedIdle: f.UpgradedIdle, MaxHeld: f.MaxHeld, PairMemory: f.MaxPairMiB << 20,
		Connections: conns.Limits{Total: f.MaxConnections, PerAddress: f.MaxPerAddress},
		MinBodyRate: anyBelow(f.MinBodyRate), MinAnswerRate: anyBelow(f.MinAnswerRate), DrainDelay: f.DrainDelay, DrainTimeout: f.DrainTimeout,
		AccessEvery: f.AccessLogEvery, Version: Version, Log: log, Registerer: registry, Random: rand.Uint64, Rand: rand.Float64,
	}
	if err := f.checkFlags(); err != nil {
		return err
	}
	if cfg.AgentTLS, err = f.AgentTLS.openTLS(f.Agent, files); err != nil {
		return err
	}
	if cfg.Trusted, err = parsePrefixes(f.TrustedProxies); err != nil {
		return err
	}
	if cfg.NeighbourAllow, err = guard.Parse(f.NeighbourAllow); err != nil {
		return fmt.Errorf("--neighbour-allow: %w", err)
	}
	if f.DataDir != "" {
		if err := os.MkdirAll(f.DataDir, 0o700); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
		cfg.StateFile = filepath.Join(f.DataDir, "routes")
		identity, err := takeIdentity(f.DataDir)
		if err != nil {
			// The gateway serves without a stored id. But after a crash the agent waits for it.
			log.ErrorContext(ctx, "the agent sees this gateway as a new one", "error", err)
		} else {
			defer identity.release()
			cfg.ID = identity.id
		}
	}
	access, closeAccess, err := openAccessLog(f.AccessLog)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAccess()) }()
	cfg.Access = access
	payloads, closePayloads := f.Payloads.openLog()
	defer func() { err = errors.Join(err, closePayloads()) }()
	cfg.Payloads = payloads
	cfg.Engine.Reserve()
	g, err := New(ctx, cfg)
	if err != nil {
		return err
	}
	metricsTLS, err := f.Metrics.Config(files)
	if err != nil {
		return err
	}
	var beside []service.Component
	if f.MetricsListen != "" {
		beside = append(beside, service.AdminServer(service.AdminConfig{
			Listen: f.MetricsListen, Registry: registry, Health: g.Health(), Pprof: f.Pprof, Log: log,
			TLS: metricsTLS, TokenFile: f.Metrics.TokenFile,
		}))
	}
	for _, address := range g.Addresses() {
		log.InfoContext(ctx, "gateway started", "address", address.String(), "version", Version)
	}
	return g.Run(ctx, beside...)
}

// checkFlags returns an error that names a flag with an invalid value.
func (f flags) checkFlags() error {
	switch {
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key: set both or neither")
	case f.TLSListen != "" && f.TLSCert == "" && f.ACME.Directory == "":
		return errors.New("--tls-listen needs --tls-cert and --tls-key, or --acme-directory")
	case f.TLSListen == "" && (f.TLSCert != "" || f.TLSKey != ""):
		return errors.New("--tls-cert and --tls-key need --tls-listen")
	case f.TLSListen == "" && f.HTTP3:
		return errors.New("--http3 needs --tls-listen")
	case f.HTTPSRedirect < 0 || f.HTTPSRedirect > 65535:
		return fmt.Errorf("--https-redirect=%d: use a port, such as 443, or 0", f.HTTPSRedirect)
	case f.HTTPSRedirect != 0 && f.TLSListen == "":
		return errors.New("--https-redirect needs --tls-listen")
	case f.Payloads.PayloadLogMaxMiB < 1 || f.Payloads.PayloadLogKeep < 1:
		return errors.New("--payload-log-max-mib and --payload-log-keep: use numbers of 1 or more")
	case f.HSTS < 0:
		return fmt.Errorf("--hsts=%v: use 0 or a positive time such as 8760h", f.HSTS)
	case f.MaxHeaderBytes < 4096 || f.MaxHeaderBytes > 1<<20:
		return fmt.Errorf("--max-header-bytes=%d: use 4096 to 1048576", f.MaxHeaderBytes)
	case f.SlowClient < time.Second:
		return fmt.Errorf("--slow-client=%v: use 1s or more", f.SlowClient)
	case f.MinBodyRate < 0 || f.MinAnswerRate < 0:
		return errors.New("--min-body-rate and --min-answer-rate: use bytes per second such as 1024, or 0 for any rate")
	case f.MaxConnections < -1:
		return fmt.Errorf("--max-connections=%d: use a number such as 10000, 0 for the default, or -1 for no limit", f.MaxConnections)
	case f.MaxPerAddress < -1:
		return fmt.Errorf("--max-connections-per-address=%d: use a number such as 1000, 0 for the default, or -1 for no limit", f.MaxPerAddress)
	case f.MaxHeld < 1:
		return fmt.Errorf("--max-held=%d: use 1 or more", f.MaxHeld)
	case f.MaxPairMiB < proxy.MinPairMemory>>20 || f.MaxPairMiB > 1<<20:
		return fmt.Errorf("--max-pair-mib=%d: use %d to %d", f.MaxPairMiB, proxy.MinPairMemory>>20, 1<<20)
	case f.UpgradedIdle < time.Second:
		return fmt.Errorf("--upgraded-idle=%v: use 1s or more", f.UpgradedIdle)
	case f.DrainDelay < 0:
		return fmt.Errorf("--drain-delay=%v: use 0 or a positive time such as 10s", f.DrainDelay)
	case f.DrainTimeout <= 0:
		return fmt.Errorf("--drain-timeout=%v: use a positive time such as 5m", f.DrainTimeout)
	default:
		return f.checkACME()
	}
}

// anyBelow returns the rate for Config, in which 0 means the default and -1 means any rate. For the flag, 0 means any
// rate.
func anyBelow(rate int64) int64 {
	if rate == 0 {
		return -1
	}
	return rate
}

// parsePrefixes parses the value of --trusted-proxies.
func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--trusted-proxies=%q: use networks such as 10.0.0.0/8: %w", text, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// openAccessLog opens the log that --access-log names.
func openAccessLog(to string) (*slog.Logger, func() error, error) {
	none := func() error { return nil }
	var w io.Writer
	switch to {
	case "":
		return nil, none, nil
	case "-":
		w = os.Stdout
	default:
		file, err := os.OpenFile(to, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, none, fmt.Errorf("--access-log: %w", err)
		}
		w, none = file, file.Close
	}
	return slog.New(slog.NewJSONHandler(w, nil)), none, nil
}
