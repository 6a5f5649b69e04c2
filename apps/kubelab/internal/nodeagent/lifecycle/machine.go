package lifecycle

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Tuning has the delays for which a kubelet has flags.
type Tuning struct {
	// Restart is the delay between runs of a container that keeps ending. Pull is the delay between pulls of
	// a missing image.
	Restart, Pull Backoff
	// ConfigRetry is the delay before another start of a container whose environment could not be resolved.
	ConfigRetry time.Duration
	// FirstCheck is the minimum time between a start and the first check, because no program listens at once.
	FirstCheck time.Duration
}

const (
	// soon is when a staged crash without a time ends the run. Until then the container shows as running.
	soon = 250 * time.Millisecond
	// evictionGrace is the grace period of the kubelet's hard evictions.
	evictionGrace = time.Second
	// shownPull is how long a failed pull shows as ErrImagePull before it shows as ImagePullBackOff.
	shownPull = time.Second
)

// Machine is one pod on its node. It is not for concurrent use.
type Machine struct {
	tuning     *Tuning
	pod        *corev1.Pod
	containers []*container // init containers first, each kind in the spec's order

	faults    Faults
	faultText string

	hostIP, podIP string
	startTime     time.Time
	addressed     bool
	initialized   bool

	// stopping is whether the pod is deleted, evicted or at its end. It is never unset.
	stopping   bool
	deadline   time.Time
	deleted    bool
	evicted    bool
	preempted  bool
	disruption *corev1.PodCondition
	// terminal is the phase in which the pod ended. Empty means that it has not ended.
	terminal corev1.PodPhase

	out []Action
}

// New returns the machine of a pod that is bound to a node. No container starts before SetAddress.
func New(tuning *Tuning, pod *corev1.Pod, now time.Time) *Machine {
	m := &Machine{tuning: tuning}
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		r := setup
		if spec.RestartPolicy != nil && *spec.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			r = sidecar
		}
		c := newContainer(spec, r)
		c.reason = reasonPodInitializing
		m.containers = append(m.containers, c)
	}
	for i := range pod.Spec.Containers {
		c := newContainer(&pod.Spec.Containers[i], regular)
		if len(pod.Spec.InitContainers) > 0 {
			c.reason = reasonPodInitializing
		}
		m.containers = append(m.containers, c)
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if c := m.containerNamed(list[i].Name); c != nil {
				c.restoreFrom(&list[i], now)
			}
		}
	}
	for _, c := range m.containers {
		m.initialized = m.initialized || c.role == regular && c.run >= 0
	}
	if pod.Status.StartTime != nil {
		m.startTime = pod.Status.StartTime.Time
	}
	if p := pod.Status.Phase; p == corev1.PodFailed || p == corev1.PodSucceeded {
		m.terminal = p
	}
	m.hostIP, m.podIP = pod.Status.HostIP, pod.Status.PodIP
	m.Observe(now, pod)
	return m
}

