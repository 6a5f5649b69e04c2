package render

import (
	"encoding/json"
	"net/netip"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// revisionHistory is how many old ReplicaSets a Deployment keeps, for people to inspect. Windlass does
// not need them to go back.
const revisionHistory = 2

// InPlace returns a strategy that replaces atOnce instances at a time. It creates no additional
// instances, because no GPUs may be free for them.
func InPlace(atOnce int) *appsac.DeploymentStrategyApplyConfiguration {
	return appsac.DeploymentStrategy().WithType(appsv1.RollingUpdateDeploymentStrategyType).
		WithRollingUpdate(appsac.RollingUpdateDeployment().
			WithMaxSurge(intstr.FromInt32(0)).WithMaxUnavailable(intstr.FromInt(atOnce)))
}

// updateStrategy returns how Kubernetes replaces pods of another template. In a stable slot, the next pod starts once the last
// one has ended.
func (r *rendering) updateStrategy() *appsac.DeploymentStrategyApplyConfiguration {
	if r.hasSlotHost() {
		return appsac.DeploymentStrategy().WithType(appsv1.RecreateDeploymentStrategyType)
	}
	return InPlace(r.a.MaxUnavailable())
}

// workloadConfig returns the workload. By itself, Kubernetes replaces as many instances at a time as
// may be unavailable. If gateways route to the workload, the agent decides when each instance is
// replaced. Until all are replaced, the agent changes some fields of the Deployment.
func (r *rendering) workloadConfig(variables *coreac.SecretApplyConfiguration, pulls []*coreac.SecretApplyConfiguration) (*appsac.DeploymentApplyConfiguration, error) {
	pods, all := r.secretHashes(variables, pulls)
	template, err := r.podTemplate(variables, pulls, pods)
	if err != nil {
		return nil, err
	}
	annotations := map[string]string{
		AnnotationGeneration: strconv.FormatInt(r.a.Generation, 10),
		AnnotationSecretHash: all,
	}
	set(annotations, AnnotationTemplateHash, r.a.TemplateHash)
	set(annotations, AnnotationVersionLabel, r.spec.GetVersionLabel())
	set(annotations, AnnotationMessage, r.spec.GetMessage())
	set(annotations, AnnotationSourceCommit, r.spec.GetSourceCommit())
	if u := r.a.Unit; u != nil {
		if len(u.Roles) > 0 {
			roles, err := json.Marshal(u.Roles)
			if err != nil {
				return nil, err
			}
			annotations[AnnotationRoles] = string(roles)
		}
		set(annotations, AnnotationWaits, u.Waits)
		set(annotations, AnnotationWaitsReason, u.WaitsReason)
		if u.Leaves {
			annotations[AnnotationLeaves] = True
		}
		if u.Hosts > 1 {
			annotations[AnnotationHosts] = strconv.Itoa(u.Hosts)
		}
	}
	return appsac.Deployment(r.name, r.namespace).
		WithLabels(r.objectLabels()).WithAnnotations(annotations).
		WithSpec(appsac.DeploymentSpec().
			WithReplicas(r.d.GetReplicas()).
			WithSelector(r.podSelector()).
			WithStrategy(r.updateStrategy()).
			WithRevisionHistoryLimit(revisionHistory).
			WithProgressDeadlineSeconds(int32(r.health.progressLimit)).
			WithTemplate(template)), nil
}

// namespaceObject returns the namespace. It enforces the Pod Security level that the region's
// operator allows, and warns about and audits pods beyond "restricted".
func (r *rendering) namespaceObject() *coreac.NamespaceApplyConfiguration {
	labels := r.scopeLabels()
	for _, mode := range []string{"warn", "audit"} {
		labels["pod-security.kubernetes.io/"+mode] = "restricted"
	}
	labels["pod-security.kubernetes.io/enforce"] = r.cfg.Policy.Level()
	return coreac.Namespace(r.namespace).WithLabels(labels).
		WithAnnotations(map[string]string{AnnotationCreatedBy: "windlass-agent/" + r.cfg.AgentVersion})
}

// serviceConfig returns a Service, which gives the workload a DNS name in the cluster. Routes do not use
// it, because they have the address of each instance.
func (r *rendering) serviceConfig() *coreac.ServiceApplyConfiguration {
	spec := coreac.ServiceSpec().WithType(corev1.ServiceTypeClusterIP).WithSelector(map[string]string{LabelWorkload: r.key})
	for i, p := range r.ports {
		one := coreac.ServicePort().WithName(p.name).WithPort(p.number).WithTargetPort(intstr.FromInt32(p.number)).WithProtocol(corev1.ProtocolTCP)
		// Routes and the health check use HTTP on these ports. The protocol of other ports is
		// unknown.
		if i == 0 || p.number == r.health.port {
			one.WithAppProtocol("http")
		}
		spec.WithPorts(one)
	}
	return coreac.Service(r.name, r.namespace).WithLabels(r.objectLabels()).WithSpec(spec)
}

// ranksService returns a Service that gives DNS names to the pods of all ranks of an instance. The
// pods have these names before they are ready, because ranks become ready only after they have
// found each other.
func (r *rendering) ranksService() *coreac.ServiceApplyConfiguration {
	spec := coreac.ServiceSpec().WithType(corev1.ServiceTypeClusterIP).WithClusterIP(corev1.ClusterIPNone).
		WithPublishNotReadyAddresses(true).WithSelector(r.rankLabels())
	for _, p := range r.ports {
		spec.WithPorts(coreac.ServicePort().WithName(p.name).WithPort(p.number).WithTargetPort(intstr.FromInt32(p.number)).WithProtocol(corev1.ProtocolTCP))
	}
	return coreac.Service(RanksName(r.a), r.namespace).WithLabels(r.objectLabels()).WithSpec(spec)
}

// hasSlotHost reports whether the instance has the host name of its stable slot. An instance of several hosts has none,
// because its ranks get other names with each epoch.
func (r *rendering) hasSlotHost() bool { return r.a.Unit != nil && r.role.stable && r.hostCount() == 1 }

// slotService returns a Service that gives the pod in a stable slot a DNS name, also before it is ready.
func (r *rendering) slotService() *coreac.ServiceApplyConfiguration {
	spec := coreac.ServiceSpec().WithType(corev1.ServiceTypeClusterIP).WithClusterIP(corev1.ClusterIPNone).
		WithPublishNotReadyAddresses(true).WithSelector(map[string]string{LabelWorkload: r.key})
	for _, p := range r.ports {
		spec.WithPorts(coreac.ServicePort().WithName(p.name).WithPort(p.number).WithTargetPort(intstr.FromInt32(p.number)).WithProtocol(corev1.ProtocolTCP))
	}
	return coreac.Service(r.name, r.namespace).WithLabels(r.objectLabels()).WithSpec(spec)
}

// rankLabels returns the labels that all ranks of an instance have in common.
func (r *rendering) rankLabels() map[string]string {
	u := r.a.Unit
	return map[string]string{
		LabelUnitOf: FamilyKey(r.a), LabelComponent: r.role.name, LabelGroup: strconv.Itoa(u.Group), LabelSlot: strconv.Itoa(u.Slot),
	}
}

// disruptionBudget returns a budget that allows the eviction of one instance at a time. Instances
// that are not ready can always be evicted.
func (r *rendering) disruptionBudget() *policyac.PodDisruptionBudgetApplyConfiguration {
	return policyac.PodDisruptionBudget(r.name, r.namespace).WithLabels(r.objectLabels()).WithSpec(budgetOf(r.podSelector(), intstr.FromInt32(1)))
}

func budgetOf(pods *metaac.LabelSelectorApplyConfiguration, unavailable intstr.IntOrString) *policyac.PodDisruptionBudgetSpecApplyConfiguration {
	return policyac.PodDisruptionBudgetSpec().
		WithSelector(pods).
		WithMaxUnavailable(unavailable).
		WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow)
}

