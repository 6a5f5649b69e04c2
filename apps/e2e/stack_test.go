package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// Names of the parts of a stack.
const (
	partMariaDB      = "mariadb"
	partRestate      = "restate"
	partControlPlane = "controlplane"
)

func partAgent(region string) string { return "agent-" + region }

func partGateway(region string) string { return "gateway-" + region }

// us and eu are the default regions of a stack.
const us, eu = "us-east-1", "eu-west-1"

type stackConfig struct {
	regions []string // us and eu by default
	// runtime is the runtime of the agents. Default: "process". With "kubernetes" every region is its own
	// cluster, with these groups of nodes.
	runtime string
	groups  []string
	// losesNodes makes nodes count as lost after a few silent seconds, so that a test can wait for the loss.
	// Otherwise Kubernetes' default is used, because a node on a busy machine may be silent that long.
	losesNodes bool
	// replicas is the number of control plane replicas, 1 or 2. Default: 1.
	replicas int
	// prometheus adds a Prometheus, which the control plane queries.
	prometheus bool
	// gateways adds a gateway to every region.
	gateways bool
	// issuer gives the control plane an OpenID Connect issuer, which a test starts with runIssuer.
	issuer bool
	// tls enables TLS on all ports except the ports of instances. It overrides the result of secures.
	tls bool
}

// stack is one installation.
type stack struct {
	t        *testing.T
	cfg      stackConfig
	dir      string
	bin      string // the PATH of agents and instances
	url      string
	metrics  map[string]string // part -> URL of /metrics, /healthz, /readyz
	gateways map[string]string // region -> URL under which its gateway serves apps
	routes   map[string]string // region -> address at which its agent serves routes over TLS
	// routeLogs are the logs of the agents, by region.
	routeLogs map[string]*routeLog
	names     *names // the DNS server for domains
	traces    string // file with every span of every part, one line each
	keys      credentials
	owner     *client
	parts     map[string]*part
	// patience is the maximum wait for a condition. Default: the constant patience.
	patience time.Duration
	order    []string // of the start; stopped in reverse

	// issuer is the URL of the issuer at which people sign in. Empty: there is none.
	issuer string
	// prometheus is the URL of Prometheus. Empty: there is none.
	prometheus string

	// balancer is in front of the control plane if it has several replicas, else nil.
	balancer *balancer

	mariadbConfig mariadb.Config
	restateConfig restate.Config
	database      *mariadb.Server

	// secure means that the stack has TLS.
	secure bool
	// restateIdentity is the public key that verifies Restate's calls. Empty: the calls are not signed.
	restateIdentity string
	// stopFronts ends the proxy that adds TLS to Restate. nil without TLS.
	stopFronts func()
}

// credentials is the output of `controlplane bootstrap`.
type credentials struct {
	WorkspaceID string            `json:"workspace_id"`
	APIKey      string            `json:"api_key"`
	OperatorKey string            `json:"operator_key"`
	JoinTokens  map[string]string `json:"join_tokens"`
}

// server is a running process of a part.
type server interface {
	PID() int
	Done() <-chan struct{}
	Stop(ctx context.Context) error
}

// part is a process of the stack. It can be killed, and started again on its data.
type part struct {
	name  string
	log   string
	start func(ctx context.Context) (server, error)
	// up is a URL that answers once the process serves. Empty: the process serves when start returns.
	up string

	mu  sync.Mutex
	now server
}

// program is a process that is stopped with a grace period.
type program struct {
	*proc.Process
	grace time.Duration
}

func (p program) Stop(ctx context.Context) error { return p.Process.Stop(ctx, p.grace) }

// patience bounds the start of each part. It is long because other tests share the processors and the disk.
const patience = 5 * time.Minute

