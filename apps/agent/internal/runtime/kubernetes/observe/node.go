package observe

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Nodes returns the node with a name, or nil if the cluster has none. A nil Nodes means that nodes
// are not known, so no verdict depends on them.
type Nodes func(name string) *corev1.Node

// unknownNodeAfter is how long a pod must be bound to an unknown node until the node counts as
// gone. Before that, the API server may have reported the pod earlier than the node.
const unknownNodeAfter = 30 * time.Second

// lostReason returns why the node does not answer, or "" if it does.
func lostReason(node *corev1.Node) string {
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		if c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue {
			continue
		}
		if c.Status == corev1.ConditionUnknown {
			return fmt.Sprintf("node %s has not answered since %s", node.Name, clockText(c.LastTransitionTime.Time))
		}
		return fmt.Sprintf("node %s has not been ready since %s%s", node.Name, clockText(c.LastTransitionTime.Time), withColon(c.Message))
	}
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeUnreachable {
			return fmt.Sprintf("node %s does not answer", node.Name)
		}
	}
	return ""
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// closedReason returns why the node takes no instance with these tolerations, or "" if it takes one.
func closedReason(node *corev1.Node, tolerations []corev1.Toleration) string {
	switch {
	case node.DeletionTimestamp != nil:
		return "being removed"
	case !isReady(node):
		return "not ready"
	case node.Spec.Unschedulable:
		return "cordoned"
	}
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !isTolerated(t, tolerations) {
			return "tainted " + t.Key
		}
	}
	return ""
}

func isTolerated(taint *corev1.Taint, by []corev1.Toleration) bool {
	return slices.ContainsFunc(by, func(t corev1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect {
			return false
		}
		if t.Key != "" && t.Key != taint.Key {
			return false
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			return true
		case "", corev1.TolerationOpEqual:
			return t.Key != "" && t.Value == taint.Value
		default:
			return false
		}
	})
}

// clockText formats a time for messages. Messages have no ages, because an age would change with each
// call.
func clockText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func withColon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}
