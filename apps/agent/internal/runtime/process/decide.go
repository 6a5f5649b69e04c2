package process

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/pool"
)

const (
	// restartAfter further failed checks a sick instance is restarted: with the
	// default interval half a minute after it was taken out of rotation, which a
	// server that is merely overloaded should survive.
	restartAfter = 3
	// replaceAfter restarts for lost health the instance is replaced: new id, new
	// directory, other ports.
	replaceAfter = 3
	// diskRetry is the shortest time between a start that failed on a full disk and the next
	// one; the longest is twice that. A try costs a process and a few small files, and an
	// instance should start soon after there is room again.
	diskRetry = 2 * time.Second
	// killMargin is how long the shim has after drain and grace, before the agent kills
	// what is left.
	killMargin = 5 * time.Second
)

// wanted is how one workload should be.
type wanted struct {
	// Gone: nothing should be left. Paused: nothing should run for now.
	Gone, Paused bool
	Replicas     int
	// Pooled means that the roles are counted separately, in one group.
	Pooled bool
	// Order is the order in which the roles of a pool are replaced.
	Order pool.Order
	Roles []wantedRole
	// Unavailable is how many replicas may be out of service while instances are replaced.
	Unavailable int
	// Held, when set, says why nothing may be started now.
	Held *block
	// Delay spaces the starts of an instance that keeps ending.
	Delay backoff.Policy
}

type wantedRole struct {
	Name      string
	Instances int
	Template  string
	// Entry: routes lead to its instances.
	Entry bool
	// StartsAfter names roles that must be ready before an instance starts for the first time.
	StartsAfter []string
	// Unavailable is how many instances of a pool may be out of service while instances are replaced. 0: one more
	// than Instances exists meanwhile.
	Unavailable int
}

// template returns the template that instances of a role should have.
func (w wanted) template(role string) string {
	for _, r := range w.Roles {
		if r.Name == role {
			return r.Template
		}
	}
	return ""
}

// groups returns what the workload should be, as package groups takes it.
func (w wanted) groups() groups.Wanted {
	out := groups.Wanted{Replicas: w.Replicas, Pooled: w.Pooled, Order: w.Order, Unavailable: w.Unavailable}
	if w.Gone {
		out.Replicas = 0
	}
	for _, r := range w.Roles {
		out.Roles = append(out.Roles, groups.Role{Name: r.Name, Units: r.Instances, StartsAfter: r.StartsAfter, Unavailable: r.Unavailable})
	}
	return out
}

// block is a reason that keeps an instance from starting.
type block struct {
	Reason, Message string
	// Until is when to try again.
	Until time.Time
}

// seen is one instance as it is.
type seen struct {
	record
	// Live: its shim runs. Starting: it is not known yet whether its shim will run. Busy:
	// an operation on it is under way, and must end before the next one begins.
	Live, Starting, Busy bool
	// Passes and Fails count checks in a row, of this attempt.
	Passes, Fails int
	// LastCheck says what the last failed check saw.
	LastCheck string
	Blocked   *block
	// Released: no gateway sends to it any more, or its stop does not depend on that. Of a deployment with several
	// roles: to no instance of its group.
	Released bool
	// Unrouted: no gateway sends to it, though gateways may.
	Unrouted bool
	// Waits says for which roles its first start waits.
	Waits string
}

type place struct {
	Role  string
	Group int
	Slot  int
}

func (s seen) place() place { return place{s.Role, s.Group, s.Slot} }

// serves reports whether the instance is ready, and neither stops nor loses its health.
func (s seen) serves() bool {
	return s.Live && s.Ready && s.Stop == nil && s.Fails < s.Health.Unhealthy
}

type actionKind string

