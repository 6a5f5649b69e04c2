package desired

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// All apps of an environment share its namespace, and all versions of an app share its claim. After
// a rename or a resize, two assignments may describe the same object differently until both have
// the change. So each assignment ensures only the fields that it needs, and does not undo the other
// assignment's changes.

// planNamespace returns the write for the namespace, or nil if the namespace is as it should be. A
// namespace that existed before does not get the annotation that the agent created it.
func (s *Plan) planNamespace() (*Write, error) {
	st := Write{Config: render.CopyOf(s.Objects.Namespace)}
	st.Ref = render.RefOf(render.KindNamespace, st.Config)
	st.Live = s.Seen.Get(st.Ref)
	meta := render.MetaOf(st.Config)
	if st.Live == nil {
		st.Drift = s.Complete
	} else {
		for _, l := range []string{render.LabelWorkspace, render.LabelProject, render.LabelEnvironment} {
			if found := st.Live.GetLabels()[l]; found != meta.Labels[l] {
				st.Diffs = append(st.Diffs, difference{"metadata.labels[" + l + "]", showValue(meta.Labels[l]), showValue(found)})
			}
		}
		if len(st.Diffs) == 0 && st.Live.GetDeletionTimestamp() == nil {
			return nil, nil //nolint:nilnil // nothing needs to be done
		}
		st.Drift = s.Complete
		meta.Annotations = maps.Clone(meta.Annotations)
		if by, ok := st.Live.GetAnnotations()[render.AnnotationCreatedBy]; ok {
			meta.Annotations[render.AnnotationCreatedBy] = by
		} else {
			delete(meta.Annotations, render.AnnotationCreatedBy)
		}
	}
	var err error
	st.hash, err = sealConfig(st.Config)
	return &st, err
}

// Joint returns the write that puts an object which several workloads own together, or nil if the
// object is as it should be. live is the object as it is, or nil if there is none. The object keeps
// its owners while one of them is among the workloads. So it is not written again for each workload
// that comes or goes.
func Joint(config any, workloads []render.Object, live render.Object) (*Write, error) {
	st := Write{Ref: render.RefOf(render.KindOf(config), config), Config: config, Live: live}
	meta := render.MetaOf(config)
	var err error
	if st.hash, err = sealConfig(config); err != nil {
		return nil, err
	}
	if live != nil {
		for _, w := range workloads {
			if slices.ContainsFunc(live.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == w.GetUID() }) {
				meta.OwnerReferences = append(meta.OwnerReferences, ownerReference(w))
			}
		}
	}
	if len(meta.OwnerReferences) == 0 {
		for _, w := range workloads {
			meta.OwnerReferences = append(meta.OwnerReferences, ownerReference(w))
		}
	}
	needed, err := st.isNeeded(live != nil && live.GetAnnotations()[hashAnnotation] == st.hash)
	if err != nil || !needed {
		return nil, err
	}
	return &st, nil
}

// share completes the config of an app's claim. All workloads of the app own the claim, unless its
// retention is to keep it. The claim's size never shrinks.
func (s *Plan) share(at render.Ref, c *coreac.PersistentVolumeClaimApplyConfiguration) {
	meta := c.ObjectMetaApplyConfiguration
	meta.OwnerReferences = nil
	if s.Live != nil && meta.Annotations[render.AnnotationRetention] != render.RetainKeep {
		owners := map[string]metaac.OwnerReferenceApplyConfiguration{s.Live.Name: ownerReference(s.Live)}
		for _, o := range s.Seen.WorkloadsOf(at.Namespace, meta.Labels[render.LabelApp]) {
			if o.GetDeletionTimestamp() == nil {
				owners[o.GetName()] = ownerReference(o)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(owners)) {
			meta.OwnerReferences = append(meta.OwnerReferences, owners[name])
		}
	}
	live, ok := s.Seen.Get(at).(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec == nil {
		return
	}
	// Fields that Kubernetes does not allow to change stay as they are.
	spec := *c.Spec
	spec.AccessModes = live.Spec.AccessModes
	if spec.StorageClassName != nil {
		spec.StorageClassName = live.Spec.StorageClassName
	}
	if has := live.Spec.Resources.Requests[corev1.ResourceStorage]; has.Cmp(sizeOf(c)) > 0 {
		spec.Resources = coreac.VolumeResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceStorage: has})
	}
	c.Spec = &spec
}

func sizeOf(c *coreac.PersistentVolumeClaimApplyConfiguration) quantity.Quantity {
	if c.Spec == nil || c.Spec.Resources == nil || c.Spec.Resources.Requests == nil {
		return quantity.Quantity{}
	}
	return (*c.Spec.Resources.Requests)[corev1.ResourceStorage]
}

// checkClaim reports whether the claim must be put, because it is missing or too small, or lacks an
// owner, a label or its retention.
func (st *Write) checkClaim(complete bool) (bool, error) {
	live, ok := st.Live.(*corev1.PersistentVolumeClaim)
	if !ok || live.DeletionTimestamp != nil {
		st.Drift = complete
		return true, nil
	}
	want := render.MetaOf(st.Config)
	for l, v := range want.Labels {
		if l != render.LabelPartOf && l != render.LabelName && live.Labels[l] != v {
			st.Diffs = append(st.Diffs, difference{"metadata.labels[" + l + "]", showValue(v), showValue(live.Labels[l])})
		}
	}
	for _, o := range want.OwnerReferences {
		if !slices.ContainsFunc(live.OwnerReferences, func(has metav1.OwnerReference) bool { return has.UID == *o.UID }) {
			st.Diffs = append(st.Diffs, difference{"metadata.ownerReferences[" + *o.Name + "]", "an owner", "none"})
		}
	}
	if !complete && live.Annotations[render.AnnotationRetention] != want.Annotations[render.AnnotationRetention] {
		return true, nil
	}
	has := live.Spec.Resources.Requests[corev1.ResourceStorage]
	st.Drift = complete && len(st.Diffs) > 0
	return len(st.Diffs) > 0 || has.Cmp(sizeOf(st.Config.(*coreac.PersistentVolumeClaimApplyConfiguration))) < 0, nil
}
