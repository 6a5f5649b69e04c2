// Package health decides from the outcomes of requests whether an instance gets more requests.
// State is a value, and its methods are pure transitions with the time as an argument.
//
//	in ── failures in a row ──▶ ejected ── time passes ──▶ trial ── success ──▶ in
//	                               ▲                         │
//	                               └──── failure, twice as long ◀┘
//
// The agent's health checks come first: the gateway sends no requests to an instance that the
// agent reports as not ready, unless too few ready instances are left. An instance that
// becomes ready again starts with the zero State.
package health

import "time"

// Policy says when an instance is ejected, and for how long.
type Policy struct {
	// Failures is how many failures in a row eject the instance: errors on a connection,
	// timeouts, 5xx answers and failed connects.
	Failures int
	// Refusals is how many failed connects in a row eject it. It is lower than Failures,
	// because a failed connect is never the request's fault.
	Refusals int
	// Base is the length of the first ejection. Each further ejection is twice as long as the
	// one before, up to Longest.
	Base, Longest time.Duration
}

// Default returns the policy of all routes. Five failures is Envoy's default. Base is one second,
// which is enough for a process to restart. Longest is five minutes, the time a model may take to load.
func Default() Policy {
	return Policy{Failures: 5, Refusals: 2, Base: time.Second, Longest: 5 * time.Minute}
}

// Outcome is what the result of a request says about the instance.
type Outcome int

const (
	// Success: the instance answered with a status other than 5xx.
	Success Outcome = iota
	// Failure: the instance answered with 5xx, closed the connection early, or sent invalid HTTP.
	Failure
	// Timeout: the instance did not answer in time.
	Timeout
	// Refusal: the gateway could not connect.
	Refusal
)

// String returns the reason that the gateway reports to the agent.
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

// State is the health of one instance. The zero value is In, without a failure.
type State struct {
	failures, refusals int
	level              int       // ejections in a row
	until              time.Time // end of the ejection; zero: not ejected
	returned           time.Time // when a trial last succeeded
	trial              time.Time // when the trial in flight began; zero: none
}

// Verdict says whether an instance may get a request.
type Verdict int

const (
	// In: the instance gets requests.
	In Verdict = iota
	// Out: the instance gets no requests before Until, or while a trial is in flight.
	Out
	// Trial: one request may test whether the instance has recovered. See Try.
	Trial
)

// trialLimit is how long a trial without an outcome prevents another trial, because a request
// can last for hours.
const trialLimit = 30 * time.Second

// Verdict returns the verdict at a time.
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

// Until returns when the ejection ends, or zero if the instance is not ejected.
func (s State) Until() time.Time { return s.until }

// Refuses reports whether the gateway has failed to connect to the instance since the last success.
func (s State) Refuses() bool { return s.refusals > 0 }

// Try begins a trial. The verdict must be Trial.
func (s State) Try(now time.Time) State {
	s.trial = now
	return s
}

// After returns the state after a request with this outcome. ejected reports whether the outcome
// ejected the instance.
func (s State) After(outcome Outcome, now time.Time, p Policy) (_ State, ejected bool) {
	if outcome == Success {
		if !s.until.IsZero() {
			if s.trial.IsZero() {
				return s, false // the request was sent before the ejection
			}
			s.until, s.trial, s.returned = time.Time{}, time.Time{}, now
		}
		s.failures, s.refusals = 0, 0
		return s, false
	}
	if !s.until.IsZero() {
		if s.trial.IsZero() {
			return s, false // the request was sent before the ejection, too, so it does not prolong it
		}
		return s.ejectAt(now, p), true
	}
	s.failures++
	if outcome == Refusal {
		s.refusals++
	}
	if s.failures >= p.Failures || s.refusals >= p.Refusals {
		return s.ejectAt(now, p), true
	}
	return s, false
}

// Cancelled returns the state after a trial without an outcome, because the client went away.
func (s State) Cancelled() State {
	s.trial = time.Time{}
	return s
}

func (s State) ejectAt(now time.Time, p Policy) State {
	// An instance without an ejection for p.Longest starts over with the shortest one.
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
