package lifecycle

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type role int

const (
	regular role = iota
	// setup is an init container that must end before the next one begins.
	setup
	// sidecar is an init container that keeps running. The next init container begins when the sidecar has started.
	sidecar
)

type phase int

const (
	waiting phase = iota
	starting
	running
	ended
)

// container is one container of the pod and its newest run.
type container struct {
	spec  *corev1.Container
	role  role
	phase phase

	// reason and message say why it waits. notBefore is the end of the wait.
	reason, message string
	notBefore       time.Time
	// pullFlips is when a failed pull is reported as ImagePullBackOff.
	pullFlips time.Time

	// run is the number of the newest run, or of the run that Start asked for. -1 means none yet.
	run       int32
	startedAt time.Time
	started   bool // past its startup probe
	ready     bool
	probers   []*prober

	// end is the end of the newest run that ended. before is the end of the run before that.
	end, before *corev1.ContainerStateTerminated
	// endedAt is the exact time of end, not in whole seconds.
	endedAt time.Time

	stop    *stop
	crashAt time.Time
	crash   *Kill
	restart delay
	pull    delay
}

// stop is the state of stopping a run: hook, TERM, KILL.
type stop struct {
	deadline time.Time
	// hooked is whether the preStop hook is running. The hook runs until hookEnds at most.
	hooked   bool
	hookEnds time.Time
	asked    bool
	killed   bool
}

// minimumAfterHook is the kubelet's minimum time between the end of a hook and SIGKILL, even if the hook used
// the whole grace period.
const minimumAfterHook = 2 * time.Second

// idPrefix begins the container ids of this package. A node agent uses it to recognize the containers of an
// earlier node agent in a pod's status.
const idPrefix = "kubelab://"

func newContainer(spec *corev1.Container, r role) *container {
	c := &container{spec: spec, role: r, run: -1, reason: reasonContainerCreating}
	for kind, p := range []*corev1.Probe{spec.StartupProbe, spec.ReadinessProbe, spec.LivenessProbe} {
		if p != nil {
			c.probers = append(c.probers, &prober{spec: p, kind: ProbeKind(kind)})
		}
	}
	return c
}

// restoreFrom restores the state that an earlier node agent wrote about the container. Its runs ended with
// that agent, as when a machine restarts.
func (c *container) restoreFrom(s *corev1.ContainerStatus, now time.Time) {
	if !strings.HasPrefix(s.ContainerID, idPrefix) {
		return
	}
	c.run = s.RestartCount
	c.before = s.LastTerminationState.Terminated
	c.phase, c.endedAt = ended, now
	switch {
	case s.State.Terminated != nil:
		c.end = s.State.Terminated
	case s.State.Running != nil:
		c.end = &corev1.ContainerStateTerminated{
			ExitCode: exitCodeUnknown, Reason: reasonUnknown, ContainerID: s.ContainerID,
			Message:   "The container could not be located when its node came back",
			StartedAt: s.State.Running.StartedAt, FinishedAt: apiTime(now),
		}
	case c.before != nil:
		c.end, c.before = c.before, nil
	default:
		c.phase = waiting
	}
}

func (c *container) runRef() Ref { return Ref{Container: c.spec.Name, Run: c.run} }

func (c *container) isActive() bool { return c.phase == starting || c.phase == running }

func (c *container) proberOf(kind ProbeKind) *prober {
	for _, p := range c.probers {
		if p.kind == kind {
			return p
		}
	}
	return nil
}

// initDone reports whether the next container may begin.
func (c *container) initDone() bool {
	if c.role == sidecar {
		return c.phase == running && c.started
	}
	return c.phase == ended && c.end.ExitCode == 0
}

func (c *container) setWaiting(reason, message string, until time.Time) {
	c.phase, c.reason, c.message, c.notBefore = waiting, reason, message, until
	c.pullFlips = time.Time{}
}

