package kubernetes_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The variables of TestScale.
const (
	// scaleEnv is the variable with "deployments x replicas". 1000x5 is the size that a region must
	// support.
	scaleEnv = "WINDLASS_SCALE"
	// unitsEnv is the same for TestScale_InstancesOfSeveralHosts, with "deployments x replicas x hosts":
	// 500x2x2 is 1,000 instances of two pods each.
	unitsEnv = "WINDLASS_SCALE_UNITS"
	// scaleOutEnv is the variable with the path of a file for the figures, as JSON.
	scaleOutEnv = "WINDLASS_SCALE_OUT"
)

// figures are what TestScale measures.
type figures struct {
	Deployments int `json:"deployments"`
	// Hosts is the number of pods of each instance.
	Hosts int `json:"hosts"`
	Pods  int `json:"pods"`
	// AppliedSeconds is the time from the first Apply until the last Apply has returned. The next
	// field is the time until the last pod is ready.
	AppliedSeconds float64 `json:"applied_seconds"`
	ReadySeconds   float64 `json:"ready_seconds"`
	// CallsPerDeployment is the number of calls to make one deployment.
	CallsPerDeployment float64        `json:"calls_per_deployment"`
	Calls              map[string]int `json:"calls"`
	// The heap of the agent after a garbage collection, without and with the region.
	HeapBeforeMiB float64 `json:"heap_before_mib"`
	HeapMiB       float64 `json:"heap_mib"`
	KiBPerPod     float64 `json:"kib_per_pod"`
	Idle          idle    `json:"idle"`
	// Each field is the cost of one change to one deployment.
	Scaled   change `json:"scaled"`
	Replaced change `json:"replaced"`
	Removed  change `json:"removed"`
	// Resized is the cost of new versions of all deployments, whose instances have one host more. Old and new pods
	// exist at the same time. It is measured only with instances of several hosts.
	Resized *resized `json:"resized,omitempty"`
	// The times of one Observe of the whole region.
	ObserveMedianMillis float64 `json:"observe_median_ms"`
	ObserveMaxMillis    float64 `json:"observe_max_ms"`
	Restart             restart `json:"restart"`
}

type idle struct {
	Seconds float64 `json:"seconds"`
	// Calls does not count watches.
	Calls     int     `json:"calls"`
	CPUMillis float64 `json:"cpu_ms"`
}

type change struct {
	Calls   map[string]int `json:"calls"`
	Writes  int            `json:"writes"`
	Seconds float64        `json:"seconds"`
	// Pods is the number of pods that the change makes or removes. CallsPerPod does not count watches.
	Pods        int     `json:"pods"`
	CallsPerPod float64 `json:"calls_per_pod"`
}

type resized struct {
	change

	// HeapMiB is the heap of the agent after a garbage collection, while old and new pods exist.
	HeapMiB float64 `json:"heap_mib"`
}

// restart has the costs of an agent that starts on a region whose objects are all as they should
// be.
type restart struct {
	SeenSeconds    float64        `json:"seen_seconds"`
	AppliedSeconds float64        `json:"applied_seconds"`
	Calls          map[string]int `json:"calls"`
	Writes         int            `json:"writes"`
}

// counter counts calls by verb and resource.
type counter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counter) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			c.mu.Lock()
			c.calls[callOf(req)]++
			c.mu.Unlock()
			return next.RoundTrip(req)
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// callOf returns the verb and the resource of a request, such as "PATCH deployments" or "GET pods (watch)".
func callOf(req *http.Request) string {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	// The path begins with api/v1 or apis/group/v1, and then with the namespace of a namespaced resource.
	parts = parts[min(len(parts), map[string]int{"api": 2, "apis": 3}[parts[0]]):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	call := req.Method
	if len(parts) > 0 {
		call += " " + parts[0]
	}
	if req.URL.Query().Get("watch") != "" {
		call += watching
	}
	return call
}

const watching = " (watch)"

func (c *counter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := maps.Clone(c.calls)
	clear(c.calls)
	return out
}

func sum(calls map[string]int, counts func(call string) bool) (n int) {
	for call, times := range calls {
		if counts(call) {
			n += times
		}
	}
	return n
}

func isCall(call string) bool { return !strings.HasSuffix(call, watching) }

// isWrite reports whether the call stores anything. A review is a read that is sent by POST.
func isWrite(call string) bool {
	return isCall(call) && !strings.HasPrefix(call, http.MethodGet) && !strings.HasSuffix(call, "reviews")
}

func heapMiB() float64 {
	goruntime.GC()
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestScale measures the costs of a region for its agent and for the API server. It fails if one of
// these costs grows with the region: calls while nothing changes, writes for one change, and writes
// of an agent that starts again.
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kubernetes control plane")
	}
	deployments, replicas, quiet := 20, 3, 5*time.Second
	if size := os.Getenv(scaleEnv); size != "" {
		_, err := fmt.Sscanf(size, "%dx%d", &deployments, &replicas)
		require.NoError(t, err, "%s=%q is not like 1000x5", scaleEnv, size)
		quiet = time.Minute
	}
	out := measureScale(t, "127.84.0.0/16", deployments, replicas, 1, quiet)
	// In a region of any size, a change writes only the few objects of one deployment.
	for name, c := range map[string]change{"scaled": out.Scaled, "replaced": out.Replaced, "removed": out.Removed} {
		require.LessOrEqual(t, c.Writes, 20, "%s: %v", name, c.Calls)
	}
}

