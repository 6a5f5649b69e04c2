package access

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NothingElse reports whether a namespace has no objects of other owners. Such objects would be
// deleted with the namespace. NothingElse cannot check Secrets, because the agent must not read
// them. A person who keeps Secrets in the namespace sets the annotation windlass.run/keep=true on
// it.
func (a *API) NothingElse(ctx context.Context, name string) (bool, error) {
	one := metav1.ListOptions{Limit: 2}
	core, apps := a.CoreV1(), a.AppsV1()
	for _, kind := range []struct {
		name string
		list func(context.Context) (int, error)
	}{
		{"pods", func(ctx context.Context) (int, error) {
			l, err := core.Pods(name).List(ctx, one)
			return lenOf(l, err, func(l *corev1.PodList) int { return len(l.Items) })
		}},
		{"deployments", func(ctx context.Context) (int, error) {
			l, err := apps.Deployments(name).List(ctx, one)
			return lenOf(l, err, func(l *appsv1.DeploymentList) int { return len(l.Items) })
		}},
		{"services", func(ctx context.Context) (int, error) {
			l, err := core.Services(name).List(ctx, one)
			return lenOf(l, err, func(l *corev1.ServiceList) int { return len(l.Items) })
		}},
		{"claims", func(ctx context.Context) (int, error) {
			l, err := core.PersistentVolumeClaims(name).List(ctx, one)
			return lenOf(l, err, func(l *corev1.PersistentVolumeClaimList) int { return len(l.Items) })
		}},
		{"config maps", func(ctx context.Context) (int, error) {
			l, err := core.ConfigMaps(name).List(ctx, one)
			return lenOf(l, err, func(l *corev1.ConfigMapList) int {
				return len(slices.DeleteFunc(l.Items, func(c corev1.ConfigMap) bool { return c.Name == rootCA }))
			})
		}},
		{"service accounts", func(ctx context.Context) (int, error) {
			l, err := core.ServiceAccounts(name).List(ctx, metav1.ListOptions{Limit: 3})
			return lenOf(l, err, func(l *corev1.ServiceAccountList) int {
				return len(slices.DeleteFunc(l.Items, func(s corev1.ServiceAccount) bool { return s.Name == "default" || a.isOurs(&s) }))
			})
		}},
	} {
		var n int
		err := a.Call(ctx, "list "+kind.name+" of "+name, func(ctx context.Context) (err error) {
			n, err = kind.list(ctx)
			return err
		})
		if err != nil || n > 0 {
			return false, err
		}
	}
	return true, nil
}

// rootCA is a config map that Kubernetes makes in every namespace.
const rootCA = "kube-root-ca.crt"

func lenOf[L any](l L, err error, length func(L) int) (int, error) {
	if err != nil {
		return 0, err
	}
	return length(l), nil
}
