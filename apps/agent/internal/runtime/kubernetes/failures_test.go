package kubernetes_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	client "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	pending    = windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING
	running    = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	ready      = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	draining   = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	failed     = windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED
	terminated = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED
)

// patience is the deadline of every wait. It is long because the machine may be busy.
const patience = 4 * time.Minute

const (
	fault    = "kubelab.windlass.run/fault"
	lostNode = "kubelab.windlass.run/lost"
	frail    = "acme.example/frail"
	product  = "NVIDIA-H100-80GB-HBM3"
	image    = "registry.example/chat:v1"
)

// ownCluster is a cluster of one test, with a runtime on it.
type ownCluster struct {
	rt  *kubernetes.Runtime
	api client.Interface
	cfg *rest.Config
	// stop ends the runtime.
	stop func()
}

// startOwnCluster starts a cluster and a runtime that uses it. wrap may change how the runtime
// reaches the cluster.
func startOwnCluster(t testing.TB, cfg kubelab.Config, wrap func(*rest.Config)) *ownCluster {
	cfg.DataDir, cfg.DieWithParent, cfg.Progress = t.TempDir(), true, func(line string) { t.Log(line) }
	cluster, err := kubelab.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := cluster.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			logTail(t, cluster.LogFile())
		}
	})
	rc, _, err := access.LoadClient(cluster.Kubeconfig, "")
	require.NoError(t, err)
	api, err := client.NewForConfig(rest.CopyConfig(rc))
	require.NoError(t, err)
	if wrap != nil {
		wrap(rc)
	}
	r := &ownCluster{api: api, cfg: rc}
	r.start(t)
	t.Cleanup(func() { r.stop() })
	return r
}

// start makes and runs a runtime. A test may call it again after stop.
func (r *ownCluster) start(t testing.TB) {
	rt, err := kubernetes.New(kubernetes.Config{
		Client: rest.CopyConfig(r.cfg), Region: "lab", AgentVersion: "test",
		Policy: render.Policy{Annotations: []string{fault}, Tolerations: []string{frail}},
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)), Registerer: prometheus.NewRegistry(),
		Random: func() float64 { return 0.5 },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	r.rt = rt
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func logTail(t testing.TB, file string) {
	b, err := os.ReadFile(filepath.Clean(file))
	if err == nil {
		t.Logf("the end of %s:\n%s", file, b[max(0, len(b)-8<<10):])
	}
}

// assignment returns an assignment of one deployment of the model server.
func assignment(id string, replicas int, change ...func(*windlassv1.DeploymentSpec)) runtime.Assignment {
	a := runtime.Assignment{
		Deployment: &agentv1.Deployment{
			Id: id, WorkspaceId: "ws_1", ProjectId: "prj_1", EnvironmentId: "env_1", AppId: "app_" + id,
			AppName: strings.ReplaceAll(strings.TrimPrefix(id, "dep_"), "_", "-"), ProjectName: "shop", EnvironmentName: "staging",
			Version: 1, Replicas: int32(replicas),
			Spec: &windlassv1.DeploymentSpec{
				Image: image,
				Ports: []*windlassv1.Port{{Name: "http", Port: 8000}},
				HealthCheck: &windlassv1.HealthCheck{
					Path: "/health", Interval: durationpb.New(time.Second), Timeout: durationpb.New(5 * time.Second),
					UnhealthyThreshold: 2, HealthyThreshold: 1, StartupBudget: durationpb.New(patience),
				},
				Resources:        &windlassv1.Resources{CpuMillicores: 100, MemoryMib: 64},
				TerminationGrace: durationpb.New(5 * time.Second),
				DrainDelay:       durationpb.New(2 * time.Second),
			},
		},
		WorkloadKey: id, WorkloadVersion: 1, Generation: 1, TemplateHash: "template-1",
	}
	for _, c := range change {
		c(a.Deployment.Spec)
	}
	return a
}

func staged(f string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Kubernetes = &windlassv1.KubernetesOptions{PodAnnotations: map[string]string{fault: f}}
	}
}

func withGPUs(n int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Resources.Gpu = &windlassv1.Gpu{Count: n, Product: product} }
}

// onFrail places instances on frail nodes, which run nothing else.
func onFrail(s *windlassv1.DeploymentSpec) {
	s.Kubernetes = &windlassv1.KubernetesOptions{
		NodeSelector: map[string]string{frail: "yes"},
		Tolerations:  []*windlassv1.Toleration{{Key: frail, Value: "yes"}},
	}
}

