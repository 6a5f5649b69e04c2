package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// carrier sends a request to instances and takes back their answers. It uses the transport of net/http or the
// engine's sockets. It moves bytes, and driveToAnswer decides what happens to the request.
type carrier interface {
	// awaitInstance waits in the queue for an instance.
	awaitInstance(*upstream.Want) (*upstream.Lease, error)
	// awaitCrossRegion is awaitInstance for a request that another region may answer, because this region has no
	// free instance now. If it returns no lease and no error, another carrier must answer the request.
	awaitCrossRegion(*upstream.Want, *upstream.Refused) (*upstream.Lease, error)
	// heldRequests returns the count of the requests that wait for an app at zero.
	heldRequests() *hold.Holds
	// leavesHeld reports whether another carrier must answer a request for an app at zero. The reason is that
	// this carrier can neither send a heartbeat nor hand requests over.
	leavesHeld(heartbeat, handsOver bool) bool
	// attemptOn sends the request to an instance. The answer then waits to be passed on or dropped. Without
	// an answer, the lease has ended, and the error is or wraps a failure.
	attemptOn(*upstream.Lease) (decide.Attempt, error)
	// asksModel reports whether a server of models without the model answers the request with 404. Two requests for the
	// same model by the same path have the same modelKey.
	asksModel() bool
	modelKey() uint64
	// dropAnswer drops an answer that will not be passed on, and ends the lease.
	dropAnswer(*upstream.Lease)
}

// wantedInstance returns which instance the request needs.
func (x *exchange) wantedInstance(affinity string) upstream.Want {
	return upstream.Want{Host: x.host, Affinity: affinity, Until: x.arrived.Add(x.policy.QueueWait)}
}

// driveToAnswer sends the request to instances until one has answered. The answer then waits to be passed on.
// If it returns no lease and no error, another carrier must answer the request.
func (x *exchange) driveToAnswer(c carrier, m *metrics, want *upstream.Want, idempotent bool) (*upstream.Lease, error) {
	retries := decide.NewRetries(idempotent, x.policy.Retries, len(x.spec.ClosedPaths) > 0)
	var other *upstream.Lease // an instance that the request already has a place on
	for last := error(nil); ; {
		lease, err := other, error(nil)
		if other = nil; lease == nil {
			lease, err = x.findPlace(c, want)
		}
		if err != nil && last != nil {
			return nil, afterAttempt(err, last)
		}
		if lease == nil {
			return nil, err
		}
		if x.attempts++; x.attempts > 1 {
			m.countRetry(x)
		}
		x.instance, x.deployment, x.version = lease.InstanceID(), lease.DeploymentID, lease.Version
		x.load.Sent(x.deployment)
		at, err := c.attemptOn(lease)
		at.NotLoaded = decide.IsNotLoaded(at.Status) && len(x.spec.ClosedPaths) > 0 && c.asksModel()
		switch retries.After(at) {
		case decide.Answer:
			if at.NotLoaded && at.Resendable {
				x.noteMissed(c, m)
			}
			return lease, nil
		case decide.Elsewhere:
			if want.Tried(lease); x.route.LooksElsewhere(c.modelKey()) {
				other = x.route.TryOther(want)
			}
			if other == nil {
				x.noteMissed(c, m)
				return lease, nil
			}
			m.countNotLoaded(x, "elsewhere")
			c.dropAnswer(lease)
			last = nil
			continue
		case decide.Fail:
			return nil, err
		case decide.Repeat:
			if at.Status != 0 {
				c.dropAnswer(lease)
				err = &droppedAnswer{at.Status}
			}
		}
		last = err
		if lease.Prefill == nil || at.Leg != decide.Prefill {
			want.Tried(lease)
		}
		if lease.Prefill != nil && at.Leg != decide.Decode {
			want.Tried(lease.Prefill)
		}
		if at.Pair {
			m.countLegRetry(x, at.Leg)
		}
	}
}

// noteMissed records that the client gets the answer of a server that does not have the model.
func (x *exchange) noteMissed(c carrier, m *metrics) {
	m.countNotLoaded(x, "passed")
	if x.attempts > 1 {
		x.route.NoteMissed(c.modelKey())
	}
}

