package kubernetes

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
)

// outOfService is the taint by which an operator, or a cloud's controller, says that
// a node is down and stays down.
const outOfService = "node.kubernetes.io/out-of-service"

// forceLost deletes pods that end for ever because their node cannot say that they
// did. Their replacements have long been made. A pod whose node merely does not
// answer may still run: two of it would hold one volume, or serve twice. So it goes
// only when the policy allows it, and somebody who knows says that the node is down:
// by the out-of-service taint, or by having removed the node.
func (r *Runtime) forceLost(ctx context.Context, now time.Time) error {
	after := r.cfg.ForceDeleteLostAfter
	if after == 0 {
		return nil
	}
	for _, p := range r.caches.EveryPod() {
		if !lostFor(p, r.caches.Node(p.Spec.NodeName), after, now) {
			continue
		}
		none := int64(0)
		if err := r.api.DeletePod(ctx, p, &none); err != nil && !access.IsNotFound(err) {
			return err
		}
		r.metrics.forced.Inc()
		r.cfg.Log.WarnContext(ctx, "deleted a pod of a lost node without the node's word", "pod", p.Namespace+"/"+p.Name, "node", p.Spec.NodeName)
		r.recorder.Event(p, corev1.EventTypeWarning, "ForceDeleted", "its node "+p.Spec.NodeName+" is lost; deleted without its word, as --force-delete-lost-after says")
	}
	return nil
}

// lostFor reports whether a pod that is to end should have ended, and its node has been
// lost for at least that long.
func lostFor(p *corev1.Pod, node *corev1.Node, after time.Duration, now time.Time) bool {
	// The deletion timestamp is when the grace is over.
	if p.DeletionTimestamp == nil || p.Spec.NodeName == "" || now.Before(p.DeletionTimestamp.Time) {
		return false
	}
	if node == nil {
		return now.Sub(p.DeletionTimestamp.Time) >= after
	}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == outOfService }) {
		return false
	}
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return now.Sub(c.LastTransitionTime.Time) >= after
		}
	}
	return false
}