func (r *ownCluster) apply(t testing.TB, a runtime.Assignment) string {
	a.Deployment = proto.CloneOf(a.Deployment) // the runtime reads the applied assignment, so tests must not change it
	require.NoError(t, r.rt.Apply(t.Context(), a))
	return a.Deployment.GetId()
}

func (r *ownCluster) instances(t testing.TB, id string) []runtime.Instance {
	o, err := r.rt.Observe(t.Context())
	require.NoError(t, err)
	for _, d := range o.Deployments {
		if d.DeploymentID == id {
			return d.Instances
		}
	}
	return nil
}

// until waits until ok accepts the deployment's instances.
func (r *ownCluster) until(t testing.TB, what, id string, ok func([]runtime.Instance) bool) []runtime.Instance {
	deadline := time.Now().Add(patience)
	var last string
	for {
		all := r.instances(t, id)
		if ok(all) {
			return all
		}
		if now := describe(all); now != last {
			t.Logf("%s:%s", id, now)
			last = now
		}
		require.False(t, time.Now().After(deadline), "waited in vain for %s:%s", what, last)
		// Other tests receive from the same channel, so this one polls, too.
		select {
		case <-r.rt.Changes():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// one waits for one instance with this status and reason.
func (r *ownCluster) one(t testing.TB, id string, status windlassv1.InstanceStatus, reason string) runtime.Instance {
	var found runtime.Instance
	r.until(t, status.String()+" "+reason, id, func(all []runtime.Instance) bool {
		n := slices.IndexFunc(all, func(i runtime.Instance) bool { return i.Status == status && i.Reason == reason })
		if n >= 0 {
			found = all[n]
		}
		return n >= 0
	})
	return found
}

func describe(all []runtime.Instance) string {
	var b strings.Builder
	for _, i := range all {
		_, _ = fmt.Fprintf(&b, "\n  %d %s %s %q doomed=%v restarts=%d %s", i.Group, strings.TrimPrefix(i.Status.String(), "INSTANCE_STATUS_"),
			i.Reason, i.Message, i.Doomed, i.Restarts, i.RuntimeName)
	}
	return b.String()
}

func readyOnes(n int) func([]runtime.Instance) bool {
	return func(all []runtime.Instance) bool {
		live := slices.DeleteFunc(slices.Clone(all), func(i runtime.Instance) bool { return i.Status == terminated || i.Status == draining })
		return len(live) == n && !slices.ContainsFunc(live, func(i runtime.Instance) bool { return i.Status != ready })
	}
}

// pod returns the namespace and the name of an instance's pod.
func pod(i runtime.Instance) (namespace, name string) {
	namespace, name, _ = strings.Cut(i.RuntimeName, "/")
	return namespace, name
}

//nolint:tparallel // it has a cluster of its own, which needs much of the machine, so no other test runs at the same time
func TestFailures_HaveTheReasonOfTheirCause(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kubernetes control plane")
	}
	r := startOwnCluster(t, kubelab.Config{CIDR: "127.83.0.0/16", Groups: []string{
		"name=h100,nodes=2,gpu=nvidia.com/gpu=8,gpu-product=" + product + ",gpu-memory=81559,taint=nvidia.com/gpu=present:NoSchedule",
		"name=cpu,nodes=2",
		"name=frail,nodes=2,label=acme.example/frail=yes,taint=acme.example/frail=yes:NoSchedule",
	}, NodeGrace: 6 * time.Second, EvictAfter: 4 * time.Second, CrashBackoff: 300 * time.Millisecond}, nil)
	for name, test := range map[string]func(*testing.T, *ownCluster){
		"an image that does not exist":               imageNotThere,
		"a crash loop":                               crashLoop,
		"a container over its memory limit":          outOfMemory,
		"a slow start is not ready and then is":      slowStart,
		"never ready within the startup budget":      neverReady,
		"evicted by its node":                        evictedByNode,
		"evicted by the API":                         evictedByAPI,
		"preempted":                                  preempted,
		"more GPUs than any node has":                tooManyGPUs,
		"a quota of the namespace":                   overQuota,
		"a lost node, and its instances":             nodeLost,
		"the capacity of nodes, and its use by pods": capacity,
		"a command that does not exist":              noSuchCommand,
		"an instance that ends is started again":     exitedOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, r)
		})
	}
}

