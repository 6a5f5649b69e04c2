package render

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	zoneLabel = corev1.LabelTopologyZone
	hostLabel = corev1.LabelHostname
)

// podTemplate returns the template of the pods. A change of the template replaces the pods.
func (r *rendering) podTemplate(variables *coreac.SecretApplyConfiguration, pulls []*coreac.SecretApplyConfiguration, secretHash string) (*coreac.PodTemplateSpecApplyConfiguration, error) {
	labels, err := r.podLabels()
	if err != nil {
		return nil, err
	}
	annotations, err := r.podAnnotations(secretHash)
	if err != nil {
		return nil, err
	}
	if err := r.checkModelCache(); err != nil {
		return nil, err
	}
	security, err := r.podSecurity()
	if err != nil {
		return nil, err
	}
	if err := r.checkPolicy(); err != nil {
		return nil, err
	}
	c, err := r.mainContainer(variables)
	if err != nil {
		return nil, err
	}
	k := r.spec.GetKubernetes()
	pod := coreac.PodSpec().
		WithRestartPolicy(corev1.RestartPolicyAlways).
		// If this were 0, the API server would delete a pod that its node still runs, and give the
		// pod's GPUs to another pod.
		WithTerminationGracePeriodSeconds(max(1, r.health.drain+r.health.grace)).
		WithServiceAccountName(r.name).
		WithAutomountServiceAccountToken(false).
		// With service links, each pod would have variables for each Service of its namespace, and
		// $(NAME) could refer to them.
		WithEnableServiceLinks(false).
		WithSecurityContext(security).
		WithContainers(c).
		WithVolumes(r.podVolumes()...)
	if r.health.asked > 0 && r.isChecked() {
		pod.WithContainers(r.healthContainer())
	}
	if r.hasLoader() {
		pod.WithInitContainers(r.loaderContainer())
	}
	if r.hostCount() > 1 {
		pod.WithHostname(RankHost(r.a, r.a.Unit.Rank)).WithSubdomain(RanksName(r.a))
	}
	if r.a.Unit != nil && r.a.Unit.PodGroup != "" {
		pod.WithSchedulingGroup(coreac.PodSchedulingGroup().WithPodGroupName(r.a.Unit.PodGroup))
	}
	if r.hasSlotHost() {
		pod.WithHostname(slotHost(r.role.name, r.a.Unit.Group, r.a.Unit.Slot))
	}
	for _, p := range pulls {
		pod.WithImagePullSecrets(coreac.LocalObjectReference().WithName(*p.Name))
	}
	if k.GetSecurity().GetHostIpc() {
		pod.WithHostIPC(true)
	}
	for _, class := range []struct{ field, name string }{{"priorityClass", k.GetPriorityClass()}, {"runtimeClass", k.GetRuntimeClass()}} {
		if class.name != "" && len(validation.IsDNS1123Subdomain(class.name)) > 0 {
			return nil, invalidError("kubernetes.%s: %q is not a valid name", class.field, class.name)
		}
	}
	if n := k.GetPriorityClass(); n != "" {
		pod.WithPriorityClassName(n)
	}
	if n := k.GetRuntimeClass(); n != "" {
		pod.WithRuntimeClassName(n)
	}
	if err := r.schedulePod(pod); err != nil {
		return nil, err
	}
	return coreac.PodTemplateSpec().WithLabels(labels).WithAnnotations(annotations).WithSpec(pod), nil
}

func (r *rendering) podAnnotations(secretHash string) (map[string]string, error) {
	out := map[string]string{AnnotationSecretHash: secretHash, annotationDefaultContainer: ContainerName}
	set(out, AnnotationTemplateHash, r.a.TemplateHash)
	if r.hostCount() > 1 {
		out[AnnotationUnitEpoch] = strconv.Itoa(r.a.Unit.Epoch)
	}
	if r.a.Unit != nil {
		set(out, AnnotationDomain, DomainText(r.a.Unit.Domain))
	}
	set(out, AnnotationSecurityException, r.spec.GetKubernetes().GetSecurity().GetReason())
	given := r.spec.GetKubernetes().GetPodAnnotations()
	for _, k := range slices.Sorted(maps.Keys(given)) {
		at := entryPath("kubernetes.podAnnotations", k)
		switch {
		case strings.HasPrefix(k, Domain):
			return nil, invalidError("%s: annotations under %s are Windlass's own: use another prefix", at, Domain)
		case k == annotationDefaultContainer:
			return nil, invalidError("%s: it names the app's container: leave it out", at)
		// The prefix of an annotation may have upper-case letters.
		case len(validation.IsQualifiedName(strings.ToLower(k))) > 0:
			return nil, invalidError("%s: it is not a valid annotation name", at)
		}
		out[k] = given[k]
	}
	return out, nil
}