func (c *container) beginRun(now time.Time, firstCheck time.Duration) {
	c.phase, c.startedAt = running, now
	c.stop, c.crash, c.crashAt = nil, nil, time.Time{}
	for _, p := range c.probers {
		p.beginRun(now, firstCheck)
	}
	c.started, c.ready = c.proberOf(Startup) == nil, false
	c.ready = c.started && c.proberOf(Readiness) == nil
}

// passedStartup records success of the startup probe, and starts the other two probes.
func (c *container) passedStartup(now time.Time) {
	c.started = true
	c.ready = c.proberOf(Readiness) == nil
	for _, kind := range []ProbeKind{Readiness, Liveness} {
		if p := c.proberOf(kind); p != nil && p.next.Before(now) {
			p.next = now
		}
	}
}

func (c *container) endRun(pod *corev1.Pod, e Exit, now time.Time) {
	if c.crash != nil && c.crash.As != nil {
		e.Code, e.Signal, e.Reason = c.crash.As.Code, c.crash.As.Signal, c.crash.As.Reason
	}
	t := &corev1.ContainerStateTerminated{
		ExitCode: e.Code, Signal: e.Signal, Reason: e.Reason, Message: e.Message,
		StartedAt: apiTime(c.startedAt), FinishedAt: apiTime(now), ContainerID: containerID(pod, c.runRef()),
	}
	if t.Reason == "" {
		t.Reason = reasonCompleted
		if e.Code != 0 {
			t.Reason = reasonError
		}
	}
	if t.Message == "" && e.Code != 0 && c.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		t.Message = e.LogTail
	}
	c.phase, c.end, c.before, c.endedAt = ended, t, c.end, now
	c.started, c.ready, c.stop, c.crash, c.crashAt = false, false, nil, nil, time.Time{}
}

// isProbeEnabled reports whether a probe of this kind runs now. While the pod is being taken down only
// readiness probes run.
func (c *container) isProbeEnabled(kind ProbeKind, podStopping bool) bool {
	switch kind {
	case Startup:
		return !c.started && !podStopping && c.stop == nil
	case Liveness:
		return c.started && !podStopping && c.stop == nil
	default:
		return c.started
	}
}

func (c *container) apiStatus(pod *corev1.Pod) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, Started: new(bool)}
	switch c.phase {
	case waiting:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}
		s.LastTerminationState.Terminated = c.end
	case starting:
		// The run does not exist yet, so the status shows the run before.
		if c.end != nil {
			s.State.Terminated, s.LastTerminationState.Terminated = c.end, c.before
		} else {
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonContainerCreating}
		}
	case running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: apiTime(c.startedAt)}
		s.LastTerminationState.Terminated = c.end
		s.Ready, *s.Started = c.ready, c.started
	case ended:
		s.State.Terminated, s.LastTerminationState.Terminated = c.end, c.before
		// A setup container is ready when it has ended with success.
		s.Ready = c.role == setup && c.end.ExitCode == 0
	}
	if run := c.shownRun(); run >= 0 {
		s.RestartCount = run
		s.ImageID = imageID(c.spec.Image)
		s.ContainerID = containerID(pod, Ref{c.spec.Name, run})
	}
	return s
}

// shownRun returns the number of the newest run that exists.
func (c *container) shownRun() int32 {
	if c.phase == starting {
		return c.run - 1
	}
	return c.run
}

func containerID(pod *corev1.Pod, r Ref) string {
	return fmt.Sprintf("%s%x", idPrefix, sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", pod.UID, r.Container, r.Run)))
}

func imageID(image string) string {
	if strings.Contains(image, "@sha256:") {
		return image
	}
	repository := image
	if at := strings.LastIndexByte(image, ':'); at > strings.LastIndexByte(image, '/') {
		repository = image[:at]
	}
	return fmt.Sprintf("%s@sha256:%x", repository, sha256.Sum256([]byte(image)))
}

// apiTime returns t in whole seconds, as the API stores it.
func apiTime(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t).Rfc3339Copy()
}
