package agenttest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
)

func health(period int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromString("http")}},
		PeriodSeconds: period, TimeoutSeconds: 1, FailureThreshold: 3,
	}
}

func ask(p *corev1.Pod, path string) (int, error) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + net.JoinHostPort(p.Status.PodIP, "8000") + path)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func TestModelServer_AnswersAtThePodsAddressUntilItIsGone(t *testing.T) {
	a := start(t, 1)
	a.create("model", func(_ *corev1.Pod, c *corev1.Container) {
		c.Args = []string{"--model", "tiny", "--tensor-parallel-size", "8", "--load-time", "$(LOAD)"}
		c.Env = []corev1.EnvVar{{Name: "LOAD", Value: "300ms"}}
		c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = health(1), health(1), health(5)
	})
	p := a.ready("model")
	require.Equal(t, corev1.PodRunning, p.Status.Phase)
	require.True(t, strings.HasPrefix(p.Status.PodIP, "127.70.1."), p.Status.PodIP)
	require.Equal(t, "127.0.0.1", p.Status.HostIP)
	code, err := ask(p, "/v1/models/tiny")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, a.logs("model", corev1.PodLogOptions{}), "model loaded")
	require.Eventually(t, func() bool {
		events := a.events("model")
		return slices.Contains(events, "Pulled") && slices.Contains(events, "Created") && slices.Contains(events, "Started")
	}, patience, beat)

	a.remove("model")
	a.gone("model")
	_, err = ask(p, "/health")
	require.ErrorContains(t, err, "connection refused")
}

func TestHostProcess_HasItsEnvironmentAndReportsItsEnd(t *testing.T) {
	a := start(t, 2)
	a.create("host", func(p *corev1.Pod, c *corev1.Container) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		c.Image = "kubelab.local/host:v1"
		c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		c.Command = []string{"sh", "-c", `echo "token=$TOKEN at=$WHERE greeting=$(GREETING)"; echo last words >&2; exit 7`}
		c.Env = []corev1.EnvVar{
			{Name: "WHERE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			{Name: "NAME", Value: "world"},
			{Name: "GREETING", Value: "hello $(NAME)"},
			{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "vars"}, Key: "token",
			}}},
		}
	})
	p := a.await("host", "waiting for its secret", func(_ *corev1.Pod, c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerConfigError"
	})
	require.Equal(t, `secret "vars" not found`, p.Status.ContainerStatuses[0].State.Waiting.Message)
	_, err := cluster.client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "vars"}, StringData: map[string]string{"token": "s3cret"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	p = a.await("host", "failed", func(p *corev1.Pod, _ corev1.ContainerStatus) bool { return p.Status.Phase == corev1.PodFailed })
	end := p.Status.ContainerStatuses[0].State.Terminated
	require.Equal(t, int32(7), end.ExitCode)
	require.Equal(t, "Error", end.Reason)
	want := fmt.Sprintf("token=s3cret at=%s greeting=hello world\nlast words\n", p.Status.PodIP)
	require.Equal(t, want, end.Message)
	require.Equal(t, want, a.logs("host", corev1.PodLogOptions{}))
	one := int64(1)
	require.Equal(t, "last words\n", a.logs("host", corev1.PodLogOptions{TailLines: &one}))
}

func TestHostProcess_IsTerminatedThenKilledWithItsChildren(t *testing.T) {
	a := start(t, 3)
	script := func(on string) func(*corev1.Pod, *corev1.Container) {
		return func(_ *corev1.Pod, c *corev1.Container) {
			c.Image = "kubelab.local/host"
			c.Command = []string{"sh", "-c", "trap '" + on + "' TERM; sleep 1000 & echo child $!; while :; do wait; done"}
		}
	}
	a.create("polite", script("echo bye; exit 0"))
	a.create("stubborn", script("echo no"))
	for _, name := range []string{"polite", "stubborn"} {
		a.ready(name)
		require.Eventually(t, func() bool { return strings.Contains(a.logs(name, corev1.PodLogOptions{}), "child ") }, patience, beat)
	}
	child := strings.Fields(a.logs("stubborn", corev1.PodLogOptions{}))[1]

	logs, err := cluster.client.CoreV1().Pods("default").GetLogs("polite", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	require.NoError(t, err)
	defer logs.Close()
	a.remove("polite")
	followed, err := io.ReadAll(logs)
	require.NoError(t, err)
	require.Contains(t, string(followed), "bye")
	a.gone("polite")

	began := time.Now()
	a.remove("stubborn")
	a.gone("stubborn")
	require.GreaterOrEqual(t, time.Since(began), 4*time.Second, "the process has its whole grace period")
	stat, err := os.ReadFile("/proc/" + child + "/stat")
	// The process that adopted the child may reap it late.
	require.True(t, err != nil || strings.Contains(string(stat), ") Z"), "the child must be gone: %s", stat)
}

func TestStagedFailures_LookAsInACluster(t *testing.T) {
	a := start(t, 4)
	staged := func(name, fault string) {
		a.create(name, func(p *corev1.Pod, c *corev1.Container) {
			p.Annotations[lifecycle.FaultAnnotation] = fault
			c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
			c.ReadinessProbe = health(1)
		})
	}
	for name, fault := range map[string]string{
		"pull": "image-pull-error", "crash": "crash-loop", "oom": "oom", "slow": "slow-start=3s",
		"never": "never-ready", "evict": "evict-after=1s", "preempt": "preempt-after=1s",
	} {
		staged(name, fault)
	}
	waits := func(reason string) func(*corev1.Pod, corev1.ContainerStatus) bool {
		return func(_ *corev1.Pod, c corev1.ContainerStatus) bool {
			return c.State.Waiting != nil && c.State.Waiting.Reason == reason
		}
	}
	p := a.await("pull", "backing off", waits("ImagePullBackOff"))
	require.Equal(t, corev1.PodPending, p.Status.Phase)

	p = a.await("crash", "backing off", waits("CrashLoopBackOff"))
	last := p.Status.ContainerStatuses[0].LastTerminationState.Terminated
	require.Equal(t, int32(1), last.ExitCode)
	require.Contains(t, last.Message, "RuntimeError")
	require.Contains(t, a.logs("crash", corev1.PodLogOptions{Previous: true}), "RuntimeError")

	p = a.await("oom", "backing off", waits("CrashLoopBackOff"))
	last = p.Status.ContainerStatuses[0].LastTerminationState.Terminated
	require.Equal(t, int32(137), last.ExitCode)
	require.Equal(t, "OOMKilled", last.Reason)

	slow := a.ready("slow")
	began := slow.Status.ContainerStatuses[0].State.Running.StartedAt.Time
	at := slices.IndexFunc(slow.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	require.GreaterOrEqual(t, slow.Status.Conditions[at].LastTransitionTime.Sub(began), 2*time.Second)

	p = a.await("evict", "failed", func(p *corev1.Pod, _ corev1.ContainerStatus) bool { return p.Status.Phase == corev1.PodFailed })
	require.Equal(t, "Evicted", p.Status.Reason)
	require.True(t, slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == "TerminationByKubelet"
	}))

	a.gone("preempt")
	never := a.get("never").Status.ContainerStatuses[0]
	require.False(t, never.Ready)
	require.NotNil(t, never.State.Running)
	require.Eventually(t, func() bool {
		return slices.Contains(a.events("crash"), "BackOff") && slices.Contains(a.events("never"), "Unhealthy") &&
			slices.Contains(a.events("pull"), "Failed") && slices.Contains(a.events("evict"), "Evicted")
	}, patience, beat)
}