// schedulePod sets the nodes on which the pod may run.
func (r *rendering) schedulePod(pod *coreac.PodSpecApplyConfiguration) error {
	selector, err := r.nodeSelector()
	if err != nil {
		return err
	}
	if len(selector) > 0 {
		pod.WithNodeSelector(selector)
	}
	tolerations, err := r.podTolerations()
	if err != nil {
		return err
	}
	for i := range tolerations {
		pod.WithTolerations(tolerationConfig(&tolerations[i]))
	}
	affinity := coreac.Affinity()
	if nodes := r.nodeAffinity(); nodes != nil {
		affinity.WithNodeAffinity(nodes)
	}
	spread := r.spec.GetKubernetes().GetZoneSpread()
	if r.spec.GetModelCache().GetClaim().GetSingleNode() {
		if spread == windlassv1.KubernetesOptions_ZONE_SPREAD_REQUIRED {
			return invalidError("kubernetes.zoneSpread: the model cache keeps all instances on one node, which is in one zone: leave singleNode or zoneSpread out")
		}
		spread = windlassv1.KubernetesOptions_ZONE_SPREAD_NONE
		// All pods of the app must be on one node, whatever version they have. The first pod can be
		// scheduled, because it matches its own labels.
		affinity.WithPodAffinity(coreac.PodAffinity().WithRequiredDuringSchedulingIgnoredDuringExecution(
			coreac.PodAffinityTerm().WithTopologyKey(hostLabel).
				WithLabelSelector(metaac.LabelSelector().WithMatchLabels(map[string]string{LabelRegion: r.cfg.Region, LabelApp: r.d.GetAppId()}))))
	}
	if r.isPacked() && spread == windlassv1.KubernetesOptions_ZONE_SPREAD_UNSPECIFIED {
		spread = windlassv1.KubernetesOptions_ZONE_SPREAD_NONE // it would pull the pods out of their domain
	}
	if r.hostCount() > 1 {
		// Ranks prefer different nodes. In a cluster with fewer nodes, they share a node, if it has
		// room.
		affinity.WithPodAntiAffinity(coreac.PodAntiAffinity().WithPreferredDuringSchedulingIgnoredDuringExecution(
			coreac.WeightedPodAffinityTerm().WithWeight(100).WithPodAffinityTerm(coreac.PodAffinityTerm().WithTopologyKey(hostLabel).
				WithLabelSelector(metaac.LabelSelector().WithMatchLabels(r.rankLabels())))))
		if spread == windlassv1.KubernetesOptions_ZONE_SPREAD_UNSPECIFIED {
			spread = windlassv1.KubernetesOptions_ZONE_SPREAD_NONE // ranks exchange much data, and zones are far apart
		}
	}
	if affinity.NodeAffinity != nil || affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil {
		pod.WithAffinity(affinity)
	}
	unsatisfiable := corev1.ScheduleAnyway
	switch spread {
	case windlassv1.KubernetesOptions_ZONE_SPREAD_NONE:
		return nil
	case windlassv1.KubernetesOptions_ZONE_SPREAD_REQUIRED:
		unsatisfiable = corev1.DoNotSchedule
	case windlassv1.KubernetesOptions_ZONE_SPREAD_UNSPECIFIED, windlassv1.KubernetesOptions_ZONE_SPREAD_PREFERRED:
	default:
		return invalidError("kubernetes.zoneSpread: %d is unknown to this agent: update it", spread)
	}
	pod.WithTopologySpreadConstraints(coreac.TopologySpreadConstraint().
		WithTopologyKey(zoneLabel).WithMaxSkew(1).WithWhenUnsatisfiable(unsatisfiable).
		// A zone counts only if the pod tolerates the taints of at least one of its nodes.
		WithNodeTaintsPolicy(corev1.NodeInclusionPolicyHonor).
		WithLabelSelector(r.spreadSelector()))
	return nil
}

