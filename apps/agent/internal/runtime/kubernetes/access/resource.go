package access

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

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Resource reads and writes objects of one kind.
type Resource struct {
	Apply     func(ctx context.Context, namespace string, config any, opts metav1.ApplyOptions) (render.Object, error)
	Get       func(ctx context.Context, namespace, name string) (render.Object, error)
	Remove    func(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error
	RemoveAll func(ctx context.Context, namespace string, opts metav1.DeleteOptions, list metav1.ListOptions) error
}

// typed has the methods of a typed client that a Resource needs.
type typed[T, AC any] interface {
	Apply(ctx context.Context, config AC, opts metav1.ApplyOptions) (T, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

type collection interface {
	DeleteCollection(ctx context.Context, opts metav1.DeleteOptions, list metav1.ListOptions) error
}

func resourceOf[T render.Object, AC any, C typed[T, AC]](client func(namespace string) C) Resource {
	return Resource{
		Apply: func(ctx context.Context, namespace string, config any, opts metav1.ApplyOptions) (render.Object, error) {
			return asObject(client(namespace).Apply(ctx, config.(AC), opts))
		},
		Get: func(ctx context.Context, namespace, name string) (render.Object, error) {
			return asObject(client(namespace).Get(ctx, name, metav1.GetOptions{}))
		},
		Remove: func(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error {
			return client(namespace).Delete(ctx, name, opts)
		},
		RemoveAll: func(ctx context.Context, namespace string, opts metav1.DeleteOptions, list metav1.ListOptions) error {
			all, ok := any(client(namespace)).(collection)
			if !ok {
				return nil
			}
			return all.DeleteCollection(ctx, opts, list)
		},
	}
}

// asObject returns a nil interface for a nil pointer.
func asObject[T render.Object](v T, err error) (render.Object, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

func resourcesOf(c clients) map[render.Kind]Resource {
	core, apps := c.CoreV1(), c.AppsV1()
	return map[render.Kind]Resource{
		render.KindNamespace: resourceOf[*corev1.Namespace, *coreac.NamespaceApplyConfiguration](func(string) namespaces {
			return core.Namespaces()
		}),
		render.KindServiceAccount:   resourceOf[*corev1.ServiceAccount, *coreac.ServiceAccountApplyConfiguration](core.ServiceAccounts),
		render.KindSecret:           resourceOf[*corev1.Secret, *coreac.SecretApplyConfiguration](core.Secrets),
		render.KindClaim:            resourceOf[*corev1.PersistentVolumeClaim, *coreac.PersistentVolumeClaimApplyConfiguration](core.PersistentVolumeClaims),
		render.KindNetworkPolicy:    resourceOf[*networkingv1.NetworkPolicy, *networkingac.NetworkPolicyApplyConfiguration](c.NetworkingV1().NetworkPolicies),
		render.KindWorkload:         resourceOf[*appsv1.Deployment, *appsac.DeploymentApplyConfiguration](apps.Deployments),
		render.KindService:          resourceOf[*corev1.Service, *coreac.ServiceApplyConfiguration](core.Services),
		render.KindDisruptionBudget: resourceOf[*policyv1.PodDisruptionBudget, *policyac.PodDisruptionBudgetApplyConfiguration](c.PolicyV1().PodDisruptionBudgets),
	}
}

type namespaces = typed[*corev1.Namespace, *coreac.NamespaceApplyConfiguration]
