package replacement

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEndedPods_OldestGoFirstOnceReported(t *testing.T) {
	now := time.Now()
	ended := func(ago time.Duration) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: ago.String(), CreationTimestamp: metav1.NewTime(now.Add(-24 * time.Hour))},
			Status: corev1.PodStatus{
				Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, LastTransitionTime: metav1.NewTime(now.Add(-ago - time.Second))}},
				ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					FinishedAt: metav1.NewTime(now.Add(-ago)),
				}}}},
			},
		}
	}
	for _, c := range []struct {
		name  string
		ended []time.Duration
		want  []string
	}{
		{"the newest three stay", []time.Duration{9 * time.Minute, 2 * time.Minute, 5 * time.Minute, 7 * time.Minute, 3 * time.Minute}, []string{"9m0s", "7m0s"}},
		{"they stay for an hour", []time.Duration{time.Hour, 59 * time.Minute}, []string{"1h0m0s"}},
		{"all stay for a minute", []time.Duration{5 * time.Second, time.Second, 59 * time.Second, 2 * time.Second, 3 * time.Second, time.Minute}, []string{"1m0s"}},
		{"none", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var policy EndedPods
			require.NoError(t, policy.Check())
			var pods []*corev1.Pod
			for _, ago := range c.ended {
				pods = append(pods, ended(ago))
			}
			var got []string
			for _, p := range policy.surplusPods(pods, now) {
				got = append(got, p.Name)
			}
			require.Equal(t, c.want, got)
		})
	}
	bad := EndedPods{Newest: -1}
	require.ErrorContains(t, bad.Check(), "EndedPods")
}
