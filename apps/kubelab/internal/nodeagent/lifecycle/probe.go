package lifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ProbeKind is one of the three probes that a container may have.
type ProbeKind int

// The kinds of probes, with the startup probe first.
const (
	Startup ProbeKind = iota
	Readiness
	Liveness
)

// String returns the word that begins the kubelet's events.
func (k ProbeKind) String() string {
	return [...]string{"Startup", "Readiness", "Liveness"}[k]
}

// prober decides when one probe of one run is due, and what its answers mean.
type prober struct {
	spec *corev1.Probe
	kind ProbeKind
	next time.Time
	// open is whether a check waits for its answer.
	open bool
	// held is whether the probe has given its final verdict on this run.
	held bool
	last bool
	run  int32
}

// beginRun is called when a run begins. least is the minimum delay of its first check.
func (p *prober) beginRun(now time.Time, least time.Duration) {
	*p = prober{spec: p.spec, kind: p.kind, next: now.Add(max(seconds(p.spec.InitialDelaySeconds), least))}
}

// takeDue reports whether a check is due now, and if so marks it as open. A check that is late by less than a
// period does not move later checks. After a longer delay, missed checks are skipped, and the next check is due
// one period from now.
func (p *prober) takeDue(now time.Time) bool {
	if p.open || p.held || now.Before(p.next) {
		return false
	}
	period := max(seconds(p.spec.PeriodSeconds), time.Second)
	p.next = p.next.Add(period)
	if !now.Before(p.next) {
		p.next = now.Add(period)
	}
	p.open = true
	return true
}

// recordAnswer records a result. final reports whether enough equal results came in a row to give a verdict.
func (p *prober) recordAnswer(ok bool) (verdict, final bool) {
	if p.run == 0 || p.last != ok {
		p.last, p.run = ok, 0
	}
	p.run++
	if ok && p.run < p.spec.SuccessThreshold || !ok && p.run < p.spec.FailureThreshold {
		return false, false
	}
	// A container that will be restarted is not probed until it has restarted. A container that
	// has started gets no startup probe any more.
	if p.kind == Startup || p.kind == Liveness && !ok {
		p.held = true
	}
	return ok, true
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }
