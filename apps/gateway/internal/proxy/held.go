package proxy

import (
	"errors"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// hold has a request wait for an app that is at zero in the region, or another region answer it. Either
// wakes the app here. It returns what place does. A request that another region handed over because the
// app is at zero there is refused: it waits there.
func (x *exchange) hold(c carrier, want *upstream.Want) (*upstream.Lease, error) {
	policy := x.route.Hold()
	if policy == nil { // it is ready by now
		return nil, &upstream.Refused{Reason: upstream.Held}
	}
	if strings.HasPrefix(x.handedOver, fromZero) || strings.HasPrefix(x.handedOver, spillover) {
		return nil, &upstream.Refused{Reason: upstream.NoInstance}
	}
	if policy.Heartbeat && c.leavesEvents() {
		return nil, nil //nolint:nilnil // another carrier sends the heartbeat
	}
	begun := time.Now()
	place, refused := c.holds().Enter(x.spec.AppID, x.spec.AppName, *policy)
	leave := func(released bool) {
		if place != nil {
			x.held += place.Leave(released)
			place = nil
		}
	}
	defer func() { leave(false) }() // its client may have gone, or a panic ended it
	want.Held, want.Until = refused == nil, begun.Add(policy.Wait)
	defer func() { want.Held, want.Until = false, x.start.Add(x.policy.QueueWait+x.held) }()
	var lease *upstream.Lease
	var err error
	switch elsewhere := policy.Elsewhere || x.policy.Cross != upstream.CrossOff; {
	case elsewhere && x.handedOver == "":
		lease, err = c.cross(want, &upstream.Refused{Reason: upstream.Held, Full: refused != nil})
	case refused == nil:
		lease, err = c.await(want)
	default:
		err = &upstream.Refused{Reason: upstream.Held, Full: true}
	}
	leave(lease != nil)
	if why, ok := errors.AsType[*upstream.Refused](err); !ok || why.Reason != upstream.Held {
		return lease, err
	}
	if refused != nil {
		return nil, retryAfter(failHoldFull, refused.RetryAfter)
	}
	return nil, retryAfter(failHeld, c.holds().RetryAfter(x.spec.AppID, *policy))
}

// retryAfter returns the failure with another Retry-After.
func retryAfter(f *failure, after time.Duration) *failure {
	out := *f
	out.retry = (after + time.Second - 1).Truncate(time.Second) // not before the time
	return &out
}

// leavesEvents implements carrier.
func (*trip) leavesEvents() bool { return false }

// leavesEvents implements carrier. A gateway that leaves gives the long way no more connections.
func (d *direct) leavesEvents() bool {
	return !d.p.leaving.Load() && acceptsEvents(d.values("Accept"))
}

func (c *trip) holds() *hold.Holds { return c.t.holds }

func (d *direct) holds() *hold.Holds { return d.p.cfg.Holds }
