package proxy

import (
	"errors"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// holdAtZero holds a request for an app that is at zero in the region, or hands the request over to another region.
// In both cases it wakes the app in this region. It returns what findPlace returns. If another region handed the
// request over because the app is at zero or at its limit there, holdAtZero refuses it, because the request can wait
// in that region.
func (x *exchange) holdAtZero(c carrier, want *upstream.Want) (*upstream.Lease, error) {
	policy := x.route.Hold()
	if policy == nil { // the app is not at zero any more
		return nil, &upstream.Refused{Reason: upstream.Held}
	}
	if strings.HasPrefix(x.handedOver, fromZero) || strings.HasPrefix(x.handedOver, spillover) {
		return nil, &upstream.Refused{Reason: upstream.NoInstance}
	}
	handsOver := x.handedOver == "" && (policy.Elsewhere || x.policy.Cross != upstream.CrossOff)
	if c.leavesHeld(policy.Heartbeat, handsOver) {
		return nil, nil //nolint:nilnil // another carrier answers and counts the request
	}
	begun := time.Now()
	permit, refused := c.heldRequests().Enter(x.spec.AppID, x.spec.AppName, *policy)
	leave := func(released bool) {
		if permit != nil {
			x.held += permit.Leave(released)
			permit = nil
		}
	}
	defer func() { leave(false) }() // for a request whose client went away, and for a panic
	want.Held, want.Until = refused == nil, begun.Add(policy.Wait)
	defer func() { want.Held, want.Until = false, x.arrived.Add(x.policy.QueueWait+x.held) }()
	var lease *upstream.Lease
	var err error
	switch {
	case handsOver:
		lease, err = c.awaitCrossRegion(want, &upstream.Refused{Reason: upstream.Held, Full: refused != nil})
	case refused == nil:
		lease, err = c.awaitInstance(want)
	default:
		err = &upstream.Refused{Reason: upstream.Held, Full: true}
	}
	leave(lease != nil)
	if why, ok := errors.AsType[*upstream.Refused](err); !ok || why.Reason != upstream.Held {
		return lease, err
	}
	switch {
	case refused == nil:
	case refused.Process:
		return nil, retryAfter(failGatewayFull, refused.RetryAfter)
	default:
		return nil, retryAfter(failHoldFull, refused.RetryAfter)
	}
	return nil, retryAfter(failHeld, c.heldRequests().RetryAfter(x.spec.AppID, *policy))
}

// retryAfter returns the failure with another Retry-After.
func retryAfter(f *failure, after time.Duration) *failure {
	out := *f
	out.retry = (after + time.Second - 1).Truncate(time.Second) // rounded up, so that the client does not return too early
	return &out
}

// leavesHeld implements carrier.
func (*trip) leavesHeld(_, _ bool) bool { return false }

// leavesHeld implements carrier. A gateway that stops gives net/http no more connections.
func (d *direct) leavesHeld(heartbeat, handsOver bool) bool {
	return !d.p.leaving.Load() && (handsOver || heartbeat && acceptsEvents(d.fieldValues("Accept")))
}

func (c *trip) heldRequests() *hold.Holds { return c.t.holds }

func (d *direct) heldRequests() *hold.Holds { return d.p.cfg.Holds }
