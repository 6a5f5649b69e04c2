// Package decide has the decisions of an exchange: one request, and the attempts to have instances answer
// it. It is pure. Both transports, net/http and the engine's sockets, ask it, so that what becomes of a
// request does not depend on how it came.
//
//	place ─▶ attempt ─▶ Judge (what does it say about the instance?) ─▶ Retries.After ─▶ Answer
//	  ▲                                                                      │      └──▶ Fail
//	  └──────────────────────────────── Repeat ──────────────────────────────┘
package decide

import (
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
)

// Statuses that decide something.
const (
	switchingProtocols = 101
	badRequest         = 400
	tooManyRequests    = 429
	serverError        = 500
	unavailable        = 503
)

// Failure is why an attempt gave no answer, or one that broke off.
type Failure int

const (
	// NoFailure: it is the client's doing, and nothing is answered for it here.
	NoFailure Failure = iota
	// SlowBody: the client's body did not arrive within the time for all of the request.
	SlowBody
	// Total: the time for all of the request has passed.
	Total
	// Timeout: the instance did not begin its answer, or go on with it, in time.
	Timeout
	// Exhausted: the gateway has no descriptor, port, memory or processor time for a connection.
	Exhausted
	// Connect: no connection to the instance was had.
	Connect
	// Broken: the instance broke off, or sent what is not HTTP.
	Broken
	// TooLarge: the header or trailers of its answer are.
	TooLarge
	// SlowAnswer: the client did not take the answer in time.
	SlowAnswer
)

// Fault is what a transport knows about an attempt that failed. More than one field may be true: the first
// of them decides.
type Fault struct {
	// ClientGone: the client went away. ClientBroke: its body failed.
	ClientGone, ClientBroke bool
	// TotalPassed: the time for all of the request has passed. BodyAwaited: the client's body was waited
	// for then. Silent is how long the instance had not begun its answer; 0: it had.
	TotalPassed, BodyAwaited bool
	Silent                   time.Duration
	// TimedOut: the instance's time has passed. Late: by much more than it had, as this process did not run.
	TimedOut, Late bool
	// NoConnection: there was none. Local: because this process lacks something.
	NoConnection, Local bool
	// TooLarge: the header or trailers of the answer.
	TooLarge bool
}

// Verdict says what a fault means.
type Verdict struct {
	Failure Failure
	// Outcome counts for the instance if HasOutcome.
	Outcome    health.Outcome
	HasOutcome bool
	// Stalled: an answer that had begun did not go on. Then the outcome counts only if the instance begins no
	// other answer either, because any client may ask for an answer that is silent for long.
	Stalled bool
}

// IsLate reports whether a wait of elapsed ended so long after its limit that this process was kept from going on:
// processors had other work, or it was stopped. The side that was waited for may have been in time.
func IsLate(elapsed, limit time.Duration) bool { return elapsed >= limit+500*time.Millisecond }

// Judge judges a fault of a request that may take total in all.
func Judge(f Fault, total time.Duration) Verdict {
	switch {
	case f.ClientGone, f.ClientBroke:
		return Verdict{}
	case f.TotalPassed && f.BodyAwaited:
		return Verdict{Failure: SlowBody}
	case f.TotalPassed:
		// An instance that had most of the time without a word is why. One that had the request late, behind
		// a queue or a client that sent slowly, is not. One that is answering does what it was asked for.
		return Verdict{Failure: Total, Outcome: health.Timeout, HasOutcome: f.Silent > total/2}
	case f.TimedOut:
		return Verdict{Failure: Timeout, Outcome: health.Timeout, HasOutcome: !f.Late, Stalled: !f.Late && f.Silent == 0}
	case f.NoConnection && f.Local:
		return Verdict{Failure: Exhausted}
	case f.NoConnection:
		return Verdict{Failure: Connect, Outcome: health.Refusal, HasOutcome: true}
	case f.TooLarge:
		return Verdict{Failure: TooLarge, Outcome: health.Failure, HasOutcome: true}
	}
	return Verdict{Failure: Broken, Outcome: health.Failure, HasOutcome: true}
}

// BrokenOff is the failure of an answer that had begun. waited is how long the gateway waited for the client
// to take the answer. If that is most of total, the client is why it passed.
func BrokenOff(f Failure, waited, total time.Duration) Failure {
	if f == Total && waited > total/2 {
		return SlowAnswer
	}
	return f
}

// Health is what the status of an answer says about the instance.
func Health(status int) health.Outcome {
	if status >= serverError {
		return health.Failure
	}
	return health.Success
}

// Work is what the status of an answer that was passed on whole says about the work that the instance does.
// 429 is an instance that has too much. Other 4xx say what the client did, and come without work.
func Work(status int) balance.Outcome {
	switch {
	case status >= serverError, status == tooManyRequests:
		return balance.Failed
	case status >= badRequest, status == switchingProtocols:
		return balance.Ignored
	}
	return balance.Served
}

// Idempotent reports whether a request may be sent twice, by its method, or because its client gave it an
// Idempotency-Key. The method does not count for a request that asks to switch protocols.
func Idempotent(method string, key, upgrade bool) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return key || !upgrade
	}
	return key
}