// TestScale_InstancesOfSeveralHosts is TestScale for instances of several hosts. Each rank is a workload of its own, so a
// change makes a few calls for each pod that it touches, in a region of any size.
func TestScale_InstancesOfSeveralHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kubernetes control plane")
	}
	deployments, replicas, hosts, quiet := 6, 2, 2, 5*time.Second
	if size := os.Getenv(unitsEnv); size != "" {
		_, err := fmt.Sscanf(size, "%dx%dx%d", &deployments, &replicas, &hosts)
		require.NoError(t, err, "%s=%q is not like 500x2x2", unitsEnv, size)
		quiet = time.Minute
	}
	out := measureScale(t, "127.81.0.0/16", deployments, replicas, hosts, quiet)
	const callsPerPod = 30
	for name, c := range map[string]change{"scaled": out.Scaled, "replaced": out.Replaced, "removed": out.Removed, "resized": out.Resized.change} {
		require.LessOrEqual(t, c.CallsPerPod, float64(callsPerPod), "%s touches %d pods: %v", name, c.Pods, c.Calls)
	}
}

// measureScale measures the costs of a region with that many deployments, replicas of each and hosts of each instance, and
// fails if the agent makes calls while nothing changes, or writes when it starts again. It waits for quiet before it says
// that the agent is idle.
func measureScale(t *testing.T, cidr string, deployments, replicas, hosts int, quiet time.Duration) *figures {
	out := &figures{Deployments: deployments, Hosts: hosts, Pods: deployments * replicas * hosts}
	calls := &counter{calls: map[string]int{}}
	room := out.Pods
	if hosts > 1 {
		room += deployments * replicas * (hosts + 1) // for the new version of every deployment
	}
	nodes := max(hosts+1, (room+99)/100)
	r := startOwnCluster(t, kubelab.Config{
		CIDR: cidr, Groups: []string{fmt.Sprintf("name=cpu,nodes=%d,cpu=256,memory=1Ti,pods=200", nodes)},
		// Nodes of a busy machine may report late, and must not count as lost.
		NodeGrace: 10 * time.Minute, EvictAfter: 10 * time.Minute,
	}, calls.wrap)
	all := make([]runtime.Assignment, deployments)
	for n := range all {
		all[n] = assignment(fmt.Sprintf("dep_scale_%04d", n), replicas)
		d := all[n].Deployment
		d.AppName = fmt.Sprintf("app-%04d", n)
		d.EnvironmentId, d.EnvironmentName = fmt.Sprintf("env_scale_%d", n/20), fmt.Sprintf("team-%d", n/20)
		d.Spec.Env = map[string]string{"MODEL": "llama", "REGION": "lab"}
		if hosts > 1 {
			d.Spec.Roles = []*windlassv1.RoleSpec{{Name: "shard", Hosts: int32(hosts)}}
		}
		// A real model server is probed less often than the servers of other tests.
		d.Spec.HealthCheck.Interval.Seconds = 10
	}
	r.observe(t)
	out.HeapBeforeMiB = heapMiB()
	calls.take()

	began := time.Now()
	applyAll(t, r.rt, all)
	out.AppliedSeconds = time.Since(began).Seconds()
	r.settled(t, deployments, replicas)
	out.ReadySeconds = time.Since(began).Seconds()
	out.Calls = calls.take()
	out.CallsPerDeployment = float64(sum(out.Calls, isCall)) / float64(deployments)

	out.Idle = r.idle(t, calls, quiet)
	out.HeapMiB = heapMiB()
	out.KiBPerPod = (out.HeapMiB - out.HeapBeforeMiB) * 1024 / float64(out.Pods)
	var took []float64
	for range 50 {
		start := time.Now()
		r.observe(t)
		took = append(took, float64(time.Since(start).Microseconds())/1000)
	}
	slices.Sort(took)
	out.ObserveMedianMillis, out.ObserveMaxMillis = took[len(took)/2], took[len(took)-1]

	one := all[deployments/2]
	one.Deployment = proto.CloneOf(one.Deployment) // the runtime reads the applied assignment, so the test must not change it
	one.Deployment.Replicas++
	one.Generation++
	out.Scaled = r.change(t, calls, hosts, func() {
		r.apply(t, one)
		r.until(t, "one more", one.Deployment.GetId(), readyOnes(replicas+1))
	})
	one.TemplateHash, one.Deployment.Spec.Env = "template-2", map[string]string{"MODEL": "mixtral"}
	one.Generation++
	out.Replaced = r.change(t, calls, 2*(replicas+1)*hosts, func() {
		r.apply(t, one)
		r.until(t, "all replaced", one.Deployment.GetId(), func(now []runtime.Instance) bool {
			return readyOnes(replicas+1)(now) && len(now) == replicas+1 &&
				!slices.ContainsFunc(now, func(i runtime.Instance) bool { return i.TemplateHash != "template-2" })
		})
	})
	all[deployments/2] = one
	last := all[deployments-1]
	all = all[:deployments-1]
	out.Removed = r.change(t, calls, replicas*hosts, func() {
		require.NoError(t, r.rt.Remove(t.Context(), last.Deployment.GetId()))
		r.until(t, "none", last.Deployment.GetId(), func(now []runtime.Instance) bool { return len(now) == 0 })
	})
	if hosts > 1 {
		out.Resized, all = r.resize(t, calls, all, replicas, hosts)
	}
	r.quiet(t, calls)

	r.stop()
	calls.take()
	began = time.Now()
	r.start(t)
	r.settled(t, len(all), replicas)
	out.Restart.SeenSeconds = time.Since(began).Seconds()
	applyAll(t, r.rt, all)
	out.Restart.AppliedSeconds = time.Since(began).Seconds()
	out.Restart.Calls = calls.take()
	out.Restart.Writes = sum(out.Restart.Calls, isWrite)

	b, err := json.MarshalIndent(out, "", "  ")
	require.NoError(t, err)
	t.Logf("%s", b)
	if file := os.Getenv(scaleOutEnv); file != "" {
		require.NoError(t, os.WriteFile(file, append(b, '\n'), 0o600))
	}
	require.Zero(t, out.Idle.Calls, "an idle agent watches and does nothing else")
	require.Zero(t, out.Restart.Writes, "an agent that starts again writes no object: %v", out.Restart.Calls)
	return out
}

