package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var epoch = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

var tuning = &Tuning{
	Restart:     Backoff{Base: 10 * time.Second, Max: 5 * time.Minute},
	Pull:        Backoff{Base: 10 * time.Second, Max: 5 * time.Minute},
	ConfigRetry: 5 * time.Second,
}

// harness is a node for one pod: it carries out actions at once and lets virtual
// time pass from one wake-up to the next.
type harness struct {
	t   *testing.T
	m   *Machine
	pod *corev1.Pod
	now time.Time
	log []string // "12s action"

	healthy func(kind ProbeKind, at time.Duration) bool
	// stubborn makes runs ignore SIGTERM.
	stubborn bool
	starts   error
	hooks    func() error
}

func pod(change func(*corev1.Pod)) *corev1.Pod {
	grace := int64(30)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1", Generation: 1, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName: "n1", RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/model:1", ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func probe(delay, period, failures, successes int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8000)}},
		InitialDelaySeconds: delay, PeriodSeconds: period, FailureThreshold: failures, SuccessThreshold: successes, TimeoutSeconds: 1,
	}
}

func newHarness(t *testing.T, p *corev1.Pod) *harness {
	b := &harness{t: t, pod: p, now: epoch, healthy: func(ProbeKind, time.Duration) bool { return true }}
	b.m = New(tuning, p, b.now)
	b.m.SetAddress(b.now, "127.0.0.1", "127.64.0.2")
	return b
}

func (h *harness) at() time.Duration { return h.now.Sub(epoch) }

func (h *harness) notef(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%s ", h.at())+fmt.Sprintf(format, args...))
}

// settle carries out actions until there are none.
func (h *harness) settle() {
	for range 1000 {
		actions := h.m.Advance(h.now)
		if len(actions) == 0 {
			return
		}
		for _, a := range actions {
			h.do(a)
		}
	}
	h.t.Fatal("actions without end")
}

func (h *harness) do(a Action) {
	switch a := a.(type) {
	case Start:
		h.notef("start %s/%d", a.Container, a.Run)
		h.m.Started(h.now, a.Ref, h.starts)
	case Terminate:
		h.notef("term %s/%d", a.Container, a.Run)
		if !h.stubborn {
			h.m.Exited(h.now, a.Ref, Exit{Code: 143, LogTail: "bye"})
		}
	case Kill:
		h.notef("kill %s/%d", a.Container, a.Run)
		h.m.Exited(h.now, a.Ref, Exit{Code: 137, Signal: 9, LogTail: a.LastWords})
	case Check:
		ok := h.healthy(a.Kind, h.at())
		h.notef("%s %t", a.Kind, ok)
		h.m.Probed(h.now, a.Ref, a.Kind, Answer{OK: ok, Output: "HTTP probe failed with statuscode: 503"})
	case Hook:
		h.notef("hook %s/%d", a.Container, a.Run)
		if h.hooks != nil {
			h.m.HookDone(h.now, a.Ref, h.hooks())
		}
	case Record:
		h.notef("event %s %s", a.Reason, a.Message)
	case Preempt:
		h.notef("preempt")
	}
}

// until advances the virtual time to d after the epoch.
func (h *harness) until(d time.Duration) {
	h.settle()
	for {
		next := h.m.NextWake()
		if next.IsZero() || next.After(epoch.Add(d)) {
			break
		}
		require.True(h.t, next.After(h.now) || next.Equal(h.now), "wake-up in the past")
		before := h.now
		h.now = next
		h.settle()
		if again := h.m.NextWake(); again.Equal(before) {
			h.t.Fatalf("wake-up at %s does nothing", h.at())
		}
	}
	h.now = epoch.Add(d)
	h.settle()
}

func (h *harness) remove(grace int64) {
	p := h.pod.DeepCopy()
	when := metav1.NewTime(h.now)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &when, &grace
	h.pod = p
	h.m.Observe(h.now, p)
	h.settle()
}

func (h *harness) annotate(value string) {
	p := h.pod.DeepCopy()
	p.Annotations[FaultAnnotation] = value
	h.pod = p
	h.m.Observe(h.now, p)
	h.settle()
}

