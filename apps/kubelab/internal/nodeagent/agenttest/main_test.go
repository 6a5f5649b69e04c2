// Package agenttest tests the node agent with a real control plane: API server, scheduler, controllers and
// heartbeats.
package agenttest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/kubelab/internal/component"
	"github.com/windlass-run/windlass/apps/kubelab/internal/controlplane"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
)

const (
	// patience is long because the machine may run other work.
	patience = 90 * time.Second
	beat     = 50 * time.Millisecond
)

// cluster is the control plane that all tests share; each test has its own node.
var cluster struct {
	client kubernetes.Interface
	rest   *rest.Config
	log    *slog.Logger
}

// TestMain also runs the components of the control plane, because each of them is this program, executed
// again.
func TestMain(m *testing.M) {
	if code, ok := component.Run(os.Args); ok {
		os.Exit(code)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "nodeagent")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := io.Discard
	if os.Getenv("KUBELAB_TEST_LOG") != "" {
		out = os.Stderr
	}
	cluster.log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithCancel(context.Background())
	plane, err := controlplane.Start(ctx, controlplane.Config{
		DataDir: dir, NodeGrace: 4 * time.Second, EvictAfter: 300 * time.Second, Log: cluster.log,
	})
	if err != nil {
		cancel()
		return 1, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = plane.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	if cluster.client, err = plane.Client(); err != nil {
		return 1, err
	}
	cluster.rest = plane.REST()
	go func() { _ = nodes.NewKeeper(cluster.client, cluster.log).Run(ctx) }()
	return m.Run(), nil
}

// agent is a node agent with its own node.
type agent struct {
	t    *testing.T
	node string
	cfg  nodeagent.Config
	stop func()
}

// start runs a node agent with its own addresses until the test ends, and creates a node for the test's pods.
// number selects the addresses, because all tests share the cluster.
func start(t *testing.T, number int) *agent {
	t.Helper()
	a := &agent{t: t, node: fmt.Sprintf("t%d-0", number), cfg: nodeagent.Config{
		Kubeconfig: cluster.rest, CIDR: netip.MustParsePrefix(fmt.Sprintf("127.70.%d.0/24", number)), Log: cluster.log,
		RestartBackoff: lifecycle.Backoff{Base: 300 * time.Millisecond, Max: time.Second},
	}}
	a.run()
	t.Cleanup(func() {
		grace := int64(0)
		_ = cluster.client.CoreV1().Pods("default").DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &grace}, metav1.ListOptions{})
		a.stop()
		_ = cluster.client.CoreV1().Nodes().Delete(context.Background(), a.node, metav1.DeleteOptions{})
	})
	require.Eventually(t, func() bool {
		_, err := cluster.client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		n, errNode := cluster.client.CoreV1().Nodes().Get(t.Context(), a.node, metav1.GetOptions{})
		return err == nil && errNode == nil && nodes.IsReady(n)
	}, patience, beat, "the cluster settles")
	return a
}

func (a *agent) run() {
	one, err := nodeagent.New(a.cfg)
	require.NoError(a.t, err)
	group, err := nodes.ParseGroup(fmt.Sprintf("name=%s,nodes=1,gpu=nvidia.com/gpu=8", a.node[:len(a.node)-2]))
	require.NoError(a.t, err)
	require.NoError(a.t, nodes.Ensure(a.t.Context(), cluster.client, []nodes.Group{group}, one.KubeletPort()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- one.Run(ctx) }()
	a.stop = func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(a.t, err)
			ended <- nil
		case <-time.After(patience):
			a.t.Fatal("the node agent does not end")
		}
	}
}

// create creates a pod with one container on the test's node.
func (a *agent) create(name string, change func(p *corev1.Pod, c *corev1.Container)) *corev1.Pod {
	a.t.Helper()
	grace := int64(5)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			NodeSelector:                  map[string]string{corev1.LabelHostname: a.node},
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/model:1",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}},
			}},
		},
	}
	if change != nil {
		change(p, &p.Spec.Containers[0])
	}
	p, err := cluster.client.CoreV1().Pods("default").Create(a.t.Context(), p, metav1.CreateOptions{})
	require.NoError(a.t, err)
	return p
}

func (a *agent) get(name string) *corev1.Pod {
	p, err := cluster.client.CoreV1().Pods("default").Get(a.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(a.t, err)
	return p
}

// await waits until ok returns true for the pod.
func (a *agent) await(name, what string, ok func(p *corev1.Pod, c corev1.ContainerStatus) bool) *corev1.Pod {
	a.t.Helper()
	var last *corev1.Pod
	deadline := time.Now().Add(patience)
	for ; time.Now().Before(deadline); time.Sleep(beat) {
		last = a.get(name)
		if last != nil {
			c := corev1.ContainerStatus{}
			if len(last.Status.ContainerStatuses) > 0 {
				c = last.Status.ContainerStatuses[0]
			}
			if ok(last, c) {
				return last
			}
		}
	}
	a.t.Fatalf("pod %s: never %s; last: %+v", name, what, last)
	return nil
}

func (a *agent) ready(name string) *corev1.Pod {
	a.t.Helper()
	return a.await(name, "ready", func(_ *corev1.Pod, c corev1.ContainerStatus) bool { return c.Ready })
}

func (a *agent) gone(name string) {
	a.t.Helper()
	require.Eventually(a.t, func() bool { return a.get(name) == nil }, patience, beat, "pod %s goes", name)
}

func (a *agent) remove(name string) {
	a.t.Helper()
	require.NoError(a.t, cluster.client.CoreV1().Pods("default").Delete(a.t.Context(), name, metav1.DeleteOptions{}))
}

func (a *agent) logs(name string, options corev1.PodLogOptions) string {
	a.t.Helper()
	text, err := cluster.client.CoreV1().Pods("default").GetLogs(name, &options).DoRaw(a.t.Context())
	require.NoError(a.t, err)
	return string(text)
}

// events returns the reasons of a pod's events.
func (a *agent) events(name string) []string {
	list, err := cluster.client.CoreV1().Events("default").List(a.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	require.NoError(a.t, err)
	var reasons []string
	for i := range list.Items {
		reasons = append(reasons, list.Items[i].Reason)
	}
	return reasons
}
