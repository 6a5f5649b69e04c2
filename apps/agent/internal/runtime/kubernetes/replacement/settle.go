package replacement

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Kubernetes' controllers act on the state that they saw last. If replicas change to two and then
// to zero, they may still create two pods, and only then see that these are not wanted. A caller
// that saw no pods would wrongly take the room as free.

// IsUnsettled reports whether Kubernetes may create more pods of the workload than the wanted
// number. pods counts its pods, including ended and terminating pods. It is called only if the
// result depends on it.
func IsUnsettled(w *appsv1.Deployment, sets []*appsv1.ReplicaSet, wanted int, pods func() int) bool {
	if w.Status.ObservedGeneration < w.Generation {
		return true
	}
	if len(sets) == 0 {
		return !w.Spec.Paused && !refusesSets(w) // the workload's first ReplicaSet is not in the cache yet
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

// refusesSets reports whether the API server refuses to create a ReplicaSet of the workload.
func refusesSets(w *appsv1.Deployment) bool {
	return slices.ContainsFunc(w.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
			c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse
	})
}

// ReplicaSetSettles reports whether the number of pods that a ReplicaSet may have has changed.
func ReplicaSetSettles(old, now *appsv1.ReplicaSet) bool {
	return old.Generation != now.Generation || old.Status.ObservedGeneration != now.Status.ObservedGeneration || old.Status.Replicas != now.Status.Replicas
}
