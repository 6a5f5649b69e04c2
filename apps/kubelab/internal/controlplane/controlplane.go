// Package controlplane runs the processes of one Kubernetes control plane.
//
//	Start:  etcd, kube-apiserver ──/readyz──> controller manager, scheduler, KWOK ──/healthz──> ready
//	Run:    restart components that end; when ctx ends, stop all in reverse order
//
// When this process ends, the kernel kills every child. Package proc records each child before it starts. The
// process that uses a data directory locks the directory. So two etcd processes never use the same files,
// even after a kill. A component that ends is started again, as static pods are. A component that keeps
// ending ends the cluster. The error contains its last log lines.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/kubelab/internal/component"
	"github.com/windlass-run/windlass/apps/kubelab/internal/credentials"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const (
	// startDeadline limits the start. It is long because tests share the machine with other work.
	startDeadline = 3 * time.Minute
	// portAttempts is the maximum number of starts, each with new ports, because another process may take a
	// free port first.
	portAttempts = 3
	poll         = 50 * time.Millisecond
	// MinNodeGrace is the minimum of Config.NodeGrace. With less, a busy machine would lose healthy nodes,
	// because KWOK's leases last whole seconds.
	MinNodeGrace = 2 * time.Second
)

// Config configures a control plane.
type Config struct {
	// DataDir is the directory of all files, created if missing. The caller holds its lock.
	DataDir string
	// APIPort is the port on 127.0.0.1. 0 means the port of the last run, or a free one.
	APIPort int
	// NodeGrace is how long a node may be silent before it is NotReady.
	NodeGrace time.Duration
	// EvictAfter is how long pods stay on a NotReady node, unless their tolerations say otherwise. Fractions
	// of seconds are cut.
	EvictAfter time.Duration
	// Assets is a folder with other binaries of etcd and kube-apiserver, like KUBEBUILDER_ASSETS. Empty means
	// the components in this binary.
	Assets string
	// PodGroups serves PodGroups of scheduling.k8s.io, with which the scheduler places pods all or nothing.
	PodGroups bool
	// Log is required.
	Log *slog.Logger
	// Rand returns numbers in [0, 1) for backoff. Default: package backoff's.
	Rand func() float64
}

// Plane is a running control plane.
type Plane struct {
	cfg     Config
	log     *slog.Logger
	self    string
	foreign map[string]string
	creds   *credentials.Credentials
	ports   ports

	etcd, api *child
	// clients are the API server's clients, which start after it and stop before it.
	clients []*child
}

// Start starts the control plane and returns when every component serves. The caller must call Run, which
// keeps the components running and stops them.
func Start(ctx context.Context, cfg Config) (*Plane, error) {
	p, err := newPlane(cfg)
	if err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not ready after %s", startDeadline))
	defer cancel()
	// Components that an earlier run left behind are stopped first, because they hold the ports.
	if err := p.stopStrays(ctx); err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}
	for attempt := 1; ; attempt++ {
		if p.ports, err = takePorts(cfg.DataDir, cfg.APIPort); err != nil {
			return nil, fmt.Errorf("start the control plane: %w", err)
		}
		if err = p.start(ctx); err == nil {
			return p, nil
		}
		err = errors.Join(err, p.stop(context.WithoutCancel(ctx)))
		lost := attempt < portAttempts && strings.Contains(err.Error(), "address already in use")
		if !lost || ctx.Err() != nil {
			return nil, fmt.Errorf("start the control plane: %w", err)
		}
	}
}

func newPlane(cfg Config) (*Plane, error) {
	if cfg.NodeGrace < MinNodeGrace {
		return nil, fmt.Errorf("the grace period of nodes must be at least %s, not %s", MinNodeGrace, cfg.NodeGrace)
	}
	if cfg.EvictAfter < 0 {
		return nil, fmt.Errorf("the time until eviction must not be negative, not %s", cfg.EvictAfter)
	}
	p := &Plane{cfg: cfg, log: cfg.Log, foreign: map[string]string{}}
	var err error
	if p.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if cfg.Assets != "" {
		for _, name := range []string{component.Etcd, component.APIServer} {
			p.foreign[name] = filepath.Join(cfg.Assets, name)
			if _, err := os.Stat(p.foreign[name]); err != nil {
				return nil, fmt.Errorf("KUBEBUILDER_ASSETS has no %s: %w; unset it to use kubelab's own", name, err)
			}
		}
	}
	if p.creds, err = credentials.Ensure(CredentialsDir(cfg.DataDir)); err != nil {
		return nil, err
	}
	return p, nil
}

// CredentialsDir returns the folder of credentials in a data directory.
func CredentialsDir(dataDir string) string { return filepath.Join(dataDir, "credentials") }