func (h *harness) status() corev1.PodStatus { return h.m.Status(h.now, &h.pod.Status) }

func (h *harness) main() corev1.ContainerStatus { return h.status().ContainerStatuses[0] }

func (h *harness) condition(kind corev1.PodConditionType) corev1.PodCondition {
	s := h.status()
	at := slices.IndexFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	require.GreaterOrEqual(h.t, at, 0, "no condition %s", kind)
	return s.Conditions[at]
}

// only returns the entries of the log that contain one of the words.
func (h *harness) only(words ...string) []string {
	var out []string
	for _, line := range h.log {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			out = append(out, line)
		}
	}
	return out
}

func TestPod_WithoutProbesIsReadyAsSoonAsItRuns(t *testing.T) {
	b := newHarness(t, pod(nil))
	require.Equal(t, corev1.PodPending, b.status().Phase)
	require.Equal(t, "ContainerCreating", b.main().State.Waiting.Reason)
	b.settle()
	s := b.status()
	require.Equal(t, corev1.PodRunning, s.Phase)
	require.Equal(t, "127.64.0.2", s.PodIP)
	require.True(t, b.main().Ready)
	require.True(t, *b.main().Started)
	require.Equal(t, corev1.ConditionTrue, b.condition(corev1.PodReady).Status)
	require.Equal(t, []string{
		`0s event Pulled Container image "registry.example/model:1" already present on machine`,
		"0s start main/0", "0s event Created Container created", "0s event Started Container started",
	}, b.log)
	require.True(t, b.m.NextWake().IsZero(), "nothing is due, so nothing wakes")
}

func TestReadiness_WaitsForDelayAndThresholds(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = probe(5, 10, 3, 2) }))
	b.healthy = func(_ ProbeKind, at time.Duration) bool { return at < 40*time.Second }
	b.until(14 * time.Second)
	require.False(t, b.main().Ready, "one success of two")
	b.until(15 * time.Second)
	require.True(t, b.main().Ready)
	b.until(64 * time.Second)
	require.True(t, b.main().Ready, "two failures of three")
	b.until(65 * time.Second)
	require.False(t, b.main().Ready)
	require.Equal(t, "ContainersNotReady", b.condition(corev1.PodReady).Reason)
	require.Equal(t, "containers with unready status: [main]", b.condition(corev1.PodReady).Message)
	require.Equal(t, []string{"5s Readiness true", "15s Readiness true", "25s Readiness true", "35s Readiness true", "45s Readiness false", "55s Readiness false", "1m5s Readiness false"}, b.only(" Readiness t", " Readiness f"))
	require.Equal(t, int32(0), b.main().RestartCount, "readiness never restarts")
}

func TestProbes_WaitForStartup(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = probe(0, 5, 30, 1), probe(0, 10, 3, 1), probe(0, 10, 3, 1)
	}))
	b.healthy = func(k ProbeKind, at time.Duration) bool { return k != Startup || at >= 20*time.Second }
	b.until(19 * time.Second)
	require.Empty(t, b.only("Readiness", "Liveness"))
	require.False(t, *b.main().Started)
	b.until(20 * time.Second)
	require.True(t, *b.main().Started)
	require.True(t, b.main().Ready, "the readiness probe runs as soon as startup has passed")
	n := len(b.only("Startup"))
	b.until(2 * time.Minute)
	require.Len(t, b.only("Startup"), n, "the startup probe does not run again")
}

func TestStartupProbe_FailureRestarts(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Spec.Containers[0].StartupProbe = probe(0, 10, 3, 1) }))
	b.healthy = func(ProbeKind, time.Duration) bool { return false }
	b.until(20 * time.Second)
	require.Contains(t, b.log, "20s event Unhealthy Startup probe failed: HTTP probe failed with statuscode: 503")
	require.Contains(t, b.log, "20s event Killing Container main failed startup probe, will be restarted")
	require.Equal(t, int32(1), b.main().RestartCount)
	last := b.main().LastTerminationState.Terminated
	require.Equal(t, int32(143), last.ExitCode)
	require.Equal(t, "Error", last.Reason)
}

