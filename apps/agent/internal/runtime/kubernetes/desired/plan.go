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
	"k8s.io/utils/ptr"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// These annotations belong to this package. All other annotations are in render.
const (
	// hashAnnotation has the hash of the whole object as it was sent.
	hashAnnotation = render.Domain + "hash"
	// keptTemplate has the packed pod template as it was sent.
	keptTemplate = render.Domain + "pod-template"
	// keptSecrets lists the workload's Secrets, newest first, until they are pruned.
	keptSecrets = render.Domain + "secrets"
)

// AnnotationPool names the pool that a workload uses. AnnotationGpus is the number of GPUs that
// each replica takes from the pool.
const (
	AnnotationPool = render.Domain + "pool"
	AnnotationGpus = render.Domain + "gpus"
)

// Seen reads the cluster's objects from the caches.
type Seen interface {
	// Get returns the newest known version of one of our objects, or nil. The caller must not
	// change the object.
	Get(at render.Ref) render.Object
	// WorkloadsOf returns the workloads of an app.
	WorkloadsOf(namespace, app string) []render.Object
}

// Input has everything that a plan depends on.
type Input struct {
	// Ref names the workload.
	Ref        render.Ref
	Assignment runtime.Assignment
	// Objects are the rendered objects of the assignment.
	Objects *render.Objects
	Seen    Seen
	// Before is the workload's hash from the last time that all its objects were as wanted. It is
	// empty if there was no such time.
	Before string
	// Suspect means that a pod lacks a Secret.
	Suspect bool
	// Pruned reports whether a Secret of the workload was removed. The workload may still list it.
	Pruned func(secret string) bool
}

// Plan has the objects of an assignment, and the writes that put them.
type Plan struct {
	Input

	// Unreadable is the reason why Live's kept template cannot be read, so that the template is
	// rendered again. Otherwise, it is nil.
	Unreadable error
	// Live is the workload as it is. It is nil if there is none.
	Live *appsv1.Deployment
	// config is the workload as it should be now. Goal is the workload as it should be in the end.
	config, Goal *appsac.DeploymentApplyConfiguration
	// Hash is the hash of config. Complete means that Live has this hash already.
	Hash     string
	Complete bool
	// Namespace is the write for the namespace. It is nil if the namespace is as it should be.
	Namespace *Write
	Writes    []Write
	kept      *keptPods
}

// Idle reports whether all objects are as they should be.
func (s *Plan) Idle() bool { return s.Namespace == nil && len(s.Writes) == 0 }

// Drifted reports whether an object must be put again because another client changed it.
func (s *Plan) Drifted() bool {
	return s.Namespace != nil || slices.ContainsFunc(s.Writes, func(st Write) bool { return st.Drift })
}

// Write puts one object.
type Write struct {
	Ref    render.Ref
	Config any
	// own sets the present owners in Config. It is nil if the object has no owners.
	own  func()
	hash string
	Live render.Object
	// Drift means that another client changed or removed the object.
	Drift bool
	Diffs []difference
}

// New returns a plan with Goal, the workload as it should be in the end.
func New(in Input) (*Plan, error) {
	s := &Plan{Input: in}
	if o := in.Seen.Get(in.Ref); o != nil {
		s.Live = o.(*appsv1.Deployment)
	}
	s.kept, s.Unreadable = keptOf(s.Live)
	var err error
	s.Goal, err = s.finishWorkload(s.podTemplate())
	return s, err
}

// Switched reports whether the workload has the wanted template already. It returns true if the
// workload has no kept template, because no template can be held then.
func (s *Plan) Switched() bool {
	return s.kept == nil || s.kept.hash == s.Assignment.TemplateHash && !s.Restarts() && !s.Moves()
}

// Restarts reports whether the workload is a rank of an instance of several hosts, and all ranks of
// the instance restart in another epoch.
func (s *Plan) Restarts() bool {
	u := s.Assignment.Unit
	return u != nil && u.Hosts > 1 && s.kept != nil && s.kept.epoch != u.Epoch
}

// Moves reports whether the workload's gang starts again, and its pods get their nodes in another way
// than pods of the kept template. Such a workload has no pods yet.
func (s *Plan) Moves() bool {
	u := s.Assignment.Unit
	return u != nil && !u.Leaves && s.kept != nil && (s.kept.podGroup != u.PodGroup || s.kept.domain != render.DomainText(u.Domain))
}

