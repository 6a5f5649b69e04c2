package observe

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// judgeContainers judges a pod that has a node, by the states of its containers.
func (s *subject) judgeContainers() verdict {
	pod := s.pod
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		cs := statusOf(pod.Status.InitContainerStatuses, c.Name)
		if cs == nil || isInitialised(c, cs) {
			continue
		}
		v := s.judgeContainer(c, cs)
		if v.message != "" {
			v.message = "init container " + c.Name + ": " + v.message
		} else {
			v.message = "init container " + c.Name + " is running"
		}
		if v.status == running || v.status == serving {
			v.status = creating
			if v.reason == runtime.ReasonNotReady {
				v.reason = ""
			}
		}
		return v
	}
	m := main(pod)
	app := s.judgeOne(m)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		matters := app.status == serving || c.Name == render.HealthContainerName && app.isUnwell()
		if c.Name == m.Name || !matters {
			continue
		}
		if v := s.judgeOne(c); v.status != serving {
			if v.status = app.status; v.status == serving {
				v.status = running
			}
			if v.reason == "" {
				v.reason = runtime.ReasonNotReady
			}
			v.message = strings.TrimSuffix(containerName(c)+": "+v.message, ": ")
			v.doomed = v.doomed || app.doomed
			return v
		}
	}
	if app.status != serving {
		return app
	}
	c := conditionOf(pod, corev1.PodReady)
	if c != nil && c.Status == corev1.ConditionTrue {
		return verdict{status: serving}
	}
	v := verdict{status: running, reason: runtime.ReasonNotReady}
	for _, g := range pod.Spec.ReadinessGates {
		if gate := conditionOf(pod, g.ConditionType); gate == nil || gate.Status != corev1.ConditionTrue {
			v.message = fmt.Sprintf("readiness gate %s has not passed", g.ConditionType)
			if gate != nil {
				v.message += withColon(gate.Message)
			}
			break
		}
	}
	return v
}

// isUnwell reports whether the health check is the only reason why the container does not serve. In
// that case, the container that makes the check is judged first, because every check fails while
// that container is not up.
func (v verdict) isUnwell() bool {
	return v.status == running || v.reason == runtime.ReasonStartupTimeout || v.reason == runtime.ReasonHealthCheckFailed
}

// containerName returns the name of a container for messages. The container is not the app's.
func containerName(c *corev1.Container) string {
	if c.Name == render.HealthContainerName {
		return "container " + c.Name + ", which makes the health check (the agent's --health-image)"
	}
	if c.Name == render.LoaderContainerName {
		return "container " + c.Name + ", which fetches files of models (the agent's --loader-image)"
	}
	return "container " + c.Name
}

func (s *subject) judgeOne(c *corev1.Container) verdict {
	if cs := statusOf(s.pod.Status.ContainerStatuses, c.Name); cs != nil {
		return s.judgeContainer(c, cs)
	}
	return s.beforeStart()
}

func isInitialised(c *corev1.Container, cs *corev1.ContainerStatus) bool {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return cs.State.Running != nil && (cs.Started == nil || *cs.Started)
	}
	return cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0
}

// judgeContainer judges one container. The status serving means that it is ready.
func (s *subject) judgeContainer(c *corev1.Container, cs *corev1.ContainerStatus) verdict {
	switch {
	case cs.State.Running != nil:
		return s.judgeRunning(c, cs)
	case cs.State.Terminated != nil:
		return s.judgeEnded(c, cs, cs.State.Terminated)
	case cs.State.Waiting != nil:
		return s.judgeWaiting(c, cs, cs.State.Waiting)
	}
	return s.beforeStart()
}