func TestLiveness_FailureKillsAfterTheGrace(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.LivenessProbe = probe(0, 10, 3, 1)
		c.LivenessProbe.TerminationGracePeriodSeconds = new(int64)
		*c.LivenessProbe.TerminationGracePeriodSeconds = 7
	}))
	b.stubborn = true
	b.healthy = func(_ ProbeKind, at time.Duration) bool { return at < 10*time.Second || at > 40*time.Second }
	b.until(time.Minute)
	require.Equal(t, []string{"0s start main/0", "30s term main/0", "37s kill main/0", "37s start main/1"}, b.only("start ", "term ", "kill "))
	require.Equal(t, int32(137), b.main().LastTerminationState.Terminated.ExitCode)
	require.True(t, b.main().Ready)
}

func TestBackoff_MatchesTheKubelet(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Annotations[FaultAnnotation] = "crash-loop"
		p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}))
	b.until(5 * time.Second)
	c := b.main()
	require.Equal(t, "CrashLoopBackOff", c.State.Waiting.Reason)
	require.Equal(t, "back-off 10s restarting failed container=main pod=web_default(u1)", c.State.Waiting.Message)
	require.Equal(t, int32(1), c.RestartCount, "the first crash is followed by a restart at once")
	require.Equal(t, int32(1), c.LastTerminationState.Terminated.ExitCode)
	require.Equal(t, "Error", c.LastTerminationState.Terminated.Reason)
	require.Contains(t, c.LastTerminationState.Terminated.Message, "RuntimeError")
	require.Equal(t, corev1.PodRunning, b.status().Phase, "a pod that waits for its next run is not pending")
	b.until(5 * time.Minute)
	require.Equal(t, []string{
		"0s start main/0", "250ms start main/1", "10.5s start main/2", "30.75s start main/3", "1m11s start main/4", "2m31.25s start main/5",
	}, b.only("start "))
}

func TestBackoff_IsResetAfterALongGoodRun(t *testing.T) {
	var d delay
	b := Backoff{Base: time.Second, Max: 4 * time.Second}
	now := epoch
	var waits []time.Duration
	for _, ran := range []time.Duration{0, 0, 0, 0, 0, 8 * time.Second, 9 * time.Second, 0} {
		now = now.Add(ran)
		at, wait := d.nextAttempt(b, now)
		waits = append(waits, wait)
		now = at
		d.grow(b, now)
	}
	require.Equal(t, []time.Duration{0, 1e9, 2e9, 4e9, 4e9, 4e9, 0, 1e9}, waits)
}

func TestOOM_IsReported(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Annotations[FaultAnnotation] = "oom=3s" }))
	b.until(2 * time.Second)
	require.True(t, b.main().Ready, "it serves until then")
	b.until(4 * time.Second)
	last := b.main().LastTerminationState.Terminated
	require.Equal(t, "OOMKilled", last.Reason)
	require.Equal(t, int32(137), last.ExitCode)
}

func TestImage_PullIsRetriedUntilItSucceeds(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Annotations[FaultAnnotation] = "image-pull-error" }))
	b.settle()
	require.Equal(t, "ErrImagePull", b.main().State.Waiting.Reason)
	require.Contains(t, b.main().State.Waiting.Message, "not found")
	b.until(5 * time.Second)
	require.Equal(t, "ImagePullBackOff", b.main().State.Waiting.Reason)
	require.Equal(t, corev1.PodPending, b.status().Phase)
	require.Contains(t, b.log, "0s event Failed Error: ErrImagePull")
	require.Contains(t, b.log, `1s event BackOff Back-off pulling image "registry.example/model:1"`)
	b.until(29 * time.Second)
	require.Len(t, b.only("event Pulling"), 2)
	b.annotate("")
	b.until(30 * time.Second)
	require.True(t, b.main().Ready)
	require.Equal(t, int32(0), b.main().RestartCount)
}

func TestConfiguration_MissingIsReportedAndRetried(t *testing.T) {
	b := newHarness(t, pod(nil))
	b.starts = &StartError{Reason: ReasonConfigError, Err: errors.New(`secret "vars" not found`)}
	b.settle()
	require.Equal(t, "CreateContainerConfigError", b.main().State.Waiting.Reason)
	require.Equal(t, `secret "vars" not found`, b.main().State.Waiting.Message)
	b.starts = nil
	b.until(5 * time.Second)
	require.True(t, b.main().Ready)
	require.Equal(t, int32(0), b.main().RestartCount)
}