func TestLostNode_FreezesItsPodsUntilItIsBack(t *testing.T) {
	a := start(t, 5)
	a.create("stays", func(_ *corev1.Pod, c *corev1.Container) { c.ReadinessProbe = health(1) })
	a.create("deleted", nil)
	stays, deleted := a.ready("stays"), a.ready("deleted")
	require.NoError(t, nodes.SetLost(t.Context(), cluster.client, a.node, true))
	require.Eventually(t, func() bool {
		_, err := ask(stays, "/health")
		return err != nil && strings.Contains(err.Error(), "Timeout")
	}, patience, beat, "a lost node does not refuse connections, it does not answer")
	a.remove("deleted")
	a.await("stays", "marked not ready by the control plane", func(p *corev1.Pod, _ corev1.ContainerStatus) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse
		})
	})
	require.NotNil(t, a.get("deleted"), "its end is not confirmed")
	require.True(t, a.get("deleted").Status.ContainerStatuses[0].Ready, "its status is frozen")

	require.NoError(t, nodes.SetLost(t.Context(), cluster.client, a.node, false))
	a.gone("deleted")
	a.await("stays", "ready again", func(p *corev1.Pod, c corev1.ContainerStatus) bool {
		return c.RestartCount == 0 && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
	code, err := ask(stays, "/health")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	_, err = ask(deleted, "/health")
	require.Error(t, err)
}

func TestForcedDeletion_EndsTheProgramToo(t *testing.T) {
	a := start(t, 6)
	a.create("forced", nil)
	p := a.ready("forced")
	require.NoError(t, cluster.client.CoreV1().Pods("default").Delete(t.Context(), "forced", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	require.Eventually(t, func() bool { _, err := ask(p, "/health"); return err != nil }, patience, beat)
}

func TestRestart_NextAgentRunsThePodsAtTheirAddresses(t *testing.T) {
	a := start(t, 7)
	a.create("kept", nil)
	a.create("leaving", nil)
	before := a.ready("kept")
	a.ready("leaving")
	a.stop()
	_, err := ask(before, "/health")
	require.Error(t, err, "programs end with their agent")
	a.remove("leaving")
	a.run()
	a.gone("leaving")
	after := a.await("kept", "restarted", func(_ *corev1.Pod, c corev1.ContainerStatus) bool { return c.Ready && c.RestartCount == 1 })
	require.Equal(t, before.Status.PodIP, after.Status.PodIP)
	require.Equal(t, int32(255), after.Status.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode)
	code, err := ask(after, "/health")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
}

func TestStatus_ThatAClientOverwroteIsRestored(t *testing.T) {
	a := start(t, 8)
	a.create("meddled", nil)
	p := a.ready("meddled")
	p.Status.Phase = corev1.PodPending
	p.Status.ContainerStatuses[0].Ready = false
	_, err := cluster.client.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	require.NoError(t, err)
	a.await("meddled", "put right", func(p *corev1.Pod, c corev1.ContainerStatus) bool {
		return c.Ready && p.Status.Phase == corev1.PodRunning
	})
}

func TestFinalizer_KeepsTheObjectAndNotTheProgram(t *testing.T) {
	a := start(t, 9)
	a.create("held", func(p *corev1.Pod, _ *corev1.Container) { p.Finalizers = []string{"windlass.run/test"} })
	p := a.ready("held")
	a.remove("held")
	a.await("held", "ended", func(p *corev1.Pod, c corev1.ContainerStatus) bool { return c.State.Terminated != nil })
	_, err := ask(p, "/health")
	require.Error(t, err)
	_, err = cluster.client.CoreV1().Pods("default").Patch(context.Background(), "held", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	a.gone("held")
}