func imageNotThere(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_image", 1, staged("image-pull-error")))
	r.until(t, "doom", id, func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Doomed })
	i := r.one(t, id, failed, runtime.ReasonImagePullError)
	require.True(t, i.Doomed)
	require.Contains(t, i.Message, "cannot pull "+image+": ")
	require.Contains(t, i.Message, "not found")
	require.Empty(t, i.Address)
}

func crashLoop(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_crash", 1, staged("crash-loop")))
	r.one(t, id, failed, runtime.ReasonCrashLoop)
	i := r.until(t, "doom", id, func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Doomed })[0]
	require.Contains(t, i.Message, "exit code 1; last output: ")
	require.Contains(t, i.Message, "times in a row")
	require.GreaterOrEqual(t, i.Restarts, 2)
}

func outOfMemory(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_oom", 1, staged("oom")))
	r.one(t, id, failed, runtime.ReasonOOMKilled)
	i := r.until(t, "doom", id, func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Doomed })[0]
	require.Equal(t, runtime.ReasonOOMKilled, i.Reason)
	require.Contains(t, i.Message, "over its memory limit of 64 MiB")
}

func slowStart(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_slow", 1, staged("slow-start=4s")))
	i := r.one(t, id, running, runtime.ReasonNotReady)
	require.NotEmpty(t, i.Address)
	after := r.until(t, "ready", id, readyOnes(1))[0]
	require.Equal(t, i.ID, after.ID)
	require.Zero(t, after.Restarts)
	require.GreaterOrEqual(t, after.ReadyAt.Sub(after.StartedAt), 3*time.Second)
}

func neverReady(t *testing.T, r *ownCluster) {
	a := assignment("dep_never", 1, staged("never-ready"))
	a.Deployment.Spec.HealthCheck.StartupBudget = durationpb.New(3 * time.Second)
	id := r.apply(t, a)
	r.until(t, "doom", id, func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Doomed })
	i := r.until(t, "a timeout", id, func(all []runtime.Instance) bool {
		return len(all) == 1 && all[0].Reason == runtime.ReasonStartupTimeout
	})[0]
	require.Contains(t, i.Message, "not ready within 3s")
}

func evictedByNode(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_evict", 1, staged("evict-after=4s")))
	gone := r.one(t, id, terminated, runtime.ReasonEvicted)
	require.Contains(t, gone.Message, "low on resource")
	require.Empty(t, gone.Address)
	next := r.until(t, "another", id, readyOnes(1))
	require.False(t, slices.ContainsFunc(next, func(i runtime.Instance) bool { return i.Status == ready && i.ID == gone.ID }))
}

func evictedByAPI(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_drain", 2))
	i := r.until(t, "ready", id, readyOnes(2))[0]
	namespace, name := pod(i)
	r.until(t, "eviction", id, func([]runtime.Instance) bool {
		err := r.api.PolicyV1().Evictions(namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		// The disruption budget's controller may not have counted the pods yet.
		if err != nil && !apierrors.IsTooManyRequests(err) {
			require.NoError(t, err)
		}
		return err == nil
	})
	gone := r.one(t, id, draining, runtime.ReasonEvicted)
	require.Equal(t, i.ID, gone.ID)
	require.Contains(t, gone.Message, "drained, or somebody evicted the pod")
	r.until(t, "two again", id, readyOnes(2))
}

func preempted(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_preempt", 1, staged("preempt-after=4s")))
	gone := r.one(t, id, draining, runtime.ReasonPreempted)
	require.Contains(t, gone.Message, "higher priority")
	next := r.until(t, "another", id, readyOnes(1))
	require.False(t, slices.ContainsFunc(next, func(i runtime.Instance) bool { return i.Status == ready && i.ID == gone.ID }))
}

func tooManyGPUs(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_greedy", 1, withGPUs(9)))
	i := r.one(t, id, pending, runtime.ReasonUnschedulable)
	require.Contains(t, i.Message, "none of 6 nodes fits: Insufficient nvidia.com/gpu on 2 (it asks for 9)")
	require.False(t, i.Doomed, "a node that fits may be added")
	require.Empty(t, i.Address)
}

func overQuota(t *testing.T, r *ownCluster) {
	a := assignment("dep_quota", 1)
	a.Deployment.EnvironmentId, a.Deployment.EnvironmentName = "env_quota", "quota"
	id := r.apply(t, a)
	namespace, _ := pod(r.until(t, "ready", id, readyOnes(1))[0])
	_, err := r.api.CoreV1().ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		q, err := r.api.CoreV1().ResourceQuotas(namespace).Get(t.Context(), "small", metav1.GetOptions{})
		return err == nil && len(q.Status.Used) > 0
	}, patience, 100*time.Millisecond)
	a.Deployment.Replicas, a.Generation = 3, 2
	r.apply(t, a)
	all := r.until(t, "two instances over the quota", id, func(all []runtime.Instance) bool {
		return len(all) == 3 && all[1].Reason == runtime.ReasonQuotaExceeded && all[2].Reason == runtime.ReasonQuotaExceeded
	})
	require.Equal(t, ready, all[0].Status)
	require.Equal(t, pending, all[1].Status)
	require.Contains(t, all[1].Message, "exceeded quota: small")
	require.NoError(t, r.api.CoreV1().ResourceQuotas(namespace).Delete(t.Context(), "small", metav1.DeleteOptions{}))
	r.until(t, "three", id, readyOnes(3))
}

