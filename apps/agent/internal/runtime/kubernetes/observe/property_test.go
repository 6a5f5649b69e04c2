package observe

import (
	"fmt"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// reasons has the reasons that an instance of this runtime may have.
var reasons = []string{
	"", runtime.ReasonBadCommand, runtime.ReasonCrashLoop, runtime.ReasonExited, runtime.ReasonHealthCheckFailed,
	runtime.ReasonStartupTimeout, runtime.ReasonNotReady, runtime.ReasonOOMKilled, runtime.ReasonUnschedulable,
	runtime.ReasonLost, runtime.ReasonReplaced, runtime.ReasonStopped, runtime.ReasonInvalidSpec,
	runtime.ReasonSecretUnavailable, runtime.ReasonImagePullError, runtime.ReasonEvicted, runtime.ReasonPreempted,
	runtime.ReasonNodeLost, runtime.ReasonVolumeError, runtime.ReasonSandboxError,
}

// These are texts of kubelets, schedulers and controllers, and some invalid texts.
var (
	waitingReasons = []string{
		"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "InvalidImageName",
		"ErrImageNeverPull", "ImageInspectError", "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
		"PreStartHookError", "PostStartHookError", "NoSuchReason",
	}
	endReasons = []string{"", "Error", "Completed", "OOMKilled", "StartError", "ContainerCannotRun", "ContainerStatusUnknown", "NoSuchReason"}
	podReasons = []string{"", "Evicted", "Preempting", "NodeLost", "Terminated", "UnexpectedAdmissionError", "OutOfcpu", "DeadlineExceeded", "NoSuchReason"}
	conditions = []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized,
		corev1.PodReadyToStartContainers, corev1.DisruptionTarget, "acme.example/gate",
	}
	conditionReasons = []string{
		"", "Unschedulable", "SchedulingGated", "SchedulerError", "PreemptionByScheduler", "DeletionByPodGC",
		"DeletionByTaintManager", "EvictionByEvictionAPI", "TerminationByKubelet",
	}
	texts = []string{
		"", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "0/0 nodes are available: .", "0/1 nodes are available: ,,, 5",
		"Back-off pulling image \"x\": ErrImagePull: x: not found", "exec: \"x\": executable file not found in $PATH",
		"container has runAsNonRoot and image will run as root", "secret \"x\" not found", "\xff\xfe", "\n\n | \n",
	}
	eventReasons = []string{"Failed", "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "Unhealthy", "Evicted", "Pulled"}
	eventTexts   = []string{"Failed to pull image \"x\": y", "Startup probe failed: ", "Liveness probe failed: HTTP probe failed with statuscode: x", "Readiness probe errored and resulted in unknown state: y", ""}
)

func pick[T any](t *rapid.T, what string, from []T) T { return rapid.SampledFrom(from).Draw(t, what) }

func anyText(t *rapid.T) string {
	if rapid.Bool().Draw(t, "known text") {
		return pick(t, "text", texts)
	}
	return rapid.String().Draw(t, "text")
}

func anyTime(t *rapid.T) metav1.Time {
	switch rapid.IntRange(0, 9).Draw(t, "kind of time") {
	case 0:
		return metav1.Time{}
	case 1:
		return metav1.Unix(0, 0)
	}
	return at(rapid.IntRange(-100, 4000).Draw(t, "time"))
}

func anyState(t *rapid.T) (s corev1.ContainerState) {
	switch rapid.IntRange(0, 3).Draw(t, "state") {
	case 1:
		s.Waiting = &corev1.ContainerStateWaiting{Reason: pick(t, "waiting", waitingReasons), Message: anyText(t)}
	case 2:
		s.Running = &corev1.ContainerStateRunning{StartedAt: anyTime(t)}
	case 3:
		s.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: rapid.SampledFrom([]int32{0, 1, 126, 127, 128, 137, 143, 255}).Draw(t, "code"), Reason: pick(t, "end", endReasons),
			Signal: rapid.Int32Range(0, 15).Draw(t, "signal"), Message: anyText(t), StartedAt: anyTime(t), FinishedAt: anyTime(t),
		}
	}
	return s
}

