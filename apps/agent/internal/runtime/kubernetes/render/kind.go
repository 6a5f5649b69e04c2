package render

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
)

// Kind is the Kubernetes kind of an object that the agent makes.
type Kind string

const (
	KindNamespace        Kind = "Namespace"
	KindServiceAccount   Kind = "ServiceAccount"
	KindSecret           Kind = "Secret"
	KindClaim            Kind = "PersistentVolumeClaim"
	KindNetworkPolicy    Kind = "NetworkPolicy"
	KindWorkload         Kind = "Deployment"
	KindService          Kind = "Service"
	KindDisruptionBudget Kind = "PodDisruptionBudget"

	// KindRoles is not a kind of Kubernetes. A Ref of this kind means all instances of a deployment
	// with several roles. Its name is their key.
	KindRoles Kind = "Roles"
)

// Object is a Kubernetes object.
type Object interface {
	metav1.Object
	apiruntime.Object
}

// Ref identifies an object.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return fmt.Sprintf("%s %s", r.Kind, r.Name)
	}
	return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name)
}

// NewRef returns the Ref of the object with this kind and name. namespace is empty for a kind
// without namespaces.
func NewRef(k Kind, namespace, name string) Ref {
	return Ref{Kind: k, Namespace: namespace, Name: name}
}

// RefOf returns the Ref of a configuration to apply.
func RefOf(k Kind, config any) Ref {
	m := MetaOf(config)
	out := Ref{Kind: k}
	if m.Name != nil {
		out.Name = *m.Name
	}
	if m.Namespace != nil {
		out.Namespace = *m.Namespace
	}
	return out
}

// WorkloadOf returns the Ref of the workload of a pod.
func WorkloadOf(p *corev1.Pod) Ref {
	return NewRef(KindWorkload, p.Namespace, p.Labels[LabelInstance])
}

// RolesOf returns the Ref of all instances of the object's deployment, if the deployment has
// several roles. Otherwise, ok is false.
func RolesOf(o metav1.Object) (at Ref, ok bool) {
	key := o.GetLabels()[LabelUnitOf]
	return NewRef(KindRoles, o.GetNamespace(), key), key != ""
}

// MetaOf returns the metadata of a configuration to apply.
func MetaOf(config any) *metaac.ObjectMetaApplyConfiguration {
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

// KindOf returns the kind of a configuration to apply.
func KindOf(config any) Kind {
	if c, ok := config.(interface{ GetKind() *string }); ok && c.GetKind() != nil {
		return Kind(*c.GetKind())
	}
	return ""
}

// CopyOf returns a copy of config with a copy of its metadata. Everything else is shared.
func CopyOf(config any) any {
	meta := *MetaOf(config)
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
