package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Annotations that this package reads and writes; render has the others.
const (
	// hashAnnotation is of all that was sent of an object.
	hashAnnotation = render.Domain + "hash"
	// keptTemplate is the pod template as it was sent, packed.
	keptTemplate = render.Domain + "pod-template"
	// keptSecrets lists the workload's Secrets, newest first, until they are pruned.
	keptSecrets = render.Domain + "secrets"
)

// What a workload takes of a pool, for each replica.
const (
	AnnotationPool = render.Domain + "pool"
	AnnotationGpus = render.Domain + "gpus"
)

// Seen is what a plan knows of the cluster: the caches.
type Seen interface {
	// Get returns the newest that is known of an object of ours, nil if there is none. It is read only.
	Get(at render.Ref) render.Object
	// WorkloadsOf returns the workloads of an app.
	WorkloadsOf(namespace, app string) []render.Object
}

// Input is what a plan depends on.
type Input struct {
	// Ref is the workload.
	Ref        render.Ref
	Assignment runtime.Assignment
	// Objects are what the assignment is rendered as.
	Objects *render.Objects
	Seen    Seen
	// Before is the hash that the workload had when all of it was as wanted last; empty: it never was.
	Before string
	// Suspect: a pod lacks a Secret.
	Suspect bool
	// Pruned reports whether a Secret of the workload was removed, and may still be listed.
	Pruned func(secret string) bool
}

// Plan is what an assignment comes to: one object of each kind, or several.
type Plan struct {
	Input

	// Unreadable says why the template that live has kept cannot be read, and is rendered anew; nil: it can.
	Unreadable error
	// Live is the workload as it is; nil: there is none.
	Live *appsv1.Deployment
	// config is the workload as it should be now, and Goal is the workload as it should be when
	// nothing has to wait.
	config, Goal *appsac.DeploymentApplyConfiguration
	// Hash of config, and whether live has it already.
	Hash     string
	Complete bool
	// Namespace is nil when it is as it should be.
	Namespace *Step
	Steps     []Step
	kept      *keptPods
}

// Idle reports whether all objects are as they should be.
func (s *Plan) Idle() bool { return s.Namespace == nil && len(s.Steps) == 0 }

// Drifted reports whether an object must be put right because another client changed it.
func (s *Plan) Drifted() bool {
	return s.Namespace != nil || slices.ContainsFunc(s.Steps, func(st Step) bool { return st.Drift })
}

// Step puts one object.
type Step struct {
	Ref    render.Ref
	Config any
	// own names the owners that there are now; nil: it has none.
	own  func()
	hash string
	Live render.Object
	// Drift: somebody changed it, or took it away, behind our back.
	Drift bool
	Diffs []difference
}

// New finds out what the workload should be when nothing has to wait.
func New(in Input) (*Plan, error) {
	s := &Plan{Input: in}
	if o := in.Seen.Get(in.Ref); o != nil {
		s.Live = o.(*appsv1.Deployment)
	}
	s.kept, s.Unreadable = keptOf(s.Live)
	var err error
	s.Goal, err = s.finish(s.template())
	return s, err
}

// Switched reports whether the workload has the wanted template already. Without the template as it was sent
// there is nothing to hold on to.
func (s *Plan) Switched() bool {
	return s.kept == nil || s.kept.hash == s.Assignment.TemplateHash
}

// Decide finds out what has to be put, in order. With hold the workload keeps its template for now. shape
// changes the workload while its pods are replaced.
func (s *Plan) Decide(hold bool, shape func(*appsac.DeploymentApplyConfiguration)) (err error) {
	if s.config = s.Goal; hold {
		if s.config, err = s.finish(s.kept.template); err != nil {
			return err
		}
	}
	shape(s.config)
	if s.Hash, err = seal(s.config); err != nil {
		return err
	}
	s.Complete = s.Live != nil && s.Live.Annotations[hashAnnotation] == s.Hash

	if s.Namespace, err = s.planNamespace(); err != nil {
		return err
	}
	for _, config := range dependents(s.Objects) {
		st := Step{Config: render.CopyOf(config)}
		st.Ref = render.RefOf(render.KindOf(config), st.Config)
		at := st.Ref
		st.own = func() { s.own(st.Ref, st.Config) }
		st.own()
		if st.hash, err = seal(st.Config); err != nil {
			return err
		}
		if at.Kind == render.KindSecret {
			// Secrets are not watched: the workload's hash vouches for those that it
			// names. A pod that cannot find one is a reason to put it again.
			if slices.Contains(secretsNamed(s.config.Spec.Template), at.Name) && (s.Suspect || !s.Complete && !s.has(st)) {
				s.Steps = append(s.Steps, st)
			}
			continue
		}
		st.Live = s.Seen.Get(at)
		check := st.check
		if at.Kind == render.KindClaim {
			check = st.checkClaim
		}
		needed, err := check(s.Complete)
		if err != nil {
			return err
		}
		if needed {
			s.Steps = append(s.Steps, st)
		}
	}
	st := Step{Ref: s.Ref, Config: s.config, hash: s.Hash}
	if s.Live != nil {
		st.Live = s.Live
	}
	needed, err := st.check(s.Complete)
	if err != nil {
		return err
	}
	// With the hash that we last gave it gone, somebody took it.
	if s.Before != "" && s.Before == s.Hash && !s.Complete {
		st.Drift = true
	}
	if needed {
		s.Steps = append(s.Steps, st)
	}
	return nil
}

// Shared reports whether objects of several workloads are this one, whose owners have to be named anew
// right before it is put.
func (st *Step) Shared() bool { return st.Ref.Kind == render.KindClaim && st.own != nil }

// Reown names the owners that there are by now.
func (st *Step) Reown() error {
	st.own()
	_, err := seal(st.Config)
	return err
}