func anyStatus(t *rapid.T, name string) corev1.ContainerStatus {
	s := corev1.ContainerStatus{
		Name: name, Ready: rapid.Bool().Draw(t, "ready"), RestartCount: rapid.Int32Range(0, 5).Draw(t, "restarts"),
		State: anyState(t), LastTerminationState: anyState(t),
	}
	if rapid.Bool().Draw(t, "tells started") {
		s.Started = new(rapid.Bool().Draw(t, "started"))
	}
	return s
}

func anyProbe(t *rapid.T) *corev1.Probe {
	if rapid.Bool().Draw(t, "no probe") {
		return nil
	}
	return &corev1.Probe{
		InitialDelaySeconds: rapid.Int32Range(0, 10).Draw(t, "delay"), PeriodSeconds: rapid.Int32Range(0, 30).Draw(t, "period"),
		FailureThreshold: rapid.Int32Range(0, 200).Draw(t, "threshold"), TimeoutSeconds: rapid.Int32Range(0, 5).Draw(t, "timeout"),
	}
}

func anyPod(t *rapid.T, name string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ns", UID: types.UID("uid-" + name), CreationTimestamp: at(rapid.IntRange(0, 3).Draw(t, "created")),
			Annotations: map[string]string{templateHash: pick(t, "template", []string{"old", "new"})},
		},
		Spec: corev1.PodSpec{NodeName: pick(t, "node", []string{"", "good", "lost", "gone"})},
		Status: corev1.PodStatus{
			Phase:  pick(t, "phase", []corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown}),
			Reason: pick(t, "pod reason", podReasons), Message: anyText(t),
			PodIP: pick(t, "ip", []string{"", "10.0.0.1", "fd00::1"}), NominatedNodeName: pick(t, "nominated", []string{"", "good"}),
		},
	}
	if rapid.Bool().Draw(t, "deleted") {
		p.DeletionTimestamp = new(anyTime(t))
	}
	if rapid.Bool().Draw(t, "started") {
		p.Status.StartTime = new(anyTime(t))
	}
	for n := range rapid.IntRange(0, 2).Draw(t, "containers") {
		c := corev1.Container{Name: fmt.Sprint("c", n), StartupProbe: anyProbe(t), LivenessProbe: anyProbe(t)}
		if rapid.Bool().Draw(t, "port") {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 8000}}
			c.Command = []string{"serve"}
		}
		if rapid.Bool().Draw(t, "gpus") {
			c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(rapid.Int64Range(-1, 1<<40).Draw(t, "gpus"), resource.DecimalSI)}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
		if rapid.Bool().Draw(t, "has status") {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, anyStatus(t, c.Name))
		}
	}
	if rapid.Bool().Draw(t, "init") {
		c := corev1.Container{Name: "init"}
		if rapid.Bool().Draw(t, "sidecar") {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = []corev1.Container{c}
		if rapid.Bool().Draw(t, "has status") {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{anyStatus(t, "init")}
		}
	}
	for _, c := range conditions {
		if s := pick(t, string(c), []corev1.ConditionStatus{"", corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}); s != "" {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: c, Status: s, Reason: pick(t, "why", conditionReasons), Message: anyText(t), LastTransitionTime: anyTime(t),
			})
		}
	}
	if rapid.Bool().Draw(t, "gate") {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "acme.example/gate"}}
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "b"}}
	}
	return p
}

func anyNodes(t *rapid.T) Nodes {
	if rapid.Bool().Draw(t, "nodes are not known") {
		return nil
	}
	return func(name string) *corev1.Node {
		switch name {
		case "good":
			return gpuNode(name)
		case "lost":
			return gpuNode(name, notReady)
		}
		return nil
	}
}

func anyJournal(t *rapid.T, pods []*corev1.Pod) *Journal {
	j := &Journal{}
	for range rapid.IntRange(0, 6).Draw(t, "events") {
		e := event(pods[rapid.IntRange(0, len(pods)-1).Draw(t, "of")].UID, "e", pick(t, "event", eventReasons), pick(t, "says", eventTexts), 0, rapid.Int32Range(0, 4).Draw(t, "count"))
		e.LastTimestamp = anyTime(t)
		j.Add(e)
	}
	return j
}

