package scaling

import (
	"fmt"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Pool is the input of DecidePool about the pool of an app in a region.
type Pool struct {
	// Roles are the pool's roles that follow the load. Desired of a role is the number of its instances. If the pool is
	// at zero, it is the number with which the role starts again.
	Roles []Role
	// Zero is nil for a pool that never goes to zero by its load.
	Zero *Zero
	// Window has the samples of the whole pool, which include roles that do not follow the load. It may be nil if Zero
	// is nil.
	Window *Window
	// AtZero reports whether the pool has no instances. It is only set with Zero.
	AtZero bool
	// ZeroSince is when the pool was first seen at zero. Requests in earlier samples do not bring it back, and requests
	// that instances finish while they stop do not either.
	ZeroSince time.Time
}

// PoolDecision is the result of DecidePool.
type PoolDecision struct {
	// Roles are the decisions about the roles, in the order of Pool.Roles. Their Desired and Wanted are 0 where the pool
	// has no instances. Limit of a role of a pool at zero is a limit of the number with which it starts.
	Roles []Decision
	// Counts are the numbers of instances of the roles to store. For a pool at zero, these are the numbers with which it
	// starts again.
	Counts []int
	// AtZero reports whether the pool should have no instances. Why is the reason if this differs from Pool.AtZero, and
	// empty otherwise.
	AtZero bool
	Why    string
}

// PoolZero returns when the pool of a policy with roles goes to zero, nil for never.
func PoolZero(p *windlassv1.ScalingPolicy) *Zero {
	if p.GetZero() == nil || len(p.GetRoles()) == 0 {
		return nil
	}
	return newZero(p.GetZero())
}

// DecidePool is DecideRoles for a pool that may go to zero. All of its roles go to zero together, and come back together
// with the instances that a start needs: Initial of each role, within limits, in the ratios of couples.
func DecidePool(p Pool, now time.Time) PoolDecision {
	var out PoolDecision
	if p.AtZero {
		out = p.decideAtZero(now)
	} else {
		out.Roles = DecideRoles(p.Roles, now)
		for _, d := range out.Roles {
			out.Counts = append(out.Counts, d.Wanted)
		}
		if idle, ok := p.idleFor(out.Roles, now); ok && idle >= p.Zero.After {
			out.toZero(p, idle, now)
		} else if ok {
			for i := range out.Roles {
				out.Roles[i].decideAgainAt(now.Add(p.Zero.After - idle))
			}
		}
	}
	return out
}

// idleFor returns for how long the pool has been without requests. ok is false if it may not go to zero.
func (p *Pool) idleFor(decisions []Decision, now time.Time) (d time.Duration, ok bool) {
	if p.Zero == nil {
		return 0, false
	}
	for i, r := range p.Roles {
		if r.Window.Newest(now) == nil || r.State.Floor > 0 || p.keepsAwake(i, now) != "" || decisions[i].isUnsure() {
			return 0, false
		}
	}
	d, ok = p.Window.Idle(now)
	for _, one := range decisions {
		d = min(d, now.Sub(one.Unwritten.AwakeSince))
	}
	return d, ok
}

// keepsAwake returns why a role needs instances whatever the load is, empty if it does not.
func (p *Pool) keepsAwake(role int, now time.Time) string {
	switch r := p.Roles[role]; {
	case now.Before(r.State.HoldUntil):
		return "a person set the instances of role " + r.Name + " for a time"
	case r.Policy.Bounds(now).Min > r.Policy.Min:
		return "the schedule of role " + r.Name + " has a higher minimum"
	}
	return ""
}

// toZero makes the decision that the pool goes to zero.
func (out *PoolDecision) toZero(p Pool, idle time.Duration, now time.Time) {
	out.AtZero = true
	out.Counts, _ = startCounts(p.Roles, now)
	out.Why = fmt.Sprintf("there has been no request for %s", idle.Round(time.Second))
	for i := range out.Roles {
		d := &out.Roles[i]
		d.Wanted, d.Limit, d.Kept = 0, None, Kept{}
	}
}

// decideAtZero decides for a pool at zero.
func (p *Pool) decideAtZero(now time.Time) PoolDecision {
	counts, limits := startCounts(p.Roles, now)
	out, closed := PoolDecision{Counts: counts}, false
	for i, r := range p.Roles {
		closed = closed || r.State.Closed
		if out.Why == "" {
			out.Why = p.keepsAwake(i, now)
		}
	}
	newest := p.Window.Newest(now)
	if newest != nil && newest.callsSince(p.ZeroSince) {
		out.Why = "there are requests"
	}
	if out.AtZero = closed || out.Why == ""; out.AtZero {
		out.Why = ""
	}
	for i, r := range p.Roles {
		d := newDecider(r.Policy, r.Window, r.State, now)
		d.mem, d.out.Desired, d.out.Wanted, d.out.Unlimited = Kept{}, 0, 0, 0
		if !out.AtZero {
			d.out.Wanted = out.Counts[i]
		}
		switch {
		case newest == nil:
			d.out.Limit = NoReport
		case r.State.Closed:
			d.out.Limit = RegionClosed
		case limits[i] == Quota, limits[i] == QuotaBelowMinimum, limits[i] == Room:
			d.out.Limit = limits[i]
		}
		one := d.toDecision()
		one.Kept = Kept{}
		out.Roles = append(out.Roles, one)
	}
	return out
}

// startCounts returns the number of instances with which each role starts from zero, and the limits of these numbers.
func startCounts(roles []Role, now time.Time) ([]int, []Limit) {
	deciders := make([]decider, len(roles))
	for i, r := range roles {
		d := newDecider(r.Policy, r.Window, r.State, now)
		if now.Before(r.State.HoldUntil) {
			d.out.Limit = HoldLimit
		} else {
			d.out.Wanted, d.out.Limit = d.clampTo(r.Policy.Initial, d.minimumReplicas())
		}
		deciders[i] = d
	}
	applyRatios(deciders, roles)
	counts, limits := make([]int, len(roles)), make([]Limit, len(roles))
	for i := range deciders {
		counts[i], limits[i] = deciders[i].out.Wanted, deciders[i].out.Limit
	}
	return counts, limits
}
