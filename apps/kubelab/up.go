package kubelab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
	"github.com/windlass-run/windlass/pkg/flock"
)

// kubeconfigName is the kubeconfig's name in the data directory.
const kubeconfigName = "kubeconfig"

type upCommand struct {
	DataDir    string `type:"path" default:".windlass/kubelab" env:"KUBELAB_DATA_DIR" help:"Data directory of the cluster. The next kubelab on it continues where this one ends."`
	Kubeconfig string `type:"path" help:"Write the administrator's kubeconfig here once everything is ready; by default to the data directory."`
	ReadyFile  string `type:"path" help:"Write the kubeconfig's path here once everything is ready."`
	APIPort    int    `help:"Port of the API server on 127.0.0.1. 0 means the port of the last run, or a free port." default:"0"`
	CIDR       string `default:"127.64.0.0/16" help:"Addresses of pods, within 127.0.0.0/8; clusters on one host need different networks."`

	Group []string `sep:"none" placeholder:"name=NAME,nodes=N,..." help:"A group of nodes; repeatable. Keys: name, nodes, gpu=RESOURCE=COUNT, gpu-product, gpu-memory (MiB), cpu, memory, pods, zones=a|b, region, spot=true, taint=KEY=VALUE:EFFECT, label=KEY=VALUE."`

	Nodes      int      `default:"4" help:"Without --group: number of nodes of the only group, \"node\"."`
	GPU        string   `default:"nvidia.com/gpu=8" help:"Without --group: GPUs of each node, as RESOURCE=COUNT, or none."`
	GPUProduct string   `default:"NVIDIA-H100-80GB-HBM3" help:"Without --group: product of the GPUs."`
	GPUMemory  int      `placeholder:"MIB" help:"Without --group: memory of one GPU in MiB; by default the product's."`
	CPU        string   `default:"64" help:"Without --group: CPUs of each node."`
	Memory     string   `default:"512Gi" help:"Without --group: memory of each node."`
	Zones      []string `default:"a" help:"Without --group: zones over which the nodes are spread."`

	PodGroups bool `help:"Serve PodGroups of scheduling.k8s.io, with which the scheduler places pods all or nothing: the feature gates GenericWorkload and GangScheduling."`

	NodeGrace    time.Duration `default:"10s" help:"How long a node may be silent before it is NotReady. With short times, a busy machine loses nodes."`
	EvictAfter   time.Duration `default:"10s" help:"How long pods stay on a NotReady node, unless their tolerations say otherwise."`
	CrashBackoff time.Duration `default:"1s" help:"First delay before a crashed container is started again; it doubles with every crash."`

	LogFormat string `default:"text" enum:"text,json" help:"Format of the log on standard error: ${enum}."`
	Verbose   bool   `help:"Log more."`
}

// Run the command.
func (c *upCommand) Run(ctx context.Context, s streams) error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	cfg.log = newLogger(s.err, c.LogFormat, c.Verbose)
	cfg.ready = func(kubeconfig string) error {
		_, err := fmt.Fprintln(s.out, kubeconfig)
		return err
	}
	if err := os.MkdirAll(cfg.dataDir, 0o700); err != nil {
		return err
	}
	lock, err := flock.Try(filepath.Join(cfg.dataDir, "lock"))
	if errors.Is(err, flock.ErrHeld) {
		return fmt.Errorf("another kubelab runs on %s; give this one its own --data-dir", cfg.dataDir)
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	return up(ctx, cfg)
}

// config returns the configuration that the flags give, or an error that names the wrong flag.
func (c *upCommand) config() (config, error) {
	prefix, err := netip.ParsePrefix(c.CIDR)
	if err != nil {
		return config{}, fmt.Errorf("--cidr: %w", err)
	}
	if prefix = prefix.Masked(); !prefix.Addr().Is4() || !netip.MustParsePrefix("127.0.0.0/8").Contains(prefix.Addr()) || prefix.Bits() < 8 || prefix.Bits() > 30 {
		return config{}, fmt.Errorf("--cidr: %s must be a part of 127.0.0.0/8 with at least 4 addresses", c.CIDR)
	}
	if prefix.Contains(netip.MustParseAddr("127.0.0.1")) {
		return config{}, fmt.Errorf("--cidr: %s contains 127.0.0.1, where other programs of this host listen", c.CIDR)
	}
	groups, err := c.groups()
	if err != nil {
		return config{}, err
	}
	if c.CrashBackoff <= 0 {
		return config{}, fmt.Errorf("--crash-backoff must be more than 0, not %s", c.CrashBackoff)
	}
	if c.APIPort < 0 || c.APIPort > 65535 {
		return config{}, fmt.Errorf("--api-port must be 0 to 65535, not %d", c.APIPort)
	}
	out := config{
		dataDir: c.DataDir, kubeconfig: c.Kubeconfig, readyFile: c.ReadyFile, apiPort: c.APIPort,
		cidr: prefix, groups: groups, assets: os.Getenv("KUBEBUILDER_ASSETS"),
		podGroups: c.PodGroups, nodeGrace: c.NodeGrace, evictAfter: c.EvictAfter, crashBackoff: c.CrashBackoff,
	}
	if out.kubeconfig == "" {
		out.kubeconfig = filepath.Join(out.dataDir, kubeconfigName)
	}
	return out, nil
}

func (c *upCommand) groups() ([]nodes.Group, error) {
	if len(c.Group) == 0 {
		g, err := c.simpleGroup()
		return []nodes.Group{g}, err
	}
	groups := make([]nodes.Group, len(c.Group))
	for i, s := range c.Group {
		var err error
		if groups[i], err = nodes.ParseGroup(s); err != nil {
			return nil, fmt.Errorf("--group: %w", err)
		}
	}
	return groups, nodes.ValidateAll(groups)
}

func (c *upCommand) simpleGroup() (nodes.Group, error) {
	g := nodes.Group{Name: "node", Count: c.Nodes, Zones: c.Zones}
	var err error
	if c.GPU != "none" {
		if g.GPU, g.GPUs, err = nodes.ParseGPU(c.GPU); err != nil {
			return g, fmt.Errorf("--gpu: %w", err)
		}
		g.Product, g.MemoryMiB = c.GPUProduct, c.GPUMemory
	}
	if g.CPU, err = resource.ParseQuantity(c.CPU); err != nil {
		return g, fmt.Errorf("--cpu: %w", err)
	}
	if g.Memory, err = resource.ParseQuantity(c.Memory); err != nil {
		return g, fmt.Errorf("--memory: %w", err)
	}
	return g, g.Validate()
}