// Observe takes the pod's annotations, images and deletion from the API. It does not read the pod's status.
func (m *Machine) Observe(now time.Time, pod *corev1.Pod) {
	m.pod = pod
	for i := range pod.Spec.InitContainers {
		m.updateSpec(now, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		m.updateSpec(now, &pod.Spec.Containers[i])
	}
	if text := pod.Annotations[FaultAnnotation]; text != m.faultText {
		m.faultText = text
		faults, err := ParseFaults(text)
		if err != nil {
			m.recordf("", corev1.EventTypeWarning, eventInvalidFault, "%v", err)
		}
		m.faults = faults
	}
	if pod.DeletionTimestamp == nil {
		return
	}
	var grace time.Duration
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	// A second deletion may shorten the grace period, but never extend it.
	if deadline := now.Add(grace); !m.stopping || deadline.Before(m.deadline) {
		m.deadline = deadline
		for _, c := range m.containers {
			if c.stop != nil && deadline.Before(c.stop.deadline) {
				c.stop.deadline = deadline
			}
		}
	}
	m.stopping, m.deleted = true, true
}

// updateSpec takes a container's new spec, in which only the image may have changed.
func (m *Machine) updateSpec(now time.Time, spec *corev1.Container) {
	c := m.containerNamed(spec.Name)
	if c == nil {
		return
	}
	changed := c.spec.Image != spec.Image
	c.spec = spec
	if changed && c.phase == running && c.stop == nil && !m.stopping {
		m.stopRun(c, now, m.gracePeriod(nil), fmt.Sprintf("Container %s definition changed, will be restarted", spec.Name))
	}
}

// SetAddress sets the pod's addresses, so that its containers may run. now becomes the start time, unless the
// pod has one.
func (m *Machine) SetAddress(now time.Time, hostIP, podIP string) {
	m.hostIP, m.podIP, m.addressed = hostIP, podIP, true
	if m.startTime.IsZero() {
		m.startTime = apiTime(now).Time
	}
}

// Terminal reports whether the pod has ended for good.
func (m *Machine) Terminal() bool { return m.terminal != "" }

// Removable reports whether the pod was deleted and none of its containers runs.
func (m *Machine) Removable() bool {
	if !m.deleted {
		return false
	}
	for _, c := range m.containers {
		if c.isActive() {
			return false
		}
	}
	return true
}

// Advance does what is due at now, and returns the actions for its caller. It must be called after every
// input and at NextWake.
func (m *Machine) Advance(now time.Time) []Action {
	if m.addressed && m.terminal == "" {
		m.applyFaults(now)
		if m.stopping {
			m.takeDown(now)
		} else {
			m.bringUp(now)
		}
		for _, c := range m.containers {
			m.tickContainer(c, now)
		}
		m.updateTerminal()
	}
	out := m.out
	m.out = nil
	return out
}

// applyFaults carries out the faults that concern the whole pod.
func (m *Machine) applyFaults(now time.Time) {
	if m.stopping {
		return
	}
	if after := m.faults.PreemptAfter; after > 0 && !m.preempted && !now.Before(m.startTime.Add(after)) {
		m.preempted = true
		m.disruption = &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
			Message: preemptionMessage, LastTransitionTime: apiTime(now),
		}
		m.recordf("", corev1.EventTypeNormal, eventPreempted, "Preempted by a pod of higher priority on node %s (staged)", m.pod.Spec.NodeName)
		m.out = append(m.out, Preempt{})
	}
	if after := m.faults.EvictAfter; after > 0 && !now.Before(m.startTime.Add(after)) {
		m.evicted, m.stopping, m.deadline = true, true, now.Add(evictionGrace)
		m.disruption = &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: evictionMessage, LastTransitionTime: apiTime(now),
		}
		m.recordf("", corev1.EventTypeWarning, reasonEvicted, "%s", evictionMessage)
	}
}

// bringUp starts the containers that may start: setup containers and sidecars one by one, and then the main
// containers.
func (m *Machine) bringUp(now time.Time) {
	before := true // whether all earlier containers let this one begin
	finished := true
	for _, c := range m.containers {
		if c.role == regular {
			if before || m.initialized {
				m.startOrRestart(c, now)
			}
			finished = finished && c.phase == ended && !m.restartsNow(c)
			continue
		}
		if before || m.initialized && c.role == sidecar {
			m.startOrRestart(c, now)
		}
		if c.role == setup && c.phase == ended && c.end.ExitCode != 0 && !m.restartsNow(c) {
			finished = true
			break
		}
		before = before && c.initDone()
	}
	if finished {
		m.stopping, m.deadline = true, now.Add(m.gracePeriod(nil))
		m.takeDown(now)
	}
}

