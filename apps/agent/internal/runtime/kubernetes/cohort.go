package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// templatePrint tells templates apart as Kubernetes does, in caches: by all that they say.
// The agent's own hash stays the same when somebody else edits a template.
const templatePrint = "cache.windlass.run/template"

// printOf a template, without what Kubernetes adds to a ReplicaSet's.
func printOf(t *corev1.PodTemplateSpec) string {
	bare := *t
	bare.Labels = nil
	for k, v := range t.Labels {
		if k != appsv1.DefaultDeploymentUniqueLabelKey {
			metav1.SetMetaDataLabel(&bare.ObjectMeta, k, v)
		}
	}
	data, err := json.Marshal(bare)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// slimReplicaSet keeps whose it is, of which template, and its counts.
func slimReplicaSet(obj any) (any, error) {
	s, ok := obj.(*appsv1.ReplicaSet)
	if !ok || s.Annotations[templatePrint] != "" {
		return obj, nil // informers may do it twice
	}
	s.ManagedFields = nil
	s.Annotations = map[string]string{templatePrint: printOf(&s.Spec.Template)}
	// Its own annotations are copies of the workload's, which is ahead of it.
	if hash := s.Spec.Template.Annotations[render.AnnotationTemplateHash]; hash != "" {
		s.Annotations[render.AnnotationTemplateHash] = hash
	}
	s.Spec = appsv1.ReplicaSetSpec{Replicas: s.Spec.Replicas, MinReadySeconds: s.Spec.MinReadySeconds}
	s.Status = appsv1.ReplicaSetStatus{
		ObservedGeneration: s.Status.ObservedGeneration, Replicas: s.Status.Replicas, AvailableReplicas: s.Status.AvailableReplicas,
		Conditions: s.Status.Conditions,
	}
	return s, nil
}

// replacementOf is what the caches hold of a workload whose pods should be of a's template.
// switched: the workload has that template already.
func (r *Runtime) replacementOf(live *appsv1.Deployment, pods []*corev1.Pod, a runtime.Assignment, switched bool) replacement {
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
	template := printOf(&live.Spec.Template)
	for _, s := range r.caches.replicaSetsOf(live) {
		c := cohort{
			live: s.Annotations[templatePrint] == template, created: s.CreationTimestamp.Time,
			available: int(s.Status.AvailableReplicas), guarded: s.Spec.MinReadySeconds == neverAvailable,
			failing: failing(s), pods: of[s.UID],
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

// sum is how many pods the controllers should make, of all templates.
func (m *replacement) sum() (n int) {
	for _, c := range m.cohorts {
		n += c.replicas
	}
	return n
}

// mixed reports whether there are, or will be, pods of several templates.
func (m *replacement) mixed() bool {
	n := 0
	for _, c := range m.cohorts {
		if c.replicas > 0 || len(c.pods) > 0 {
			n++
		}
	}
	return n > 1
}

// failing reports whether a ReplicaSet's controller cannot make the pods that are missing, as
// where a quota forbids it.
func failing(s *appsv1.ReplicaSet) bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue
	})
}

// replicaSetMoved reports whether a ReplicaSet counts otherwise than before.
func replicaSetMoved(old, now *appsv1.ReplicaSet) bool {
	return failing(old) != failing(now) || old.Status.AvailableReplicas != now.Status.AvailableReplicas || old.Spec.MinReadySeconds != now.Spec.MinReadySeconds ||
		old.Spec.Replicas == nil || now.Spec.Replicas == nil || *old.Spec.Replicas != *now.Spec.Replicas
}