func (s *subject) judgeWaiting(c *corev1.Container, cs *corev1.ContainerStatus, w *corev1.ContainerStateWaiting) verdict {
	v := verdict{status: failed}
	text := strings.TrimSpace(w.Message)
	switch w.Reason {
	case "", "ContainerCreating", "PodInitializing":
		v := s.beforeStart()
		if t := cs.LastTerminationState.Terminated; t != nil && v.reason == "" {
			// The node restarted, or the pod's sandbox was lost with all its containers.
			e := s.judgeEnded(c, cs, t)
			v.message, v.doomed = "starts again; before that: "+e.message, e.doomed
			if e.doomed {
				v.reason = e.reason
			}
		}
		return v
	case "CrashLoopBackOff":
		if t := cs.LastTerminationState.Terminated; t != nil {
			return s.judgeEnded(c, cs, t)
		}
		v.reason, v.message, v.doomed = runtime.JudgeEnd(s.failureStreak(c, cs), runtime.ReasonExited, text)
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
		"RegistryUnavailable", "SignatureValidationFailed", "ErrImageNotFound":
		v.reason = runtime.ReasonImagePullError
		v.message, v.doomed = s.pullText(c, w)
	case "CreateContainerConfigError":
		return s.badConfig(c, text)
	case "CreateContainerError", "RunContainerError", "StartError":
		if text == "" {
			text = w.Reason
		}
		if e, bad := badCommand(c, text); bad {
			return e
		}
		text = fmt.Sprintf("node %s could not start the container: %s", s.pod.Spec.NodeName, unwrapRun(text))
		v.reason, v.message, v.doomed = runtime.JudgeEnd(s.failureStreak(c, cs), runtime.ReasonSandboxError, text)
	default:
		v.reason = runtime.ReasonSandboxError
		v.message = w.Reason + withColon(text)
	}
	return v
}

// beforeStart judges a container before its first run. The node prepares the volumes first, then
// the sandbox with its network, then the image.
func (s *subject) beforeStart() verdict {
	v := verdict{status: creating}
	if sandbox := conditionOf(s.pod, corev1.PodReadyToStartContainers); sandbox != nil && sandbox.Status == corev1.ConditionTrue {
		return v
	}
	mount, sandbox := s.noteSince(topicMount, time.Time{}), s.noteSince(topicSandbox, time.Time{})
	if mount != nil && sandbox != nil {
		if mount.at.Before(sandbox.at) {
			mount = nil
		} else {
			sandbox = nil
		}
	}
	switch {
	case mount != nil:
		v.reason, v.message = runtime.ReasonVolumeError, clipText(mount.text, tailBytes)
		return v
	case sandbox != nil:
		v.reason = runtime.ReasonSandboxError
		v.message = clipText(fmt.Sprintf("node %s: %s", s.pod.Spec.NodeName, sandbox.text), tailBytes)
		return v
	}
	return v
}

// pullText returns why the image was not pulled. doomed means that another attempt would get the
// same answer from the registry, and that the kubelet has made more than one.
func (s *subject) pullText(c *corev1.Container, w *corev1.ContainerStateWaiting) (message string, doomed bool) {
	text := registryText(w.Message)
	told := s.noteSince(topicPull, time.Time{})
	if told != nil && text == "" {
		text = registryText(told.text)
	}
	switch w.Reason {
	case "InvalidImageName":
		return fmt.Sprintf("%q is not a valid image name%s", c.Image, withColon(text)), true
	case "ErrImageNeverPull":
		return fmt.Sprintf("image %s is not on the node, and may not be pulled", c.Image), true
	}
	message = "cannot pull " + c.Image
	if text = strings.TrimSpace(strings.TrimPrefix(text, c.Image)); text != "" {
		message += ": " + strings.TrimPrefix(text, ": ")
	}
	tries := int32(1)
	if told != nil {
		tries = told.count
	}
	// ErrImagePull means that an attempt has just failed. The first failure may be temporary.
	again := w.Reason != "ErrImagePull" || tries > 1
	return message, tries >= runtime.LoopAfter || again && finalPull.MatchString(text)
}

// badConfig judges a container that the kubelet could not create from its spec.
func (s *subject) badConfig(c *corev1.Container, text string) verdict {
	v := verdict{status: failed, reason: runtime.ReasonInvalidSpec, message: text}
	if v.message == "" {
		v.message = "the container's configuration was refused"
	}
	switch {
	case strings.Contains(text, "runAsNonRoot") && strings.Contains(text, "non-numeric user"):
		v.doomed = true
		v.message = fmt.Sprintf("the user of image %s is a name and not a number, so Kubernetes cannot check that it is not root: set kubernetes.runAsUser to its number", c.Image)
	case strings.Contains(text, "runAsNonRoot"), strings.Contains(text, "breaks non-root policy"):
		v.doomed = true
		v.message = fmt.Sprintf("image %s runs as root: set kubernetes.runAsUser to another user, or allow root in kubernetes.security (runAsRoot, with a reason)", c.Image)
	case strings.Contains(text, "timed out waiting for the condition"):
		v.reason, v.message = runtime.ReasonSecretUnavailable, fmt.Sprintf("node %s has not received the pod's secrets yet: %s", s.pod.Spec.NodeName, text)
	case strings.HasPrefix(text, "secret ") && strings.HasSuffix(text, " not found"), strings.Contains(text, "couldn't find key") && strings.Contains(text, " in Secret "):
		v.reason = runtime.ReasonSecretUnavailable
		v.message = text + ": the agent creates it again; if this message stays, somebody keeps deleting the secret"
	}
	return v
}

