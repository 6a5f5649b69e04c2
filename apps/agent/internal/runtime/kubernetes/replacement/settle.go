package replacement

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Kubernetes' controllers act on what they saw last. Told of two replicas and then of none,
// they may make two pods after that, and only then see that the pods are not wanted. A caller that
// took the workload to have no pods, because none were there, would count on room that those two
// pods then take.

// IsUnsettled reports whether pods may come to be that are not asked for: wanted replicas of the workload are. pods
// counts its pods, some of which may be over or about to go. It is called only where the result depends on
// them.
func IsUnsettled(w *appsv1.Deployment, sets []*appsv1.ReplicaSet, wanted int, pods func() int) bool {
	if w.Status.ObservedGeneration < w.Generation {
		return true
	}
	if len(sets) == 0 {
		return !w.Spec.Paused && !refusesSets(w) // its first one is on its way to us
	}
	most := 0
	for _, s := range sets {
		if s.Status.ObservedGeneration < s.Generation {
			return true
		}
		most += int(max(ptr.Deref(s.Spec.Replicas, 1), s.Status.Replicas))
	}
	return most > wanted && most > pods()
}

// refusesSets reports whether the API server lets no ReplicaSet of the workload be made.
func refusesSets(w *appsv1.Deployment) bool {
	return slices.ContainsFunc(w.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
			c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse
	})
}

// ReplicaSetSettles reports whether a ReplicaSet bounds its pods otherwise than before.
func ReplicaSetSettles(old, now *appsv1.ReplicaSet) bool {
	return old.Generation != now.Generation || old.Status.ObservedGeneration != now.Status.ObservedGeneration || old.Status.Replicas != now.Status.Replicas
}
