package kubernetes

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/desired"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func pooled(id string, replicas, gpus int) runtime.Assignment {
	return runtime.Assignment{Deployment: &agentv1.Deployment{
		Id: id, AppName: id, Replicas: int32(replicas),
		Spec: &windlassv1.DeploymentSpec{Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: int32(gpus), Pool: "h100"}}},
	}}
}

func TestPool_StaysWithinItsQuota(t *testing.T) {
	q := newQuota(map[string]render.Pool{"h100": {Name: "h100", Quota: 10}, "free": {Name: "free"}})
	var there []render.Object
	workloads := func() []render.Object { return there }
	at := func(name string) render.Ref { return render.NewRef(render.KindWorkload, "ns", name) }
	take := func(a runtime.Assignment) error {
		_, err := q.claimGPUs(at(a.Deployment.Id), a, workloads)
		return err
	}
	// Workloads in the cluster count, even if they were not claimed since the agent started.
	replicas := int32(2)
	there = append(there, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: "old", Namespace: "ns", Labels: map[string]string{render.LabelName: "old"},
			Annotations: map[string]string{desired.AnnotationPool: "h100", desired.AnnotationGpus: "2"},
		},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas},
	})
	require.NoError(t, take(pooled("a", 1, 4)))
	var rej *runtime.Rejection
	require.ErrorAs(t, take(pooled("b", 3, 1)), &rej)
	require.Equal(t, runtime.ReasonQuotaExceeded, rej.Code)
	require.True(t, rej.Retryable)
	require.Equal(t, "needs 3 GPUs of pool h100, whose quota is 10: a uses 4, old uses 4, 2 free", rej.Message)
	require.NoError(t, take(pooled("b", 2, 1)))
	require.ErrorAs(t, take(pooled("b", 3, 1)), &rej, "growing")
	require.NoError(t, take(pooled("b", 1, 1)), "shrinking")
	require.NoError(t, take(pooled("old", 3, 1)), "another size within the GPUs that it has")

	require.Equal(t, map[string]int64{"h100": 2}, q.leftOf(there))
	q.pools["h100"] = render.Pool{Name: "h100", Quota: 2}
	require.Equal(t, map[string]int64{"h100": -6}, q.leftOf(there))
	require.NoError(t, take(pooled("a", 1, 4)), "an app keeps its GPUs when the quota is lowered")
	require.ErrorAs(t, take(pooled("a", 2, 4)), &rej)
	q.release(at("a"))
	undo, err := q.claimGPUs(at("b"), pooled("b", 0, 1), workloads)
	require.NoError(t, err)
	undo()
	require.Equal(t, 1, q.claimed[at("b")].gpus)
}