func (p *Plane) start(ctx context.Context) error {
	p.etcd, p.api, p.clients = p.newChild(component.Etcd, p.etcdArgs()), p.newChild(component.APIServer, p.apiServerArgs()), nil
	if err := p.writeFiles(); err != nil {
		return err
	}
	if err := p.etcd.start(); err != nil {
		return err
	}
	if err := p.api.start(); err != nil {
		return err
	}
	if err := p.waitHealthy(ctx, p.ports.api, "/readyz", p.api, p.etcd); err != nil {
		return err
	}
	manager := p.newChild(component.ControllerManager, p.controllerManagerArgs())
	scheduler := p.newChild(component.Scheduler, p.schedulerArgs())
	for _, c := range []*child{manager, scheduler, p.newChild(component.KWOK, p.kwokArgs())} {
		if err := c.start(); err != nil {
			return err
		}
		p.clients = append(p.clients, c)
	}
	if err := p.waitHealthy(ctx, p.ports.controllerManager, "/healthz", p.children()...); err != nil {
		return err
	}
	return p.waitHealthy(ctx, p.ports.scheduler, "/healthz", p.children()...)
}

// Run keeps the components running until ctx ends, and then stops them in order, clients before servers. An
// error means that a component could not be kept running. No component runs after Run.
func (p *Plane) Run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	// Each tier has its own context, which ends when the tier above has ended.
	api, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	etcd, stopEtcd := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	defer stopEtcd()

	group.Go(func() error {
		defer stopAPI()
		tier, running := errgroup.WithContext(running)
		for _, c := range p.clients {
			tier.Go(func() error { return c.keep(running) })
		}
		return tier.Wait()
	})
	group.Go(func() error {
		defer stopEtcd()
		return p.api.keep(api)
	})
	group.Go(func() error { return p.etcd.keep(etcd) })
	return group.Wait()
}

func (p *Plane) children() []*child { return append([]*child{p.etcd, p.api}, p.clients...) }

// stop stops the started components in reverse order.
func (p *Plane) stop(ctx context.Context) error {
	var errs []error
	for _, c := range slices.Backward(p.children()) {
		if c.proc != nil {
			errs = append(errs, c.proc.Stop(ctx, stopGrace))
		}
	}
	return errors.Join(errs...)
}

// stopStrays stops components that a killed kubelab left behind, because not every kernel stops them. etcd
// must be the only user of its files.
func (p *Plane) stopStrays(ctx context.Context) error {
	for _, name := range []string{component.KWOK, component.Scheduler, component.ControllerManager, component.APIServer, component.Etcd} {
		c := p.newChild(name, nil)
		pid, err := proc.StopStray(ctx, c.spec.RecordFile, stopGrace)
		if err != nil {
			return fmt.Errorf("stop the %s of an earlier run: %w", name, err)
		}
		if pid != 0 {
			p.log.InfoContext(ctx, "stopped a component that an earlier run left behind", "component", name, "pid", pid)
		}
	}
	return nil
}

// writeFiles writes the components' kubeconfigs and configurations.
func (p *Plane) writeFiles() error {
	files := map[string][]byte{
		p.schedulerConfigFile(): p.schedulerConfig(),
		p.kwokConfigFile():      []byte(stages),
	}
	for name, user := range map[string]credentials.User{
		component.ControllerManager: credentials.ControllerManager,
		component.Scheduler:         credentials.Scheduler,
		component.KWOK:              credentials.KWOK,
	} {
		content, err := p.creds.Kubeconfig(user, p.URL())
		if err != nil {
			return err
		}
		files[p.kubeconfig(name)] = content
	}
	for path, content := range files {
		if err := atomicfile.Write(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plane) config(name string) string { return filepath.Join(p.cfg.DataDir, "config", name) }

func (p *Plane) kubeconfig(name string) string { return p.config(name + ".kubeconfig") }
func (p *Plane) schedulerConfigFile() string   { return p.config("kube-scheduler.yaml") }
func (p *Plane) kwokConfigFile() string        { return p.config("kwok.yaml") }

// environ returns this process's environment without settings for another etcd, KWOK or cluster.
func (p *Plane) environ() []string {
	var out []string
	for _, kv := range os.Environ() {
		foreign := false
		for _, prefix := range []string{"ETCD_", "KWOK_", "KUBERNETES_", "KUBECONFIG="} {
			foreign = foreign || strings.HasPrefix(kv, prefix)
		}
		if !foreign {
			out = append(out, kv)
		}
	}
	return append(out, "KWOK_WORKDIR="+filepath.Join(p.cfg.DataDir, "kwok"))
}

// URL returns the URL of the API server.
func (p *Plane) URL() string { return url("https", p.ports.api) }

// REST returns the administrator's client configuration.
func (p *Plane) REST() *rest.Config { return p.creds.REST(credentials.Admin, p.URL()) }

// Kubeconfig returns the content of the administrator's kubeconfig.
func (p *Plane) Kubeconfig() ([]byte, error) { return p.creds.Kubeconfig(credentials.Admin, p.URL()) }

// Client returns a client of the API server, as the administrator.
func (p *Plane) Client() (kubernetes.Interface, error) { return kubernetes.NewForConfig(p.REST()) }
