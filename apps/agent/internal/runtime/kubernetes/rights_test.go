package kubernetes_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes"
)

// The agent has the permissions of agent-rbac.yaml, as in all tests of this package. It has
// permissions on workloads only in its own namespaces.
func TestRights(t *testing.T) { //nolint:tparallel // its subtests depend on earlier subtests
	p := place(t, 1)
	as, err := client.NewForConfig(unlimited(p.cfg.Client))
	require.NoError(t, err)
	ctx := t.Context()
	pod := ""
	require.Eventually(t, func() bool {
		pods, err := p.api.CoreV1().Pods(p.namespace).List(ctx, p.selector())
		require.NoError(t, err)
		if len(pods.Items) == 0 {
			return false
		}
		pod = pods.Items[0].Name
		return true
	}, patience, 20*time.Millisecond)

	foreign := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "foreign-"}}
	foreign, err = p.api.CoreV1().Namespaces().Create(ctx, foreign, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.api.CoreV1().Namespaces().Delete(t.Context(), foreign.Name, metav1.DeleteOptions{}) })
	binding := func(namespace string, change func(*rbacv1.RoleBinding)) error {
		b := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: namespace},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "windlass-agent-workloads"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "windlass-system", Name: "windlass-agent"}},
		}
		if change != nil {
			change(b)
		}
		_, err := as.RbacV1().RoleBindings(namespace).Create(ctx, b, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// try makes, in a namespace, the calls that the agent may make in its own namespaces.
	try := func(namespace string) map[string]error {
		_, logs := as.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
		_, maps := as.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		_, secret := as.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		_, service := as.CoreV1().Services(namespace).Get(ctx, "x", metav1.GetOptions{})
		return map[string]error{
			"read a log": logs, "list config maps": maps, "make a secret": secret, "get a service": service,
			"delete pods": as.CoreV1().Pods(namespace).Delete(ctx, "x", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}),
		}
	}
	for _, namespace := range []string{foreign.Name, "default", "kube-system", "windlass-system"} {
		for what, err := range try(namespace) {
			require.True(t, apierrors.IsForbidden(err), "%s in %s: %v", what, namespace, err)
		}
		_, err := as.CoreV1().Secrets(namespace).Get(ctx, "any", metav1.GetOptions{})
		require.True(t, apierrors.IsForbidden(err), "get a secret in %s: %v", namespace, err)
		require.Eventually(t, func() bool { return apierrors.IsForbidden(binding(namespace, nil)) }, time.Minute, 50*time.Millisecond, "bind itself in %s", namespace)
	}
	for what, err := range try(p.namespace) {
		require.False(t, apierrors.IsForbidden(err), "%s: %v", what, err)
	}
	_, err = as.CoreV1().Secrets(p.namespace).Get(ctx, "any", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "secrets are not read back: %v", err)

	// In its own namespaces, the agent binds only this role, and only to itself.
	require.NoError(t, binding(p.namespace, nil))
	for what, change := range map[string]func(*rbacv1.RoleBinding){
		"another role":    func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "cluster-admin" },
		"another account": func(b *rbacv1.RoleBinding) { b.Subjects[0].Name = "default" },
		"everybody": func(b *rbacv1.RoleBinding) {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:authenticated"})
		},
	} {
		require.True(t, apierrors.IsForbidden(binding(p.namespace, change)), what)
	}

	t.Run("a binding in another namespace does not let the agent write there", func(t *testing.T) {
		_, err := p.api.RbacV1().RoleBindings(foreign.Name).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "mistake"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "windlass-agent-workloads"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "windlass-system", Name: "windlass-agent"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			err := try(foreign.Name)["make a secret"]
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "writes only in namespaces with the label")
		}, patience, 20*time.Millisecond)
	})

	t.Run("a binding that was removed comes back", func(t *testing.T) {
		bindings := p.api.RbacV1().RoleBindings(p.namespace)
		require.NoError(t, bindings.Delete(ctx, "windlass-agent", metav1.DeleteOptions{}))
		require.Eventually(t, func() bool {
			_, _ = p.rt.Logs(ctx, "ins_none", 1)
			p.a.Generation++
			return p.rt.Apply(ctx, p.a) == nil && hasBinding(t, p)
		}, patience, 50*time.Millisecond)
	})

	t.Run("an agent that starts binds itself in existing namespaces", func(t *testing.T) {
		p.shut(t)
		require.NoError(t, p.api.RbacV1().RoleBindings(p.namespace).Delete(ctx, "windlass-agent", metav1.DeleteOptions{}))
		p.rt = p.open(t)
		require.Eventually(t, func() bool { return hasBinding(t, p) }, patience, 20*time.Millisecond)
	})
}

func hasBinding(t *testing.T, p *placed) bool {
	t.Helper()
	_, err := p.api.RbacV1().RoleBindings(p.namespace).Get(t.Context(), "windlass-agent", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(t, err)
	}
	return err == nil
}
