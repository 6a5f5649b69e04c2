package kubernetes

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// filled returns a runtime without an API server, whose caches hold the given number of workloads, each with
// the given number of ready pods.
func filled(t testing.TB, workloads, pods int) *Runtime {
	r, err := New(Config{
		Client: &rest.Config{Host: "http://127.0.0.1:1"}, Region: "r",
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Random: rand.Float64,
	})
	require.NoError(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	require.NoError(t, r.caches.Nodes.GetIndexer().Add(node))
	for w := range workloads {
		require.NoError(t, r.caches.Ours[render.KindWorkload].GetIndexer().Add(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: "apps", Name: workloadID(w),
			Labels:      map[string]string{render.LabelDeployment: workloadID(w), render.LabelWorkload: workloadID(w)},
			Annotations: map[string]string{render.AnnotationGeneration: "1", render.AnnotationTemplateHash: "template-1"},
		}}))
		for p := range pods {
			r.setPod(t, w, p, 0)
		}
	}
	close(r.synced)
	return r
}

func workloadID(n int) string { return fmt.Sprintf("dep_%04d", n) }

// setPod tells the runtime about a pod with this number of restarts.
func (r *Runtime) setPod(t testing.TB, workload, n int, restarts int32) {
	began := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	name := fmt.Sprintf("%s-%d", workloadID(workload), n)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "apps", Name: name, UID: types.UID(name), CreationTimestamp: began,
			Labels:      map[string]string{render.LabelDeployment: workloadID(workload), render.LabelWorkload: workloadID(workload)},
			Annotations: map[string]string{render.AnnotationTemplateHash: "template-1"},
		},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", StartTime: &began,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: began}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Ready: true, RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}},
			}},
		},
	}
	require.NoError(t, r.caches.Pods.GetIndexer().Update(p))
	r.podChanged(p)
}

func (r *Runtime) lists(t testing.TB) map[string][]runtime.Instance {
	seen, err := r.Observe(t.Context())
	require.NoError(t, err)
	out := map[string][]runtime.Instance{}
	for _, d := range seen.Deployments {
		out[d.DeploymentID] = d.Instances
	}
	return out
}

// sameOnes returns how many lists of a and b are the same slices.
func sameOnes(a, b map[string][]runtime.Instance) (n int) {
	for id, list := range a {
		if len(b[id]) == len(list) && len(list) > 0 && &b[id][0] == &list[0] {
			n++
		}
	}
	return n
}

func TestObserve_MakesOnlyChangedLists(t *testing.T) {
	r := filled(t, 10, 5)
	first := r.lists(t)
	require.Len(t, first, 10)
	require.Len(t, first[workloadID(3)], 5)
	require.Equal(t, 10, sameOnes(first, r.lists(t)), "nothing changed")

	r.setPod(t, 3, 2, 7)
	second := r.lists(t)
	require.Equal(t, 9, sameOnes(first, second))
	require.Equal(t, 7, second[workloadID(3)][2].Restarts)
	require.Zero(t, first[workloadID(3)][2].Restarts, "the old list is unchanged")

	// The workload is gone, but its pods still exist.
	w, _, err := r.caches.Ours[render.KindWorkload].GetIndexer().GetByKey("apps/" + workloadID(4))
	require.NoError(t, err)
	require.NoError(t, r.caches.Ours[render.KindWorkload].GetIndexer().Delete(w))
	third := r.lists(t)
	require.Len(t, third[workloadID(4)], 5)
	require.Equal(t, 10, sameOnes(third, r.lists(t)))

	// A change of a node concerns all of its pods.
	lost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
	}}
	require.NoError(t, r.caches.Nodes.GetIndexer().Update(lost))
	r.nodeChanged(nil, lost)
	require.Zero(t, sameOnes(third, r.lists(t)))
}

// BenchmarkObserve measures Observe with 200,000 instances of which one has changed. It compares
// this with an Observe in which all have changed.
func BenchmarkObserve(b *testing.B) {
	const workloads, pods = 1000, 200
	r := filled(b, workloads, pods)
	r.lists(b)
	begin := time.Now()
	const whole = 3
	for range whole {
		for w := range workloads {
			r.heard.add("apps/" + workloadID(w))
		}
		r.lists(b)
	}
	all := time.Since(begin) / whole
	restarts := int32(0)
	b.ResetTimer()
	for b.Loop() {
		restarts++
		r.setPod(b, int(restarts)%workloads, 0, restarts)
		r.lists(b)
	}
	b.ReportMetric(float64(all)/float64(b.Elapsed())*float64(b.N), "times_faster_than_all")
	b.ReportMetric(float64(all.Milliseconds()), "ms/all")
}
