package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/windlass-run/windlass/apps/agent/internal/gateways"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/gatewayapi"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/session"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/service"
)

// clusterFlags are the flags for --runtime kubernetes.
type clusterFlags struct {
	Kubeconfig           string        `help:"Kubeconfig file of the region's cluster. Default: the service account of the agent's pod (kubernetes)." type:"path" env:"WINDLASS_KUBECONFIG"`
	Context              string        `help:"Context in the kubeconfig. Default: its current one (kubernetes)." env:"WINDLASS_KUBE_CONTEXT"`
	Namespace            string        `help:"Namespace of the agent and its lease. Default: that of its pod or kubeconfig (kubernetes)." env:"WINDLASS_NAMESPACE"`
	NamespacePrefix      string        `help:"Prefix of the namespaces for instances (kubernetes)." default:"windlass-" env:"WINDLASS_NAMESPACE_PREFIX"`
	PoolsFile            string        `help:"YAML file that names the region's GPU pools (kubernetes)." type:"path" env:"WINDLASS_POOLS_FILE"`
	Topology             string        `help:"Words that topology.pack of an app may have, each with the label of nodes whose value names the part of the region: a comma-separated list of WORD=LABEL (kubernetes)." default:"zone=topology.kubernetes.io/zone,host=kubernetes.io/hostname" env:"WINDLASS_TOPOLOGY"`
	Gangs                string        `help:"Who starts pods all or nothing: native (the cluster's scheduler, by PodGroups of scheduling.k8s.io), agent, or auto: native if the cluster serves PodGroups, else agent. With native, a cluster without PodGroups runs no gangs (kubernetes)." default:"auto" enum:"auto,native,agent" env:"WINDLASS_GANGS"`
	PodPolicyFile        string        `help:"YAML file that lists what pods may request: runAsRoot, privileged, hostIpc, unconfinedSeccomp, and lists of capabilities, hostPaths, priorityClasses, runtimeClasses, tolerations (keys) and annotations (names, or prefixes that end with /). Default: nothing (kubernetes)." type:"path" env:"WINDLASS_POD_POLICY_FILE"`
	ForceDeleteLostAfter time.Duration `help:"Delete pods that cannot end because their node has been lost for this time, and has the taint out-of-service or was deleted. 0: never (kubernetes)." default:"0s" env:"WINDLASS_FORCE_DELETE_LOST_AFTER"`
	GatewaySelector      string        `help:"Callers that may connect to instances: a comma-separated list of pod:LABEL=VALUE, namespace:LABEL=VALUE and cidr:PREFIX. Default: none (kubernetes)." env:"WINDLASS_GATEWAY_SELECTOR"`
	MonitoringSelector   string        `help:"Callers that may connect to instances to scrape metrics, in the form of --gateway-selector. Default: none (kubernetes)." env:"WINDLASS_MONITORING_SELECTOR"`
	HealthImage          string        `help:"Image of the agent. Pods whose health check uses HEAD or expectedCodes get a container of it, which makes the check. Default: such apps are refused (kubernetes)." env:"WINDLASS_HEALTH_IMAGE"`
	LoaderImage          string        `help:"Image of the agent. Instances of apps with models get a container of it, which fetches the files of model.artifact. Default: model.artifact is refused (kubernetes)." env:"WINDLASS_LOADER_IMAGE"`
	GatewayAPI           string        `name:"gateway-api" help:"Gateway of the Gateway API, as NAMESPACE/NAME or NAMESPACE/NAME:SECTION. The agent writes HTTPRoutes for it, so that you can use another data plane. Default: no HTTPRoutes (kubernetes)." env:"WINDLASS_GATEWAY_API"`
	RoutesNamespace      string        `help:"Namespace for HTTPRoutes and their backends. deployments/kubernetes/agent-gateway-api.yaml creates it (kubernetes)." default:"windlass-routes" env:"WINDLASS_ROUTES_NAMESPACE"`
	CredentialSecret     string        `help:"Secret in the agent's namespace in which the region's agents share a credential. Default: each agent has its own (kubernetes)." env:"WINDLASS_CREDENTIAL_SECRET"`
	GatewaySecret        string        `help:"Secret in the agent's namespace for the files of gateway-access (see --listen-tls-cert). The region's gateways mount it. Default: each agent has its own files in its data directory (kubernetes)." env:"WINDLASS_GATEWAY_SECRET"`
}

