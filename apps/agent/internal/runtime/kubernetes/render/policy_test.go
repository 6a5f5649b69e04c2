package render

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// generous allows everything that the tests' deployments request.
var generous = Policy{
	RunAsRoot: true, Privileged: true, HostIPC: true, UnconfinedSeccomp: true, Capabilities: []string{"IPC_LOCK", "SYS_ADMIN", "SYS_NICE"},
	HostPaths: []string{"/var/cache/models"}, PriorityClasses: []string{"serving"}, RuntimeClasses: []string{"nvidia"},
	Tolerations: []string{"spot", "spotx"}, Annotations: []string{"example.com/"},
}

func TestPolicy_AllowsOnlyWhatTheOperatorLists(t *testing.T) {
	security := func(x *windlassv1.SecurityException) *windlassv1.KubernetesOptions {
		x.Reason = "a test"
		return &windlassv1.KubernetesOptions{Security: x}
	}
	toleration := func(key string) *windlassv1.KubernetesOptions {
		return &windlassv1.KubernetesOptions{Tolerations: []*windlassv1.Toleration{{Key: key}}}
	}
	annotation := func(name string) *windlassv1.KubernetesOptions {
		return &windlassv1.KubernetesOptions{PodAnnotations: map[string]string{name: "x"}}
	}
	for name, c := range map[string]struct {
		ask     *windlassv1.KubernetesOptions
		folder  string
		field   string
		allowed Policy
	}{
		"root":       {ask: security(&windlassv1.SecurityException{RunAsRoot: true}), field: "security.runAsRoot", allowed: Policy{RunAsRoot: true}},
		"privileged": {ask: security(&windlassv1.SecurityException{Privileged: true}), field: "security.privileged", allowed: Policy{Privileged: true}},
		"host IPC":   {ask: security(&windlassv1.SecurityException{HostIpc: true}), field: "security.hostIpc", allowed: Policy{HostIPC: true}},
		"seccomp":    {ask: security(&windlassv1.SecurityException{UnconfinedSeccomp: true}), field: "security.unconfinedSeccomp", allowed: Policy{UnconfinedSeccomp: true}},
		"capability": {
			ask: security(&windlassv1.SecurityException{AddCapabilities: []string{"IPC_LOCK"}}), field: "security.addCapabilities[0]",
			allowed: Policy{Capabilities: []string{"IPC_LOCK"}},
		},
		"priority":    {ask: &windlassv1.KubernetesOptions{PriorityClass: "system-node-critical"}, field: "priorityClass", allowed: Policy{PriorityClasses: []string{"system-node-critical"}}},
		"runtime":     {ask: &windlassv1.KubernetesOptions{RuntimeClass: "kata"}, field: "runtimeClass", allowed: Policy{RuntimeClasses: []string{"kata"}}},
		"taint":       {ask: toleration("node-role.kubernetes.io/control-plane"), field: "tolerations[0]", allowed: Policy{Tolerations: []string{"node-role.kubernetes.io/control-plane"}}},
		"annotation":  {ask: annotation("iam.amazonaws.com/role"), field: `podAnnotations["iam.amazonaws.com/role"]`, allowed: Policy{Annotations: []string{"iam.amazonaws.com/role"}}},
		"a prefix":    {ask: annotation("prometheus.io/port"), field: `podAnnotations["prometheus.io/port"]`, allowed: Policy{Annotations: []string{"prometheus.io/"}}},
		"a folder":    {ask: security(&windlassv1.SecurityException{}), folder: "/var/spool/cron/crontabs", field: "hostPath", allowed: Policy{HostPaths: []string{"/var/spool/cron"}}},
		"that folder": {ask: security(&windlassv1.SecurityException{}), folder: "/var/cache", field: "hostPath", allowed: Policy{HostPaths: []string{"/var/cache"}}},
	} {
		t.Run(name, func(t *testing.T) {
			a := minimal()
			a.Deployment.Spec.Kubernetes = c.ask
			if c.folder != "" {
				a.Deployment.Spec.ModelCache = &windlassv1.ModelCache{MountPath: "/models", HostPath: c.folder}
			}
			cfg := config()
			cfg.Policy = Policy{}
			_, err := Render(cfg, a)
			rejection, ok := errors.AsType[*runtime.Rejection](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, runtime.ReasonUnsupported, rejection.Code)
			require.Contains(t, rejection.Message, c.field+": the region's operator does not allow")
			require.Contains(t, rejection.Message, "--pod-policy-file")
			cfg.Policy = c.allowed
			_, err = Render(cfg, a)
			require.NoError(t, err)
		})
	}
	t.Run("a toleration of every taint", func(t *testing.T) {
		a := minimal()
		a.Deployment.Spec.Kubernetes = toleration("")
		_, err := Render(config(), a)
		require.ErrorContains(t, err, "does not allow every taint")
	})
	t.Run("a folder whose name begins like an allowed one", func(t *testing.T) {
		a := minimal()
		a.Deployment.Spec.Kubernetes = security(&windlassv1.SecurityException{})
		a.Deployment.Spec.ModelCache = &windlassv1.ModelCache{MountPath: "/models", HostPath: "/var/cache/models-of-others"}
		_, err := Render(config(), a)
		require.ErrorContains(t, err, "hostPath: the region's operator does not allow /var/cache/models-of-others")
	})
}

func TestParsePolicy_NamesWhatIsWrong(t *testing.T) {
	p, err := ParsePolicy([]byte("capabilities: [IPC_LOCK]\nhostPaths: [/var/cache/models]\nrunAsRoot: true\n"))
	require.NoError(t, err)
	require.Equal(t, Policy{RunAsRoot: true, Capabilities: []string{"IPC_LOCK"}, HostPaths: []string{"/var/cache/models"}}, p)
	for text, says := range map[string]string{
		"privilegd: true":      "privilegd",
		"hostPaths: [/]":       "hostPaths[0]",
		"hostPaths: [/a/../b]": "hostPaths[0]",
		"tolerations: ['']":    "tolerations: a name is empty",
	} {
		_, err := ParsePolicy([]byte(text))
		require.ErrorContains(t, err, says)
	}
}

func TestPolicyLevel_IsTheStrictestThatItsPodsPass(t *testing.T) {
	for want, policies := range map[string][]Policy{
		"restricted": {{}, {Capabilities: []string{"NET_BIND_SERVICE"}}, {Tolerations: []string{"spot"}, PriorityClasses: []string{"x"}, Annotations: []string{"a/"}}},
		"baseline":   {{RunAsRoot: true}, {Capabilities: []string{"CHOWN"}}},
		"privileged": {
			{Privileged: true},
			{HostIPC: true},
			{UnconfinedSeccomp: true},
			{HostPaths: []string{"/var/cache"}},
			{RunAsRoot: true, Capabilities: []string{"CHOWN", "IPC_LOCK"}},
		},
	} {
		for _, p := range policies {
			require.Equal(t, want, p.Level(), "%+v", p)
		}
	}
}