func (m *Machine) startOrRestart(c *container, now time.Time) {
	switch c.phase {
	case waiting:
		if now.Before(c.notBefore) {
			return
		}
	case ended:
		if c.role == setup && c.end.ExitCode == 0 || !m.restartsNow(c) {
			return
		}
		at, wait := c.restart.nextAttempt(m.tuning.Restart, c.endedAt)
		if wait > 0 {
			c.setWaiting(reasonCrashLoopBackOff, fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", wait, c.spec.Name, m.podName()), at)
			m.recordf(c.spec.Name, corev1.EventTypeWarning, eventBackOff, "Back-off restarting failed container %s in pod %s", c.spec.Name, m.podName())
			return
		}
	default:
		return
	}
	m.startRun(c, now)
}

func (m *Machine) startRun(c *container, now time.Time) {
	image := c.spec.Image
	pulls := c.spec.ImagePullPolicy == corev1.PullAlways || m.faults.ImagePullError
	if pulls {
		m.recordf(c.spec.Name, corev1.EventTypeNormal, eventPulling, "Pulling image %q", image)
	}
	if m.faults.ImagePullError {
		cause := fmt.Sprintf(pullFailureTemplate, image, image)
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventFailed, "Failed to pull image %q: %s", image, cause)
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventFailed, "Error: %s", reasonErrImagePull)
		c.pull.grow(m.tuning.Pull, now)
		c.setWaiting(reasonErrImagePull, cause, now.Add(c.pull.current))
		c.pullFlips = now.Add(min(shownPull, c.pull.current/2))
		return
	}
	c.pull = delay{}
	if pulls {
		m.recordf(c.spec.Name, corev1.EventTypeNormal, eventPulled, "Successfully pulled image %q in 0s (0s including waiting)", image)
	} else {
		m.recordf(c.spec.Name, corev1.EventTypeNormal, eventPulled, "Container image %q already present on machine", image)
	}
	if c.end != nil {
		c.restart.grow(m.tuning.Restart, now)
	}
	c.run++
	c.phase = starting
	idle := m.faults.CrashLoop.On && m.faults.CrashLoop.After == 0 || m.faults.OOM.On && m.faults.OOM.After == 0
	m.out = append(m.out, Start{Ref: c.runRef(), Idle: idle, Delay: m.faults.SlowStart})
}

// takeDown begins to stop all containers at once, except sidecars. Sidecars stop after the other containers, one
// by one in reverse order.
func (m *Machine) takeDown(now time.Time) {
	grace := max(m.deadline.Sub(now), 0)
	sidecarsWait := false // whether a container that must stop before the next sidecar is active
	for _, c := range slices.Backward(m.containers) {
		if !c.isActive() {
			continue
		}
		if c.role == sidecar && sidecarsWait {
			return
		}
		sidecarsWait = true
		if c.phase == running && c.stop == nil {
			m.stopRun(c, now, grace, "Stopping container "+c.spec.Name)
		}
	}
}

// stopRun begins to stop one run.
func (m *Machine) stopRun(c *container, now time.Time, grace time.Duration, message string) {
	m.recordf(c.spec.Name, corev1.EventTypeNormal, eventKilling, "%s", message)
	c.stop = &stop{deadline: now.Add(grace)}
	var hook *corev1.LifecycleHandler
	if c.spec.Lifecycle != nil {
		hook = c.spec.Lifecycle.PreStop
	}
	if hook == nil || grace <= 0 {
		return
	}
	c.stop.hooked, c.stop.hookEnds = true, c.stop.deadline
	if hook.Sleep != nil {
		if ends := now.Add(time.Duration(hook.Sleep.Seconds) * time.Second); ends.Before(c.stop.hookEnds) {
			c.stop.hookEnds = ends
		}
		return
	}
	m.out = append(m.out, Hook{Ref: c.runRef(), Handler: hook, Timeout: grace})
}

func (m *Machine) endHook(c *container, now time.Time) {
	c.stop.hooked = false
	if least := now.Add(minimumAfterHook); c.stop.deadline.Before(least) {
		c.stop.deadline = least
	}
}