// runtimeConfig checks the flags, before anything is started.
func (c clusterFlags) runtimeConfig() (kubernetes.Config, error) {
	var out kubernetes.Config
	if c.ForceDeleteLostAfter < 0 {
		return out, fmt.Errorf("--force-delete-lost-after=%v: use 0 for never, or a positive time such as 10m", c.ForceDeleteLostAfter)
	}
	gateway, err := parseSelector(c.GatewaySelector)
	if err != nil {
		return out, fmt.Errorf("--gateway-selector=%q: %w", c.GatewaySelector, err)
	}
	watchers, err := parseSelector(c.MonitoringSelector)
	if err != nil {
		return out, fmt.Errorf("--monitoring-selector=%q: %w", c.MonitoringSelector, err)
	}
	if !watchers.IsZero() {
		out.Monitoring = []render.GatewaySelector{watchers}
	}
	topology, err := parseTopology(c.Topology)
	if err != nil {
		return out, fmt.Errorf("--topology=%q: %w", c.Topology, err)
	}
	var pools map[string]render.Pool
	if c.PoolsFile != "" {
		data, err := os.ReadFile(c.PoolsFile)
		if err != nil {
			return out, fmt.Errorf("--pools-file: %w", err)
		}
		if pools, err = render.ParsePools(data); err != nil {
			return out, fmt.Errorf("--pools-file=%s: %w", c.PoolsFile, err)
		}
	}
	if c.PodPolicyFile != "" {
		data, err := os.ReadFile(c.PodPolicyFile)
		if err != nil {
			return out, fmt.Errorf("--pod-policy-file: %w", err)
		}
		if out.Policy, err = render.ParsePolicy(data); err != nil {
			return out, fmt.Errorf("--pod-policy-file=%s: %w", c.PodPolicyFile, err)
		}
	}
	// The control plane gives the region's name later.
	if err := (render.Config{
		Region: "region", NamespacePrefix: c.NamespacePrefix, Pools: pools, Topology: topology, Gateway: gateway, Monitoring: out.Monitoring, HealthImage: c.HealthImage, LoaderImage: c.LoaderImage,
	}).Check(); err != nil {
		return out, fmt.Errorf("--namespace-prefix=%q, --pools-file=%q, --topology=%q, --gateway-selector=%q, --monitoring-selector=%q, --health-image=%q, --loader-image=%q: %w",
			c.NamespacePrefix, c.PoolsFile, c.Topology, c.GatewaySelector, c.MonitoringSelector, c.HealthImage, c.LoaderImage, err)
	}
	if c.GatewayAPI != "" {
		if _, err := gatewayapi.ParseParent(c.GatewayAPI); err != nil {
			return out, fmt.Errorf("--gateway-api=%w", err)
		}
	}
	out.NamespacePrefix, out.Pools, out.Topology, out.Gateway = c.NamespacePrefix, pools, topology, gateway
	out.LoaderImage = c.LoaderImage
	out.ForceDeleteLostAfter, out.HealthImage, out.GangsBy = c.ForceDeleteLostAfter, c.HealthImage, kubernetes.GangsBy(c.Gangs)
	return out, nil
}

// maxTopologyWords limits the words, which each report of the capacity has.
const maxTopologyWords = 32

// parseTopology reads --topology.
func parseTopology(s string) (map[string]string, error) {
	out := map[string]string{}
	for term := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(term) == "" {
			continue
		}
		word, label, ok := strings.Cut(strings.TrimSpace(term), "=")
		if !ok {
			return nil, fmt.Errorf("%q is not WORD=LABEL, such as rack=example.com/rack", term)
		}
		if _, twice := out[word]; twice {
			return nil, fmt.Errorf("the word %q occurs twice: keep one of them", word)
		}
		out[word] = label
	}
	if len(out) > maxTopologyWords {
		return nil, fmt.Errorf("%d words: use at most %d", len(out), maxTopologyWords)
	}
	return out, nil
}

// parseSelector reads --gateway-selector and --monitoring-selector.
func parseSelector(s string) (render.GatewaySelector, error) {
	var out render.GatewaySelector
	if s == "" {
		return out, nil
	}
	for term := range strings.SplitSeq(s, ",") {
		what, value, _ := strings.Cut(strings.TrimSpace(term), ":")
		label, is, isLabel := strings.Cut(value, "=")
		switch {
		case what == "pod" && isLabel:
			if out.PodLabels == nil {
				out.PodLabels = map[string]string{}
			}
			out.PodLabels[label] = is
		case what == "namespace" && isLabel:
			if out.NamespaceLabels == nil {
				out.NamespaceLabels = map[string]string{}
			}
			out.NamespaceLabels[label] = is
		case what == "cidr" && value != "":
			out.CIDRs = append(out.CIDRs, value)
		default:
			return out, fmt.Errorf("%q is none of pod:LABEL=VALUE, namespace:LABEL=VALUE, cidr:PREFIX", term)
		}
	}
	return out, nil
}

