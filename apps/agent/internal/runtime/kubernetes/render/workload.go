package render

import (
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
)

// revisionHistory of a Deployment: Windlass goes back by itself, and two are for a
// person who looks at what was.
const revisionHistory = 2

// InPlace replaces instances in place, atOnce at a time, without one more meanwhile: no GPU is free
// for it.
func InPlace(atOnce int) *appsac.DeploymentStrategyApplyConfiguration {
	return appsac.DeploymentStrategy().WithType(appsv1.RollingUpdateDeploymentStrategyType).
		WithRollingUpdate(appsac.RollingUpdateDeployment().
			WithMaxSurge(intstr.FromInt32(0)).WithMaxUnavailable(intstr.FromInt(atOnce)))
}

// deployment is the workload, as Kubernetes replaces its instances by itself: as many at a
// time as may be out of service. Where gateways send, the agent says when which one goes, and
// has it be another in some fields until all are replaced.
func (r *rendering) deployment(variables *coreac.SecretApplyConfiguration, pulls []*coreac.SecretApplyConfiguration) (*appsac.DeploymentApplyConfiguration, error) {
	pods, all := r.secretHashes(variables, pulls)
	template, err := r.template(variables, pulls, pods)
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
	return appsac.Deployment(r.name, r.namespace).
		WithLabels(r.objectLabels()).WithAnnotations(annotations).
		WithSpec(appsac.DeploymentSpec().
			WithReplicas(r.d.GetReplicas()).
			WithSelector(r.selector()).
			WithStrategy(InPlace(r.a.MaxUnavailable())).
			WithRevisionHistoryLimit(revisionHistory).
			WithProgressDeadlineSeconds(int32(r.health.progressLimit)).
			WithTemplate(template)), nil
}

// namespaceObject enforces the level of pod security that the region's operator allows, and tells the
// cluster's administrators of pods beyond "restricted".
func (r *rendering) namespaceObject() *coreac.NamespaceApplyConfiguration {
	labels := r.scope()
	for _, mode := range []string{"warn", "audit"} {
		labels["pod-security.kubernetes.io/"+mode] = "restricted"
	}
	labels["pod-security.kubernetes.io/enforce"] = r.cfg.Policy.Level()
	return coreac.Namespace(r.namespace).WithLabels(labels).
		WithAnnotations(map[string]string{AnnotationCreatedBy: "windlass-agent/" + r.cfg.AgentVersion})
}

// service gives the workload a name within the cluster. Routes do without it: they
// know each instance.
func (r *rendering) service() *coreac.ServiceApplyConfiguration {
	spec := coreac.ServiceSpec().WithType(corev1.ServiceTypeClusterIP).WithSelector(map[string]string{LabelWorkload: r.key})
	for i, p := range r.ports {
		one := coreac.ServicePort().WithName(p.name).WithPort(p.number).WithTargetPort(intstr.FromInt32(p.number)).WithProtocol(corev1.ProtocolTCP)
		// Of these it is known: routes and the health check speak it.
		if i == 0 || p.number == r.health.port {
			one.WithAppProtocol("http")
		}
		spec.WithPorts(one)
	}
	return coreac.Service(r.name, r.namespace).WithLabels(r.objectLabels()).WithSpec(spec)
}

// disruptionBudget lets a node be emptied one instance at a time. What is not ready
// anyway never stands in the way.
func (r *rendering) disruptionBudget() *policyac.PodDisruptionBudgetApplyConfiguration {
	return policyac.PodDisruptionBudget(r.name, r.namespace).WithLabels(r.objectLabels()).
		WithSpec(policyac.PodDisruptionBudgetSpec().
			WithSelector(r.selector()).
			WithMaxUnavailable(intstr.FromInt32(1)).
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow))
}

// networkPolicies close the workload to everyone but the gateway and those who
// watch it. Where instances may connect to is not restricted.
func (r *rendering) networkPolicies() []*networkingac.NetworkPolicyApplyConfiguration {
	spec := networkingac.NetworkPolicySpec().WithPodSelector(r.selector()).WithPolicyTypes(networkingv1.PolicyTypeIngress)
	for _, s := range append([]GatewaySelector{r.cfg.Gateway}, r.cfg.Monitoring...) {
		if s.IsZero() {
			continue
		}
		rule := networkingac.NetworkPolicyIngressRule().WithFrom(peers(s)...)
		for _, p := range r.ports {
			rule.WithPorts(networkingac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromInt32(p.number)))
		}
		spec.WithIngress(rule)
	}
	return []*networkingac.NetworkPolicyApplyConfiguration{
		networkingac.NetworkPolicy(r.name, r.namespace).WithLabels(r.objectLabels()).WithSpec(spec),
	}
}

func peers(s GatewaySelector) []*networkingac.NetworkPolicyPeerApplyConfiguration {
	var out []*networkingac.NetworkPolicyPeerApplyConfiguration
	if len(s.NamespaceLabels) > 0 || len(s.PodLabels) > 0 {
		// An empty selector of namespaces is all; none at all would be its own.
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
