package kubernetes_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

func TestSettle_CountsAreTrustedOnceNoEarlierPodMayCome(t *testing.T) {
	p := place(t, 0)
	of := func() (out runtime.ObservedDeployment) {
		o, err := p.rt.Observe(t.Context())
		require.NoError(t, err)
		at := slices.IndexFunc(o.Deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == p.a.Deployment.Id })
		if at >= 0 {
			out = o.Deployments[at]
		}
		return out
	}
	for range 5 {
		p.scale(t, 2)
		p.scale(t, 0)
		until(t, "nothing, for certain", func() bool {
			d := of()
			return d.Generation == p.a.Generation && !d.Unsettled && len(d.Instances) == 0
		})
		// No event shows that no more pods come, so the test watches for a while. If the runtime
		// reported too early, a pod would come in this time.
		for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			list, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Zero(t, len(list.Items), "pods of the earlier number of replicas") //nolint:testifylint // a failed Empty would print all pods
		}
	}
	p.scale(t, 2)
	until(t, "both, for certain", func() bool { d := of(); return !d.Unsettled && len(d.Instances) == 2 })
}
