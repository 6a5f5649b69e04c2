package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	client "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/kubetest"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/runtimetest"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// cluster starts the one kubelab of this package's tests. Each test has its own region in it.
var cluster = sync.OnceValues(func() (*clients, error) {
	dir, err := os.MkdirTemp("", "kubelab")
	if err != nil {
		return nil, err
	}
	l, err := kubelab.Start(context.Background(), kubelab.Config{
		DataDir: dir, CIDR: "127.77.0.0/16", DieWithParent: true, CrashBackoff: 100 * time.Millisecond,
		Groups: []string{
			"name=cpu,nodes=4,cpu=64,memory=256Gi",
			"name=gpu,nodes=1,cpu=64,memory=256Gi,gpu=nvidia.com/gpu=3,gpu-product=" + suiteGPU,
			"name=gang,nodes=4,cpu=64,memory=256Gi,gpu=nvidia.com/gpu=1,gpu-product=" + gangGPU,
			"name=pool,nodes=2,cpu=64,memory=256Gi,gpu=nvidia.com/gpu=4,gpu-product=NVIDIA-A100,label=pool=a100",
		},
		// Gangs are the scheduler's in the tests that say so.
		PodGroups: true,
		Progress:  func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	if err != nil {
		return nil, err
	}
	started = l
	admin, _, err := access.LoadClient(l.Kubeconfig, "")
	if err != nil {
		return nil, err
	}
	agent, err := kubetest.AgentClient(context.Background(), admin)
	return &clients{admin: admin, agent: agent}, err
})

// clients has the configurations to reach the cluster as its administrator and as the agent.
type clients struct{ admin, agent *rest.Config }

const (
	suiteGPU = "NVIDIA-L40S"
	// gangGPU is the only GPU of each node of the gang tests.
	gangGPU = "NVIDIA-H200"
)

// started is the cluster of the tests. It is nil until a test needs it.
var started *kubelab.Cluster

func TestMain(m *testing.M) {
	if text := os.Getenv(agentEnv); text != "" {
		os.Exit(agentMain(text))
	}
	// An image with this program can also run the agent's commands for health checks and for files of models.
	if agent.IsHealthCheck(os.Args) || agent.IsLoader(os.Args) {
		os.Exit(healthMain())
	}
	code := runtimetest.Main(m)
	if started != nil {
		_ = started.Stop(context.Background())
	}
	os.Exit(code)
}

// harness is a region in the one cluster.
type harness struct {
	cfg      kubernetes.Config
	api      client.Interface
	registry *prometheus.Registry
	stop     func()
	// before is called with a runtime before it runs. It may be nil.
	before func(*kubernetes.Runtime)
}

func newHarness(t *testing.T, change ...func(*kubernetes.Config)) *harness {
	t.Helper()
	l, err := cluster()
	require.NoError(t, err)
	api, err := client.NewForConfig(unlimited(l.admin))
	require.NoError(t, err)
	id := fmt.Sprintf("%08x", rand.Uint32())
	h := &harness{api: api, cfg: kubernetes.Config{
		Client: l.agent, Region: "r-" + id, NamespacePrefix: "t" + id + "-", AgentVersion: "test",
		HealthImage: healthImage(self(t)),
		Policy:      render.Policy{Annotations: []string{fault}},
		Log:         slog.New(slog.NewTextHandler(t.Output(), nil)), Random: rand.Float64,
		Repair: backoff.Policy{Min: 200 * time.Millisecond, Max: 2 * time.Second},
	}}
	for _, c := range change {
		c(&h.cfg)
	}
	t.Cleanup(func() {
		h.shut(t)
		h.wipe(t)
	})
	return h
}

// unlimited returns a configuration without a rate limit, for calls that the test makes itself.
func unlimited(cfg *rest.Config) *rest.Config {
	c := rest.CopyConfig(cfg)
	c.QPS = -1
	return c
}

func (h *harness) open(t *testing.T) *kubernetes.Runtime {
	t.Helper()
	h.shut(t)
	h.registry = prometheus.NewRegistry()
	h.cfg.Registerer = h.registry
	rt, err := kubernetes.New(h.cfg)
	require.NoError(t, err)
	if h.before != nil {
		h.before(rt)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return rt
}

func (h *harness) shut(t *testing.T) {
	t.Helper()
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

func (h *harness) selector() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: render.Ours(h.cfg.Region).String()}
}

// wipe removes the region's namespaces, so that tests do not fill the cluster.
func (h *harness) wipe(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	all, err := h.api.CoreV1().Namespaces().List(ctx, h.selector())
	require.NoError(t, err)
	for _, ns := range all.Items {
		_ = h.api.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{})
	}
}

// found is an object of the region.
type found struct {
	Kind string
	metav1.ObjectMeta
	// Content is the object in JSON.
	Content string
}

func (f found) String() string { return f.Kind + " " + f.Namespace + "/" + f.Name }

// objects returns all objects of the region in the cluster.
func (h *harness) objects(t *testing.T) []found {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var out []found
	core, apps, sel := h.api.CoreV1(), h.api.AppsV1(), h.selector()
	add := func(kind string, list any, err error) {
		t.Helper()
		require.NoError(t, err)
		data, err := json.Marshal(list)
		require.NoError(t, err)
		var all struct {
			Items []json.RawMessage `json:"items"`
		}
		require.NoError(t, json.Unmarshal(data, &all))
		for _, item := range all.Items {
			f := found{Kind: kind, Content: string(item)}
			var meta struct {
				Metadata *metav1.ObjectMeta `json:"metadata"`
			}
			meta.Metadata = &f.ObjectMeta
			require.NoError(t, json.Unmarshal(item, &meta))
			out = append(out, f)
		}
	}
	const all = metav1.NamespaceAll
	pods, err := core.Pods(all).List(ctx, sel)
	add("Pod", pods, err)
	sets, err := apps.ReplicaSets(all).List(ctx, sel)
	add("ReplicaSet", sets, err)
	deployments, err := apps.Deployments(all).List(ctx, sel)
	add("Deployment", deployments, err)
	services, err := core.Services(all).List(ctx, sel)
	add("Service", services, err)
	secrets, err := core.Secrets(all).List(ctx, sel)
	add("Secret", secrets, err)
	accounts, err := core.ServiceAccounts(all).List(ctx, sel)
	add("ServiceAccount", accounts, err)
	claims, err := core.PersistentVolumeClaims(all).List(ctx, sel)
	add("PersistentVolumeClaim", claims, err)
	policies, err := h.api.NetworkingV1().NetworkPolicies(all).List(ctx, sel)
	add("NetworkPolicy", policies, err)
	budgets, err := h.api.PolicyV1().PodDisruptionBudgets(all).List(ctx, sel)
	add("PodDisruptionBudget", budgets, err)
	return out
}

// leftovers returns pods, and other objects whose workload is gone. It waits for them to go, because
// Kubernetes collects objects a moment after their owner is gone.
func (h *harness) leftovers(t *testing.T) []string {
	t.Helper()
	var left []string
	deadline := time.Now().Add(patience)
	collected := func() bool {
		left = nil
		all := h.objects(t)
		workloads, owners := map[string]bool{}, map[types.UID]bool{}
		for _, o := range all {
			if o.Kind == "Deployment" {
				workloads[o.Namespace+"/"+o.Labels[render.LabelWorkload]], owners[o.UID] = true, true
			}
		}
		for _, o := range all {
			if o.Kind == "PodDisruptionBudget" && slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return owners[r.UID] }) {
				continue // the budget of all instances belongs to several workloads
			}
			if o.Kind == "Pod" || !workloads[o.Namespace+"/"+o.Labels[render.LabelWorkload]] {
				left = append(left, o.String())
			}
		}
		return len(left) == 0
	}
	for done := collected(); !done && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		done = collected()
	}
	return left
}

