package kubernetes_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/kubetest"
)

func TestRole_AllowsOnlyWhatTheAgentNeeds(t *testing.T) {
	h := newHarness(t)
	as, err := client.NewForConfig(unlimited(h.cfg.Client))
	require.NoError(t, err)
	ctx := t.Context()
	forbidden := func(err error, what string) {
		t.Helper()
		require.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
	}
	_, err = as.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	forbidden(err, "list secrets")
	_, err = as.CoreV1().Secrets("default").Get(ctx, "any", metav1.GetOptions{})
	forbidden(err, "get a secret")
	_, err = as.CoreV1().Secrets("").Watch(ctx, metav1.ListOptions{})
	forbidden(err, "watch secrets")
	_, err = as.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	forbidden(err, "list roles")
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, err = as.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)
	forbidden(err, "make a secret in a foreign namespace")
	_, err = as.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)
	forbidden(err, "make a service account in a foreign namespace")
	theirs := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "theirs-"},
		Spec: corev1.PodSpec{
			Containers:      []corev1.Container{{Name: "main", Image: image}},
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "acme.example/hold"}},
		},
	}
	theirs, err = h.api.CoreV1().Pods("default").Create(ctx, theirs, metav1.CreateOptions{})
	require.NoError(t, err)
	forbidden(as.CoreV1().Pods("default").Delete(ctx, theirs.Name, metav1.DeleteOptions{}), "delete a pod in a foreign namespace")
	require.NoError(t, h.api.CoreV1().Pods("default").Delete(ctx, theirs.Name, metav1.DeleteOptions{}))
	// The role alone would allow these calls. The policy forbids them. It takes a moment
	// until the API server knows the policy.
	require.Eventually(t, func() bool {
		_, err = as.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, dry)
		return apierrors.IsForbidden(err)
	}, time.Minute, 50*time.Millisecond, "make a namespace that is not labelled")
	forbidden(as.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{}), "remove a foreign namespace")
}

func TestManifests_AreValidForKubernetes(t *testing.T) {
	h := newHarness(t)
	for _, name := range []string{"agent.yaml", "gateway.yaml"} {
		objects, err := kubetest.Manifest(name)
		require.NoError(t, err)
		require.NoError(t, kubetest.Create(t.Context(), h.api, objects, metav1.DryRunAll), name)
	}
}

// An agent whose release needs more permissions than the installed role has reports this.
func TestRole_MissingPermissionIsNamed(t *testing.T) {
	h := newHarness(t, func(c *kubernetes.Config) {
		l, err := cluster()
		require.NoError(t, err)
		c.Client = rest.CopyConfig(l.admin)
		c.Client.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{"system:authenticated"}}
	})
	rt := h.open(t)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := rt.Observe(ctx)
		return err != nil && strings.Contains(err.Error(), "agent-rbac.yaml") && strings.Contains(err.Error(), `User "somebody" cannot list`)
	}, time.Minute, time.Millisecond)
}
