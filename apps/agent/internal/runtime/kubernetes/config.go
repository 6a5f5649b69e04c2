package kubernetes

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// Config of a Runtime.
type Config struct {
	// Client says how to reach the API server. Its rate limits are replaced.
	Client *rest.Config
	// Region's name; what carries it as a label is ours.
	Region string
	// NamespacePrefix of the namespaces that are made; empty: render's default.
	NamespacePrefix string
	// Pools of the region by name; nil: none.
	Pools map[string]render.Pool
	// Policy is what pods may ask for; see render.Config.
	Policy render.Policy
	// Gateway selects the pods that may reach instances.
	Gateway render.GatewaySelector
	// Monitoring selects those that may, too, beside the gateway's.
	Monitoring []render.GatewaySelector
	// HealthImage has the agent's program; see render.Config.
	HealthImage string
	// NameKey is the key of hashes of secret values; see render.Config.
	NameKey []byte
	// AgentVersion is what namespaces and requests name as their author.
	AgentVersion string
	// ForceDeleteLostAfter is how long a node must have been lost before pods that
	// cannot end on it are deleted without its word. 0: never.
	ForceDeleteLostAfter time.Duration
	// Ended says how long pods that are over stay.
	Ended EndedPods

	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random draws from [0, 1).
	Random func() float64

	// CallTimeout bounds one call that is not a watch: 10 s.
	CallTimeout time.Duration
	// Repair spaces out repairs of one workload that somebody keeps undoing: 1 s to
	// 5 min. The first is at once.
	Repair backoff.Policy
	// Outage spaces out calls while the API server refuses all: 0.5 s to 3 s.
	Outage backoff.Policy
	// Reopen spaces out the openings of a watch that does not last: 0.5 s to 4 s.
	Reopen backoff.Policy
}

const (
	defaultCallTimeout = 10 * time.Second
	// callsPerSecond and callBurst are the agent's share of the API server: a region
	// of a thousand deployments is made within minutes, and the server, which takes
	// some hundreds a second from one client before it queues them, has room for
	// others. Watches do not count once they are open.
	callsPerSecond = 50
	callBurst      = 100
)

// A region is as it should be within 10 s of the end of an outage, however long that
// was: so the longest pauses, one after the other, have to be shorter. A change waits
// for the gate (outage) and for the reconciler's turn, 4 s at most; what was missed is
// heard of when a list succeeds (outage) and a watch opens (reopen). The price is paid
// by an API server that cannot answer, and by one agent: eleven watches and lists,
// each every 2 s on average, and a call for all changes together. Regions do not share
// API servers, so that a thousand agents do not make it more.
var (
	outage = backoff.Policy{Min: 500 * time.Millisecond, Max: 3 * time.Second}
	reopen = backoff.Policy{Min: 500 * time.Millisecond, Max: 4 * time.Second}
)

func (c *Config) check() error {
	switch {
	case c.Client == nil:
		return errors.New("kubernetes: Client is required")
	case c.Region == "":
		return errors.New("kubernetes: Region is required")
	case c.Log == nil || c.Registerer == nil || c.Random == nil:
		return errors.New("kubernetes: Log, Registerer and Random are required")
	case c.ForceDeleteLostAfter < 0:
		return fmt.Errorf("kubernetes: ForceDeleteLostAfter is %v: use 0 for never, or a positive time", c.ForceDeleteLostAfter)
	}
	if err := c.Ended.check(); err != nil {
		return err
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = defaultCallTimeout
	}
	if c.Repair == (backoff.Policy{}) {
		c.Repair = backoff.Policy{Min: time.Second, Max: 5 * time.Minute}
	}
	if c.Outage == (backoff.Policy{}) {
		c.Outage = outage
	}
	if c.Reopen == (backoff.Policy{}) {
		c.Reopen = reopen
	}
	return nil
}

// serviceAccountNamespace is where Kubernetes tells a pod its namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// LoadClient reads how to reach the API server, and the namespace that is ours
// there: from a kubeconfig file, or, when kubeconfig is empty, from the pod that
// this is.
func LoadClient(kubeconfig, context string) (_ *rest.Config, namespace string, _ error) {
	if kubeconfig == "" {
		if context != "" {
			return nil, "", fmt.Errorf("--context=%q chooses within a kubeconfig file: set --kubeconfig, too", context)
		}
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, "", fmt.Errorf("not in a pod with a service account; outside of one, set --kubeconfig: %w", err)
		}
		ns, err := os.ReadFile(serviceAccountNamespace)
		if err != nil {
			return nil, "", fmt.Errorf("the pod's namespace: %w", err)
		}
		return cfg, strings.TrimSpace(string(ns)), nil
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: context})
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	namespace, _, err = loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	return cfg, namespace, nil
}
