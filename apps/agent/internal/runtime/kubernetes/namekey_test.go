package kubernetes_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestNameKey(t *testing.T) {
	p := place(t, 1, func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"PIN": "1234"} })
	pods := func() (out []string) {
		list, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, pod := range list.Items {
			out = append(out, pod.Name)
		}
		slices.Sort(out)
		return out
	}
	ready := func() bool {
		w := p.workload(t)
		return w.Status.ObservedGeneration == w.Generation && w.Status.ReadyReplicas == 1 && w.Status.UpdatedReplicas == 1
	}
	until(t, "the instance", ready)
	before, hash := pods(), p.workload(t).Annotations[render.AnnotationSecretHash]

	p.cfg.NameKey = []byte("key of this cluster")
	p.rt = p.open(t)
	p.change(t)
	until(t, "the next generation", func() bool { return p.workload(t).Annotations[render.AnnotationSecretHash] != hash })
	until(t, "the instance", ready)
	require.Equal(t, before, pods(), "a new key replaces no instance")
}
