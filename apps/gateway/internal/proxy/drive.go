package proxy

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// carrier takes a request to instances, and their answers back: the transport of net/http, or that of the
// engine's sockets. It moves bytes; what becomes of the request is decided by drive.
type carrier interface {
	// await waits in the queue for an instance.
	await(*upstream.Want) (*upstream.Lease, error)
	// cross is await for a request that another region may answer, because this one refused it for now.
	// Without a lease and an error, the request is another's to answer.
	cross(*upstream.Want, *upstream.Refused) (*upstream.Lease, error)
	// holds counts the requests that wait for an app at zero.
	holds() *hold.Holds
	// leavesHeld reports whether a request for an app at zero is another's to answer, because this carrier
	// can neither send a heartbeat nor hand requests over.
	leavesHeld(heartbeat, handsOver bool) bool
	// attempt sends the request to an instance. An answer waits to be passed on, or dropped. Without one,
	// the lease has ended, and the error is or wraps a failure.
	attempt(*upstream.Lease) (decide.Attempt, error)
	// drop an answer that is not passed on, and end the lease.
	drop(*upstream.Lease)
}

// want is what the request asks of an instance.
func (x *exchange) want(affinity string) upstream.Want {
	return upstream.Want{Host: x.host, Affinity: affinity, Until: x.start.Add(x.policy.QueueWait)}
}

// drive takes the request to instances until one has answered, which then waits to be passed on. Without a
// lease and an error, the request is another's to answer.
func (x *exchange) drive(c carrier, m *metrics, want *upstream.Want, idempotent bool) (*upstream.Lease, error) {
	retries := decide.Retries{Idempotent: idempotent, Left: x.policy.Retries}
	for last := error(nil); ; {
		lease, err := x.place(c, want)
		if err != nil && last != nil {
			return nil, errors.Join(err, last)
		}
		if lease == nil {
			return nil, err
		}
		if x.attempts++; x.attempts > 1 {
			m.retried(x)
		}
		x.instance, x.deployment, x.version = lease.InstanceID(), lease.DeploymentID, lease.Version
		x.load.Sent(x.deployment)
		at, err := c.attempt(lease)
		switch retries.After(at) {
		case decide.Answer:
			return lease, nil
		case decide.Fail:
			return nil, err
		case decide.Repeat:
			if at.Status != 0 {
				c.drop(lease)
			}
		}
		last = err
		want.Tried(lease)
	}
}

// place finds an instance: one that is free, another region's if the route's policy says so, or one that
// becomes free. Without a lease and an error, the request is another's to answer.
func (x *exchange) place(c carrier, want *upstream.Want) (*upstream.Lease, error) {
	for {
		lease, why := x.route.Try(want)
		if lease != nil {
			return lease, nil
		}
		lease, err := x.await(c, want, why)
		if why, held := errors.AsType[*upstream.Refused](err); held && why.Reason == upstream.Held {
			continue // it has gone to zero while the request waited for its turn
		}
		return lease, err
	}
}

// await is place for a request that cannot have an instance at once.
func (x *exchange) await(c carrier, want *upstream.Want, why *upstream.Refused) (*upstream.Lease, error) {
	switch {
	case why.Reason == upstream.Removed:
		return nil, why
	case why.Reason == upstream.Held:
		return x.hold(c, want)
	case x.handedOver != "":
		if why.Reason != upstream.AtLimit || strings.HasPrefix(x.handedOver, spillover) {
			return nil, why // the region that handed it over knows others, and has a queue itself
		}
	case x.policy.Cross != upstream.CrossOff && !x.spec.IsPreview(x.host):
		return c.cross(want, why)
	}
	return c.await(want)
}

// failures are those of decide as they are answered.
var failures = [...]*failure{
	decide.SlowBody: failSlowBody, decide.Total: failTotal, decide.Timeout: failTimeout, decide.Exhausted: failExhausted,
	decide.Connect: failConnect, decide.Broken: failBroken, decide.TooLarge: failHeader, decide.SlowAnswer: failSlowAnswer,
}

// judged records how attempts at a destination ended.
type judged interface {
	RecordOutcome(outcome health.Outcome)
	// RecordStall is RecordOutcome for an answer that did not go on within limit.
	RecordStall(limit time.Duration)
}

// judge records at the destination what a fault says about it, and wraps err in its failure.
func (x *exchange) judge(f decide.Fault, at judged, err error) (decide.Failure, error) {
	v := decide.Judge(f, x.policy.Total)
	switch {
	case v.Stalled:
		at.RecordStall(x.policy.Idle)
	case v.HasOutcome:
		at.RecordOutcome(v.Outcome)
	}
	if own := failures[v.Failure]; own != nil && !errors.Is(err, own) {
		err = fmt.Errorf("%w: %w", own, err)
	}
	return v.Failure, err
}

// broke is the failure of an answer that had begun: all that is left is to break off.
func (x *exchange) broke(f decide.Failure, err error) {
	x.answerMu.Lock()
	defer x.answerMu.Unlock()
	if own := failures[decide.BrokenOff(f, x.answerPace.Waited(), x.policy.Total)]; own != nil {
		x.failure, x.cause = own, err
	}
}
