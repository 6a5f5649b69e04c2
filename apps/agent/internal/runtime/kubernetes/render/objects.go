package render

import (
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
)

// Objects are what one assignment comes to. Each names every field that is ours
// and no other. None shares memory with another rendering.
type Objects struct {
	Namespace      *coreac.NamespaceApplyConfiguration
	ServiceAccount *coreac.ServiceAccountApplyConfiguration
	// Secrets, by what they are for: what the instance is told of itself; its
	// variables and secrets, immutable and named by their hash, absent when there are
	// none; each Docker configuration.
	Secrets []*coreac.SecretApplyConfiguration
	// Claim is nil unless the spec wants a volume.
	Claim            *coreac.PersistentVolumeClaimApplyConfiguration
	Workload         *appsac.DeploymentApplyConfiguration
	Service          *coreac.ServiceApplyConfiguration
	DisruptionBudget *policyac.PodDisruptionBudgetApplyConfiguration
	NetworkPolicies  []*networkingac.NetworkPolicyApplyConfiguration
}