// newStack starts an installation. At the end of the test, it deletes every app, stops every part, and
// asserts that nothing is left.
func newStack(t *testing.T, cfg stackConfig) *stack {
	t.Helper()
	built, err := programs()
	require.NoError(t, err)
	if cfg.regions == nil {
		cfg.regions = []string{us, eu}
	}
	if cfg.runtime == "" {
		cfg.runtime = "process"
	}
	dir, err := os.MkdirTemp(work().root, "stack-") //nolint:usetesting // the next run finds it there if this run is killed
	require.NoError(t, err)
	s := &stack{
		t: t, cfg: cfg, secure: cfg.tls || secures(t.Name()), dir: dir, bin: filepath.Join(dir, "bin"), names: serveNames(t),
		traces: filepath.Join(dir, "traces.jsonl"), metrics: map[string]string{}, gateways: map[string]string{}, routes: map[string]string{}, routeLogs: map[string]*routeLog{}, parts: map[string]*part{}, patience: patience,
		mariadbConfig: mariadb.Config{Dir: filepath.Join(dir, "mariadb"), Port: freePort(t), Durability: mariadb.Relaxed, DieWithParent: true},
		restateConfig: restate.Config{
			Dir: filepath.Join(dir, "restate"), Relaxed: true, DieWithParent: true,
			IngressPort: freePort(t), AdminPort: freePort(t), NodePort: freePort(t),
		},
	}
	t.Logf("TLS on the ports of this stack: %t", s.secure)
	t.Cleanup(s.close)
	s.secureServers()
	for _, d := range []string{s.bin, filepath.Join(dir, "tmp")} {
		require.NoError(t, os.MkdirAll(d, 0o700))
	}
	require.NoError(t, os.Symlink(filepath.Join(built, "modelserver"), filepath.Join(s.bin, "modelserver")))

	s.add(partMariaDB, filepath.Join(s.mariadbConfig.Dir, "mariadbd.log"), func(ctx context.Context) (server, error) {
		db, err := mariadb.Start(ctx, s.mariadbConfig)
		if err != nil {
			return nil, err
		}
		s.database = db
		return db, db.CreateDatabase(ctx, "windlass")
	})
	s.add(partRestate, filepath.Join(s.restateConfig.Dir, "restate.log"), func(ctx context.Context) (server, error) {
		r, err := restate.Start(ctx, s.restateConfig)
		if err != nil {
			return nil, err
		}
		return r, nil
	})
	if cfg.runtime == "kubernetes" {
		s.addClusters()
	}
	if cfg.prometheus {
		s.addPrometheus()
	}
	var starting sync.WaitGroup
	for _, name := range slices.Clone(s.order) {
		starting.Go(func() { s.start(name) })
	}
	starting.Wait()
	require.False(t, t.Failed(), "the servers did not start")
	s.bootstrap()
	s.addControlPlane(built, partControlPlane)
	s.start(partControlPlane)
	if cfg.replicas == 2 {
		s.balance(built)
		s.start(second)
	}
	require.False(t, t.Failed(), "the control plane did not start")
	s.owner = newClient(s.url, s.keys.APIKey)
	for _, region := range cfg.regions {
		s.addAgent(built, region)
		s.start(partAgent(region))
	}
	s.waitConnected(cfg.regions...)
	if cfg.gateways {
		for _, region := range cfg.regions {
			s.addGateway(built, partGateway(region), region)
			s.start(partGateway(region))
		}
	}
	return s
}

// ports are the ports of all stacks of this process. Claims keep them apart from the ports of other
// processes.
var (
	ports      = localstack.Ports{Claims: localstack.ClaimsFolder()}
	portsMutex sync.Mutex
)

// freePort returns a port below the range that the kernel gives to clients. So the port is still free when a
// killed part starts again.
func freePort(t *testing.T) int {
	t.Helper()
	portsMutex.Lock()
	defer portsMutex.Unlock()
	for range 100 {
		port, taken, err := ports.Take(10_000 + rand.IntN(20_000))
		require.NoError(t, err)
		if !taken {
			return port
		}
	}
	t.Fatal("no free port below 30000")
	return 0
}