const (
	doCreate  actionKind = "create" // a new instance at Place
	doStart   actionKind = "start"
	doStop    actionKind = "stop"   // SIGTERM, grace; it starts again
	doRetire  actionKind = "retire" // SIGTERM, grace; it is forgotten
	doOrder   actionKind = "order"  // the stop that was held back
	doKill    actionKind = "kill"   // what the shim failed to kill
	doForget  actionKind = "forget" // it runs no more: remove all trace
	doReady   actionKind = "ready"
	doUnready actionKind = "unready"
)

type action struct {
	Kind    actionKind
	ID      string
	Place   place
	Reason  string
	Message string
}

type plan struct {
	Actions []action
	// Waits has what first starts wait for, by id.
	Waits map[string]string
	// Next is when to decide again if nothing happens before; zero: never.
	Next time.Time
}

func (p *plan) do(a action) { p.Actions = append(p.Actions, a) }

func (p *plan) by(t time.Time) {
	if p.Next.IsZero() || t.Before(p.Next) {
		p.Next = t
	}
}

// decide returns the actions that bring the instances of one workload closer to what
// is wanted. Invariants, tested as properties:
//
//   - no place ever has two instances;
//   - a change of template takes no replica out of service unless, with it, no more
//     than Unavailable are, and of a replica one ready instance at a time;
//   - an instance that runs is started by no action, one that does not run is
//     stopped by none.
func decide(w wanted, instances []seen, now time.Time) plan {
	p := plan{Waits: map[string]string{}}
	slices.SortFunc(instances, bySeat)
	d := groups.Decide(w.groups(), observed(w, instances))
	deleted, replaced := setOf(d.Delete), setOf(d.Replace)

	for _, s := range instances {
		if deleted[s.ID] {
			leave(&p, s, now, runtime.ReasonStopped, "no longer wanted")
			continue
		}
		switch {
		case s.Stop != nil && s.Stop.Final:
			leave(&p, s, now, s.Stop.Reason, s.Stop.Message)
		case replaced[s.ID] && !s.Ready && !w.Paused:
			// Not in service: it costs nothing to replace it at once, and a broken
			// one must never hold up the version that repairs it.
			leave(&p, s, now, runtime.ReasonReplaced, replacedWords)
		case s.Sick >= replaceAfter && s.ended() && !w.Paused:
			p.do(action{Kind: doForget, ID: s.ID, Place: s.place(), Reason: runtime.ReasonReplaced})
		default:
			if why := d.Wait[s.identity()]; why != "" {
				p.Waits[s.ID] = why
			}
			live(&p, w, s, now)
		}
	}
	for _, c := range d.Create {
		if !w.Paused {
			p.do(action{Kind: doCreate, Place: place{c.Role, c.Group, c.Slot}})
		}
	}
	for _, s := range instances {
		if replaced[s.ID] && s.serves() && w.Held == nil && !w.Paused {
			leave(&p, s, now, runtime.ReasonReplaced, replacedWords)
		}
	}
	return p
}

const replacedWords = "makes room for a newer template"

func setOf(keys []string) map[string]bool {
	out := make(map[string]bool, len(keys))
	for _, k := range keys {
		out[k] = true
	}
	return out
}

func (s seen) identity() groups.ID { return groups.ID{Group: s.Group, Role: s.Role, Slot: s.Slot} }

// observed returns the instances as package groups takes them.
func observed(w wanted, instances []seen) []groups.Instance {
	out := make([]groups.Instance, 0, len(instances))
	for _, s := range instances {
		// One that makes room for its successor does not give up its place.
		leaves := s.Stop != nil && s.Stop.Final && s.Stop.Reason != runtime.ReasonReplaced
		out = append(out, groups.Instance{
			ID: s.identity(), Key: s.ID, Started: s.Attempt > 0, Ready: s.serves(),
			Unrouted: s.Unrouted, Leaving: leaves, Old: s.Template != w.template(s.Role),
			// An instance that never fitted does not hold up others: no order of replacing makes room for it.
			Unfit: s.Attempt == 0 && s.Blocked != nil,
		})
	}
	return out
}

