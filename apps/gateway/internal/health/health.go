// Package health decides, from what traffic sees, whether an instance gets more of it.
// It is a value and its transitions: pure, with time as an argument.
//
//	in ── failures in a row ──▶ ejected ── time passes ──▶ trial ── success ──▶ in
//	                               ▲                         │
//	                               └──── failure, twice as long ◀┘
//
// The check of the region's agent, which asks each instance how it is, comes first:
// what it calls not ready is not asked here, unless too few are left that are well. What
// comes back ready from there starts with a clean slate.
package health

import "time"

// Policy of ejection.
type Policy struct {
	// Failures in a row that eject: errors after a connection was had, time-outs and
	// answers of 5xx.
	Failures int
	// Refusals in a row that eject: no connection was had. Fewer, because they are
	// never the request's fault.
	Refusals int
	// Base is how long the first ejection takes; each that follows takes twice as long
	// as the one before, up to Longest.
	Base, Longest time.Duration
}

// Default is five failures, as Envoy has it, or two refusals. A second is enough for a
// process to start again; five minutes is what a model may take to load.
func Default() Policy {
	return Policy{Failures: 5, Refusals: 2, Base: time.Second, Longest: 5 * time.Minute}
}

// Outcome of a request, as far as it tells about the instance.
type Outcome int

const (
	// Success: it answered, other than by 5xx.
	Success Outcome = iota
	// Failure: it answered by 5xx, broke off, or sent what is not HTTP.
	Failure
	// Timeout: it did not answer in time.
	Timeout
	// Refusal: no connection was had.
	Refusal
)

// String is the reason that agents are told.
func (o Outcome) String() string {
	switch o {
	case Success:
		return ""
	case Failure:
		return "ServerErrors"
	case Timeout:
		return "Timeout"
	case Refusal:
		return "ConnectError"
	}
	return "Unknown"
}

// State of one instance. The zero value is in, without a failure.
type State struct {
	failures, refusals int
	level              int       // ejections in a row
	until              time.Time // zero: in
	returned           time.Time // when the last ejection ended well
	trial              time.Time // since when a trial is under way; zero: none
}

// Verdict on an instance.
type Verdict int

const (
	// In: it gets traffic.
	In Verdict = iota
	// Out: it gets none before Until.
	Out
	// Trial: one request may find out; see Try.
	Trial
)

// trialLimit is how long a trial without an end keeps others out: requests may stream
// for hours, and the first byte decides.
const trialLimit = 30 * time.Second

// Verdict at a time.
func (s State) Verdict(now time.Time) Verdict {
	switch {
	case s.until.IsZero():
		return In
	case now.Before(s.until), !s.trial.IsZero() && now.Sub(s.trial) < trialLimit:
		return Out
	default:
		return Trial
	}
}

// Until is when an ejection ends; zero when there is none.
func (s State) Until() time.Time { return s.until }

// Try begins the trial of an instance whose verdict is Trial.
func (s State) Try(now time.Time) State {
	s.trial = now
	return s
}

// After is the state after a request that was sent ended so. ejected tells that this is
// what put the instance out.
func (s State) After(outcome Outcome, now time.Time, p Policy) (_ State, ejected bool) {
	if outcome == Success {
		if !s.until.IsZero() {
			if s.trial.IsZero() {
				return s, false // one from before the ejection
			}
			s.until, s.trial, s.returned = time.Time{}, time.Time{}, now
		}
		s.failures, s.refusals = 0, 0
		return s, false
	}
	if !s.until.IsZero() {
		if s.trial.IsZero() {
			return s, false // it is known
		}
		return s.eject(now, p), true
	}
	s.failures++
	if outcome == Refusal {
		s.refusals++
	}
	if s.failures >= p.Failures || s.refusals >= p.Refusals {
		return s.eject(now, p), true
	}
	return s, false
}

// Cancelled is the state after a trial that told nothing: its client went away.
func (s State) Cancelled() State {
	s.trial = time.Time{}
	return s
}

func (s State) eject(now time.Time, p Policy) State {
	// Who behaved for as long as the longest ejection starts over.
	if s.trial.IsZero() && now.Sub(s.returned) > p.Longest {
		s.level = 0
	}
	length := p.Base
	for range s.level {
		if length *= 2; length >= p.Longest {
			length = p.Longest
			break
		}
	}
	return State{level: s.level + 1, until: now.Add(length), returned: s.returned}
}