func TestProgram_ThatCannotStartCountsAsARun(t *testing.T) {
	b := newHarness(t, pod(nil))
	b.starts = errors.New(`exec: "vllm": executable file not found in $PATH`)
	b.until(time.Second)
	require.Equal(t, "CrashLoopBackOff", b.main().State.Waiting.Reason)
	require.Equal(t, "StartError", b.main().LastTerminationState.Terminated.Reason)
	require.Equal(t, int32(128), b.main().LastTerminationState.Terminated.ExitCode)
}

func TestDeletion_RunsHookThenTermThenKillWithinTheGrace(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.ReadinessProbe, c.LivenessProbe = probe(0, 10, 1, 1), probe(0, 10, 1, 1)
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 12}}}
	}))
	b.stubborn = true
	b.until(5 * time.Second)
	b.remove(30)
	require.False(t, b.m.Removable())
	require.True(t, b.main().Ready, "it serves while its hook sleeps")
	b.until(40 * time.Second)
	require.Equal(t, []string{"0s start main/0", "17s term main/0", "35s kill main/0"}, b.only("start ", "term ", "kill "))
	require.True(t, b.m.Removable())
	require.Equal(t, corev1.PodFailed, b.status().Phase)
	require.Empty(t, slices.DeleteFunc(b.only("Liveness"), func(l string) bool { return strings.HasPrefix(l, "0s") }), "the liveness probe does not run after deletion")
	require.Contains(t, b.only("Readiness"), "10s Readiness true")
}

func TestHook_ThatHangsEndsWithTheGracePeriodPlus2Seconds(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{}}}
	}))
	b.stubborn = true
	b.settle()
	b.remove(10)
	b.until(time.Minute)
	require.Equal(t, []string{"0s hook main/0", "10s term main/0", "12s kill main/0"}, b.only("hook", "term ", "kill "))
}

func TestHook_ThatFailsIsReportedAndSkipped(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{}}}
	}))
	b.hooks = func() error { return errors.New("refused") }
	b.settle()
	b.remove(10)
	require.Equal(t, []string{"0s term main/0"}, b.only("term "))
	require.Contains(t, b.log, "0s event FailedPreStopHook PreStopHook failed: refused")
	require.True(t, b.m.Removable())
}

func TestDeletion_SecondShortensTheGraceAndNeverExtendsIt(t *testing.T) {
	b := newHarness(t, pod(nil))
	b.stubborn = true
	b.settle()
	b.remove(60)
	b.until(10 * time.Second)
	b.remove(5)
	b.until(12 * time.Second)
	b.remove(60)
	b.until(time.Minute)
	require.Equal(t, []string{"15s kill main/0"}, b.only("kill "))
}

func TestDeletion_BeforeTheFirstRunIsImmediate(t *testing.T) {
	p := pod(nil)
	m := New(tuning, p, epoch)
	require.Empty(t, m.Advance(epoch), "nothing runs without an address")
	p = p.DeepCopy()
	now, grace := metav1.NewTime(epoch), int64(30)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	m.Observe(epoch, p)
	require.True(t, m.Removable())
}

func TestEviction_EndsThePodWithItsReason(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Annotations[FaultAnnotation] = "evict-after=10s" }))
	b.stubborn = true
	b.until(9 * time.Second)
	require.Equal(t, corev1.PodRunning, b.status().Phase)
	b.until(time.Minute)
	s := b.status()
	require.Equal(t, corev1.PodFailed, s.Phase)
	require.Equal(t, "Evicted", s.Reason)
	require.Equal(t, "TerminationByKubelet", b.condition(corev1.DisruptionTarget).Reason)
	require.Equal(t, []string{"11s kill main/0"}, b.only("kill "))
	require.Equal(t, int32(0), b.main().RestartCount)
	require.True(t, b.m.Terminal())
	require.False(t, b.m.Removable(), "its owner deletes it")
}

