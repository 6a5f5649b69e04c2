package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// set is what an assignment comes to: one object of each kind, or several.
type set struct {
	ref        render.Ref
	deployment string
	objects    *render.Objects
	// live is the workload as it is; nil: there is none.
	live *appsv1.Deployment
	// config is the workload as it should be now, and goal is the workload as it should be when
	// nothing has to wait.
	config, goal *appsac.DeploymentApplyConfiguration
	// hash of config, and whether live has it already.
	hash     string
	complete bool
	// namespace is nil when it is as it should be.
	namespace *step
	steps     []step
	// drain is what comes before pods are taken away.
	drain drain
}

func (s *set) idle() bool {
	return s.namespace == nil && len(s.steps) == 0 && len(s.drain.mark)+len(s.drain.unmark) == 0
}

// drifted reports whether an object must be put right because another client changed it.
func (s *set) drifted() bool {
	return s.namespace != nil || slices.ContainsFunc(s.steps, func(st step) bool { return st.drift })
}

// step puts one object.
type step struct {
	ref    render.Ref
	config any
	// own names the owners that there are now; nil: it has none.
	own  func()
	hash string
	live render.Object
	// drift: somebody changed it, or took it away, behind our back.
	drift bool
	diffs []difference
}

func paused(w render.Ref) *runtime.Rejection {
	return &runtime.Rejection{
		Code: runtime.ReasonPaused, Retryable: true,
		Message: fmt.Sprintf("%s has the annotation %s=true: the agent leaves it as it is until that is removed", w, render.AnnotationPaused),
	}
}

// plan finds out what has to be put, in order. It calls nothing.
func (r *Runtime) plan(w render.Ref, a runtime.Assignment, objects *render.Objects, suspect bool) (*set, error) {
	s := &set{ref: w, deployment: a.Deployment.GetId(), objects: objects}
	if o := r.caches.Get(w); o != nil {
		s.live = o.(*appsv1.Deployment)
	}
	before := r.wantOf(w)
	var err error
	kept := r.kept(s.live)
	if s.goal, err = r.finish(objects, s.live, r.templateOf(objects, kept, a, suspect), a); err != nil {
		return nil, err
	}
	// Without the template as it was sent there is nothing to hold on to.
	s.drain = r.drainOf(s.live, s.goal, a, kept == nil || kept.hash == a.TemplateHash, time.Now())
	if s.config = s.goal; s.drain.hold {
		if s.config, err = r.finish(objects, s.live, kept.template, a); err != nil {
			return nil, err
		}
	}
	s.drain.shape(s.config)
	if s.hash, err = seal(s.config); err != nil {
		return nil, err
	}
	s.complete = s.live != nil && s.live.Annotations[hashAnnotation] == s.hash

	if s.namespace, err = r.planNamespace(objects, s.complete); err != nil {
		return nil, err
	}
	for _, config := range dependents(objects) {
		st := step{config: render.CopyOf(config)}
		st.ref = render.RefOf(render.KindOf(config), st.config)
		at := st.ref
		st.own = func() { r.own(st.ref, st.config, s.live) }
		st.own()
		if st.hash, err = seal(st.config); err != nil {
			return nil, err
		}
		if at.Kind == render.KindSecret {
			// Secrets are not watched: the workload's hash vouches for those that it
			// names. A pod that cannot find one is a reason to put it again.
			if slices.Contains(secretsNamed(s.config.Spec.Template), at.Name) && (suspect || !s.complete && !s.has(st)) {
				s.steps = append(s.steps, st)
			}
			continue
		}
		st.live = r.caches.Get(at)
		check := st.check
		if at.Kind == render.KindClaim {
			check = st.checkClaim
		}
		needed, err := check(s.complete)
		if err != nil {
			return nil, err
		}
		if needed {
			s.steps = append(s.steps, st)
		}
	}
	st := step{ref: w, config: s.config, hash: s.hash}
	if s.live != nil {
		st.live = s.live
	}
	needed, err := st.check(s.complete)
	if err != nil {
		return nil, err
	}
	// With the hash that we last gave it gone, somebody took it.
	if before != nil && before.hash == s.hash && !s.complete {
		st.drift = true
	}
	if needed {
		s.steps = append(s.steps, st)
	}
	return s, nil
}

// has reports whether a Secret that cannot change is there: the workload lists it, and
// was complete once with it.
func (s *set) has(st step) bool {
	c, ok := st.config.(*coreac.SecretApplyConfiguration)
	return ok && c.Immutable != nil && *c.Immutable && s.live != nil && s.live.Annotations[hashAnnotation] != "" &&
		slices.Contains(split(s.live.Annotations[keptSecrets]), st.ref.Name)
}

// check reports whether the step is needed. complete: all was as it should be once.
func (st *step) check(complete bool) (bool, error) {
	if st.live == nil {
		st.drift = complete
		return true, nil
	}
	if st.live.GetDeletionTimestamp() != nil {
		st.drift = complete
		return true, nil
	}
	if st.live.GetAnnotations()[hashAnnotation] != st.hash && !complete {
		return true, nil
	}
	var err error
	if st.diffs, err = differences(st.config, st.live); err != nil {
		return false, err
	}
	st.drift = len(st.diffs) > 0
	return len(st.diffs) > 0, nil
}

// keptPods is a template as a workload has kept it.
type keptPods struct {
	template *coreac.PodTemplateSpecApplyConfiguration
	hash     string
}