func address(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func (s *stack) add(name, log string, start func(context.Context) (server, error)) {
	s.parts[name] = &part{name: name, log: log, start: start}
	s.order = append(s.order, name)
}

// environ returns the environment of the control plane and the agents, without the developer's settings.
func (s *stack) environ(more ...string) []string {
	return append([]string{
		"PATH=" + s.bin + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=" + s.dir,
		"TMPDIR=" + filepath.Join(s.dir, "tmp"),
	}, more...)
}

func (s *stack) dsn() string { return "WINDLASS_MYSQL_DSN=" + s.database.DSN("windlass") }

func (s *stack) bootstrap() {
	s.t.Helper()
	args := []string{"bootstrap"}
	for _, region := range s.cfg.regions {
		args = append(args, "--region="+region)
	}
	out := s.controlPlaneCommand(s.t, args...)
	require.NoError(s.t, json.Unmarshal([]byte(out), &s.keys))
}

func (s *stack) addControlPlane(built, name string) {
	dir := filepath.Join(s.dir, name)
	api, metrics, workflows := freePort(s.t), freePort(s.t), freePort(s.t)
	s.url = s.web(address(api))
	more := append(s.tlsArgs(name, "--tls-", "--restate-tls-"), s.caArgs("--mysql-ca", "--restate-ca")...)
	if s.restateIdentity != "" {
		more = append(more, "--restate-identity-key="+s.restateIdentity)
	}
	more = append(more, s.issuerArgs()...)
	s.addProgram(name, filepath.Join(built, "controlplane"), dir, metrics, s.environ(s.dsn()), append([]string{
		"--log-format=json", "serve",
		"--dns-server=" + s.names.address,
		"--listen=" + address(api),
		"--restate-ingress=" + s.web(address(s.restateConfig.IngressPort)),
		"--restate-admin=" + s.web(address(s.restateConfig.AdminPort)),
		"--restate-listen=" + address(workflows),
		"--key-file=" + s.keyFile(), "--create-keyset",
		"--prometheus-url=" + s.prometheus,
		"--webhook-allow=127.0.0.0/8",
	}, more...))
}

func (s *stack) agentDir(region string) string { return filepath.Join(s.dir, partAgent(region)) }

func (s *stack) addAgent(built, region string) {
	dir := s.agentDir(region)
	token := filepath.Join(dir, "token")
	require.NoError(s.t, os.MkdirAll(dir, 0o700))
	require.NoError(s.t, os.WriteFile(token, []byte(s.keys.JoinTokens[region]), 0o600))
	gateway := "" // a region to which other regions hand over no requests
	if s.cfg.gateways {
		gateway = s.web(address(freePort(s.t)))
		s.gateways[region] = gateway
	}
	// Gateways reach the agent by a socket in one region, and over TLS in the other.
	if s.cfg.gateways && region == eu {
		s.routes[region] = address(freePort(s.t))
	}
	s.addProgram(partAgent(region), filepath.Join(built, "agent"), dir, freePort(s.t), s.environ(), append([]string{
		"--log-format=json",
		"--log-level=debug", // logs the routes that it serves
		"--gateway-listen=" + s.routes[region],
		"--gateway-url=" + gateway,
		"--server=" + s.url,
		"--data-dir=" + filepath.Join(dir, "data"),
		"--join-token-file=" + token,
		"--runtime=" + s.cfg.runtime,
	}, slices.Concat(s.runtimeArgs(region), s.caArgs("--server-ca"))...))
	s.routeLogs[region] = &routeLog{path: s.parts[partAgent(region)].log, last: map[string]servedRoute{}}
}

// addGateway adds a gateway of the region. All gateways of a region listen at the same address.
func (s *stack) addGateway(built, name, region string) {
	data := filepath.Join(s.agentDir(region), "data")
	agent := []string{"--agent=unix:" + filepath.Join(data, "gateway.sock")}
	if by := s.routes[region]; by != "" {
		access := filepath.Join(data, "gateway-access")
		s.eventually(s.t, "the agent creates "+access, func(context.Context) error {
			_, err := os.Stat(access)
			return err
		})
		agent = []string{
			"--agent=https://" + by, "--agent-ca=" + filepath.Join(access, "ca.crt"),
			"--agent-cert=" + filepath.Join(access, "tls.crt"), "--agent-key=" + filepath.Join(access, "tls.key"),
		}
	}
	listen := "--listen="
	if s.secure {
		agent = slices.Concat(agent, []string{"--listen="}, s.tlsArgs(name, "--tls-"), s.caArgs("--neighbour-roots"))
		listen = "--tls-listen="
	}
	s.addProgram(name, filepath.Join(built, "gateway"), filepath.Join(s.dir, name), freePort(s.t), s.environ(), append(agent,
		"--log-format=json",
		listen+hostOf(s.gateways[region]),
		"--data-dir="+filepath.Join(s.dir, name, "data"),
		"--drain-timeout=10s",
		"--neighbour-allow=127.0.0.0/8",
	))
	// A gateway is ready once it has routes from its agent.
	s.parts[name].up = s.metrics[name] + "/readyz"
}

func (s *stack) addProgram(name, path, dir string, metrics int, env, args []string) {
	s.metrics[name] = s.web(address(metrics))
	args = append(args, s.tlsArgs(name, "--metrics-tls-")...)
	log := filepath.Join(dir, name+".log")
	args = append(args, "--metrics-listen="+address(metrics))
	if filepath.Base(path) != "gateway" { // a gateway only forwards traces
		args = append(args, "--trace-file="+s.traces)
	}
	s.add(name, log, func(context.Context) (server, error) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		p, err := proc.Start(proc.Spec{
			Name: name, Path: path, Args: args, Env: env, Dir: dir,
			RecordFile: filepath.Join(dir, "process.json"), LogFile: log, DieWithParent: true,
		})
		if err != nil {
			return nil, err
		}
		return program{p, 25 * time.Second}, nil
	})
	// The part counts as started once it is alive. To be ready, it needs other parts.
	s.parts[name].up = s.metrics[name] + "/healthz"
}