// FamilyBudget returns the disruption budget of a deployment with several roles, or with instances
// of several hosts. While all pods are ready, it allows the eviction of one pod, because a pod that
// goes takes its group or its instance out of service. If no instance serves, it allows all
// evictions: ranks that wait for a rank without a node are ready, and would prevent node drains for
// ever. a is the assignment of one of the instances.
func FamilyBudget(cfg Config, a runtime.Assignment, serves bool) (*policyac.PodDisruptionBudgetApplyConfiguration, error) {
	r, err := prepareRendering(cfg, a)
	if err != nil {
		return nil, err
	}
	unavailable := intstr.FromInt32(1)
	if !serves {
		unavailable = intstr.FromString("100%")
	}
	pods := metaac.LabelSelector().WithMatchLabels(map[string]string{LabelUnitOf: FamilyKey(a)})
	return policyac.PodDisruptionBudget(FamilyBudgetName(a), r.namespace).WithLabels(r.familyLabels()).WithSpec(budgetOf(pods, unavailable)), nil
}

// networkPolicies returns policies that allow only the gateway, the monitoring and other instances
// of the group to connect to instances. They do not restrict connections that instances open.
func (r *rendering) networkPolicies() []*networkingac.NetworkPolicyApplyConfiguration {
	spec := networkingac.NetworkPolicySpec().WithPodSelector(r.podSelector()).WithPolicyTypes(networkingv1.PolicyTypeIngress)
	for _, s := range append([]GatewaySelector{r.cfg.Gateway}, r.cfg.Monitoring...) {
		if s.IsZero() {
			continue
		}
		rule := networkingac.NetworkPolicyIngressRule().WithFrom(policyPeers(s)...)
		for _, p := range r.ports {
			rule.WithPorts(networkingac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromInt32(p.number)))
		}
		if r.hasLoader() { // the agent calls it, and is among the callers
			rule.WithPorts(networkingac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromInt32(r.loaderPort())))
		}
		spec.WithIngress(rule)
	}
	if u := r.a.Unit; u != nil {
		// Instances of a group reach each other on every port, because engines choose the ports for
		// transfers.
		spec.WithIngress(networkingac.NetworkPolicyIngressRule().WithFrom(networkingac.NetworkPolicyPeer().WithPodSelector(
			metaac.LabelSelector().WithMatchLabels(map[string]string{LabelUnitOf: FamilyKey(r.a), LabelGroup: strconv.Itoa(u.Group)}))))
	}
	return []*networkingac.NetworkPolicyApplyConfiguration{
		networkingac.NetworkPolicy(r.name, r.namespace).WithLabels(r.objectLabels()).WithSpec(spec),
	}
}

func policyPeers(s GatewaySelector) []*networkingac.NetworkPolicyPeerApplyConfiguration {
	var out []*networkingac.NetworkPolicyPeerApplyConfiguration
	if len(s.NamespaceLabels) > 0 || len(s.PodLabels) > 0 {
		// An empty selector of namespaces means all namespaces. No selector would mean the policy's
		// namespace.
		p := networkingac.NetworkPolicyPeer().WithNamespaceSelector(metaac.LabelSelector().WithMatchLabels(s.NamespaceLabels))
		if len(s.PodLabels) > 0 {
			p.WithPodSelector(metaac.LabelSelector().WithMatchLabels(s.PodLabels))
		}
		out = append(out, p)
	}
	for _, c := range s.CIDRs {
		if prefix, err := netip.ParsePrefix(c); err == nil {
			out = append(out, networkingac.NetworkPolicyPeer().WithIPBlock(networkingac.IPBlock().WithCIDR(prefix.Masked().String())))
		}
	}
	return out
}