// keySeed is random, so that clients cannot find requests that have the same key.
var keySeed = maphash.MakeSeed()

// hashRequestedModel returns a hash of the request's path, which may name the model, and of the model that the body
// names. If the body is not JSON, it hashes the whole body.
func hashRequestedModel(path string, body []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(keySeed)
	_, _ = h.WriteString(path) // a hash returns no error
	if strings.HasPrefix(path, "/v2/") {
		return h.Sum64() // the path names the model
	}
	_ = h.WriteByte(0)
	var named struct {
		Model string `json:"model"`
	}
	if json.Unmarshal(body, &named) == nil {
		_, _ = h.WriteString(named.Model)
	} else {
		_, _ = h.Write(body)
	}
	return h.Sum64()
}

// droppedAnswer means that an instance answered with an error, and that the request should go to another instance.
type droppedAnswer struct{ status int }

func (e *droppedAnswer) Error() string { return fmt.Sprintf("the instance answered %d", e.status) }

// afterAttempt returns the error of a request that got no instance after an attempt. err is why it got none, and last
// is the error of the attempt. If an instance answered with an error, the client gets the status of this answer.
func afterAttempt(err, last error) error {
	dropped, answered := errors.AsType[*droppedAnswer](last)
	if _, refused := errors.AsType[*upstream.Refused](err); !answered || !refused {
		return errors.Join(err, last)
	}
	f := *failAnswered
	f.status = dropped.status
	return fmt.Errorf("%w: %w", &f, last)
}

// findPlace finds an instance for the request: a free instance, an instance of another region if the route's policy
// allows it, or an instance that becomes free. If it returns no lease and no error, another carrier must answer the
// request.
func (x *exchange) findPlace(c carrier, want *upstream.Want) (*upstream.Lease, error) {
	for {
		lease, why := x.route.Try(want)
		if lease != nil {
			return lease, nil
		}
		lease, err := x.awaitPlace(c, want, why)
		if why, held := errors.AsType[*upstream.Refused](err); held && why.Reason == upstream.Held {
			continue // the app went to zero while the request waited for its turn
		}
		return lease, err
	}
}

// awaitPlace is findPlace for a request that cannot get an instance at once.
func (x *exchange) awaitPlace(c carrier, want *upstream.Want, why *upstream.Refused) (*upstream.Lease, error) {
	switch {
	case why.Reason == upstream.Removed:
		return nil, why
	case why.Reason == upstream.Held:
		return x.holdAtZero(c, want)
	case x.handedOver != "":
		if why.Reason != upstream.AtLimit || strings.HasPrefix(x.handedOver, spillover) {
			return nil, why // the region that handed the request over has a queue, and knows other regions
		}
	case x.policy.Cross != upstream.CrossOff && !x.spec.IsPreview(x.host):
		return c.awaitCrossRegion(want, why)
	}
	return c.awaitInstance(want)
}

// failures has the gateway's error for each Failure of package decide.
var failures = [...]*failure{
	decide.SlowBody: failSlowBody, decide.Total: failTotal, decide.Timeout: failTimeout, decide.Exhausted: failExhausted,
	decide.Connect: failConnect, decide.Broken: failBroken, decide.TooLarge: failHeader, decide.SlowAnswer: failSlowAnswer,
}

// judged records how attempts at a destination ended.
type judged interface {
	RecordOutcome(outcome health.Outcome)
	// RecordStall is RecordOutcome for an answer that did not continue within limit.
	RecordStall(limit time.Duration)
}

// judgeFault records at the destination what a fault says about it, and wraps err in its failure.
func (x *exchange) judgeFault(f decide.Fault, at judged, err error) (decide.Failure, error) {
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

// failBegun records the failure of an answer that had begun, so that it can only be broken off.
func (x *exchange) failBegun(f decide.Failure, err error) {
	x.answerMu.Lock()
	defer x.answerMu.Unlock()
	if own := failures[decide.BrokenOff(f, x.answerPace.Waited(), x.policy.Total)]; own != nil {
		x.failure, x.cause = own, err
	}
}
