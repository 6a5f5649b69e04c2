package kubernetes

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
)

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