func TestPod_AnyStateHasAKnownStatusAndReason(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pods []*corev1.Pod
		for n := range rapid.IntRange(1, 4).Draw(t, "pods") {
			pods = append(pods, anyPod(t, string(rune('a'+n))))
		}
		in := Input{Now: at(4000).Time, TemplateHash: "new", Pods: pods, Nodes: anyNodes(t), Journal: anyJournal(t, pods)}
		var m Memory
		all := m.Instances(in)
		require.Equal(t, all, m.Instances(in), "a second call returns the same instances")

		byID, held := map[string]bool{}, map[int]bool{}
		for _, i := range all {
			require.False(t, byID[i.ID], "two instances have the same id")
			byID[i.ID] = true
			require.Contains(t, reasons, i.Reason)
			require.NotEqual(t, windlassv1.InstanceStatus_INSTANCE_STATUS_UNSPECIFIED, i.Status)
			require.Contains(t, windlassv1.InstanceStatus_name, int32(i.Status))
			require.LessOrEqual(t, len(i.Message), maxMessage)
			require.True(t, utf8.ValidString(i.Message))
			require.LessOrEqual(t, len(i.GPUs), 2*maxDevices)
			require.GreaterOrEqual(t, i.Group, 0)

			p := pods[slices.IndexFunc(pods, func(p *corev1.Pod) bool { return render.InstanceID(p.UID) == i.ID })]
			require.Equal(t, p.DeletionTimestamp != nil, i.Status == draining)
			if i.Status == serving {
				require.True(t, podReady(p), "an instance is ready without the condition")
				require.False(t, in.Nodes != nil && p.Spec.NodeName == "lost")
				require.Empty(t, i.Reason)
				require.False(t, i.Doomed)
				require.False(t, i.ReadyAt.Before(i.StartedAt))
			} else {
				require.Zero(t, i.ReadyAt)
			}
			if i.Reason == runtime.ReasonCrashLoop {
				require.True(t, i.Doomed, "the instance is in a crash loop, but not doomed")
			}
			if holdsGPUs(p) {
				require.False(t, held[i.Group], "two instances hold group %d", i.Group)
				held[i.Group] = true
			} else {
				require.Contains(t, []any{draining, terminated}, i.Status)
			}
			if i.Status == failed || i.Status == terminated {
				require.NotEmpty(t, i.Reason)
			}
		}
		for g := range len(held) {
			require.True(t, held[g], "group %d was left out", g)
		}
	})
}

func TestGroups_OrderOfArrivalDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pods []*corev1.Pod
		for n := range rapid.IntRange(1, 8).Draw(t, "pods") {
			pods = append(pods, newPod(string(rune('a'+n)), rapid.IntRange(0, 3).Draw(t, "created")))
		}
		var atOnce, oneByOne Memory
		want := groups(look(&atOnce, 4, pods...))
		heard := rapid.Permutation(pods).Draw(t, "order")
		for n := range heard {
			look(&oneByOne, 4, heard[:n+1]...)
		}
		require.Equal(t, want, groups(look(&oneByOne, 5, heard...)))
	})
}

// A fleet that got every change has the same capacity as a fleet that got only the final objects.
func TestFleet_CapacityDoesNotDependOnHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := fleet(FleetConfig{})
		nodes, pods := map[string]*corev1.Node{}, map[types.UID]*corev1.Pod{}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			name := fmt.Sprint("n", rapid.IntRange(0, 3).Draw(t, "node"))
			uid := fmt.Sprint("p", rapid.IntRange(0, 9).Draw(t, "pod"))
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				delete(nodes, name)
				f.RemoveNode(name)
			case 1, 2:
				nodes[name] = gpuNode(name, pick(t, "as", []func(*corev1.Node){func(*corev1.Node) {}, cordoned, notReady, taint("x")}))
				f.SetNode(nodes[name])
			case 3:
				delete(pods, types.UID(uid))
				f.RemovePod(types.UID(uid))
			default:
				p := pods[types.UID(uid)]
				if p == nil {
					p = asking(uid, pick(t, "on", []string{"", name}), "nvidia.com/gpu", rapid.IntRange(0, 8).Draw(t, "gpus"))
				} else {
					p = changed(p, func(p *corev1.Pod) {
						p.Status.Phase = pick(t, "phase", []corev1.PodPhase{corev1.PodRunning, corev1.PodFailed})
						if p.Spec.NodeName == "" {
							p.Spec.NodeName = name
						}
					})
				}
				pods[p.UID] = p
				f.SetPod(p)
			}
			if rapid.Bool().Draw(t, "ask") {
				f.Capacity()
			}
		}
		fresh := fleet(FleetConfig{})
		for _, n := range nodes {
			fresh.SetNode(n)
		}
		for _, p := range pods {
			fresh.SetPod(p)
		}
		require.Empty(t, diffText(fresh.Capacity(), f.Capacity()))
		for _, l := range f.Capacity().Gpus {
			require.LessOrEqual(t, l.LargestFree, l.Free)
			require.LessOrEqual(t, l.Free, l.Allocatable)
		}
	})
}

