package lifecycle

import (
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Started records the result of a Start.
func (m *Machine) Started(now time.Time, r Ref, err error) {
	c := m.currentRun(r, starting)
	if c == nil {
		return
	}
	if failed := new(StartError); errors.As(err, &failed) && failed.Reason == ReasonConfigError {
		// The run does not count.
		c.run--
		c.setWaiting(ReasonConfigError, err.Error(), now.Add(m.tuning.ConfigRetry))
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventFailed, "Error: %v", err)
		return
	}
	m.recordf(c.spec.Name, corev1.EventTypeNormal, eventCreated, "Container created")
	if err != nil {
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventFailed, "Error: %v", err)
		c.startedAt = now
		c.endRun(m.pod, Exit{Code: exitCodeStartError, Reason: ReasonStartError, Message: err.Error()}, now)
		return
	}
	m.recordf(c.spec.Name, corev1.EventTypeNormal, eventStarted, "Container started")
	c.beginRun(now, m.tuning.FirstCheck)
	m.initialized = m.initialized || c.role == regular
	for _, staged := range []struct {
		Crash
		kill Kill
	}{
		{m.faults.CrashLoop, Kill{As: &Exit{Code: 1, Reason: reasonError}, LastWords: lastWordsOfACrash}},
		{m.faults.OOM, Kill{As: &Exit{Code: exitCodeKilled, Reason: reasonOOMKilled}}},
	} {
		if !staged.On {
			continue
		}
		after := soon
		if staged.After > 0 {
			after = staged.After
		}
		kill := staged.kill
		kill.Ref = r
		c.crash, c.crashAt = &kill, now.Add(after)
	}
}

// Exited records how a run ended.
func (m *Machine) Exited(now time.Time, r Ref, e Exit) {
	c := m.currentRun(r, running)
	if c == nil {
		return
	}
	if c.crash != nil && !c.crashAt.IsZero() {
		c.crash = nil // the run ended by itself before the staged end was due
	}
	c.endRun(m.pod, e, now)
}

// Probed records the answer to a Check. It returns false if nothing has changed, which is usual.
func (m *Machine) Probed(now time.Time, r Ref, kind ProbeKind, a Answer) (changed bool) {
	c := m.currentRun(r, running)
	if c == nil {
		return false
	}
	p := c.proberOf(kind)
	if p == nil || !p.open {
		return false
	}
	p.open = false
	if !c.isProbeEnabled(kind, m.stopping) {
		return false
	}
	if a.Err != nil {
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventUnhealthy, "%s probe errored and resulted in unknown state: %v", kind, a.Err)
		return true
	}
	if !a.OK {
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventUnhealthy, "%s probe failed: %s", kind, a.Output)
	}
	verdict, final := p.recordAnswer(a.OK)
	if !final {
		return !a.OK
	}
	switch {
	case kind == Readiness:
		changed = c.ready != verdict
		c.ready = verdict
	case kind == Startup && verdict:
		c.passedStartup(now)
		return true
	case kind == Startup:
		m.failProbe(c, p, now, "startup")
	case kind == Liveness && !verdict:
		m.failProbe(c, p, now, "liveness")
	}
	return changed || !a.OK
}

func (m *Machine) failProbe(c *container, p *prober, now time.Time, what string) {
	message := "Container " + c.spec.Name + " failed " + what + " probe"
	if m.restartsAfter(c, exitCodeKilled) {
		message += ", will be restarted"
	}
	m.stopRun(c, now, m.gracePeriod(p.spec), message)
}

// HookDone records that a preStop hook has ended. err says why it failed.
func (m *Machine) HookDone(now time.Time, r Ref, err error) {
	c := m.currentRun(r, running)
	if c == nil || c.stop == nil || !c.stop.hooked {
		return
	}
	if err != nil {
		m.recordf(c.spec.Name, corev1.EventTypeWarning, eventFailedPreStop, "PreStopHook failed: %v", err)
	}
	m.endHook(c, now)
}

// gracePeriod returns the grace period of a run that failed probe p, or the pod's if p is nil.
func (m *Machine) gracePeriod(p *corev1.Probe) time.Duration {
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		return time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	}
	if s := m.pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// restartsNow reports whether the container will run again after its newest run.
func (m *Machine) restartsNow(c *container) bool { return m.restartsAfter(c, c.end.ExitCode) }

func (m *Machine) restartsAfter(c *container, code int32) bool {
	if c.role == sidecar {
		return true
	}
	for _, rule := range c.spec.RestartPolicyRules {
		if in := rule.ExitCodes; in != nil && slices.Contains(in.Values, code) == (in.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return rule.Action == corev1.ContainerRestartRuleActionRestart
		}
	}
	policy := string(m.pod.Spec.RestartPolicy)
	if c.spec.RestartPolicy != nil {
		policy = string(*c.spec.RestartPolicy)
	}
	switch corev1.RestartPolicy(policy) {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	default:
		return c.role == regular || code != 0
	}
}

// Forget drops a Check that gets no answer, so that the probe runs again at its next time.
func (m *Machine) Forget(r Ref, kind ProbeKind) {
	if c := m.currentRun(r, running); c != nil {
		if p := c.proberOf(kind); p != nil {
			p.open = false
		}
	}
}
