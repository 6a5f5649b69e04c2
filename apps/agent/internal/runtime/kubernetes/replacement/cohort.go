package replacement

import (
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// replacementOf returns the state of a workload whose pods should have the template of a. switched
// means that the workload has that template already.
func replacementOf(live *appsv1.Deployment, pods []*corev1.Pod, sets []*appsv1.ReplicaSet, a runtime.Assignment, switched bool) replacement {
	m := replacement{
		replicas: int(*live.Spec.Replicas), most: a.MaxUnavailable(),
		observed: live.Status.ObservedGeneration >= live.Generation, available: int(live.Status.AvailableReplicas),
	}
	m.may, _ = strconv.Atoi(live.Annotations[mayReplace])
	of := map[types.UID][]*corev1.Pod{}
	for _, p := range pods {
		if c := metav1.GetControllerOfNoCopy(p); c != nil {
			of[c.UID] = append(of[c.UID], p)
		}
	}
	template := render.PrintOf(&live.Spec.Template)
	for _, s := range sets {
		c := cohort{
			live: s.Annotations[render.AnnotationTemplatePrint] == template, created: s.CreationTimestamp.Time,
			available: int(s.Status.AvailableReplicas), guarded: s.Spec.MinReadySeconds == neverAvailable,
			failing: isFailing(s), pods: of[s.UID],
		}
		if s.Spec.Replicas != nil {
			c.replicas = int(*s.Spec.Replicas)
		}
		if c.wanted = c.live; !switched {
			c.wanted = s.Annotations[render.AnnotationTemplateHash] == a.TemplateHash
		}
		if c.live || c.replicas > 0 || len(c.pods) > 0 {
			m.cohorts = append(m.cohorts, c)
		}
	}
	return m
}

// wantedSum returns the wanted number of pods of all ReplicaSets together.
func (m *replacement) wantedSum() (n int) {
	for _, c := range m.cohorts {
		n += c.replicas
	}
	return n
}

// isMixed reports whether pods of several templates exist or will exist.
func (m *replacement) isMixed() bool {
	n := 0
	for _, c := range m.cohorts {
		if c.replicas > 0 || len(c.pods) > 0 {
			n++
		}
	}
	return n > 1
}

// isFailing reports whether a ReplicaSet's controller cannot create missing pods, for example because of a
// quota.
func isFailing(s *appsv1.ReplicaSet) bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue
	})
}

// ReplicaSetMoved reports whether a change of a ReplicaSet affects the decision about which pods go.
func ReplicaSetMoved(old, now *appsv1.ReplicaSet) bool {
	return isFailing(old) != isFailing(now) || old.Status.AvailableReplicas != now.Status.AvailableReplicas || old.Spec.MinReadySeconds != now.Spec.MinReadySeconds ||
		old.Spec.Replicas == nil || now.Spec.Replicas == nil || *old.Spec.Replicas != *now.Spec.Replicas
}
