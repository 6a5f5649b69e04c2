package observe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func at(seconds int) metav1.Time {
	return metav1.NewTime(noon.Add(time.Duration(seconds) * time.Second))
}

// newPod returns a pod that has run on a node since its creation and is not ready.
func newPod(name string, created int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), CreationTimestamp: at(created)},
		Spec: corev1.PodSpec{
			NodeName:   "node-1",
			Containers: []corev1.Container{{Name: "main", Ports: []corev1.ContainerPort{{ContainerPort: 8000}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", StartTime: new(at(created)),
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(created)},
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at(created)},
			},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Started: new(true),
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(created + 1)}},
			}},
		},
	}
}

func changed(p *corev1.Pod, change ...func(*corev1.Pod)) *corev1.Pod {
	p = p.DeepCopy()
	for _, c := range change {
		c(p)
	}
	return p
}

func turned(ready bool, when int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := conditionOf(p, corev1.PodReady)
		c.Status, c.LastTransitionTime = corev1.ConditionFalse, at(when)
		if ready {
			c.Status = corev1.ConditionTrue
		}
		p.Status.ContainerStatuses[0].Ready = ready
	}
}

// over ends the present run, which began at begun. The kubelet waits before it starts the next run.
func over(begun, when int, code int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		cs := &p.Status.ContainerStatuses[0]
		cs.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", StartedAt: at(begun), FinishedAt: at(when)}
		cs.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		cs.Ready = false
	}
}

func again(when int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		cs := &p.Status.ContainerStatuses[0]
		cs.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(when)}}
		cs.RestartCount++
	}
}

func deleted(when int) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = new(at(when)) }
}

func evicted(p *corev1.Pod) {
	p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory."
}

func look(m *Memory, now int, pods ...*corev1.Pod) []runtime.Instance {
	return m.Instances(Input{Now: at(now).Time, Pods: pods})
}

func groups(all []runtime.Instance) map[string]int {
	out := map[string]int{}
	for _, i := range all {
		out[i.RuntimeName[len("ns/"):]] = i.Group
	}
	return out
}

func TestGroups_AreTheLowestFreeNumbersInOrderOfCreation(t *testing.T) {
	var m Memory
	a, b, c := newPod("a", 5), newPod("b", 0), newPod("c", 0)
	require.Equal(t, map[string]int{"b": 0, "c": 1, "a": 2}, groups(look(&m, 6, a, b, c)))

	var late Memory
	look(&late, 6, c)
	look(&late, 6, c, a)
	require.Equal(t, map[string]int{"b": 0, "c": 1, "a": 2}, groups(look(&late, 6, a, b, c)),
		"the order in which new pods are reported does not matter")
}

func TestGroup_IsKeptForLifeAndThenReused(t *testing.T) {
	var m Memory
	a, b, c := newPod("a", 0), newPod("b", 0), newPod("c", 0)
	look(&m, 1, a, b, c)
	require.Equal(t, map[string]int{"a": 0, "b": 1, "c": 2}, groups(look(&m, 20, a, b, c)))
	require.Equal(t, map[string]int{"b": 1, "c": 2}, groups(look(&m, 21, b, c)))

	d := newPod("d", 22)
	require.Equal(t, map[string]int{"d": 0, "b": 1, "c": 2}, groups(look(&m, 22, b, c, d)))

	leaving := changed(b, deleted(60))
	e := newPod("e", 30)
	require.Equal(t, map[string]int{"d": 0, "b": 1, "e": 1, "c": 2}, groups(look(&m, 40, leaving, c, d, e)),
		"a pod that is being deleted keeps its group, and the next pod gets the same group")

	fresh := Memory{}
	require.Equal(t, map[string]int{"c": 0, "d": 1, "e": 2, "b": 3}, groups(look(&fresh, 50, leaving, c, d, e)),
		"a restarted agent assigns groups without pods that are being deleted")
}

func TestMemory_RestartedAgentFindsTheSameInstances(t *testing.T) {
	pods := []*corev1.Pod{newPod("b", 0), newPod("a", 0), newPod("c", 3)}
	var before, after Memory
	for n := range pods {
		look(&before, 4, pods[:n+1]...)
	}
	for i, p := range pods {
		pods[i] = changed(p, turned(true, 7))
	}
	first := look(&before, 20, pods...)
	require.Equal(t, first, look(&after, 900, pods[2], pods[0], pods[1]))
}

func TestInstance_ReusedAddressOverwritesNoOtherInstance(t *testing.T) {
	var m Memory
	old := changed(newPod("a", 0), turned(true, 5), deleted(30))
	next := changed(newPod("a", 20), turned(true, 25), func(p *corev1.Pod) { p.UID = "another" })
	all := look(&m, 26, old, next)
	require.Len(t, all, 2)
	require.Equal(t, all[0].Address, all[1].Address)
	require.Equal(t, all[0].RuntimeName, all[1].RuntimeName, "the names are equal, as with a StatefulSet")
	require.NotEqual(t, all[0].ID, all[1].ID)
	require.Equal(t, []any{serving, draining}, []any{all[0].Status, all[1].Status})
}

