package render

import (
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
)

// Objects has the objects of one assignment. Each object has exactly the fields that the agent
// owns. Two renderings share no memory.
type Objects struct {
	Namespace      *coreac.NamespaceApplyConfiguration
	ServiceAccount *coreac.ServiceAccountApplyConfiguration
	// Secrets are, in this order: the identity of instances; the variables and secrets, if there
	// are any, in an immutable Secret with their hash in its name; and each Docker configuration.
	Secrets []*coreac.SecretApplyConfiguration
	// Claim is nil unless the spec wants a volume.
	Claim            *coreac.PersistentVolumeClaimApplyConfiguration
	Workload         *appsac.DeploymentApplyConfiguration
	Service          *coreac.ServiceApplyConfiguration
	DisruptionBudget *policyac.PodDisruptionBudgetApplyConfiguration
	NetworkPolicies  []*networkingac.NetworkPolicyApplyConfiguration
}