func TestPreemption_MarksThePodAndRequestsItsDeletion(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Annotations[FaultAnnotation] = "preempt-after=10s" }))
	b.until(time.Minute)
	require.Equal(t, []string{"10s preempt"}, b.only(" preempt"))
	require.Equal(t, "PreemptionByScheduler", b.condition(corev1.DisruptionTarget).Reason)
	require.Equal(t, corev1.PodRunning, b.status().Phase)
	b.remove(30)
	require.True(t, b.m.Removable())
}

func TestNeverReady_LastsUntilItIsRemoved(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Annotations[FaultAnnotation] = "never-ready"
		p.Spec.Containers[0].ReadinessProbe = probe(0, 10, 3, 1)
	}))
	b.until(time.Minute)
	require.False(t, b.main().Ready)
	b.annotate("")
	b.until(70 * time.Second)
	require.True(t, b.main().Ready)
}

func TestStartupProbe_FailsWhileNeverReady(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Annotations[FaultAnnotation] = "never-ready"
		p.Spec.Containers[0].StartupProbe = probe(0, 10, 3, 1)
	}))
	b.until(21 * time.Second)
	require.Equal(t, []string{"20s term main/0"}, b.only("term "))
	require.Equal(t, int32(1), b.main().RestartCount)
}

func TestInitContainers_RunInOrderAndSidecarsStopLast(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{
			{Name: "load"}, {Name: "proxy", RestartPolicy: &always, StartupProbe: probe(0, 5, 9, 1)}, {Name: "check"},
		}
	}))
	b.healthy = func(_ ProbeKind, at time.Duration) bool { return at >= 10*time.Second }
	b.settle()
	require.Equal(t, "PodInitializing", b.main().State.Waiting.Reason)
	require.Equal(t, corev1.PodPending, b.status().Phase)
	require.Equal(t, "ContainersNotInitialized", b.condition(corev1.PodInitialized).Reason)
	b.m.Exited(b.now, Ref{"load", 0}, Exit{})
	b.until(20 * time.Second)
	b.m.Exited(b.now, Ref{"check", 0}, Exit{})
	b.settle()
	require.Equal(t, []string{"0s start load/0", "0s start proxy/0", "10s start check/0", "20s start main/0"}, b.only("start "))
	require.Equal(t, corev1.PodRunning, b.status().Phase)
	require.Equal(t, corev1.ConditionTrue, b.condition(corev1.PodInitialized).Status)
	b.remove(30)
	require.Equal(t, []string{"20s term main/0", "20s term proxy/0"}, b.only("term "))
}

func TestInitContainers_FailureEndsAPodWithoutRestarts(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.InitContainers = []corev1.Container{{Name: "load"}}
	}))
	b.settle()
	b.m.Exited(b.now, Ref{"load", 0}, Exit{Code: 2})
	b.settle()
	require.Equal(t, corev1.PodFailed, b.status().Phase)
}

func TestJobPod_SucceedsWhenItsContainersHaveSucceeded(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }))
	b.settle()
	b.m.Exited(b.now, Ref{"main", 0}, Exit{Code: 3})
	b.settle()
	require.Equal(t, int32(1), b.main().RestartCount)
	b.m.Exited(b.now, Ref{"main", 1}, Exit{})
	b.settle()
	require.Equal(t, corev1.PodSucceeded, b.status().Phase)
	require.Equal(t, "Completed", b.main().State.Terminated.Reason)
	require.Equal(t, "PodCompleted", b.condition(corev1.PodReady).Reason)
}

func TestNodeAgent_RestartsPodsOfTheFormerAgent(t *testing.T) {
	b := newHarness(t, pod(nil))
	b.until(5 * time.Second)
	p := b.pod.DeepCopy()
	p.Status = b.status()
	next := newHarness(t, p)
	require.Equal(t, "127.64.0.2", next.status().PodIP)
	next.settle()
	c := next.main()
	require.Equal(t, int32(1), c.RestartCount)
	require.Equal(t, int32(255), c.LastTerminationState.Terminated.ExitCode)
	require.Equal(t, "Unknown", c.LastTerminationState.Terminated.Reason)
	require.True(t, c.Ready)
	require.NotEqual(t, b.main().ContainerID, c.ContainerID)
}

