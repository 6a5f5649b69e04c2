package replacement

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// outOfService is the taint with which an operator or a cloud's controller declares that a node is
// down and will stay down.
const outOfService = "node.kubernetes.io/out-of-service"

// LostFor reports whether a terminating pod is past its grace period and its node has been lost for
// at least after. If the node was removed, the time counts from the end of the grace period.
// Kubernetes has replaced such a pod already. A node that only does not answer may
// still run the pod. Then two pods would use one volume, or would serve where only one should. So
// an operator must declare the node down, by the out-of-service taint or by removing the node.
func LostFor(p *corev1.Pod, node *corev1.Node, after time.Duration, now time.Time) bool {
	// The deletion timestamp is the end of the grace period.
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