// Decide sets the writes, in order. With hold, the workload keeps its template for now. shape
// changes the workload while its pods are replaced.
func (s *Plan) Decide(hold bool, shape func(*appsac.DeploymentApplyConfiguration)) (err error) {
	if s.config = s.Goal; hold {
		if s.config, err = s.finishWorkload(s.kept.template); err != nil {
			return err
		}
	}
	shape(s.config)
	if s.Hash, err = sealConfig(s.config); err != nil {
		return err
	}
	s.Complete = s.Live != nil && s.Live.Annotations[hashAnnotation] == s.Hash

	if s.Namespace, err = s.planNamespace(); err != nil {
		return err
	}
	for _, config := range dependentsOf(s.Objects) {
		st := Write{Config: render.CopyOf(config)}
		st.Ref = render.RefOf(render.KindOf(config), st.Config)
		at := st.Ref
		st.own = func() { s.setOwners(st.Ref, st.Config) }
		st.own()
		if st.hash, err = sealConfig(st.Config); err != nil {
			return err
		}
		if at.Kind == render.KindSecret {
			// Secrets are not watched. If the workload has its hash, the Secrets that it names were
			// put. If a pod lacks a Secret, its Secrets are put again.
			if slices.Contains(secretsNamed(s.config.Spec.Template), at.Name) && (s.Suspect || !s.Complete && !s.hasSecret(st)) {
				s.Writes = append(s.Writes, st)
			}
			continue
		}
		st.Live = s.Seen.Get(at)
		check := st.isNeeded
		if at.Kind == render.KindClaim {
			check = st.checkClaim
		}
		needed, err := check(s.Complete)
		if err != nil {
			return err
		}
		if needed {
			s.Writes = append(s.Writes, st)
		}
	}
	st := Write{Ref: s.Ref, Config: s.config, hash: s.Hash}
	if s.Live != nil {
		st.Live = s.Live
	}
	needed, err := st.isNeeded(s.Complete)
	if err != nil {
		return err
	}
	// The agent completed the workload with this hash before, so another client has changed the workload.
	if s.Before != "" && s.Before == s.Hash && !s.Complete {
		st.Drift = true
	}
	if needed {
		s.Writes = append(s.Writes, st)
	}
	return nil
}

// Shared reports whether several workloads share the object. Its owners must then be set again
// right before it is put.
func (st *Write) Shared() bool { return st.Ref.Kind == render.KindClaim && st.own != nil }

// Reown sets the owners that exist now.
func (st *Write) Reown() error {
	st.own()
	_, err := sealConfig(st.Config)
	return err
}

// hasSecret reports whether an immutable Secret was put before: the workload was complete once, and lists
// the Secret.
func (s *Plan) hasSecret(st Write) bool {
	c, ok := st.Config.(*coreac.SecretApplyConfiguration)
	return ok && c.Immutable != nil && *c.Immutable && s.Live != nil && s.Live.Annotations[hashAnnotation] != "" &&
		slices.Contains(splitNames(s.Live.Annotations[keptSecrets]), st.Ref.Name)
}

// isNeeded reports whether the write is needed. complete means that the workload has the plan's hash.
func (st *Write) isNeeded(complete bool) (bool, error) {
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
	if st.Diffs, err = differencesOf(st.Config, st.Live); err != nil {
		return false, err
	}
	st.Drift = len(st.Diffs) > 0
	return len(st.Diffs) > 0, nil
}

// keptPods is the kept pod template of a workload.
type keptPods struct {
	template *coreac.PodTemplateSpecApplyConfiguration
	hash     string
	// epoch is 0 unless the workload is a rank of an instance of several hosts.
	epoch int
	// domain and podGroup say how pods of a gang get their nodes; see runtime.Unit.
	domain, podGroup string
}

// keptOf returns the template that was last sent for live, or nil if live has none.
func keptOf(live *appsv1.Deployment) (*keptPods, error) {
	if live == nil || live.Annotations[keptTemplate] == "" {
		return nil, nil //nolint:nilnil // live has no kept template
	}
	t, err := unpackTemplate(live.Annotations[keptTemplate])
	if err != nil {
		return nil, err
	}
	k := &keptPods{template: t}
	if t.ObjectMetaApplyConfiguration != nil {
		k.hash = t.Annotations[render.AnnotationTemplateHash]
		k.epoch, _ = strconv.Atoi(t.Annotations[render.AnnotationUnitEpoch])
		k.domain = t.Annotations[render.AnnotationDomain]
	}
	if t.Spec != nil && t.Spec.SchedulingGroup != nil {
		k.podGroup = ptr.Deref(t.Spec.SchedulingGroup.PodGroupName, "")
	}
	return k, nil
}