// badCommand reports whether a start failed because of the command itself.
func badCommand(c *corev1.Container, text string) (verdict, bool) {
	if !notProgram.MatchString(text) {
		return verdict{}, false
	}
	command := "the image's own command"
	if len(c.Command) > 0 {
		command = c.Command[0]
	}
	return verdict{
		status: failed, reason: runtime.ReasonBadCommand, doomed: true,
		message: fmt.Sprintf("cannot run %s: %s", command, unwrapRun(text)),
	}, true
}

func unwrapRun(text string) string {
	for {
		short := wrappedRun.ReplaceAllString(registryText(text), "")
		if short == text {
			return clipText(text, tailBytes)
		}
		text = short
	}
}

// judgeEnded judges a container that has ended and has not started again.
func (s *subject) judgeEnded(c *corev1.Container, cs *corev1.ContainerStatus, t *corev1.ContainerStateTerminated) verdict {
	v := s.judgeEnding(c, t, c.Name == main(s.pod).Name && endedRuns(cs) <= s.past.served)
	reason, message, loops := runtime.JudgeEnd(s.failureStreak(c, cs), v.reason, v.message)
	v.reason, v.message, v.doomed = reason, message, v.doomed || loops
	return v
}

// judgeEnding returns the verdict on how one run ended. served means that the run had been ready.
func (s *subject) judgeEnding(c *corev1.Container, t *corev1.ContainerStateTerminated, served bool) verdict {
	v := verdict{status: failed, reason: runtime.ReasonExited}
	last := ""
	words := s.secrets.Blank(t.Message)
	switch output := tailOf(words); {
	case output == "":
	case !s.secrets.Known():
		last = "; its last output is shown when the agent knows which secrets to remove from it"
	default:
		last = "; last output: " + output
	}
	switch t.Reason {
	case "OOMKilled":
		v.reason = runtime.ReasonOOMKilled
		v.message = "killed by the kernel: over its memory limit"
		if limit, ok := c.Resources.Limits[corev1.ResourceMemory]; ok {
			v.message += fmt.Sprintf(" of %d MiB", inMebibytes(limit))
		}
		v.message += last
		return v
	case "StartError", "ContainerCannotRun", "RunContainerError":
		if e, bad := badCommand(c, words); bad {
			return e
		}
		v.message = fmt.Sprintf("could not be started (exit code %d): %s", t.ExitCode, unwrapRun(words))
		if t.ExitCode == 127 || t.ExitCode == 126 {
			v.reason, v.doomed = runtime.ReasonBadCommand, true
		}
		return v
	case "ContainerStatusUnknown":
		v.reason, v.message = runtime.ReasonLost, strings.TrimSuffix("disappeared without an exit status"+withColon(words), ".")
		return v
	}
	if how, note, ok := s.wasKilled(c, t, served); ok {
		v.reason, v.doomed = how, how == runtime.ReasonStartupTimeout
		if how == runtime.ReasonStartupTimeout {
			v.message = "not ready within " + startupBudget(c.StartupProbe).String()
		} else {
			v.message = "restarted because its health check kept failing"
		}
		if note != nil {
			v.message += ": " + s.probeText(note)
		}
		v.message += last
		return v
	}
	v.message = fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Signal != 0 {
		v.message = fmt.Sprintf("killed by signal %d", t.Signal)
	}
	v.message += last
	return v
}

// probeText returns the message of a failed check. It blanks the values of secrets, because the
// answer may contain them.
func (s *subject) probeText(n *note) string { return shortenProbeText(s.secrets.Blank(n.text)) }

// probeSlack is a tolerance, because the API rounds times to whole seconds.
const probeSlack = 2 * time.Second

