package access

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestCaches_PodIsAsAnnotatedUntilTheWatchHasIt(t *testing.T) {
	pod := func(version, draining string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-1", ResourceVersion: version, Annotations: map[string]string{"draining": draining}}}
	}
	c := &Caches{annotated: map[types.UID]annotatedPod{}}
	draining := func(seen *corev1.Pod) string { return c.newestPods([]*corev1.Pod{seen})[0].Annotations["draining"] }

	require.Equal(t, "no", draining(pod("7", "no")))
	c.annotatedAs(pod("9", "yes"))
	require.Equal(t, "yes", draining(pod("7", "no")), "the watch is behind")
	require.Equal(t, "yes", draining(pod("8", "no")))
	require.Equal(t, "no", draining(pod("10", "no")), "another client has changed the pod since")
	require.Equal(t, "no", draining(pod("9", "no")), "the write is forgotten")
}