// live adds the actions for an instance that should stay.
func live(p *plan, w wanted, s seen, now time.Time) {
	switch {
	case s.Busy:
	case s.Live && s.Stop != nil:
		overdue(p, s, now)
	case s.Live && w.Paused:
		p.do(action{Kind: doStop, ID: s.ID, Place: s.place(), Reason: runtime.ReasonStopped, Message: "the agent stops, and its instances with it"})
	case s.Live:
		checkHealth(p, s, now)
	case w.Paused, p.Waits[s.ID] != "":
	default:
		at := s.startAt(w.Delay)
		if s.Blocked != nil && s.Blocked.Until.After(at) {
			at = s.Blocked.Until
		}
		switch {
		case at.After(now):
			p.by(at)
		case w.Held == nil:
			p.do(action{Kind: doStart, ID: s.ID, Place: s.place()})
		}
	}
}

// startAt returns when the instance may start, by its backoff.
func (s seen) startAt(delay backoff.Policy) time.Time {
	if !s.ended() || s.End.Free {
		return time.Time{}
	}
	if s.End.Reason == runtime.ReasonDiskFull {
		return s.End.At.Add(diskRetry + time.Duration(s.End.Jitter*float64(diskRetry)))
	}
	d := delay.Delay(max(s.Streak-1, 0), func() float64 { return s.End.Jitter })
	return s.End.At.Add(d)
}

// checkHealth adds the actions that follow from the checks of an instance that runs.
func checkHealth(p *plan, s seen, now time.Time) {
	never := s.ReadyAt.IsZero()
	switch {
	case !s.Ready && s.Passes >= s.Health.Healthy:
		p.do(action{Kind: doReady, ID: s.ID, Place: s.place()})
	case s.Ready && s.Fails >= s.Health.Unhealthy:
		p.do(action{Kind: doUnready, ID: s.ID, Place: s.place()})
	case !s.Ready && !never && s.Fails >= s.Health.Unhealthy+restartAfter:
		p.do(action{
			Kind: doStop, ID: s.ID, Place: s.place(), Reason: runtime.ReasonHealthCheckFailed,
			Message: fmt.Sprintf("%d checks in a row failed: %s", s.Fails, s.LastCheck),
		})
	case !s.Ready && never:
		deadline := s.StartedAt.Add(s.Health.Budget)
		if now.Before(deadline) {
			p.by(deadline)
			return
		}
		m := fmt.Sprintf("not ready within %s", s.Health.Budget)
		if s.LastCheck != "" {
			m += ": " + s.LastCheck
		}
		p.do(action{Kind: doStop, ID: s.ID, Place: s.place(), Reason: runtime.ReasonStartupTimeout, Message: m})
	}
}

// leave adds the actions for an instance that should go.
func leave(p *plan, s seen, now time.Time, reason, message string) {
	switch {
	case s.Busy:
	case !s.Live:
		p.do(action{Kind: doForget, ID: s.ID, Place: s.place(), Reason: reason})
	case s.Stop == nil || !s.Stop.Final:
		p.do(action{Kind: doRetire, ID: s.ID, Place: s.place(), Reason: reason, Message: message})
	default:
		overdue(p, s, now)
	}
}

// overdue adds the actions for an instance that is stopping: it gets the order to stop once no
// gateway sends to it any more, and is killed when it does not obey.
func overdue(p *plan, s seen, now time.Time) {
	if await := s.Stop.Await; !await.IsZero() {
		if !s.Released && now.Before(await) {
			p.by(await)
			return
		}
		p.do(action{Kind: doOrder, ID: s.ID, Place: s.place()})
		return
	}
	deadline := s.Stop.deadline(s.Grace).Add(killMargin)
	if now.Before(deadline) {
		p.by(deadline)
		return
	}
	p.do(action{Kind: doKill, ID: s.ID, Place: s.place()})
	p.by(now.Add(killMargin))
}

func bySeat(a, b seen) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.ID, b.ID))
}
