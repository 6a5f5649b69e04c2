package access

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// bareObject removes the managed fields, because caches store only the fields that the agent reads.
func bareObject(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

func slimWorkload(obj any) (any, error) {
	d, ok := obj.(*appsv1.Deployment)
	if !ok {
		return obj, nil
	}
	if owner := ownerOfReplicas(d.ManagedFields); owner != "" {
		setAnnotation(d, render.AnnotationReplicasOwner, owner)
	}
	d.ManagedFields = nil
	return d, nil
}

// ownerOfReplicas returns the names of the field managers, except ours, that have set
// spec.replicas.
func ownerOfReplicas(fields []metav1.ManagedFieldsEntry) string {
	var owners []string
	for _, f := range fields {
		if f.Manager == FieldManager && f.Operation == metav1.ManagedFieldsOperationApply || f.FieldsV1 == nil {
			continue
		}
		var set struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if err := json.Unmarshal(f.FieldsV1.GetRawBytes(), &set); err != nil {
			continue
		}
		if _, ok := set.Spec["f:replicas"]; ok {
			owners = append(owners, f.Manager)
		}
	}
	slices.Sort(owners)
	return strings.Join(slices.Compact(owners), ", ")
}

func setAnnotation(o metav1.Object, name, value string) {
	a := maps.Clone(o.GetAnnotations())
	if a == nil {
		a = map[string]string{}
	}
	a[name] = value
	o.SetAnnotations(a)
}

func slimPod(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	p.ManagedFields = nil
	if used := render.SecretsOf(&p.Spec); len(used) > 0 {
		setAnnotation(p, render.AnnotationSecretsUsed, strings.Join(used, ","))
	}
	s := &p.Spec
	p.Spec = corev1.PodSpec{
		NodeName: s.NodeName, ReadinessGates: s.ReadinessGates, SchedulingGates: s.SchedulingGates,
		TerminationGracePeriodSeconds: s.TerminationGracePeriodSeconds,
		Tolerations:                   s.Tolerations, NodeSelector: s.NodeSelector,
		PriorityClassName: s.PriorityClassName,
		Containers:        slimContainers(s.Containers), InitContainers: slimContainers(s.InitContainers),
		Resources: s.Resources, Overhead: s.Overhead, Affinity: slimAffinity(s.Affinity),
	}
	return p, nil
}

// slimAffinity keeps only the required node affinity, which says on which nodes a pod may run.
func slimAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution}}
}

func slimContainers(all []corev1.Container) []corev1.Container {
	for i := range all {
		c := &all[i]
		all[i] = corev1.Container{
			Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, Ports: c.Ports, Resources: c.Resources,
			RestartPolicy: c.RestartPolicy,
			StartupProbe:  c.StartupProbe, ReadinessProbe: c.ReadinessProbe, LivenessProbe: c.LivenessProbe,
		}
	}
	return all
}

func slimNode(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	n.ManagedFields, n.Annotations = nil, nil
	n.Status = corev1.NodeStatus{Allocatable: n.Status.Allocatable, Capacity: n.Status.Capacity, Conditions: n.Status.Conditions}
	return n, nil
}

// slimReplicaSet keeps the owner, the hashes of the template, and the counts.
func slimReplicaSet(obj any) (any, error) {
	s, ok := obj.(*appsv1.ReplicaSet)
	if !ok || s.Annotations[render.AnnotationTemplatePrint] != "" {
		return obj, nil // informers may transform an object twice
	}
	s.ManagedFields = nil
	s.Annotations = map[string]string{render.AnnotationTemplatePrint: render.PrintOf(&s.Spec.Template)}
	// The ReplicaSet's own annotations are copies of the workload's, which may belong to a newer template.
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
