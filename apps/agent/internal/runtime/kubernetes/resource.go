package kubernetes

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
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

// resource is how one kind is read and written.
type resource struct {
	apply     func(ctx context.Context, namespace string, config any, opts metav1.ApplyOptions) (object, error)
	get       func(ctx context.Context, namespace, name string) (object, error)
	remove    func(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error
	removeAll func(ctx context.Context, namespace string, opts metav1.DeleteOptions, list metav1.ListOptions) error
}

// typed is the part of a typed client that a resource needs.
type typed[T, AC any] interface {
	Apply(ctx context.Context, config AC, opts metav1.ApplyOptions) (T, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

type collection interface {
	DeleteCollection(ctx context.Context, opts metav1.DeleteOptions, list metav1.ListOptions) error
}

func resourceOf[T object, AC any, C typed[T, AC]](client func(namespace string) C) resource {
	return resource{
		apply: func(ctx context.Context, namespace string, config any, opts metav1.ApplyOptions) (object, error) {
			return asObject(client(namespace).Apply(ctx, config.(AC), opts))
		},
		get: func(ctx context.Context, namespace, name string) (object, error) {
			return asObject(client(namespace).Get(ctx, name, metav1.GetOptions{}))
		},
		remove: func(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error {
			return client(namespace).Delete(ctx, name, opts)
		},
		removeAll: func(ctx context.Context, namespace string, opts metav1.DeleteOptions, list metav1.ListOptions) error {
			all, ok := any(client(namespace)).(collection)
			if !ok {
				return nil
			}
			return all.DeleteCollection(ctx, opts, list)
		},
	}
}

// asObject keeps a nil pointer from becoming an interface that is not nil.
func asObject[T object](v T, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

func resourcesOf(c clients) map[kind]resource {
	core, apps := c.CoreV1(), c.AppsV1()
	return map[kind]resource{
		kindNamespace: resourceOf[*corev1.Namespace, *coreac.NamespaceApplyConfiguration](func(string) namespaces {
			return core.Namespaces()
		}),
		kindServiceAccount:   resourceOf[*corev1.ServiceAccount, *coreac.ServiceAccountApplyConfiguration](core.ServiceAccounts),
		kindSecret:           resourceOf[*corev1.Secret, *coreac.SecretApplyConfiguration](core.Secrets),
		kindClaim:            resourceOf[*corev1.PersistentVolumeClaim, *coreac.PersistentVolumeClaimApplyConfiguration](core.PersistentVolumeClaims),
		kindNetworkPolicy:    resourceOf[*networkingv1.NetworkPolicy, *networkingac.NetworkPolicyApplyConfiguration](c.NetworkingV1().NetworkPolicies),
		kindWorkload:         resourceOf[*appsv1.Deployment, *appsac.DeploymentApplyConfiguration](apps.Deployments),
		kindService:          resourceOf[*corev1.Service, *coreac.ServiceApplyConfiguration](core.Services),
		kindDisruptionBudget: resourceOf[*policyv1.PodDisruptionBudget, *policyac.PodDisruptionBudgetApplyConfiguration](c.PolicyV1().PodDisruptionBudgets),
	}
}

type namespaces = typed[*corev1.Namespace, *coreac.NamespaceApplyConfiguration]

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