// kept is the template that live was sent last; nil: there is none, or none that can be read.
func (r *Runtime) kept(live *appsv1.Deployment) *keptPods {
	if live == nil || live.Annotations[keptTemplate] == "" {
		return nil
	}
	t, err := unpackTemplate(live.Annotations[keptTemplate])
	if err != nil {
		r.cfg.Log.Warn("the pod template is rendered anew, which replaces instances", "workload", live.Name, "namespace", live.Namespace, "error", err)
		return nil
	}
	k := &keptPods{template: t}
	if t.ObjectMetaApplyConfiguration != nil {
		k.hash = t.Annotations[render.AnnotationTemplateHash]
	}
	return k
}

// templateOf is the template that all pods of a should have: the one that was kept, if it is
// of a.
func (r *Runtime) templateOf(objects *render.Objects, kept *keptPods, a runtime.Assignment, suspect bool) *coreac.PodTemplateSpecApplyConfiguration {
	if kept == nil || kept.hash != a.TemplateHash {
		return objects.Workload.Spec.Template
	}
	rendered := map[string]bool{}
	for _, s := range objects.Secrets {
		rendered[*s.GetName()] = true
	}
	if suspect && !vouched(secretsNamed(kept.template), rendered) {
		// A Secret that running pods were made with is gone, and cannot be made again under
		// its name.
		return objects.Workload.Spec.Template
	}
	return kept.template
}

// finish completes the rendered workload with what depends on what is there.
func (r *Runtime) finish(objects *render.Objects, live *appsv1.Deployment, template *coreac.PodTemplateSpecApplyConfiguration, a runtime.Assignment) (*appsac.DeploymentApplyConfiguration, error) {
	c := *objects.Workload
	spec, meta := *c.Spec, *c.ObjectMetaApplyConfiguration
	c.Spec, c.ObjectMetaApplyConfiguration = &spec, &meta
	spec.Template = template
	meta.Annotations = maps.Clone(meta.Annotations)
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	var old []string
	if live != nil {
		old = split(live.Annotations[keptSecrets])
	}
	packed, err := packTemplate(spec.Template)
	if err != nil {
		return nil, err
	}
	if len(packed) > maxTemplate {
		return nil, &runtime.Rejection{
			Code:    runtime.ReasonInvalidSpec,
			Message: fmt.Sprintf("command, args and annotations come to %d KiB packed; Kubernetes regions take %d", len(packed)>>10, maxTemplate>>10),
		}
	}
	meta.Annotations[keptTemplate] = packed

	secrets := secretsNamed(spec.Template)
	current := len(secrets)
	for _, name := range old {
		if !slices.Contains(secrets[:current], name) && !r.prunable(live, name) {
			secrets = append(secrets, name)
		}
	}
	if gpu := a.Deployment.GetSpec().GetResources().GetGpu(); gpu.GetPool() != "" {
		meta.Annotations[poolAnnotation] = gpu.GetPool()
		meta.Annotations[gpusAnnotation] = strconv.Itoa(int(gpu.GetCount()))
	}
	if len(secrets) > 0 {
		meta.Annotations[keptSecrets] = strings.Join(secrets, ",")
	}

	// Somebody else has scaled it, and to another number: the number is theirs.
	if owner := contested(live, spec.Replicas); owner != "" {
		spec.Replicas = nil
	}
	return &c, nil
}

// contested names who has set another number of replicas than ours.
func contested(live *appsv1.Deployment, replicas *int32) string {
	if live == nil || replicas == nil || live.Spec.Replicas == nil || *live.Spec.Replicas == *replicas {
		return ""
	}
	return live.Annotations[render.AnnotationReplicasOwner]
}

func vouched(names []string, rendered map[string]bool) bool {
	for _, n := range names {
		if !rendered[n] {
			return false
		}
	}
	return true
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// seal hashes a config and writes the hash on it.
func seal(config any) (string, error) {
	meta := render.MetaOf(config)
	delete(meta.Annotations, hashAnnotation)
	meta.UID = nil
	data, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("encode %T: %w", config, err)
	}
	sum := sha256.Sum256(data)
	hash := hex.EncodeToString(sum[:10])
	meta.Annotations = maps.Clone(meta.Annotations)
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	meta.Annotations[hashAnnotation] = hash
	return hash, nil
}

// dependents of the workload, in the order of their use.
func dependents(o *render.Objects) []any {
	var out []any
	if o.ServiceAccount != nil {
		out = append(out, o.ServiceAccount)
	}
	for _, s := range o.Secrets {
		out = append(out, s)
	}
	if o.Claim != nil {
		out = append(out, o.Claim)
	}
	for _, p := range o.NetworkPolicies {
		out = append(out, p)
	}
	if o.Service != nil {
		out = append(out, o.Service)
	}
	if o.DisruptionBudget != nil {
		out = append(out, o.DisruptionBudget)
	}
	return out
}

// own names the owner of an object, so that Kubernetes collects it with the last
// one. What belongs to the whole environment goes with its namespace.
func (r *Runtime) own(at render.Ref, config any, w *appsv1.Deployment) {
	if claim, ok := config.(*coreac.PersistentVolumeClaimApplyConfiguration); ok {
		r.share(at, claim, w)
		return
	}
	meta := render.MetaOf(config)
	meta.OwnerReferences = nil
	if w != nil && meta.Labels[render.LabelWorkload] != "" {
		meta.OwnerReferences = append(meta.OwnerReferences, ownerReference(w))
	}
}

func ownerReference(w render.Object) metaac.OwnerReferenceApplyConfiguration {
	return *metaac.OwnerReference().WithAPIVersion("apps/v1").WithKind("Deployment").WithName(w.GetName()).WithUID(w.GetUID())
}
