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
		"the workload was not looked at":           {unseen, sets(set(0, 0, 2)), 0, 0, true},
		"a set was not looked at":                  {seen(), sets(set(0, 0, 1)), 0, 0, true},
		"its set is not known yet":                 {seen(), nil, 0, 0, true},
		"it is paused, and makes none":             {paused, nil, 0, 0, false},
		"the server refuses its set":               {refused, nil, 2, 0, false},
		"nothing is wanted, and nothing comes":     {seen(), sets(set(0, 0, 2)), 0, 0, false},
		"a set is still to have two":               {seen(), sets(set(2, 0, 2)), 0, 0, true},
		"a set counts two that we have not seen":   {seen(), sets(set(0, 2, 2)), 0, 0, true},
		"both that there may be are there":         {seen(), sets(set(2, 2, 2)), 0, 2, false},
		"two are to come, as is wanted":            {seen(), sets(set(2, 0, 2)), 2, 0, false},
		"two templates share what is wanted":       {seen(), sets(set(1, 1, 2), set(1, 0, 2)), 2, 1, false},
		"two templates may have more than that":    {seen(), sets(set(2, 2, 2), set(1, 0, 2)), 2, 2, true},
		"more are there while fewer are wanted":    {seen(), sets(set(4, 4, 2)), 2, 4, false},
		"one that drains may be made anew, unseen": {seen(), sets(set(4, 3, 2)), 2, 3, true},
	} {
		require.Equal(t, c.unsettled, IsUnsettled(c.w, c.sets, c.wanted, func() int { return c.pods }), name)
	}
}