// stored returns everything that a client can read without the permission to read Secrets.
func (h *harness) stored(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	spaces := map[string]bool{}
	for _, o := range h.objects(t) {
		spaces[o.Namespace] = true
		if o.Kind != "Secret" {
			b.WriteString(o.Content)
		}
	}
	for ns := range spaces {
		events, err := h.api.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		data, err := json.Marshal(events)
		require.NoError(t, err)
		b.Write(data)
	}
	return b.String()
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// platform says what Kubernetes does by itself.
var platform = runtimetest.Platform{
	KeepsSecrets: true, ReplacesOnRestart: true, ChoosesWhoGoes: true, DrainsBeside: true, HidesGPUs: true, HidesFiles: true, Grows: true, SpansHosts: true,
}

func suiteHarness(h *harness) func(t *testing.T) runtimetest.Harness {
	return func(t *testing.T) runtimetest.Harness {
		return runtimetest.Harness{
			Open: func(t *testing.T) runtime.Runtime { return h.open(t) },
			Shut: h.shut, Command: []string{self(t)}, Image: "kubelab.local/host:test",
			Leftovers: h.leftovers, Stored: h.stored,
			GPUs: 3, GPUProduct: suiteGPU,
			Unsupported: &windlassv1.DeploymentSpec{Command: []string{"/bin/true"}},
			Platform:    platform,
		}
	}
}

// The agent has exactly the permissions of its manifest here.
func TestConformance(t *testing.T) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness { return suiteHarness(newHarness(t))(t) })
}