// has reports whether a Secret that cannot change is there: the workload lists it, and
// was complete once with it.
func (s *Plan) has(st Step) bool {
	c, ok := st.Config.(*coreac.SecretApplyConfiguration)
	return ok && c.Immutable != nil && *c.Immutable && s.Live != nil && s.Live.Annotations[hashAnnotation] != "" &&
		slices.Contains(split(s.Live.Annotations[keptSecrets]), st.Ref.Name)
}

// check reports whether the step is needed. complete: all was as it should be once.
func (st *Step) check(complete bool) (bool, error) {
	if st.Live == nil {
		st.Drift = complete
		return true, nil
	}
	if st.Live.GetDeletionTimestamp() != nil {
		st.Drift = complete
		return true, nil
	}
	if st.Live.GetAnnotations()[hashAnnotation] != st.hash && !complete {
		return true, nil
	}
	var err error
	if st.Diffs, err = differences(st.Config, st.Live); err != nil {
		return false, err
	}
	st.Drift = len(st.Diffs) > 0
	return len(st.Diffs) > 0, nil
}

// keptPods is a template as a workload has kept it.
type keptPods struct {
	template *coreac.PodTemplateSpecApplyConfiguration
	hash     string
}

// keptOf is the template that live was sent last; nil: there is none, or none that can be read, and the error says why.
func keptOf(live *appsv1.Deployment) (*keptPods, error) {
	if live == nil || live.Annotations[keptTemplate] == "" {
		return nil, nil //nolint:nilnil // it has kept none
	}
	t, err := unpackTemplate(live.Annotations[keptTemplate])
	if err != nil {
		return nil, err
	}
	k := &keptPods{template: t}
	if t.ObjectMetaApplyConfiguration != nil {
		k.hash = t.Annotations[render.AnnotationTemplateHash]
	}
	return k, nil
}

// template is the one that all pods of the assignment should have: the one that was kept, if it is of the
// assignment.
func (s *Plan) template() *coreac.PodTemplateSpecApplyConfiguration {
	if s.kept == nil || s.kept.hash != s.Assignment.TemplateHash {
		return s.Objects.Workload.Spec.Template
	}
	rendered := map[string]bool{}
	for _, o := range s.Objects.Secrets {
		rendered[*o.GetName()] = true
	}
	if s.Suspect && !vouched(secretsNamed(s.kept.template), rendered) {
		// A Secret that running pods were made with is gone, and cannot be made again under
		// its name.
		return s.Objects.Workload.Spec.Template
	}
	return s.kept.template
}

// finish completes the rendered workload with what depends on what is there.
func (s *Plan) finish(template *coreac.PodTemplateSpecApplyConfiguration) (*appsac.DeploymentApplyConfiguration, error) {
	c := *s.Objects.Workload
	spec, meta := *c.Spec, *c.ObjectMetaApplyConfiguration
	c.Spec, c.ObjectMetaApplyConfiguration = &spec, &meta
	spec.Template = template
	meta.Annotations = maps.Clone(meta.Annotations)
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	var old []string
	if s.Live != nil {
		old = split(s.Live.Annotations[keptSecrets])
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
		if !slices.Contains(secrets[:current], name) && !s.Pruned(name) {
			secrets = append(secrets, name)
		}
	}
	if gpu := s.Assignment.Deployment.GetSpec().GetResources().GetGpu(); gpu.GetPool() != "" {
		meta.Annotations[AnnotationPool] = gpu.GetPool()
		meta.Annotations[AnnotationGpus] = strconv.Itoa(int(gpu.GetCount()))
	}
	if len(secrets) > 0 {
		meta.Annotations[keptSecrets] = strings.Join(secrets, ",")
	}

	// Somebody else has scaled it, and to another number: the number is theirs.
	if owner := contested(s.Live, spec.Replicas); owner != "" {
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

// Contest says which number of replicas another client has set and keeps, empty for none.
func (s *Plan) Contest() string {
	want := s.Objects.Workload.Spec.Replicas
	owner := contested(s.Live, want)
	if owner == "" {
		return ""
	}
	return fmt.Sprintf("replicas: Windlass wants %d, %s has set %d and keeps it", *want, owner, *s.Live.Spec.Replicas)
}

// Seed is the workload without replicas, so that there is an owner.
func (s *Plan) Seed() Step {
	c := *s.config
	spec, meta := *c.Spec, *c.ObjectMetaApplyConfiguration
	c.Spec, c.ObjectMetaApplyConfiguration = &spec, &meta
	none := int32(0)
	spec.Replicas = &none
	meta.Annotations = maps.Clone(meta.Annotations)
	delete(meta.Annotations, hashAnnotation)
	return Step{Ref: s.Ref, Config: &c}
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
func (s *Plan) own(at render.Ref, config any) {
	if claim, ok := config.(*coreac.PersistentVolumeClaimApplyConfiguration); ok {
		s.share(at, claim)
		return
	}
	meta := render.MetaOf(config)
	meta.OwnerReferences = nil
	if s.Live != nil && meta.Labels[render.LabelWorkload] != "" {
		meta.OwnerReferences = append(meta.OwnerReferences, ownerReference(s.Live))
	}
}

func ownerReference(w render.Object) metaac.OwnerReferenceApplyConfiguration {
	return *metaac.OwnerReference().WithAPIVersion("apps/v1").WithKind("Deployment").WithName(w.GetName()).WithUID(w.GetUID())
}

// StaleSecrets are those that the present template does not name.
func StaleSecrets(d *appsv1.Deployment) []string {
	current := render.SecretsOf(&d.Spec.Template.Spec)
	return slices.DeleteFunc(split(d.Annotations[keptSecrets]), func(n string) bool { return slices.Contains(current, n) })
}