func TestPod_WithoutAnAddressIsReported(t *testing.T) {
	var m Memory
	all := look(&m, 1, changed(newPod("a", 0), func(p *corev1.Pod) { p.Status.PodIP = "" }))
	require.Len(t, all, 1)
	require.Empty(t, all[0].Address)
}

func TestCrashLoop_ThreeUnreadyEndsDoom(t *testing.T) {
	var m Memory
	p := newPod("a", 0)
	for run := range 3 {
		p = changed(p, over(10*run+1, 10*run+2, 1))
		i := look(&m, 10*run+3, p)[0]
		require.Equal(t, run == 2, i.Doomed, "after run %d", run)
		require.Equal(t, map[bool]string{false: runtime.ReasonExited, true: runtime.ReasonCrashLoop}[run == 2], i.Reason)
		p = changed(p, again(10*run+11))
		i = look(&m, 10*run+12, p)[0]
		require.Equal(t, run == 2, i.Doomed, "running again")
	}
}

func TestCrashLoop_ReadyRunForgetsEarlierEnds(t *testing.T) {
	var m Memory
	p := newPod("a", 0)
	for run := range 2 {
		p = changed(p, over(10*run+1, 10*run+2, 1), again(10*run+11))
		look(&m, 10*run+12, p)
	}
	p = changed(p, turned(true, 30))
	require.Equal(t, serving, look(&m, 31, p)[0].Status)
	p = changed(p, turned(false, 200), over(21, 200, 1))
	i := look(&m, 201, p)[0]
	require.False(t, i.Doomed)
	require.Equal(t, runtime.ReasonExited, i.Reason)
	for run := range 2 {
		p = changed(p, again(210+10*run), over(210+10*run, 211+10*run, 1))
		require.Equal(t, run == 1, look(&m, 212+10*run, p)[0].Doomed, "doomed at the third end after the ready run")
	}
}

func TestCrashLoop(t *testing.T) {
	t.Run("after a run that serves for seconds, earlier ends still count", func(t *testing.T) {
		var m, blinked Memory
		p := newPod("a", 0)
		look(&blinked, 0, p)
		for run := range runtime.LoopAfter {
			begun := 100 * run
			up := changed(p, turned(true, begun+10))
			require.Equal(t, serving, look(&m, begun+11, up)[0].Status)
			if run == 0 {
				look(&blinked, begun+11, up)
			}
			p = changed(up, turned(false, begun+20), over(begun+1, begun+20, 1))
			i := look(&m, begun+21, p)[0]
			require.Equal(t, run == runtime.LoopAfter-1, i.Doomed, "end %d", run+1)
			require.Equal(t, i.Doomed, i.Reason == runtime.ReasonCrashLoop)
			p = changed(p, again(begun+101))
			require.Equal(t, i.Doomed, look(&m, begun+102, p)[0].Doomed, "running again")
		}
		require.True(t, look(&blinked, 303, p)[0].Doomed, "doomed also for an agent that missed most of the states")
		var fresh Memory
		require.True(t, look(&fresh, 303, p)[0].Doomed, "doomed also for an agent that starts again")
	})
	t.Run("after a run that served for a minute, earlier ends do not count, whether or not its end was seen", func(t *testing.T) {
		for name, missed := range map[string]bool{"seen": false, "missed": true} {
			t.Run(name, func(t *testing.T) {
				var m Memory
				p := newPod("a", 0)
				for run := range 2 {
					p = changed(p, over(10*run+1, 10*run+2, 1), again(10*run+11))
					look(&m, 10*run+12, p)
				}
				p = changed(p, turned(true, 30))
				look(&m, 31, p)
				p = changed(p, turned(false, 90), over(21, 90, 1))
				if !missed {
					require.Equal(t, runtime.ReasonExited, look(&m, 91, p)[0].Reason)
				}
				p = changed(p, again(100), turned(true, 101))
				look(&m, 102, p)
				i := look(&m, 111, changed(p, turned(false, 110), over(100, 110, 1)))[0]
				require.False(t, i.Doomed, "it is the second end since that run")
				require.Equal(t, runtime.ReasonExited, i.Reason)
			})
		}
	})
}

func TestCrashLoop_NeverDoomsAReadyInstance(t *testing.T) {
	var m Memory
	p := newPod("a", 0)
	for run := range 5 {
		p = changed(p, over(10*run+1, 10*run+2, 1), again(10*run+11))
		look(&m, 10*run+12, p)
	}
	i := look(&m, 71, changed(p, turned(true, 70)))[0]
	require.Equal(t, serving, i.Status)
	require.False(t, i.Doomed)
	require.Equal(t, 5, i.Restarts)
	require.Empty(t, i.Reason)
}

