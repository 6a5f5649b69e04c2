package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/process"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/simulated"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/service"
	"github.com/windlass-run/windlass/pkg/telemetry"
)

// Version is the version of the build. The linker sets it.
var Version = "dev"

// flags are the program's flags. Each has an environment variable.
type flags struct {
	Server        string                `help:"URL of the control plane." required:"" env:"WINDLASS_SERVER"`
	DataDir       string                `help:"Folder for the agent's data: desired state, credential, instances." required:"" type:"path" env:"WINDLASS_AGENT_DATA_DIR"`
	JoinTokenFile string                `help:"File with a join token. The agent reads it until it has joined." type:"path" env:"WINDLASS_JOIN_TOKEN_FILE"`
	Runtime       string                `help:"Runtime for instances: ${enum}." enum:"process,kubernetes,simulated" default:"process" env:"WINDLASS_RUNTIME"`
	GPUs          string                `name:"gpus" help:"GPUs to assign: auto, none, or COUNT[:PRODUCT[:MIB]]." default:"auto" env:"WINDLASS_GPUS"`
	Pool          string                `help:"GPU pool of this host (process runtime)." env:"WINDLASS_POOL"`
	CPUMillicores int                   `help:"CPU for instances, in thousandths of a core. 0: all of the host's." env:"WINDLASS_CPU_MILLICORES"`
	MemoryMiB     int                   `name:"memory-mib" help:"Memory for instances, in MiB. 0: all of the host's." env:"WINDLASS_MEMORY_MIB"`
	Ports         string                `help:"Range of ports for instances, FIRST-LAST. Default: the kernel chooses." env:"WINDLASS_PORTS"`
	Host          hostFlags             `embed:""`
	Models        modelFlags            `embed:"" prefix:"model-" envprefix:"WINDLASS_MODEL_"`
	StopOnExit    bool                  `help:"Stop all instances when the agent stops, and start them again when it starts." env:"WINDLASS_STOP_ON_EXIT"`
	Gateways      int                   `help:"Number of gateways that must serve a route before the region acknowledges it. 0: all connected ones." default:"0" env:"WINDLASS_GATEWAYS"`
	GatewayListen string                `help:"host:port for gateways of other hosts, which need a client certificate (see --listen-tls-cert). Default: only gateway.sock in the data directory." env:"WINDLASS_GATEWAY_LISTEN"`
	GatewayURL    string                `name:"gateway-url" help:"URL of this region's gateways, such as https://us-east-1.example.com. Gateways of other regions hand over requests to it, for apps with routing.crossRegion. URLs of apps are shown with its scheme and port. Default: no requests are handed over to this region, and apps are shown with the addresses of their instances." env:"WINDLASS_GATEWAY_URL"`
	XDSListen     string                `name:"xds-listen" help:"host:port that serves routes over xDS to Envoy and gRPC clients, which need a client certificate (see --listen-tls-cert). Default: none." env:"WINDLASS_XDS_LISTEN"`
	Connections   connFlags             `embed:""`
	Listeners     certfile.ServerFlags  `embed:"" prefix:"listen-" envprefix:"WINDLASS_LISTEN_" set:"listener=--gateway-listen and --xds-listen" set:"no_cert=a CA of the agent's own, in gateway-access of the data directory, with a certificate for gateways" set:"client_ca=PEM file with the CAs of the certificates of gateways, Envoys and gRPC clients. Each of them is known by the name in its certificate." set:"insecure=Serve --gateway-listen and --xds-listen without TLS and without authentication. Every caller that reaches them can read the region's routes. Routes do not wait for these gateways, and their figures do not count."` //nolint:staticcheck // each of them replaces a placeholder of help
	Cluster       clusterFlags          `embed:""`
	MetricsListen string                `help:"host:port for /metrics, /healthz and /readyz. Default: none." env:"WINDLASS_METRICS_LISTEN"`
	Metrics       certfile.MetricsFlags `embed:"" prefix:"metrics-" envprefix:"WINDLASS_METRICS_"`
	Pprof         bool                  `help:"Serve /debug/pprof on --metrics-listen." env:"WINDLASS_PPROF"`
	LogFormat     string                `help:"${enum}." enum:"text,json" default:"text" env:"WINDLASS_LOG_FORMAT"`
	LogLevel      string                `help:"${enum}." enum:"debug,info,warn,error" default:"info" env:"WINDLASS_LOG_LEVEL"`
	OTLPEndpoint  string                `name:"otlp-endpoint" help:"URL of an OpenTelemetry collector (OTLP/HTTP)." env:"WINDLASS_OTLP_ENDPOINT"`
	TraceFile     string                `help:"File to which every span is written, as a line of JSON." type:"path" env:"WINDLASS_TRACE_FILE"`
	Version       kong.VersionFlag

	TLS certfile.ClientFlags `embed:""`
}

