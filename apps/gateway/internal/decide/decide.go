// Package decide makes the decisions about one request and its attempts at instances. It is pure. Both transports,
// net/http and the engine's sockets, use it, so that they treat requests alike.
//
//	place ─▶ attempt ─▶ Judge (what does the fault mean?) ─▶ Retries.After ─▶ Answer
//	  ▲                                                           │      └──▶ Fail
//	  └──────────────────────────────── Repeat ───────────────────┘
package decide

import (
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
)

// Statuses on which decisions depend.
const (
	switchingProtocols = 101
	badRequest         = 400
	notFound           = 404
	tooManyRequests    = 429
	serverError        = 500
	unavailable        = 503
)

// Failure is why an attempt had no complete answer.
type Failure int

const (
	// NoFailure: the attempt ended because of the client, and the gateway sends no answer.
	NoFailure Failure = iota
	// SlowBody: the client's body did not arrive within the time for all of the request.
	SlowBody
	// Total: the time for all of the request has passed.
	Total
	// Timeout: the instance did not begin or did not continue its answer in time.
	Timeout
	// Exhausted: the gateway has no descriptor, port, memory or processor time for a connection.
	Exhausted
	// Connect: the gateway could not connect to the instance.
	Connect
	// Broken: the instance closed the connection early, or did not send HTTP.
	Broken
	// TooLarge: the header or the trailers of the answer are too large.
	TooLarge
	// SlowAnswer: the client did not take the answer in time.
	SlowAnswer
)

// Fault is what a transport knows about an attempt that failed. If several fields are true, the first one
// decides.
type Fault struct {
	// ClientGone: the client closed its connection. ClientBroke: reading the client's body failed.
	ClientGone, ClientBroke bool
	// TotalPassed: the time for all of the request has passed. BodyAwaited: the gateway waited for the client's
	// body at that time. Silent is how long the gateway has waited for the answer to begin. 0: the answer has begun.
	TotalPassed, BodyAwaited bool
	Silent                   time.Duration
	// TimedOut: the instance's time has passed. Late: it passed long ago, because this process did not run (IsLate).
	TimedOut, Late bool
	// NoConnection: the gateway could not connect. Local: the reason is that this process had no descriptor, port or
	// memory.
	NoConnection, Local bool
	// TooLarge: the header or the trailers of the answer were too large.
	TooLarge bool
}

// Verdict says what a fault means.
type Verdict struct {
	Failure Failure
	// Outcome counts for the instance if HasOutcome.
	Outcome    health.Outcome
	HasOutcome bool
	// Stalled: an answer that had begun did not continue. Then the outcome counts only if the instance begins no
	// other answer meanwhile, because a client can request an answer with long pauses.
	Stalled bool
}

// IsLate reports whether a wait ended so long after its limit that this process cannot have run in between. Then the
// other side may have been in time.
func IsLate(elapsed, limit time.Duration) bool { return elapsed >= limit+500*time.Millisecond }

// Judge judges a fault of a request that may take total in all.
func Judge(f Fault, total time.Duration) Verdict {
	switch {
	case f.ClientGone, f.ClientBroke:
		return Verdict{}
	case f.TotalPassed && f.BodyAwaited:
		return Verdict{Failure: SlowBody}
	case f.TotalPassed:
		// The instance is at fault if it was silent for most of the time. It is not at fault if it got the request late,
		// after a queue or a slow client, or if it is answering.
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

// BrokenOff returns the failure of an answer that had begun. waited is how long the gateway waited for the client
// to take the answer. If waited is more than half of total, the client is at fault.
func BrokenOff(f Failure, waited, total time.Duration) Failure {
	if f == Total && waited > total/2 {
		return SlowAnswer
	}
	return f
}

// Health returns what the status of an answer means for the health of the instance.
func Health(status int) health.Outcome {
	if status >= serverError {
		return health.Failure
	}
	return health.Success
}

// IsNotLoaded reports whether a status can mean that a server of models does not have the model.
func IsNotLoaded(status int) bool { return status == notFound }

// Work returns what the status of a complete answer means for the measured work of the instance. 429 means that the
// instance has too much work. Other 4xx are errors of the client, for which the instance did no work.
func Work(status int) balance.Outcome {
	switch {
	case status >= serverError, status == tooManyRequests:
		return balance.Failed
	case status >= badRequest, status == switchingProtocols:
		return balance.Ignored
	}
	return balance.Served
}

// Idempotent reports whether a request may be sent twice: key is whether it has an Idempotency-Key. Without a key
// the method decides, except that a request to switch protocols may not be sent twice.
func Idempotent(method string, key, upgrade bool) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return key || !upgrade
	}
	return key
}