func waitServing(ctx context.Context, p server, url string) error {
	for {
		if status, _, err := get(ctx, url); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-p.Done():
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", url, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// start starts a part that does not run, and waits until it serves.
func (s *stack) start(name string) {
	s.t.Helper()
	s.launch(name)
	p := s.parts[name]
	if p.up == "" || s.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	if err := waitServing(ctx, p.now, p.up); err != nil {
		s.t.Errorf("start %s: %v\n%s", name, err, tail(p.log, 30))
	}
}

// launch starts a part that does not run, and does not wait until it serves.
func (s *stack) launch(name string) {
	s.t.Helper()
	p := s.parts[name]
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	running, err := p.start(ctx)
	if running != nil {
		p.now = running
	}
	if err != nil {
		s.t.Errorf("start %s: %v\n%s", name, err, tail(p.log, 30))
	}
}

// kill9 kills only these parts, and returns once they have ended.
func (s *stack) kill9(names ...string) {
	s.t.Helper()
	for _, name := range names {
		require.NoError(s.t, syscall.Kill(s.pid(name), syscall.SIGKILL), "kill %s", name)
	}
	for _, name := range names {
		s.waitEnded(name)
	}
}

// stop stops a part as an operator does.
func (s *stack) stop(name string) {
	s.t.Helper()
	p := s.parts[name]
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	defer cancel()
	require.NoError(s.t, p.now.Stop(ctx), "stop %s", name)
}

// restart kills a part and starts it again at once.
func (s *stack) restart(name string) {
	s.t.Helper()
	s.kill9(name)
	s.start(name)
}

func (s *stack) pid(name string) int {
	p := s.parts[name]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.PID()
}

func (s *stack) waitEnded(name string) {
	s.t.Helper()
	p := s.parts[name]
	select {
	case <-p.now.Done():
	case <-time.After(patience):
		s.t.Fatalf("%s still runs after it was killed", name)
	}
}

// close ends the stack at the end of its test.
func (s *stack) close() {
	if !s.t.Failed() && s.owner != nil {
		s.deleteAllApps()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, name := range slices.Backward(s.order) {
		p := s.parts[name]
		if p.now == nil {
			continue
		}
		if err := p.now.Stop(ctx); err != nil {
			s.t.Errorf("stop %s: %v", name, err)
		}
	}
	if s.balancer != nil {
		s.balancer.close()
	}
	if s.stopFronts != nil {
		s.stopFronts()
	}
	if left := processesOf(s.dir); len(left) > 0 && !s.t.Failed() {
		s.t.Errorf("everything was deleted and stopped, and this still runs:\n%s", describe(left))
	}
	if left := killAll(s.dir); len(left) > 0 {
		s.t.Errorf("cannot kill:\n%s", describe(left))
	}
	if s.t.Failed() {
		s.t.Logf("%s", s.tails(60))
	}
	if os.Getenv("WINDLASS_E2E_KEEP") == "" {
		_ = os.RemoveAll(s.dir)
	}
}

// tails returns the last lines of every part's log, for a failure.
func (s *stack) tails(lines int) string {
	var b strings.Builder
	for _, name := range s.order {
		fmt.Fprintf(&b, "\n--- %s\n%s", name, tail(s.parts[name].log, lines))
	}
	return b.String()
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error() + "\n"
	}
	all := strings.SplitAfter(string(b), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

var plainHTTP = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := plainHTTP.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}
