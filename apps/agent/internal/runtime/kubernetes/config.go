package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/replacement"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// Config configures a Runtime.
type Config struct {
	// Client says how to reach the API server. The runtime sets its own rate limits.
	Client *rest.Config
	// Region is the region's name. Objects that have it as a label belong to this agent.
	Region string
	// NamespacePrefix begins the names of created namespaces. Default: render's.
	NamespacePrefix string
	// Pools are the region's pools by name. Nil means none.
	Pools map[string]render.Pool
	// Topology has the labels of nodes by the region's words for them, such as "rack". At most 32.
	Topology map[string]string
	// Policy limits what pods may request; see render.Config.
	Policy render.Policy
	// Gateway selects the pods that may reach instances.
	Gateway render.GatewaySelector
	// Monitoring selects other pods that may reach instances.
	Monitoring []render.GatewaySelector
	// HealthImage is an image with the agent's program; see render.Config.
	HealthImage string
	// LoaderImage and ModelAllow are for files of models, and ModelsMount is where they are mounted; see render.Config.
	LoaderImage string
	ModelAllow  []string
	ModelsMount string
	// NameKey is the key of hashes of secret values; see render.Config.
	NameKey []byte
	// AgentVersion is the version that namespaces and requests name as their author.
	AgentVersion string
	// ForceDeleteLostAfter is how long a node must have been lost before its terminating pods are deleted
	// without its confirmation. 0 means never.
	ForceDeleteLostAfter time.Duration
	// Ended says how long ended pods stay.
	Ended replacement.EndedPods

	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Random returns a random number from [0, 1).
	Random func() float64

	// CallTimeout is the time limit of one call that is not a watch. Default: 10 s.
	CallTimeout time.Duration
	// Repair is the backoff between repairs of one workload, if another client keeps undoing them.
	// The first repair does not wait. Default: 1 s to 5 min.
	Repair backoff.Policy
	// GangsBy says who decides when gangs start. Default: GangsByAgent.
	GangsBy GangsBy
	// Gangs is the pause of a gang that has given back its pods. It grows with each failure. Default: 10 s to 5 min.
	Gangs backoff.Policy
	// Outage is the backoff between calls while the API server fails all of them. Default: 0.5 s to 3 s.
	Outage backoff.Policy
	// Reopen is the backoff between openings of a watch that keeps closing. Default: 0.5 s to 4 s.
	Reopen backoff.Policy
}

const defaultCallTimeout = 10 * time.Second

func (c *Config) checkValues() error {
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
	if err := c.Ended.Check(); err != nil {
		return err
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = defaultCallTimeout
	}
	if c.Repair == (backoff.Policy{}) {
		c.Repair = backoff.Policy{Min: time.Second, Max: 5 * time.Minute}
	}
	switch c.GangsBy {
	case "":
		c.GangsBy = GangsByAgent
	case GangsByAgent, GangsByEither, GangsByScheduler:
	default:
		return fmt.Errorf("GangsBy: %q is unknown: use auto, native or agent", c.GangsBy)
	}
	if c.Gangs == (backoff.Policy{}) {
		c.Gangs = backoff.Policy{Min: 10 * time.Second, Max: 5 * time.Minute}
	}
	if c.Outage == (backoff.Policy{}) {
		c.Outage = access.Outage
	}
	if c.Reopen == (backoff.Policy{}) {
		c.Reopen = access.Reopen
	}
	return nil
}

// GangsBy says who decides when the pods of a gang start.
type GangsBy string

const (
	// GangsByAgent means the agent.
	GangsByAgent GangsBy = "agent"
	// GangsByEither means the cluster's scheduler, if the cluster serves PodGroups. Otherwise, it means the agent.
	GangsByEither GangsBy = "auto"
	// GangsByScheduler means the cluster's scheduler. In a cluster that serves no PodGroups, gangs are refused.
	GangsByScheduler GangsBy = "native"
)

// fleetConfig converts the pools and the words for package observe.
func fleetConfig(pools map[string]render.Pool, topology map[string]string) observe.FleetConfig {
	out := observe.FleetConfig{Words: slices.Sorted(maps.Keys(topology))}
	for _, p := range pools {
		out.Pools = append(out.Pools, observe.Pool{
			Name: p.Name, NodeSelector: p.NodeSelector, Tolerations: p.Tolerations, ResourceName: p.ResourceName, Quota: p.Quota,
		})
	}
	slices.SortFunc(out.Pools, func(a, b observe.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
