package replacement

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPod_IsForcedAwayOnlyFromADeadNode(t *testing.T) {
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
		{"down for long, and said so", pod(time.Minute), node(corev1.ConditionUnknown, time.Hour, outOfService), true},
		{"not said so", pod(time.Hour), node(corev1.ConditionUnknown, time.Hour, corev1.TaintNodeUnreachable), false},
		{"not for long", pod(time.Minute), node(corev1.ConditionUnknown, time.Minute, outOfService), false},
		{"back again", pod(time.Hour), node(corev1.ConditionTrue, time.Hour, outOfService), false},
		{"within its grace", pod(-time.Second), node(corev1.ConditionUnknown, time.Hour, outOfService), false},
		{"not to end", alive, node(corev1.ConditionUnknown, time.Hour, outOfService), false},
		{"its node removed for long", pod(time.Hour), nil, true},
		{"its node removed just now", pod(time.Minute), nil, false},
	} {
		require.Equal(t, c.want, LostFor(c.pod, c.node, after, now), c.name)
	}
}