// wasKilled reports whether the kubelet ended a run because of a probe. The exit code after SIGTERM
// does not show this, so the time decides. The startup probe ends a run that was never ready when
// its budget is over. The liveness probe has an event right before the end. But the kubelet sends
// no more events after about 25 failed checks, so there may be no event near the end.
func (s *subject) wasKilled(c *corev1.Container, t *corev1.ContainerStateTerminated, served bool) (reason string, told *note, ok bool) {
	ran := t.FinishedAt.Sub(t.StartedAt.Time)
	if p := c.StartupProbe; p != nil && !served {
		// The first check may come up to a period after the start.
		early := startupBudget(p) - time.Duration(p.PeriodSeconds)*time.Second - probeSlack
		late := startupBudget(p) + time.Duration(p.PeriodSeconds+p.TimeoutSeconds)*time.Second + s.graceOf(p) + probeSlack
		told = s.noteSince(topicStartup, t.StartedAt.Time)
		byForce := t.ExitCode == 128+9 || t.ExitCode == 128+15 || t.Signal == 9 || t.Signal == 15
		if ran >= early && ran <= late && (told != nil || byForce) {
			return runtime.ReasonStartupTimeout, told, true
		}
	}
	if p := c.LivenessProbe; p != nil {
		told = s.noteSince(topicLiveness, t.StartedAt.Time)
		if told != nil && !told.at.After(t.FinishedAt.Time) && t.FinishedAt.Sub(told.at) <= s.graceOf(p)+probeSlack {
			return runtime.ReasonHealthCheckFailed, told, true
		}
	}
	return "", nil, false
}

// startupBudget returns the time in which a program has to pass its startup probe.
func startupBudget(p *corev1.Probe) time.Duration {
	if p == nil {
		return 0
	}
	return time.Duration(p.InitialDelaySeconds+p.PeriodSeconds*p.FailureThreshold) * time.Second
}

func (s *subject) graceOf(p *corev1.Probe) time.Duration {
	switch {
	case p.TerminationGracePeriodSeconds != nil:
		return time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	case s.pod.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(*s.pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// judgeRunning judges a container that is up.
func (s *subject) judgeRunning(c *corev1.Container, cs *corev1.ContainerStatus) verdict {
	if cs.Ready {
		return verdict{status: serving}
	}
	v := verdict{status: running, reason: runtime.ReasonNotReady}
	started := cs.State.Running.StartedAt.Time
	if (cs.Started == nil || *cs.Started) && s.servedThisRun(cs) {
		v.reason = runtime.ReasonHealthCheckFailed
		if n := s.noteSince(topicReadiness, started); n != nil {
			v.message = s.probeText(n)
		}
		return v
	}
	kind := topicStartup
	if cs.Started != nil && *cs.Started || c.StartupProbe == nil {
		kind = topicReadiness
	}
	if n := s.noteSince(kind, started); n != nil {
		v.message = s.probeText(n)
	}
	t := cs.LastTerminationState.Terminated
	if t == nil {
		return v
	}
	// The reason of the last end is more useful than the fact that the container has started again.
	e := s.judgeEnded(c, cs, t)
	v.doomed = e.doomed
	if e.doomed || e.reason != runtime.ReasonExited {
		v.reason, v.message = e.reason, e.message
		return v
	}
	v.message = strings.TrimPrefix(v.message+"; before that: "+e.message, "; ")
	return v
}

// endedRuns returns the number of runs that have ended.
func endedRuns(cs *corev1.ContainerStatus) int {
	n := int(cs.RestartCount)
	if cs.State.Terminated != nil || cs.State.Running == nil && cs.LastTerminationState.Terminated != nil {
		n++
	}
	return n
}

// lastEnd returns how the last run ended, or nil if no run has ended.
func lastEnd(cs *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if cs.State.Terminated != nil {
		return cs.State.Terminated
	}
	return cs.LastTerminationState.Terminated
}

// failureStreak returns the number of runs that have ended since the main container last served for
// runtime.StableAfter. If it never did, failureStreak returns the number of all ended runs.
func (s *subject) failureStreak(c *corev1.Container, cs *corev1.ContainerStatus) int {
	if c.Name != main(s.pod).Name {
		return endedRuns(cs)
	}
	return max(0, endedRuns(cs)-s.past.forgiven)
}

// servedThisRun reports whether the main container was ready in its present run.
func (s *subject) servedThisRun(cs *corev1.ContainerStatus) bool {
	return s.past.served > endedRuns(cs)
}
