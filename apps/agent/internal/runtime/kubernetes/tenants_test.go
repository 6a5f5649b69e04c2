package kubernetes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// of returns an assignment of a workspace.
func of(workspace, id string, change ...func(*windlassv1.DeploymentSpec)) runtime.Assignment {
	a := assignment(id, 1, change...)
	d := a.Deployment
	d.WorkspaceId, d.ProjectId, d.EnvironmentId, d.ProjectName, d.EnvironmentName = "ws_"+workspace, "prj_"+workspace, "env_"+workspace, workspace, "production"
	return a
}

// Two workspaces share a region. Its operator allows nothing beyond the standard.
func TestTenants(t *testing.T) { //nolint:tparallel // its subtests share one region
	t.Parallel()
	h := newHarness(t, func(c *kubernetes.Config) { c.Policy = render.Policy{} })
	rt := h.open(t)
	ctx := t.Context()
	victim, attacker := of("victim", "dep_victim"), of("attacker", "dep_attacker")
	require.NoError(t, rt.Apply(ctx, victim))
	require.NoError(t, rt.Apply(ctx, attacker))
	theirs, own := h.namespaceOf(t, victim), h.namespaceOf(t, attacker)
	require.NotEqual(t, theirs, own)

	t.Run("the agent refuses everything that the operator does not allow", func(t *testing.T) {
		asks := func(k *windlassv1.KubernetesOptions) func(*windlassv1.DeploymentSpec) {
			return func(s *windlassv1.DeploymentSpec) { s.Kubernetes = k }
		}
		security := func(x *windlassv1.SecurityException) func(*windlassv1.DeploymentSpec) {
			x.Reason = "please"
			return asks(&windlassv1.KubernetesOptions{Security: x})
		}
		for what, ask := range map[string]func(*windlassv1.DeploymentSpec){
			"privileged":          security(&windlassv1.SecurityException{Privileged: true}),
			"root":                security(&windlassv1.SecurityException{RunAsRoot: true}),
			"the node's IPC":      security(&windlassv1.SecurityException{HostIpc: true}),
			"no seccomp":          security(&windlassv1.SecurityException{UnconfinedSeccomp: true}),
			"a capability":        security(&windlassv1.SecurityException{AddCapabilities: []string{"SYS_PTRACE"}}),
			"a priority class":    asks(&windlassv1.KubernetesOptions{PriorityClass: "system-node-critical"}),
			"a runtime class":     asks(&windlassv1.KubernetesOptions{RuntimeClass: "other"}),
			"every taint":         asks(&windlassv1.KubernetesOptions{Tolerations: []*windlassv1.Toleration{{}}}),
			"control plane nodes": asks(&windlassv1.KubernetesOptions{Tolerations: []*windlassv1.Toleration{{Key: "node-role.kubernetes.io/control-plane"}}}),
			"a cloud's role":      asks(&windlassv1.KubernetesOptions{PodAnnotations: map[string]string{"iam.amazonaws.com/role": "admin"}}),
			"an AppArmor profile": asks(&windlassv1.KubernetesOptions{PodAnnotations: map[string]string{"container.apparmor.security.beta.kubernetes.io/main": "unconfined"}}),
			"a folder of the node": func(s *windlassv1.DeploymentSpec) {
				s.Kubernetes = &windlassv1.KubernetesOptions{Security: &windlassv1.SecurityException{Reason: "please"}}
				s.ModelCache = &windlassv1.ModelCache{MountPath: "/m", HostPath: "/var/lib/kubelet"}
			},
		} {
			var refused *runtime.Rejection
			require.ErrorAs(t, rt.Apply(ctx, of("attacker", "dep_asks", ask)), &refused, what)
			require.Equal(t, runtime.ReasonUnsupported, refused.Code, what)
			require.False(t, refused.Retryable, what)
		}
	})

	t.Run("the API server refuses such pods in the namespace from every client", func(t *testing.T) {
		ns, err := h.api.CoreV1().Namespaces().Get(ctx, own, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "restricted", ns.Labels["pod-security.kubernetes.io/enforce"])
		for what, change := range map[string]func(*corev1.PodSpec){
			"the node's network":   func(s *corev1.PodSpec) { s.HostNetwork = true },
			"the node's processes": func(s *corev1.PodSpec) { s.HostPID = true },
			"the node's IPC":       func(s *corev1.PodSpec) { s.HostIPC = true },
			"a folder of the node": func(s *corev1.PodSpec) {
				s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			},
			"privileged": func(s *corev1.PodSpec) {
				yes := true
				s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			},
		} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}}
			change(&pod.Spec)
			_, err := h.api.CoreV1().Pods(own).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
			require.ErrorContains(t, err, "violates PodSecurity", what)
		}
	})

	t.Run("a pod has no token, and no objects of another workspace", func(t *testing.T) {
		var pod corev1.Pod
		require.Eventually(t, func() bool {
			pods, err := h.api.CoreV1().Pods(own).List(ctx, h.selector())
			require.NoError(t, err)
			if len(pods.Items) == 1 {
				pod = pods.Items[0]
			}
			return len(pods.Items) == 1
		}, patience, 20*time.Millisecond, "the app's own pods pass the enforced standard")
		require.False(t, *pod.Spec.AutomountServiceAccountToken)
		for _, v := range pod.Spec.Volumes {
			require.Nil(t, v.HostPath)
			require.Nil(t, v.Projected)
		}
		require.False(t, pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC)
		account, err := h.api.CoreV1().ServiceAccounts(own).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
		require.NoError(t, err)
		require.False(t, *account.AutomountServiceAccountToken)
		bindings, err := h.api.RbacV1().RoleBindings(own).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, b := range bindings.Items {
			for _, s := range b.Subjects {
				require.Equal(t, "windlass-system/windlass-agent", s.Namespace+"/"+s.Name, "no account of an app has rights")
			}
		}
		// References to Secrets have names in the pod's own namespace. A pod cannot refer to
		// another namespace.
		for _, from := range pod.Spec.Containers[0].EnvFrom {
			_, err := h.api.CoreV1().Secrets(own).Get(ctx, from.SecretRef.Name, metav1.GetOptions{})
			require.NoError(t, err)
		}
	})

	t.Run("no pod of another namespace is let in", func(t *testing.T) {
		policies, err := h.api.NetworkingV1().NetworkPolicies(theirs).List(ctx, h.selector())
		require.NoError(t, err)
		pods, err := h.api.CoreV1().Pods(theirs).List(ctx, h.selector())
		require.NoError(t, err)
		require.NotEmpty(t, pods.Items)
		for _, pod := range pods.Items {
			covered := false
			for _, p := range policies.Items {
				selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
				require.NoError(t, err)
				covered = covered || selector.Matches(labels.Set(pod.Labels)) && len(p.Spec.PolicyTypes) > 0 && p.Spec.PolicyTypes[0] == networkingv1.PolicyTypeIngress
				for _, rule := range p.Spec.Ingress {
					require.NotEmpty(t, rule.From, "a rule without peers would allow all callers")
				}
			}
			require.True(t, covered, "pod %s is open to all", pod.Name)
		}
	})
}
