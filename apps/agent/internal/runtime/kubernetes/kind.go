package kubernetes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// kind of an object that we make, as people call it.
type kind string

const (
	kindNamespace        kind = "Namespace"
	kindServiceAccount   kind = "ServiceAccount"
	kindSecret           kind = "Secret"
	kindClaim            kind = "PersistentVolumeClaim"
	kindNetworkPolicy    kind = "NetworkPolicy"
	kindWorkload         kind = "Deployment"
	kindService          kind = "Service"
	kindDisruptionBudget kind = "PodDisruptionBudget"
)

// object is what every Kubernetes object is.
type object interface {
	metav1.Object
	apiruntime.Object
}

// ref names an object.
type ref struct {
	kind            kind
	namespace, name string
}

func (r ref) String() string {
	if r.namespace == "" {
		return fmt.Sprintf("%s %s", r.kind, r.name)
	}
	return fmt.Sprintf("%s %s/%s", r.kind, r.namespace, r.name)
}

// newRef names the object of a kind with that name. namespace is empty for a kind that is in none.
func newRef(k kind, namespace, name string) ref {
	return ref{kind: k, namespace: namespace, name: name}
}

// refOf names the object that a configuration is of.
func refOf(k kind, config any) ref {
	m := metaOf(config)
	out := ref{kind: k}
	if m.Name != nil {
		out.name = *m.Name
	}
	if m.Namespace != nil {
		out.namespace = *m.Namespace
	}
	return out
}

// workloadOf names the workload that a pod is of.
func workloadOf(p *corev1.Pod) ref {
	return newRef(kindWorkload, p.Namespace, p.Labels[render.LabelInstance])
}

// metaOf is the metadata of a configuration to apply.
func metaOf(config any) *metaac.ObjectMetaApplyConfiguration {
	switch c := config.(type) {
	case *coreac.NamespaceApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	case *coreac.ServiceAccountApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	case *coreac.SecretApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	case *coreac.PersistentVolumeClaimApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	case *networkingac.NetworkPolicyApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	case *appsac.DeploymentApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	case *coreac.ServiceApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	case *policyac.PodDisruptionBudgetApplyConfiguration:
		return c.ObjectMetaApplyConfiguration
	}
	return nil
}

// kindOf names the kind of a configuration to apply.
func kindOf(config any) kind {
	if c, ok := config.(interface{ GetKind() *string }); ok && c.GetKind() != nil {
		return kind(*c.GetKind())
	}
	return ""
}

// copyOf is config with metadata of its own; all else is shared.
func copyOf(config any) any {
	meta := *metaOf(config)
	switch c := config.(type) {
	case *coreac.NamespaceApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	case *coreac.ServiceAccountApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	case *coreac.SecretApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	case *coreac.PersistentVolumeClaimApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	case *networkingac.NetworkPolicyApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	case *appsac.DeploymentApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	case *coreac.ServiceApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	case *policyac.PodDisruptionBudgetApplyConfiguration:
		o := *c
		o.ObjectMetaApplyConfiguration = &meta
		return &o
	}
	return nil
}