func nodeLost(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_lost", 1, onFrail))
	first := r.until(t, "ready", id, readyOnes(1))[0]
	namespace, name := pod(first)
	p, err := r.api.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	r.lose(t, p.Spec.NodeName, "true")

	i := r.one(t, id, running, runtime.ReasonNodeLost)
	require.Equal(t, first.ID, i.ID)
	require.Contains(t, i.Message, "node "+p.Spec.NodeName+" has not answered since ")

	i = r.one(t, id, draining, runtime.ReasonNodeLost)
	require.Equal(t, first.ID, i.ID)
	require.Contains(t, i.Message, "whether it ended")
	all := r.until(t, "a new instance, with the lost one still listed", id, func(all []runtime.Instance) bool {
		return len(all) == 2 && readyOnes(1)(all)
	})
	require.Contains(t, []string{all[0].ID, all[1].ID}, first.ID)

	r.lose(t, p.Spec.NodeName, "")
	r.until(t, "the end of the lost instance, once the node is back", id, func(all []runtime.Instance) bool { return len(all) == 1 && readyOnes(1)(all) })
}

// lose annotates a node. An empty value removes the annotation.
func (r *ownCluster) lose(t testing.TB, node, value string) {
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	_, err := r.api.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, lostNode, text), metav1.PatchOptions{})
	require.NoError(t, err)
}

func capacity(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_gpus", 3, withGPUs(3)))
	all := r.until(t, "ready", id, readyOnes(3))
	for _, i := range all {
		require.Equal(t, []string{product, product, product}, i.GPUs)
	}
	o, err := r.rt.Observe(t.Context())
	require.NoError(t, err)
	require.Len(t, o.Capacity.Gpus, 1)
	g := o.Capacity.Gpus[0]
	require.Equal(t, product, g.Product)
	require.Equal(t, "nvidia.com/gpu", g.ResourceName)
	require.EqualValues(t, 81559, g.MemoryMib)
	require.Equal(t, []int32{2, 16, 9, 7, 5}, []int32{g.Hosts, g.Allocatable, g.Requested, g.Free, g.LargestFree})
	require.NoError(t, r.rt.Remove(t.Context(), id))
	r.until(t, "the instances' resources to be free", id, func(left []runtime.Instance) bool {
		o, err := r.rt.Observe(t.Context())
		require.NoError(t, err)
		return len(left) == 0 && o.Capacity.Gpus[0].Free == 16
	})
}

// host makes an instance run a command as a process of this machine.
func host(command ...string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Image, s.Command = "kubelab.local/host:v1", command }
}

func noSuchCommand(t *testing.T, r *ownCluster) {
	id := r.apply(t, assignment("dep_typo", 1, host("/no/such/program")))
	i := r.one(t, id, failed, runtime.ReasonBadCommand)
	require.True(t, i.Doomed)
	require.Contains(t, i.Message, "/no/such/program")
}

func exitedOnce(t *testing.T, r *ownCluster) {
	marker := filepath.Join(t.TempDir(), "been-here")
	// The command serves nothing. The test needs only that it runs again.
	id := r.apply(t, assignment("dep_once", 1, host("sh", "-c",
		fmt.Sprintf("if [ -e %[1]s ]; then exec sleep 1000; fi; touch %[1]s; echo no such tensor; exit 17", marker))))
	i := r.until(t, "a second run", id, func(all []runtime.Instance) bool {
		return len(all) == 1 && all[0].Status == running && all[0].Restarts == 1
	})[0]
	require.Equal(t, runtime.ReasonNotReady, i.Reason)
	require.Contains(t, i.Message, "before that: exit code 17; last output: no such tensor")
	require.False(t, i.Doomed)
}