// isPacked reports whether the agent has chosen the domain of nodes in which the pods of the gang run.
func (r *rendering) isPacked() bool { return r.a.Unit != nil && r.a.Unit.Domain != nil }

// nodeAffinity returns the conditions on nodes, or nil if there are none. A packed gang gets the domain that the agent
// has chosen, because with an affinity of pods to each other, the first pod could be in a domain without room for the rest.
func (r *rendering) nodeAffinity() *coreac.NodeAffinityApplyConfiguration {
	expressions := slices.Clone(r.gpu.expressions)
	var out *coreac.NodeAffinityApplyConfiguration
	if r.isPacked() {
		domain := r.a.Unit.Domain
		in := coreac.NodeSelectorRequirement().WithKey(domain.Label).WithOperator(corev1.NodeSelectorOpIn).WithValues(domain.Value)
		if domain.Required {
			expressions = append(expressions, in)
		} else {
			out = coreac.NodeAffinity().WithPreferredDuringSchedulingIgnoredDuringExecution(
				coreac.PreferredSchedulingTerm().WithWeight(100).WithPreference(coreac.NodeSelectorTerm().WithMatchExpressions(in)))
		}
	}
	if len(expressions) == 0 {
		return out
	}
	if out == nil {
		out = coreac.NodeAffinity()
	}
	return out.WithRequiredDuringSchedulingIgnoredDuringExecution(
		coreac.NodeSelector().WithNodeSelectorTerms(coreac.NodeSelectorTerm().WithMatchExpressions(expressions...)))
}

// spreadSelector selects the pods that are spread over zones.
func (r *rendering) spreadSelector() *metaac.LabelSelectorApplyConfiguration {
	if r.a.Unit == nil {
		return r.podSelector()
	}
	return metaac.LabelSelector().WithMatchLabels(map[string]string{LabelUnitOf: FamilyKey(r.a), LabelComponent: r.role.name})
}

func (r *rendering) nodeSelector() (map[string]string, error) {
	out := maps.Clone(r.gpu.pool.NodeSelector)
	if out == nil {
		out = map[string]string{}
	}
	given := r.spec.GetKubernetes().GetNodeSelector()
	for _, k := range slices.Sorted(maps.Keys(given)) {
		at, v := entryPath("kubernetes.nodeSelector", k), given[k]
		switch ours, taken := out[k]; {
		case k == hostLabel:
			return nil, invalidError("%s: it names a single node: use a label that several nodes have", at)
		case taken && ours != v:
			return nil, invalidError("%s: it is %q, and the nodes of pool %q have %q: leave one of them out", at, v, r.gpu.pool.Name, ours)
		case len(validation.IsQualifiedName(k)) > 0:
			return nil, invalidError("%s: it is not a valid label name", at)
		case len(validation.IsValidLabelValue(v)) > 0:
			return nil, invalidError("%s: %q is not a valid label value", at, v)
		}
		out[k] = v
	}
	return out, nil
}

// podTolerations returns the tolerations for GPUs, of the pool and of the spec, without duplicates.
func (r *rendering) podTolerations() ([]Toleration, error) {
	var all []Toleration
	if r.gpu.count > 0 {
		all = append(all, GPUTolerations(r.gpu.resource)...)
		all = append(all, r.gpu.pool.Tolerations...)
	}
	for i, t := range r.spec.GetKubernetes().GetTolerations() {
		one := Toleration{Key: t.GetKey(), Operator: corev1.TolerationOpEqual, Value: t.GetValue(), Effect: corev1.TaintEffect(t.GetEffect())}
		if one.Value == "" {
			one.Operator = corev1.TolerationOpExists
		}
		if err := checkToleration(&one); err != nil {
			return nil, invalidError("kubernetes.tolerations[%d]: %v", i, err)
		}
		all = append(all, one)
	}
	var out []Toleration
	for i := range all {
		if !slices.ContainsFunc(out, func(t Toleration) bool { return t.MatchToleration(&all[i]) }) {
			out = append(out, all[i])
		}
	}
	return out, nil
}

