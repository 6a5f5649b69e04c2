package replacement

import (
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// calmAfter is the time without a repair after which the next repair does not wait.
const calmAfter = 10 * time.Minute

// History records how often workloads were repaired, and which of them lack a Secret. It is safe
// for concurrent use.
type History struct {
	policy backoff.Policy

	mu sync.Mutex
	// suspects has the workloads with a pod that lacks a Secret.
	suspects map[render.Ref]bool
	of       map[render.Ref]*repaired
}

// repaired says how often a workload was repaired, and when it was last repaired.
type repaired struct {
	times int
	last  time.Time
}

func NewHistory(policy backoff.Policy) *History {
	return &History{policy: policy, suspects: map[render.Ref]bool{}, of: map[render.Ref]*repaired{}}
}

// Suspect records that a pod of w lacks a Secret.
func (h *History) Suspect(w render.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.suspects[w] = true
}

// Suspected reports whether a pod of w has lacked a Secret since the last repair.
func (h *History) Suspected(w render.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.suspects[w]
}

// Wait returns how long the next repair of w must wait. So a client that undoes every repair does
// not keep the agent and the API server busy.
func (h *History) Wait(w render.Ref, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.of[w]
	if was == nil || now.Sub(was.last) > calmAfter {
		delete(h.of, w)
		return 0
	}
	// Without randomness, repeated calls give the same delay.
	return max(0, was.last.Add(h.policy.Delay(was.times-1, func() float64 { return 0.5 })).Sub(now))
}

// Done records a repair.
func (h *History) Done(w render.Ref, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.suspects, w)
	was := h.of[w]
	if was == nil {
		was = &repaired{}
		h.of[w] = was
	}
	was.times++
	was.last = now
}

// Forget drops the history of w.
func (h *History) Forget(w render.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.suspects, w)
	delete(h.of, w)
}

// LacksSecret reports whether a container of the pod cannot be created from its configuration, for example
// because a Secret is missing.
func LacksSecret(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerConfigError"
	})
}

// SameMeta reports whether labels and annotations are the same, and whether both objects or neither
// of them are being deleted.
func SameMeta(a, b metav1.Object) bool {
	return sameMap(a.GetLabels(), b.GetLabels()) && sameMap(a.GetAnnotations(), b.GetAnnotations()) &&
		(a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil)
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// RolledOut reports whether all pods of a workload have its present template.
func RolledOut(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Spec.Replicas != nil &&
		d.Status.UpdatedReplicas == *d.Spec.Replicas && d.Status.Replicas == d.Status.UpdatedReplicas
}
