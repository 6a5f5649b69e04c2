package kubernetes_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/replacement"
)

// evict makes a pod's node evict it.
func (h *harness) evict(t *testing.T, namespace, name string) {
	t.Helper()
	_, err := h.api.CoreV1().Pods(namespace).Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"evict-after=1ms"}}}`, fault), metav1.PatchOptions{})
	require.NoError(t, err)
	until(t, "the eviction", func() bool { return slices.Contains(h.failed(t, namespace), name) })
}

// failed returns the names of the failed pods in a namespace, oldest first.
func (h *harness) failed(t *testing.T, namespace string) []string {
	t.Helper()
	all, err := h.api.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	slices.SortFunc(all.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var out []string
	for _, p := range all.Items {
		if p.Status.Phase == corev1.PodFailed {
			out = append(out, p.Name)
		}
	}
	return out
}

// stranger creates a failed pod without a controller.
func (h *harness) stranger(t *testing.T, like *corev1.Pod, name string, labels map[string]string) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: like.Namespace, Labels: labels}, Spec: *like.Spec.DeepCopy()}
	p.Spec.NodeName = ""
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "acme.example/hold"}}
	_, err := h.api.CoreV1().Pods(like.Namespace).Create(t.Context(), p, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = h.api.CoreV1().Pods(like.Namespace).Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"status":{"phase":"Failed","reason":"Evicted"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

func TestEndedPods_NewestStayForAWhile(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *kubernetes.Config) {
		c.Ended = replacement.EndedPods{Newest: 2, Longest: time.Hour, Shortest: time.Hour}
	})
	rt := h.open(t)
	a := assignment("dep_evicted", 1)
	require.NoError(t, rt.Apply(t.Context(), a))
	namespace := h.namespaceOf(t, a)
	var evicted []string
	next := func() string {
		var name string
		until(t, "another pod", func() bool {
			o, err := rt.Observe(t.Context())
			require.NoError(t, err)
			for _, d := range o.Deployments {
				for _, i := range d.Instances {
					if _, n := pod(i); i.Status == ready && !slices.Contains(evicted, n) {
						name = n
					}
				}
			}
			return name != ""
		})
		return name
	}
	var like *corev1.Pod
	for range 4 {
		name := next()
		var err error
		like, err = h.api.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		h.evict(t, namespace, name)
		evicted = append(evicted, name)
		// Times of pods are in whole seconds.
		until(t, "another second", func() bool { return time.Since(like.CreationTimestamp.Time) > 2*time.Second })
	}
	lives := next()
	require.Len(t, h.failed(t, namespace), len(evicted), "ended pods stay until they are reported")
	h.cfg.Ended.Shortest = time.Millisecond
	rt = h.open(t)
	until(t, "the removal of the older pods", func() bool { return len(h.failed(t, namespace)) == 2 })
	require.Equal(t, evicted[2:], h.failed(t, namespace))
	until(t, "an observation with the remaining pods", func() bool {
		o, err := rt.Observe(t.Context())
		require.NoError(t, err)
		return terminatedOnes(o, runtime.ReasonEvicted) == 2
	})

	// Pods that other clients made are left alone, even with the labels of the agent.
	labels := map[string]string{}
	for k, v := range like.Labels {
		if k != "pod-template-hash" {
			labels[k] = v
		}
	}
	h.stranger(t, like, "stranger", nil)
	h.stranger(t, like, "impostor", labels)
	h.cfg.Ended.Longest = time.Millisecond
	rt = h.open(t)
	until(t, "the removal of the remaining pods", func() bool { return len(h.failed(t, namespace)) == 2 })
	require.ElementsMatch(t, []string{"stranger", "impostor"}, h.failed(t, namespace))
	require.Equal(t, lives, next())
}

func terminatedOnes(o runtime.Observation, reason string) int {
	n := 0
	for _, d := range o.Deployments {
		for _, i := range d.Instances {
			if i.Status == terminated && i.Reason == reason {
				n++
			}
		}
	}
	return n
}