func tolerationConfig(t *Toleration) *coreac.TolerationApplyConfiguration {
	out := coreac.Toleration()
	if t.Key != "" {
		out.WithKey(t.Key)
	}
	if t.Operator != "" {
		out.WithOperator(t.Operator)
	}
	if t.Value != "" {
		out.WithValue(t.Value)
	}
	if t.Effect != "" {
		out.WithEffect(t.Effect)
	}
	if t.TolerationSeconds != nil {
		out.WithTolerationSeconds(*t.TolerationSeconds)
	}
	return out
}

// podSelector selects the workload's pods. A Deployment's selector is immutable, so it has no label
// that a newer deployment of the workload would change.
func (r *rendering) podSelector() *metaac.LabelSelectorApplyConfiguration {
	return metaac.LabelSelector().WithMatchLabels(map[string]string{LabelWorkload: r.key})
}

func (r *rendering) checkModelCache() error {
	c := r.spec.GetModelCache()
	if c == nil {
		return nil
	}
	const at = "modelCache."
	if p := c.GetMountPath(); !plainPath(p) || p == shmPath || strings.HasPrefix(shmPath, p+"/") {
		return invalidError(at+"mountPath: %q cannot be the folder of a volume: use a separate folder, such as /models", p)
	}
	switch {
	case (c.GetClaim() != nil) == (c.GetHostPath() != ""):
		return invalidError("modelCache: set either claim or hostPath")
	case c.GetClaim() != nil:
		return nil
	case !plainPath(c.GetHostPath()):
		return invalidError(at+"hostPath: %q is not a plain path of a folder", c.GetHostPath())
	case c.GetRetention() == windlassv1.ModelCache_RETENTION_DELETE:
		return invalidError(at + "retention: a folder of a node is never deleted: leave it out, or use a claim")
	case r.spec.GetKubernetes().GetSecurity() == nil:
		return invalidError(at + `hostPath: a pod with a folder of its node does not pass "restricted": say why in kubernetes.security.reason, or use a claim`)
	}
	return nil
}

// plainPath reports whether p is an absolute, clean path other than the root.
func plainPath(p string) bool {
	return strings.HasPrefix(p, "/") && p != "/" && path.Clean(p) == p && !strings.ContainsAny(p, ":\x00")
}

// volumeClaim returns the claim of the app, or nil if it has none. All versions share the claim, so it
// has no label of a version.
func (r *rendering) volumeClaim() (*coreac.PersistentVolumeClaimApplyConfiguration, error) {
	c := r.spec.GetModelCache().GetClaim()
	if c == nil {
		return nil, nil //nolint:nilnil // the app has no claim, which is no error
	}
	if c.GetSizeGib() < 1 {
		return nil, invalidError("modelCache.claim.sizeGib: %d is not a size: use 1 or more", c.GetSizeGib())
	}
	if s := c.GetStorageClass(); s != "" && len(validation.IsDNS1123Subdomain(s)) > 0 {
		return nil, invalidError("modelCache.claim.storageClass: %q is not a valid name", s)
	}
	mode := corev1.ReadWriteMany
	if c.GetSingleNode() {
		mode = corev1.ReadWriteOnce
	}
	retention := RetainDelete
	if r.spec.GetModelCache().GetRetention() == windlassv1.ModelCache_RETENTION_KEEP {
		retention = RetainKeep
	}
	spec := coreac.PersistentVolumeClaimSpec().WithAccessModes(mode).
		WithResources(coreac.VolumeResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceStorage: gibibytesOf(c.GetSizeGib())}))
	if s := c.GetStorageClass(); s != "" {
		spec.WithStorageClassName(s)
	}
	return coreac.PersistentVolumeClaim(ClaimName(r.d.GetAppName(), r.d.GetAppId()), r.namespace).
		WithLabels(r.appLabels()).WithAnnotations(map[string]string{AnnotationRetention: retention}).WithSpec(spec), nil
}