func applyAll(t testing.TB, rt *kubernetes.Runtime, all []runtime.Assignment) {
	work := make(chan runtime.Assignment)
	var wg sync.WaitGroup
	errs := make(chan error, len(all))
	for range 16 {
		wg.Go(func() {
			for a := range work {
				errs <- applyPatiently(t, rt, a)
			}
		})
	}
	for _, a := range all {
		work <- a
	}
	close(work)
	wg.Wait()
	for range all {
		require.NoError(t, <-errs)
	}
}

// applyPatiently repeats failed calls, as the agent does. While a whole region starts on a busy
// machine, calls of the API server may time out.
func applyPatiently(t testing.TB, rt *kubernetes.Runtime, a runtime.Assignment) error {
	deadline := time.Now().Add(patience)
	for {
		err := rt.Apply(t.Context(), a)
		var rej *runtime.Rejection
		if err == nil || errors.As(err, &rej) && !rej.Retryable || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Second)
	}
}

func (r *ownCluster) observe(t testing.TB) runtime.Observation {
	o, err := r.rt.Observe(t.Context())
	require.NoError(t, err)
	return o
}

// settled waits until this number of deployments each have at least replicas ready instances.
func (r *ownCluster) settled(t testing.TB, deployments, replicas int) {
	deadline := time.Now().Add(patience + time.Duration(deployments)*time.Second)
	for {
		o, done := r.observe(t), 0
		for _, d := range o.Deployments {
			n := 0
			for _, i := range d.Instances {
				if i.Status == ready {
					n++
				}
			}
			if n >= replicas {
				done++
			}
		}
		if done >= deployments {
			return
		}
		require.False(t, time.Now().After(deadline), "%d of %d deployments are ready", done, deployments)
		select {
		case <-r.rt.Changes():
			// Thousands of pods signal each of their steps, so several signals share one look.
			time.Sleep(100 * time.Millisecond)
		case <-time.After(time.Second):
		}
	}
}

