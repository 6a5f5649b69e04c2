package kubelab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/windlass-run/windlass/apps/kubelab/internal/controlplane"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
	"github.com/windlass-run/windlass/apps/kubelab/internal/volumes"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/service"
)

const (
	// settleDeadline limits the time from a serving API server to a working cluster, with ready nodes and the
	// default service account.
	settleDeadline = 2 * time.Minute
	settlePoll     = 50 * time.Millisecond
	// stopGrace is the time in which all parts must stop. Programs in pods get two seconds of it.
	stopGrace = 15 * time.Second
	// crashBackoffGrowth is the factor by which the delay between crashes grows, as a kubelet's delay grows
	// from 10 s to 5 min.
	crashBackoffGrowth = 30
)

// config configures one cluster.
type config struct {
	dataDir, kubeconfig, readyFile string
	apiPort                        int
	cidr                           netip.Prefix
	groups                         []nodes.Group
	assets                         string
	podGroups                      bool
	nodeGrace, evictAfter          time.Duration
	crashBackoff                   time.Duration
	log                            *slog.Logger
	// ready is called once, with the kubeconfig's path.
	ready func(kubeconfig string) error
}

// up runs a cluster until ctx ends.
func up(ctx context.Context, cfg config) error {
	// The files of an earlier run would announce this cluster too early.
	for _, path := range []string{cfg.kubeconfig, cfg.readyFile} {
		if err := os.Remove(path); err != nil && path != "" && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	began := time.Now()
	plane, err := controlplane.Start(ctx, controlplane.Config{
		DataDir: cfg.dataDir, APIPort: cfg.apiPort, Assets: cfg.assets, PodGroups: cfg.podGroups,
		NodeGrace: cfg.nodeGrace, EvictAfter: cfg.evictAfter, Log: cfg.log,
	})
	if err != nil {
		return err
	}
	// The control plane ends last, because the other parts use it until they end. If it ends by itself, the
	// other parts end too.
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	planeCtx, stopPlane := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPlane()
	planeEnded := make(chan error, 1)
	go func() {
		planeEnded <- plane.Run(planeCtx)
		cancel()
	}()
	err = inhabit(running, cfg, plane, began)
	stopPlane()
	return errors.Join(err, <-planeEnded)
}

// inhabit runs nodes, storage and pods in a control plane until ctx ends.
func inhabit(ctx context.Context, cfg config, plane *controlplane.Plane, began time.Time) error {
	client, err := plane.Client()
	if err != nil {
		return err
	}
	keeper := nodes.NewKeeper(client, cfg.log.With("component", "nodes"))
	storage := volumes.New(client, filepath.Join(cfg.dataDir, "volumes"), cfg.log.With("component", "volumes"))
	backoff := lifecycle.Backoff{Base: cfg.crashBackoff, Max: crashBackoffGrowth * cfg.crashBackoff}
	agent, err := nodeagent.New(nodeagent.Config{
		Kubeconfig: plane.REST(), CIDR: cfg.cidr, NodeAddress: nodes.Address,
		RestartBackoff: backoff, PullBackoff: backoff, Log: cfg.log.With("component", "pods"),
	})
	if err != nil {
		return err
	}

	return service.Run(ctx, cfg.log, stopGrace,
		service.Component{Name: "nodes", Run: keeper.Run},
		service.Component{Name: "volumes", Run: storage.Run},
		service.Component{Name: "pods", Run: agent.Run},
		service.Component{Name: "settle", MayEnd: true, Run: func(ctx context.Context) error {
			if err := settle(ctx, cfg, client, storage, agent); err != nil {
				return err
			}
			content, err := plane.Kubeconfig()
			if err != nil {
				return err
			}
			return announce(cfg, content, began)
		}},
	)
}

// settle creates the nodes and waits until pods can be created, scheduled and measured.
func settle(ctx context.Context, cfg config, client kubernetes.Interface, storage *volumes.Provisioner, agent *nodeagent.Agent) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleDeadline, fmt.Errorf("the cluster has not settled after %s", settleDeadline))
	defer cancel()
	policy := backoff.Policy{Min: settlePoll, Max: 4 * settlePoll}
	err := backoff.Retry(ctx, policy, func(ctx context.Context) error {
		if err := storage.EnsureClass(ctx); err != nil {
			return err
		}
		if err := nodes.Ensure(ctx, client, cfg.groups, agent.KubeletPort()); err != nil {
			return err
		}
		return agent.RegisterMetrics(ctx)
	})
	if err != nil {
		return err
	}
	return backoff.Retry(ctx, policy, func(ctx context.Context) error { return unsettled(ctx, client, agent) })
}

// unsettled returns an error that says what pods still wait for, or nil.
func unsettled(ctx context.Context, client kubernetes.Interface, agent *nodeagent.Agent) error {
	// Admission refuses pods before their namespace has its service account.
	_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		return err
	}
	ready, online, err := nodes.Ready(ctx, client)
	if err != nil {
		return err
	}
	if ready < online {
		return fmt.Errorf("%d of %d nodes are ready", ready, online)
	}
	return agent.CheckMetrics(ctx)
}

// announce writes the files that callers wait for, the kubeconfig first.
func announce(cfg config, kubeconfig []byte, began time.Time) error {
	if err := atomicfile.Write(cfg.kubeconfig, kubeconfig, 0o600); err != nil {
		return err
	}
	if cfg.readyFile != "" {
		if err := atomicfile.Write(cfg.readyFile, []byte(cfg.kubeconfig+"\n"), 0o600); err != nil {
			return err
		}
	}
	cfg.log.Info("the cluster is ready", "kubeconfig", cfg.kubeconfig, "took", time.Since(began).Round(time.Millisecond))
	return cfg.ready(cfg.kubeconfig)
}
