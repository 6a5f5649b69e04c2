package replacement

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPod_IsForceDeletedOnlyFromADeadNode(t *testing.T) {
	now := time.Unix(10000, 0)
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	pod := func(due time.Duration) *corev1.Pod {
		deleted := ago(due)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted}, Spec: corev1.PodSpec{NodeName: "n"}}
	}
	node := func(status corev1.ConditionStatus, since time.Duration, taints ...string) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: ago(since)}}}}
		for _, k := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k})
		}
		return n
	}
	const after = 10 * time.Minute
	alive := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		node *corev1.Node
		want bool
	}{
		{"down for a long time, and declared down", pod(time.Minute), node(corev1.ConditionUnknown, time.Hour, outOfService), true},
		{"not declared down", pod(time.Hour), node(corev1.ConditionUnknown, time.Hour, corev1.TaintNodeUnreachable), false},
		{"not down for long enough", pod(time.Minute), node(corev1.ConditionUnknown, time.Minute, outOfService), false},
		{"back again", pod(time.Hour), node(corev1.ConditionTrue, time.Hour, outOfService), false},
		{"within the grace period", pod(-time.Second), node(corev1.ConditionUnknown, time.Hour, outOfService), false},
		{"not being deleted", alive, node(corev1.ConditionUnknown, time.Hour, outOfService), false},
		{"node removed a long time ago", pod(time.Hour), nil, true},
		{"node removed just now", pod(time.Minute), nil, false},
	} {
		require.Equal(t, c.want, LostFor(c.pod, c.node, after, now), c.name)
	}
}
