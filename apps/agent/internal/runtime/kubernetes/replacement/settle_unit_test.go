package replacement

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSettle_WaitsForControllers(t *testing.T) {
	set := func(replicas, active int32, seen int64) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Generation: 2},
			Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas},
			Status:     appsv1.ReplicaSetStatus{ObservedGeneration: seen, Replicas: active},
		}
	}
	sets := func(s ...*appsv1.ReplicaSet) []*appsv1.ReplicaSet { return s }
	seen := func() *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Status: appsv1.DeploymentStatus{ObservedGeneration: 3}}
	}
	unseen, paused, refused := seen(), seen(), seen()
	unseen.Status.ObservedGeneration = 2
	paused.Spec.Paused = true
	refused.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue}}
	for name, c := range map[string]struct {
		w            *appsv1.Deployment
		sets         []*appsv1.ReplicaSet
		wanted, pods int
		unsettled    bool
	}{
		"the controller has not seen the workload":  {unseen, sets(set(0, 0, 2)), 0, 0, true},
		"the controller has not seen a set":         {seen(), sets(set(0, 0, 1)), 0, 0, true},
		"the set is not known yet":                  {seen(), nil, 0, 0, true},
		"the workload is paused, and makes no set":  {paused, nil, 0, 0, false},
		"the server refuses the set":                {refused, nil, 2, 0, false},
		"no pod is wanted, and no pod comes":        {seen(), sets(set(0, 0, 2)), 0, 0, false},
		"a set still has two replicas":              {seen(), sets(set(2, 0, 2)), 0, 0, true},
		"a set counts two pods that are not cached": {seen(), sets(set(0, 2, 2)), 0, 0, true},
		"both allowed pods exist":                   {seen(), sets(set(2, 2, 2)), 0, 2, false},
		"two wanted pods will come":                 {seen(), sets(set(2, 0, 2)), 2, 0, false},
		"two templates share the wanted pods":       {seen(), sets(set(1, 1, 2), set(1, 0, 2)), 2, 1, false},
		"two templates may have too many pods":      {seen(), sets(set(2, 2, 2), set(1, 0, 2)), 2, 2, true},
		"more pods exist than are wanted":           {seen(), sets(set(4, 4, 2)), 2, 4, false},
		"a draining pod may be replaced, unseen":    {seen(), sets(set(4, 3, 2)), 2, 3, true},
	} {
		require.Equal(t, c.unsettled, IsUnsettled(c.w, c.sets, c.wanted, func() int { return c.pods }), name)
	}
}