// region returns the pods of 1,000 workloads with five pods each, and 700 nodes.
func region() ([][]*corev1.Pod, map[string]*corev1.Node) {
	nodes := map[string]*corev1.Node{}
	for n := range 700 {
		nodes[fmt.Sprintf("n%03d", n)] = gpuNode(fmt.Sprintf("n%03d", n))
	}
	workloads := make([][]*corev1.Pod, 1000)
	for w := range workloads {
		for n := range 5 {
			p := changed(newPod(fmt.Sprintf("w%04d-%d", w, n), n), turned(true, 30))
			p.Spec.NodeName = fmt.Sprintf("n%03d", (5*w+n)%700)
			gpu := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("4")}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: gpu, Requests: gpu}
			workloads[w] = append(workloads[w], p)
		}
	}
	return workloads, nodes
}

// BenchmarkInstances calls Instances for 5,000 pods of 1,000 workloads. The cost of a call mostly
// depends on the number of pods that have changed since the previous call.
func BenchmarkInstances(b *testing.B) {
	workloads, nodes := region()
	sick := changed(newPod("sick", 0), over(1, 2, 1))
	for _, c := range []struct {
		name  string
		fresh bool
		churn int
	}{{"first look", true, 0}, {"nothing changed", false, 0}, {"50 changed", false, 50}} {
		b.Run(c.name, func(b *testing.B) {
			memories := make([]Memory, len(workloads))
			journal := &Journal{}
			journal.Add(event(sick.UID, "e", "Unhealthy", "Readiness probe failed: x", 1, 1))
			observe := func() {
				for w, pods := range workloads {
					memories[w].Instances(Input{
						Now: noon, Pods: pods, Journal: journal,
						Nodes: func(name string) *corev1.Node { return nodes[name] },
					})
				}
			}
			observe()
			b.ReportAllocs()
			for b.Loop() {
				if c.fresh {
					clear(memories)
				}
				for n := range c.churn {
					workloads[n][0] = workloads[n][0].DeepCopy()
				}
				observe()
			}
		})
	}
}

// BenchmarkFleet calls Capacity after one pod of 5,000 has changed.
func BenchmarkFleet(b *testing.B) {
	workloads, nodes := region()
	f := fleet(FleetConfig{})
	for _, n := range nodes {
		f.SetNode(n)
	}
	for _, pods := range workloads {
		for _, p := range pods {
			f.SetPod(p)
		}
	}
	p := workloads[0][0]
	b.ReportAllocs()
	for b.Loop() {
		f.RemovePod(p.UID)
		f.SetPod(p)
		f.Capacity()
	}
}

func TestInstances_OfAWholeRegionTakeLittleTime(t *testing.T) {
	workloads, nodes := region()
	memories := make([]Memory, len(workloads))
	best := time.Hour
	for range 5 {
		start := time.Now()
		for w, pods := range workloads {
			memories[w].Instances(Input{Now: noon, Pods: pods, Nodes: func(name string) *corev1.Node { return nodes[name] }})
		}
		best = min(best, time.Since(start))
	}
	// The limit is about ten times the usual duration on a busy machine, so only a slower algorithm
	// exceeds it.
	require.Less(t, best, 50*time.Millisecond)
}