func TestLeftBehind_IsReportedAFewTimesAndDoesNotCount(t *testing.T) {
	var m Memory
	pods := []*corev1.Pod{newPod("z", 100)}
	for n := range 9 {
		pods = append(pods, changed(newPod(fmt.Sprintf("p%d", n), n), evicted))
	}
	all := look(&m, 101, pods...)
	require.Len(t, all, 1+maxLeftBehind)
	for _, i := range all {
		if i.RuntimeName == "ns/z" {
			require.Zero(t, i.Group)
			continue
		}
		require.Equal(t, terminated, i.Status)
		require.Equal(t, runtime.ReasonEvicted, i.Reason)
		require.Empty(t, i.Address)
		require.GreaterOrEqual(t, i.RuntimeName, "ns/p4", "the newest")
	}
}

func TestReplacement_SaysWhyThePreviousPodEnded(t *testing.T) {
	var m Memory
	a := newPod("a", 0)
	look(&m, 1, a)
	next := changed(newPod("b", 20), func(p *corev1.Pod) { p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending} })
	all := look(&m, 21, changed(a, evicted), next)
	require.Len(t, all, 2)
	require.Equal(t, pending, all[1].Status)
	require.Equal(t, runtime.ReasonEvicted, all[1].Reason)
	require.Equal(t, "replaces ns/a: The node was low on resource: memory.", all[1].Message)
}

func refusing(message string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "chat-v1", Namespace: "ns", UID: "w", Generation: 2},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(3)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{templateHash: "t"}}},
		},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration: 2,
			Conditions: []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: message,
			}},
		},
	}
}

func TestInstances_HaveReplicasWhosePodsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		says   string
		status any
		reason string
		want   string
		doomed bool
	}{
		"a quota": {
			says:   `pods "chat-v1-5d9c7-x2x8k" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8`,
			status: pending, reason: runtime.ReasonQuotaExceeded,
			want: "cannot create a pod: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8",
		},
		"a standard": {
			says:   `pods "chat-v1-5d9c7-x2x8k" is forbidden: violates PodSecurity "restricted:latest": privileged (container "main" must not set securityContext.privileged=true)`,
			status: failed, reason: runtime.ReasonInvalidSpec, doomed: true,
			want: `cannot create a pod: violates PodSecurity "restricted:latest": privileged (container "main" must not set securityContext.privileged=true); allow it in kubernetes.security, with a reason, or lower the namespace's level`,
		},
		"a policy": {
			says:   `admission webhook "policy.acme.example" denied the request: images must come from registry.acme.example`,
			status: failed, reason: runtime.ReasonForbidden, doomed: true,
			want: `cannot create a pod: admission webhook "policy.acme.example" denied the request: images must come from registry.acme.example`,
		},
		"a webhook that is down": {
			says:   `Internal error occurred: failed calling webhook "policy.acme.example": connection refused`,
			status: failed, reason: runtime.ReasonUnavailable,
			want: `cannot create a pod: Internal error occurred: failed calling webhook "policy.acme.example": connection refused`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m Memory
			p := changed(newPod("a", 0), turned(true, 5))
			in := Input{Now: noon, Pods: []*corev1.Pod{p}, Workload: refusing(c.says)}
			all := m.Instances(in)
			require.Len(t, all, 3, "one pod exists, and two are missing")
			for g, i := range all[1:] {
				require.Equal(t, g+1, i.Group)
				require.Equal(t, c.status, i.Status)
				require.Equal(t, c.reason, i.Reason)
				require.Equal(t, c.want, i.Message)
				require.Equal(t, c.doomed, i.Doomed)
				require.Equal(t, "t", i.TemplateHash)
				require.Equal(t, "ns/chat-v1", i.RuntimeName)
			}
			require.NotEqual(t, all[1].ID, all[2].ID)
			require.Equal(t, all, m.Instances(in))

			in.Workload = in.Workload.DeepCopy()
			in.Workload.Generation++
			require.Len(t, m.Instances(in), 1, "a condition of an earlier spec is ignored")
		})
	}
}

func TestLastOutput_IsShownWithoutSecrets(t *testing.T) {
	p := changed(newPod("a", 0), over(1, 2, 1), func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated.Message = "5678\nkey=hunter2345678\n" + strings.Repeat("x", tailBytes-8)
	})
	var m Memory
	in := Input{Now: at(3).Time, Pods: []*corev1.Pod{p}, Secrets: redact.New("hunter2345678")}
	said := m.Instances(in)[0].Message
	require.Contains(t, said, "***")
	require.NotContains(t, said, "5678", "blanked also where the kubelet or the agent has cut the output")

	in.Secrets = nil
	require.Equal(t, "exit code 1; its last output is shown when the agent knows which secrets to remove from it", m.Instances(in)[0].Message)
	in.Secrets = redact.New()
	require.Contains(t, m.Instances(in)[0].Message, "last output: ", "the output is shown once the secrets are known")
	_, settled := m.Settled(nil, "", redact.New())
	require.False(t, settled)
}

func TestNodes_ThatAreUnknownChangeNoVerdict(t *testing.T) {
	var m Memory
	p := changed(newPod("a", 0), turned(true, 5))
	require.Equal(t, serving, look(&m, 900, p)[0].Status)
	i := m.Instances(Input{Now: at(900).Time, Pods: []*corev1.Pod{p}, Nodes: func(string) *corev1.Node { return nil }})[0]
	require.Equal(t, runtime.ReasonNodeLost, i.Reason)
}