// stopGrace is how long the parts may take to stop. It is short because an agent does not stop
// instances. With --stop-on-exit, instances get their own grace period.
const (
	stopGrace         = 15 * time.Second
	stopInstanceGrace = 90 * time.Second
)

// IsShim reports whether the program was started to watch one instance. In that case, the program
// must call ShimMain before anything else.
func IsShim(args []string) bool { return process.IsShim(args) }

// ShimMain watches one instance and returns the exit code.
func ShimMain(args []string) int { return process.ShimMain(args) }

// Main runs the agent with the command line's arguments until ctx ends.
func Main(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == render.HealthCommand {
		return answerHealth(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == render.LoaderCommand {
		return fetchForServer(ctx, args[1:])
	}
	var f flags
	parser, err := newParser(&f)
	if err != nil {
		return err
	}
	if _, err := parser.Parse(args); err != nil {
		return fmt.Errorf("%w (try --help)", err)
	}
	return runAgent(ctx, f)
}

// CommandLine describes the program's flags, for the reference page.
func CommandLine() (*kong.Application, error) {
	parser, err := newParser(&flags{})
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

func newParser(f *flags) (*kong.Kong, error) {
	parser, err := kong.New(f, kong.Name("windlass-agent"), kong.Vars{"version": Version},
		kong.Description("Pulls what a region should run from the Windlass control plane, and runs it."))
	if err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	return parser, nil
}

func runAgent(ctx context.Context, f flags) (err error) {
	log, err := telemetry.NewLogger(os.Stderr, f.LogFormat, f.LogLevel)
	if err != nil {
		return err
	}
	if err := f.TLS.CheckURL(f.Server); err != nil {
		return fmt.Errorf("--server: %w", err)
	}
	files := certfile.NewFiles(log)
	tlsConfig, err := f.TLS.Config(f.Server, files)
	if err != nil {
		return err
	}
	tracer, flush, err := telemetry.NewTracer(ctx, telemetry.TracerConfig{
		ServiceName: "agent", Version: Version, Endpoint: f.OTLPEndpoint, File: f.TraceFile, Log: log,
	})
	if err != nil {
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, flush(bounded))
	}()
	listeners, err := openListeners(f.Listeners, files)
	if err != nil {
		return err
	}
	metricsTLS, err := f.Metrics.Config(files)
	if err != nil {
		return err
	}
	registry := telemetry.NewRegistry()
	registry.MustRegister(files)
	cfg := Config{
		Server: f.Server, HTTPClient: rpc.NewHTTPClient(rpc.HTTPClientConfig{TLS: tlsConfig}),
		DataDir: f.DataDir, TokenFile: f.JoinTokenFile,
		RuntimeName: f.Runtime, Version: Version,
		Gateways: f.Gateways, GatewayListen: f.GatewayListen, GatewayURL: f.GatewayURL, XDSListen: f.XDSListen, Listeners: listeners, Connections: conns.Limits{Total: f.Connections.Max, PerAddress: f.Connections.MaxPerAddress},
		Log: log, Registerer: registry, Tracer: tracer, Rand: rand.Float64,
	}
	if f.Cluster.GatewayAPI != "" && f.Runtime != "kubernetes" {
		return fmt.Errorf("--gateway-api=%q: HTTPRoutes exist only in Kubernetes: use this flag with --runtime=kubernetes", f.Cluster.GatewayAPI)
	}
	if f.Runtime == "kubernetes" {
		return runInCluster(ctx, f, cfg, registry, metricsTLS)
	}
	return runOnHost(ctx, f, cfg, registry, metricsTLS)
}

// runOnHost runs the agent of a region that is this host, or of a simulated region.
func runOnHost(ctx context.Context, f flags, cfg Config, registry *prometheus.Registry, metricsTLS *tls.Config) (err error) {
	var isolation *process.Isolation
	if f.Runtime == "process" {
		if isolation, err = f.Host.isolationOf(os.Getuid(), f.DataDir); err != nil {
			return err
		}
		switch {
		case f.Host.TrustAllTenants:
			cfg.Log.WarnContext(ctx, "instances of all workspaces run as the agent's user and can read each other's secrets (--trust-all-tenants)", "uid", os.Getuid())
		case isolation == nil:
			cfg.Log.WarnContext(ctx, "instances run as the agent's user, because it is not root: this region runs instances of one workspace only", "uid", os.Getuid())
		}
	}
	if f.Runtime == "process" {
		if cfg.Models, err = f.Models.storeConfig(filepath.Join(f.DataDir, "models")); err != nil {
			return err
		}
	}
	cfg.Isolates = isolation != nil || f.Runtime == "simulated"
	cfg.NewRuntime = func(ctx context.Context, region string) (Runtime, error) {
		switch f.Runtime {
		case "simulated":
			return simulated.New(simulated.Config{Region: region}), nil
		case "process":
		default:
			return nil, fmt.Errorf("--runtime=%s: the agent has no such runtime", f.Runtime)
		}
		gpus, err := parseGPUs(ctx, f.GPUs)
		if err != nil {
			return nil, err
		}
		ports, err := parsePorts(f.Ports)
		if err != nil {
			return nil, err
		}
		images, err := process.ParseImageCommands(f.Host.ImageCommands)
		if err != nil {
			return nil, fmt.Errorf("--image-command=%w", err)
		}
		return process.New(ctx, process.Config{
			ImageCommands: images, ModelsDir: cfg.Models.Dir,
			DataDir: filepath.Join(f.DataDir, "process"), Region: region, Ports: ports, GPUs: gpus, Pool: f.Pool,
			CPUMillicores: f.CPUMillicores, MemoryMiB: f.MemoryMiB,
			Isolation: isolation, TrustAllTenants: f.Host.TrustAllTenants,
			StopInstancesOnExit: f.StopOnExit, Log: cfg.Log, Registerer: registry, Random: rand.Float64,
		})
	}
	a, err := New(ctx, cfg)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()

	components := a.Components()
	if f.MetricsListen != "" {
		components = append(components, service.AdminServer(service.AdminConfig{
			Listen: f.MetricsListen, Registry: registry, Health: a.Health(), Pprof: f.Pprof, Log: cfg.Log,
			TLS: metricsTLS, TokenFile: f.Metrics.TokenFile,
		}))
	}
	grace := stopGrace
	if f.StopOnExit {
		grace = stopInstanceGrace
	}
	cfg.Log.InfoContext(ctx, "agent started", "region", a.Region(), "runtime", f.Runtime, "version", Version)
	return service.Run(ctx, cfg.Log, grace, components...)
}

// parseGPUs parses --gpus.
func parseGPUs(ctx context.Context, s string) ([]process.GPU, error) {
	switch s {
	case "auto":
		return process.DetectGPUs(ctx), nil
	case "none", "", "0":
		return nil, nil
	}
	parts := strings.Split(s, ":")
	bad := fmt.Errorf("--gpus=%q: use auto, none, or COUNT[:PRODUCT[:MIB]] with a count from 0 to 64, for example 8:NVIDIA-H100-80GB-HBM3:81559", s)
	n, err := strconv.Atoi(parts[0])
	if err != nil || n < 0 || n > 64 || len(parts) > 3 {
		return nil, bad
	}
	var gpu process.GPU
	if len(parts) > 1 {
		gpu.Product = parts[1]
	}
	if len(parts) > 2 {
		if gpu.MemoryMiB, err = strconv.Atoi(parts[2]); err != nil || gpu.MemoryMiB < 1 {
			return nil, bad
		}
	}
	out := make([]process.GPU, n)
	for i := range out {
		out[i] = gpu
		out[i].ID = strconv.Itoa(i)
	}
	return out, nil
}

// parsePorts parses --ports.
func parsePorts(s string) (process.PortRange, error) {
	if s == "" {
		return process.PortRange{}, nil
	}
	var r process.PortRange
	if n, err := fmt.Sscanf(s, "%d-%d", &r.Min, &r.Max); err != nil || n != 2 || r.Min < 1 || r.Max > 65535 || r.Min > r.Max {
		return r, fmt.Errorf("--ports=%q: use FIRST-LAST, for example 20000-29999", s)
	}
	return r, nil
}