// tickContainer does what is due for one container.
func (m *Machine) tickContainer(c *container, now time.Time) {
	if c.phase == waiting && !c.pullFlips.IsZero() && !now.Before(c.pullFlips) {
		c.pullFlips = time.Time{}
		c.reason, c.message = reasonImagePullBackOff, fmt.Sprintf("Back-off pulling image %q: %s: %s", c.spec.Image, reasonErrImagePull, c.message)
		m.recordf(c.spec.Name, corev1.EventTypeNormal, eventBackOff, "Back-off pulling image %q", c.spec.Image)
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventFailed, "Error: %s", reasonImagePullBackOff)
	}
	if c.phase != running {
		return
	}
	if !c.crashAt.IsZero() && !now.Before(c.crashAt) {
		c.crashAt = time.Time{}
		m.out = append(m.out, *c.crash)
	}
	for _, p := range c.probers {
		if !c.isProbeEnabled(p.kind, m.stopping) || !p.takeDue(now) {
			continue
		}
		if m.faults.NeverReady && p.kind != Liveness {
			m.Probed(now, c.runRef(), p.kind, Answer{Output: "HTTP probe failed with statuscode: 503"})
			continue
		}
		m.out = append(m.out, Check{Ref: c.runRef(), Kind: p.kind, Spec: p.spec})
	}
	if s := c.stop; s != nil {
		if s.hooked && !now.Before(s.hookEnds) {
			m.endHook(c, now)
		}
		expired := !now.Before(s.deadline)
		if !s.hooked && !s.asked && !expired {
			s.asked = true
			m.out = append(m.out, Terminate{c.runRef()})
		}
		if expired && !s.killed {
			s.killed = true
			m.out = append(m.out, Kill{Ref: c.runRef()})
		}
	}
}

// updateTerminal sets the pod's terminal phase once no container is active.
func (m *Machine) updateTerminal() {
	if !m.stopping {
		return
	}
	phase := corev1.PodSucceeded
	for _, c := range m.containers {
		if c.isActive() {
			return
		}
		if c.role != sidecar && (c.phase != ended || c.end.ExitCode != 0) {
			phase = corev1.PodFailed
		}
	}
	if m.evicted {
		phase = corev1.PodFailed
	}
	m.terminal = phase
}

// NextWake returns when to call Advance if no input comes. The zero time means never.
func (m *Machine) NextWake() time.Time {
	var next time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if !m.addressed || m.terminal != "" {
		return next
	}
	if after := m.faults.EvictAfter; after > 0 && !m.stopping {
		at(m.startTime.Add(after))
	}
	if after := m.faults.PreemptAfter; after > 0 && !m.stopping && !m.preempted {
		at(m.startTime.Add(after))
	}
	for _, c := range m.containers {
		switch c.phase {
		case waiting:
			if !m.stopping {
				at(c.notBefore)
				at(c.pullFlips)
			}
		case running:
			at(c.crashAt)
			if s := c.stop; s != nil && s.hooked {
				at(s.hookEnds)
			} else if s != nil && !s.killed {
				at(s.deadline)
			}
			for _, p := range c.probers {
				if !p.open && !p.held && c.isProbeEnabled(p.kind, m.stopping) {
					at(p.next)
				}
			}
		case starting, ended:
		}
	}
	return next
}

func (m *Machine) containerNamed(name string) *container {
	for _, c := range m.containers {
		if c.spec.Name == name {
			return c
		}
	}
	return nil
}

// currentRun returns the container of r if r is its newest run and its phase is p, or nil.
func (m *Machine) currentRun(r Ref, p phase) *container {
	if c := m.containerNamed(r.Container); c != nil && c.run == r.Run && c.phase == p {
		return c
	}
	return nil
}

// podName returns the pod's name as the kubelet writes it in messages.
func (m *Machine) podName() string {
	return fmt.Sprintf("%s_%s(%s)", m.pod.Name, m.pod.Namespace, m.pod.UID)
}

func (m *Machine) recordf(container, kind, reason, format string, args ...any) {
	m.out = append(m.out, Record{Container: container, Type: kind, Reason: reason, Message: fmt.Sprintf(format, args...)})
}