// The roles of a cluster's agents, as their health pages show them.
const (
	roleStarting = "starting"
	roleStandBy  = "stand-by"
	roleActive   = "active"
)

// retryMembership is the delay between attempts to join and to stand by again. It is as short as a session's,
// so that a region is back within seconds after a failure ends.
var retryMembership = backoff.Policy{Max: 5 * time.Second}

// joinLease is the lease that an agent holds while it joins, so that only one of several agents
// uses the token. The other agents then find the shared credential.
const joinLease = "windlass-agent-join"

// member is one of a cluster's agents. One of them is active.
type member struct {
	flags    flags
	cfg      Config
	runtime  kubernetes.Config
	cluster  *access.Cluster
	shared   *access.Kept
	identity string
	health   service.Health
	// unjoined is the reason why the agent has no credential of a region yet. Nil: it has one.
	unjoined atomic.Pointer[string]
	// term has the parts that this agent runs while it is active. Nil: the agent stands by.
	term atomic.Pointer[term]
}

// term is the time between getting the lease and losing it. All active parts are made again for each
// term.
type term struct {
	agent    *Agent
	registry *prometheus.Registry
}

// runInCluster runs the agent of a region that is a Kubernetes cluster. Several agents may run in
// the cluster. The agent that holds the region's lease is the active one.
func runInCluster(ctx context.Context, f flags, cfg Config, registry *prometheus.Registry, metricsTLS *tls.Config) error {
	access.LogTo(cfg.Log)
	// Each environment has its own namespace and network policy, and its pods have no permissions
	// in the cluster.
	cfg.Isolates, cfg.SpansHosts = true, true
	m := &member{flags: f, cfg: cfg}
	var err error
	if m.runtime, err = f.Cluster.runtimeConfig(); err != nil {
		return err
	}
	if _, err := f.Models.storeConfig(""); err != nil {
		return err
	}
	m.runtime.ModelAllow = f.Models.Allow
	if m.cluster, err = access.OpenCluster(f.Cluster.Kubeconfig, f.Cluster.Context, f.Cluster.Namespace); err != nil {
		return err
	}
	if name := f.Cluster.CredentialSecret; name != "" {
		if m.shared, err = m.cluster.Keep(name); err != nil {
			return err
		}
	}
	if name := f.Cluster.GatewaySecret; name != "" {
		if m.cfg.Listeners.Access, err = m.cluster.KeepFiles(name); err != nil {
			return err
		}
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	m.identity = hostname + "_" + ident.New("agt")
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}

	m.health.SetRole(roleStarting)
	m.noteLack("it has not joined a region yet")
	m.health.Add("credential", func(context.Context) error {
		if why := m.unjoined.Load(); why != nil {
			return errors.New(*why)
		}
		return nil
	})
	// An agent that stands by is healthy without a connection.
	m.health.Add("control plane", func(context.Context) error {
		if t := m.term.Load(); t != nil && !t.agent.Connected() {
			return errors.New("no stream from the control plane; what runs keeps running")
		}
		return nil
	})
	components := []service.Component{{Name: "agent", Run: m.run}}
	if f.MetricsListen != "" {
		components = append(components, service.AdminServer(service.AdminConfig{
			Listen: f.MetricsListen, Registry: prometheus.Gatherers{registry, prometheus.GathererFunc(m.gatherMetrics)},
			Health: &m.health, Pprof: f.Pprof, Log: cfg.Log,
			TLS: metricsTLS, TokenFile: f.Metrics.TokenFile,
		}))
	}
	return service.Run(ctx, cfg.Log, stopGrace, components...)
}

// gatherMetrics returns the metrics of the present term.
func (m *member) gatherMetrics() ([]*dto.MetricFamily, error) {
	if t := m.term.Load(); t != nil {
		return t.registry.Gather()
	}
	return nil, nil
}

func (m *member) credentialFile() string { return filepath.Join(m.cfg.DataDir, credentialFile) }

// noteLack stores the reason why there is no credential.
func (m *member) noteLack(why string) { m.unjoined.Store(&why) }

// run joins, and then alternates between standing by and being active.
func (m *member) run(ctx context.Context) error {
	region := m.joinRegion(ctx)
	if region == "" {
		return nil
	}
	m.cfg.Log.InfoContext(ctx, "agent started", "region", region, "runtime", m.flags.Runtime, "version", Version, "identity", m.identity)
	for ctx.Err() == nil {
		m.health.SetRole(roleStandBy)
		err := m.cluster.Hold(ctx, access.LeaseName(region), m.identity, m.cfg.Log, m.workUntilDone)
		if !errors.Is(err, access.ErrLeaseLost) {
			return err
		}
		m.cfg.Log.WarnContext(ctx, "not active any more; standing by", "error", err)
		// The only error is that ctx ended, which the loop checks.
		_ = backoff.Sleep(ctx, retryMembership.Delay(0, m.cfg.Rand))
	}
	return nil
}