func TestNodeAgent_KeepsEndedPodsEnded(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
	b.settle()
	b.m.Exited(b.now, Ref{"main", 0}, Exit{})
	b.settle()
	p := b.pod.DeepCopy()
	p.Status = b.status()
	next := newHarness(t, p)
	next.settle()
	require.Empty(t, next.log)
	require.Equal(t, p.Status, next.status())
}

func TestResults_OfFormerRunsChangeNothing(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) { p.Spec.Containers[0].LivenessProbe = probe(0, 10, 1, 1) }))
	b.settle()
	b.m.Exited(b.now, Ref{"main", 0}, Exit{Code: 1})
	b.settle()
	before := b.status()
	b.m.Exited(b.now, Ref{"main", 0}, Exit{Code: 9})
	b.m.Started(b.now, Ref{"main", 0}, errors.New("late"))
	b.m.Probed(b.now, Ref{"main", 0}, Liveness, Answer{})
	b.m.HookDone(b.now, Ref{"main", 0}, nil)
	b.m.Exited(b.now, Ref{"other", 0}, Exit{})
	b.settle()
	require.Equal(t, before, b.status())
}

func TestConditions_OfOtherOwnersStayAndTimesFollowStatus(t *testing.T) {
	b := newHarness(t, pod(func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "windlass.run/route"}}
	}))
	b.settle()
	require.Equal(t, "ReadinessGatesNotReady", b.condition(corev1.PodReady).Reason)
	b.pod.Status = b.status()
	b.pod.Status.Conditions = append(b.pod.Status.Conditions, corev1.PodCondition{Type: "windlass.run/route", Status: corev1.ConditionTrue})
	b.until(10 * time.Second)
	require.Equal(t, corev1.ConditionTrue, b.condition(corev1.PodReady).Status)
	require.Equal(t, epoch.Add(10*time.Second), b.condition(corev1.PodReady).LastTransitionTime.Time)
	require.Equal(t, epoch, b.condition(corev1.ContainersReady).LastTransitionTime.Time)
}

func TestImage_ChangeRestartsTheContainer(t *testing.T) {
	b := newHarness(t, pod(nil))
	b.settle()
	p := b.pod.DeepCopy()
	p.Spec.Containers[0].Image = "registry.example/model:2"
	b.m.Observe(b.now, p)
	b.settle()
	require.Equal(t, int32(1), b.main().RestartCount)
	require.Equal(t, "registry.example/model:2", b.main().Image)
}

func TestFaultAnnotation_IsRefusedWithTheReason(t *testing.T) {
	for value, want := range map[string]string{
		"slow":              `unknown fault "slow"`,
		"slow-start":        "slow-start needs a time, like slow-start=10s",
		"slow-start=abc":    `slow-start needs a time above 0 like slow-start=10s, not "abc"`,
		"evict-after=-1s":   "needs a time above 0",
		"never-ready=10s":   "never-ready takes no time",
		"oom,preempt-after": "preempt-after needs a time",
	} {
		_, err := ParseFaults(value)
		require.ErrorContains(t, err, want)
	}
	f, err := ParseFaults(" slow-start=30s, oom ,crash-loop=5m,")
	require.NoError(t, err)
	require.Equal(t, Faults{SlowStart: 30 * time.Second, OOM: Crash{On: true}, CrashLoop: Crash{On: true, After: 5 * time.Minute}}, f)

	b := newHarness(t, pod(func(p *corev1.Pod) { p.Annotations[FaultAnnotation] = "slow" }))
	b.settle()
	require.Len(t, b.only("event InvalidFault"), 1)
	require.True(t, b.main().Ready, "an unknown fault stages nothing")
}

func TestProbe_FirstCheckWaits(t *testing.T) {
	p := pod(func(p *corev1.Pod) { p.Spec.Containers[0].StartupProbe = probe(0, 5, 30, 1) })
	b := newHarness(t, p)
	patient := *tuning
	patient.FirstCheck = 200 * time.Millisecond
	b.m = New(&patient, p, b.now)
	b.m.SetAddress(b.now, "127.0.0.1", "127.64.0.2")
	b.until(time.Second)
	require.Equal(t, []string{"200ms Startup true"}, b.only("Startup"))
}