// quiet waits until the agent has nothing to do.
func (r *ownCluster) quiet(t testing.TB, calls *counter) {
	deadline := time.Now().Add(patience)
	for still := 0; still < 3; still++ {
		time.Sleep(time.Second)
		if now := calls.take(); sum(now, isCall) > 0 {
			still = -1
			require.False(t, time.Now().After(deadline), "the agent keeps making calls: %v", now)
		}
	}
}

func (r *ownCluster) idle(t testing.TB, calls *counter, during time.Duration) idle {
	r.quiet(t, calls)
	cpu, began := cpuTime(t), time.Now()
	time.Sleep(during)
	return idle{
		Seconds: time.Since(began).Seconds(), Calls: sum(calls.take(), isCall),
		CPUMillis: float64((cpuTime(t) - cpu).Milliseconds()),
	}
}

// change measures the calls and the time that do causes, until the agent makes no more calls.
// pods is the number of pods that do makes or removes.
func (r *ownCluster) change(t testing.TB, calls *counter, pods int, do func()) change {
	r.quiet(t, calls)
	began := time.Now()
	do()
	c := change{Seconds: time.Since(began).Seconds(), Calls: map[string]int{}, Pods: pods}
	for still := 0; still < 2; still++ {
		time.Sleep(time.Second)
		now := calls.take()
		if sum(now, isCall) > 0 {
			still = -1
		}
		for call, n := range now {
			c.Calls[call] += n
		}
	}
	c.Writes = sum(c.Calls, isWrite)
	c.CallsPerPod = float64(sum(c.Calls, isCall)) / float64(pods)
	return c
}

// resize measures new versions of all deployments, whose instances have one host more. As in a rollout, the new version
// of each deployment is ready before the old one is removed. It returns the assignments of the new versions.
func (r *ownCluster) resize(t testing.TB, calls *counter, all []runtime.Assignment, replicas, hosts int) (*resized, []runtime.Assignment) {
	out := &resized{}
	next, old, pods := make([]runtime.Assignment, len(all)), map[string]bool{}, 0
	for n, a := range all {
		old[render.FamilyKey(a)] = true
		pods += int(a.Deployment.GetReplicas())*hosts + replicas*(hosts+1)
		a.Deployment = proto.CloneOf(a.Deployment)
		a.Deployment.Id += "_next"
		a.Deployment.Version++
		a.Deployment.Replicas = int32(replicas)
		a.Deployment.Spec.Roles[0].Hosts = int32(hosts + 1)
		a.WorkloadKey, a.WorkloadVersion, a.TemplateHash = a.Deployment.Id, int(a.Deployment.Version), "template-3"
		next[n] = a
	}
	out.change = r.change(t, calls, pods, func() {
		applyAll(t, r.rt, next)
		r.settled(t, 2*len(all), replicas)
		out.HeapMiB = heapMiB()
		for _, a := range all {
			require.NoError(t, r.rt.Remove(t.Context(), a.Deployment.GetId()))
		}
		deadline := time.Now().Add(patience + time.Duration(len(all))*time.Second)
		for left := -1; left != 0; time.Sleep(200 * time.Millisecond) {
			list, err := r.api.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{LabelSelector: render.Ours("lab").String()})
			require.NoError(t, err)
			left = 0
			for _, pod := range list.Items {
				if old[pod.Labels[render.LabelUnitOf]] {
					left++
				}
			}
			require.False(t, time.Now().After(deadline), "%d pods of old versions are left", left)
		}
		r.settled(t, len(next), replicas)
	})
	return out, next
}