// joinRegion makes sure that there is a credential, and returns its region. The region is empty if ctx
// ends first.
func (m *member) joinRegion(ctx context.Context) (region string) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		region, err := m.joinOnce(ctx)
		if err == nil && region != "" {
			m.unjoined.Store(nil)
			return region
		}
		if err == nil {
			continue // ctx ended while another agent held the join lease
		}
		m.noteLack(err.Error())
		wait := retryMembership.Delay(attempt, m.cfg.Rand)
		m.cfg.Log.WarnContext(ctx, "cannot get the region's credential; will try again", "error", err, "retry_in", wait)
		// The only error is that ctx ended, which the loop checks.
		_ = backoff.Sleep(ctx, wait)
	}
	return ""
}

// joinOnce takes the credential that the agents share, or joins and shares the new credential. It
// holds the lease for one attempt only, because another agent may have a token that is still valid.
func (m *member) joinOnce(ctx context.Context) (region string, err error) {
	if m.shared == nil {
		return m.joinAlone(ctx)
	}
	var joined string
	err = m.cluster.Hold(ctx, joinLease, m.identity, m.cfg.Log, func(ctx context.Context) (err error) {
		if err = session.Fetch(ctx, m.credentialFile(), m.shared); err != nil {
			return err
		}
		if joined, err = m.joinAlone(ctx); err != nil {
			return err
		}
		return session.Give(ctx, m.credentialFile(), m.shared)
	})
	if err != nil {
		return "", err
	}
	return joined, nil
}

// joinAlone joins, unless the data directory has a credential.
func (m *member) joinAlone(ctx context.Context) (region string, err error) {
	credentials, client, info, err := connect(m.cfg)
	if err != nil {
		return "", err
	}
	if err := credentials.JoinOnce(ctx, client, m.cfg.TokenFile, info); err != nil {
		return "", err
	}
	return credentials.Region(), nil
}

// workUntilDone runs the active agent until ctx ends.
func (m *member) workUntilDone(ctx context.Context) (err error) {
	if m.shared != nil {
		// The previous active agent may have renewed the credential.
		if err := session.Fetch(ctx, m.credentialFile(), m.shared); err != nil {
			m.cfg.Log.WarnContext(ctx, "cannot read the shared credential; continuing with this agent's own", "error", err)
		}
	}
	t := &term{registry: prometheus.NewRegistry()}
	cfg := m.cfg
	cfg.Registerer = t.registry
	key, err := m.nameKey(ctx)
	if err != nil {
		return err
	}
	cfg.NewRuntime = func(_ context.Context, region string) (Runtime, error) {
		rc := m.runtime
		rc.NameKey = key
		rc.Client, rc.Region, rc.AgentVersion = m.cluster.Client, region, Version
		rc.Log, rc.Registerer, rc.Random = cfg.Log, t.registry, rand.Float64
		return kubernetes.New(rc)
	}
	if m.flags.Cluster.GatewayAPI != "" {
		cfg.NewRoutes = m.newRoutes
	}
	if t.agent, err = New(ctx, cfg); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, t.agent.Close()) }()
	m.term.Store(t)
	m.health.SetRole(roleActive)
	defer func() {
		m.term.Store(nil)
		m.health.SetRole(roleStandBy)
	}()
	components := t.agent.Components()
	if m.shared != nil {
		components = append(components, service.Component{Name: "credential", Run: func(ctx context.Context) error {
			return session.Share(ctx, m.credentialFile(), m.shared, cfg.Log)
		}})
	}
	return service.Run(ctx, cfg.Log, stopGrace, components...)
}

// newRoutes returns the writer that writes the region's routes as HTTPRoutes.
func (m *member) newRoutes(feed *gateways.Feed, region string) (RouteWriter, error) {
	parent, err := gatewayapi.ParseParent(m.flags.Cluster.GatewayAPI)
	if err != nil {
		return nil, fmt.Errorf("--gateway-api=%w", err)
	}
	return gatewayapi.New(gatewayapi.Config{
		Feed: feed, Client: m.cluster.Client, Namespace: m.flags.Cluster.RoutesNamespace, Region: region, Parent: parent,
		UserAgent: "windlass-agent/" + Version, FieldManager: "windlass-agent", Log: m.cfg.Log, Rand: m.cfg.Rand,
	})
}