// podTemplate returns the template that all pods of the assignment should have. It is the kept
// template if that has the assignment's hash, unless the ranks restart, a gang starts again in another
// place, or a Secret that the kept template names is missing.
func (s *Plan) podTemplate() *coreac.PodTemplateSpecApplyConfiguration {
	if s.kept == nil || s.kept.hash != s.Assignment.TemplateHash || s.Restarts() || s.Moves() {
		return s.Objects.Workload.Spec.Template
	}
	rendered := map[string]bool{}
	for _, o := range s.Objects.Secrets {
		rendered[*o.GetName()] = true
	}
	if s.Suspect && !isVouched(secretsNamed(s.kept.template), rendered) {
		// A Secret of running pods is gone, and cannot be created again under its name.
		return s.Objects.Workload.Spec.Template
	}
	return s.kept.template
}

// finishWorkload returns the rendered workload with template. It completes the parts that depend on the
// cluster.
func (s *Plan) finishWorkload(template *coreac.PodTemplateSpecApplyConfiguration) (*appsac.DeploymentApplyConfiguration, error) {
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
		old = splitNames(s.Live.Annotations[keptSecrets])
	}
	packed, err := packTemplate(spec.Template)
	if err != nil {
		return nil, err
	}
	if len(packed) > maxTemplate {
		return nil, &runtime.Rejection{
			Code:    runtime.ReasonInvalidSpec,
			Message: fmt.Sprintf("command, args and annotations have %d KiB when compressed: Kubernetes regions allow at most %d KiB", len(packed)>>10, maxTemplate>>10),
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

	// Another client has set another number of replicas, and keeps it.
	if owner := contestedBy(s.Live, spec.Replicas); owner != "" {
		spec.Replicas = nil
	}
	return &c, nil
}

// contestedBy returns the client that has set another number of replicas than ours, or "" if there is
// none.
func contestedBy(live *appsv1.Deployment, replicas *int32) string {
	if live == nil || replicas == nil || live.Spec.Replicas == nil || *live.Spec.Replicas == *replicas {
		return ""
	}
	return live.Annotations[render.AnnotationReplicasOwner]
}

func isVouched(names []string, rendered map[string]bool) bool {
	for _, n := range names {
		if !rendered[n] {
			return false
		}
	}
	return true
}

func splitNames(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// Contest returns a text about the number of replicas that another client has set, or "" if there
// is none.
func (s *Plan) Contest() string {
	want := s.Objects.Workload.Spec.Replicas
	owner := contestedBy(s.Live, want)
	if owner == "" {
		return ""
	}
	return fmt.Sprintf("replicas: Windlass wants %d, %s has set %d and keeps it", *want, owner, *s.Live.Spec.Replicas)
}

// Seed returns the write that puts the workload with 0 replicas. After that, other objects can name
// the workload as their owner.
func (s *Plan) Seed() Write {
	c := *s.config
	spec, meta := *c.Spec, *c.ObjectMetaApplyConfiguration
	c.Spec, c.ObjectMetaApplyConfiguration = &spec, &meta
	none := int32(0)
	spec.Replicas = &none
	meta.Annotations = maps.Clone(meta.Annotations)
	delete(meta.Annotations, hashAnnotation)
	return Write{Ref: s.Ref, Config: &c}
}

// sealConfig computes the hash of a config, writes the hash into its annotations and returns it.
func sealConfig(config any) (string, error) {
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

// dependentsOf returns the other objects of the assignment, in the order in which they are put.
func dependentsOf(o *render.Objects) []any {
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

// setOwners sets the owners of an object, so that Kubernetes deletes the object after its last owner. Objects that
// belong to the whole environment have no owner, and are deleted with its namespace.
func (s *Plan) setOwners(at render.Ref, config any) {
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

// OwnerReferences returns references to the workloads that own an object together.
func OwnerReferences(workloads []render.Object) (out []*metaac.OwnerReferenceApplyConfiguration) {
	for _, w := range workloads {
		one := ownerReference(w)
		out = append(out, &one)
	}
	return out
}

// StaleSecrets returns the listed Secrets that the present template does not name.
func StaleSecrets(d *appsv1.Deployment) []string {
	current := render.SecretsOf(&d.Spec.Template.Spec)
	return slices.DeleteFunc(splitNames(d.Annotations[keptSecrets]), func(n string) bool { return slices.Contains(current, n) })
}
