package process

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/plural"
	"github.com/windlass-run/windlass/pkg/pool"
)

const (
	// restartAfter is how many further checks must fail until an unready instance is restarted.
	// With the default interval, that is half a minute after it became unready. A server that is
	// only overloaded should recover in this time.
	restartAfter = 3
	// replaceAfter is how many restarts for lost health an instance gets before it is replaced. The
	// replacement has a new id, a new directory and other ports.
	replaceAfter = 3
	// diskRetry is the shortest time between a start that failed on a full disk and the next start.
	// The longest time is twice as long. An attempt costs only a process and a few small files, and
	// an instance should start soon after there is room again.
	diskRetry = 2 * time.Second
	// killMargin is how long the shim has after drain and grace, before the agent kills the
	// remaining processes.
	killMargin = 5 * time.Second
)

// wanted is the wanted state of one workload.
type wanted struct {
	// Gone means that no instance should be left. Paused means that no instance should run for now.
	Gone, Paused bool
	Replicas     int
	// Pooled means that the roles are counted separately, in one group.
	Pooled bool
	// Order is the order in which the roles of a pool are replaced.
	Order pool.Order
	Roles []wantedRole
	// Unavailable is how many replicas may be out of service while instances are replaced.
	Unavailable int
	// Held, if set, says why no instance may start now.
	Held *block
	// Delay is the delay between starts of an instance that keeps ending.
	Delay backoff.Policy
}

type wantedRole struct {
	Name      string
	Instances int
	Template  string
	// Stable means that an instance is replaced in its slot, and that the slot has a directory.
	Stable bool
	// Entry means that routes lead to the role's instances.
	Entry bool
	// StartsAfter names roles that must be ready before an instance starts for the first time.
	StartsAfter []string
	// Unavailable is how many instances of a pool may be out of service while instances are
	// replaced. 0: one additional instance exists during the replacement.
	Unavailable int
	// Stays means that no other role of a pool waits for the role, unless it has instances of an older template.
	Stays bool
	// YieldsWhenFull means that an older instance of a pool stops if there is no room for the
	// additional instance.
	YieldsWhenFull bool
}

// templateOf returns the template that instances of a role should have.
func (w wanted) templateOf(role string) string {
	for _, r := range w.Roles {
		if r.Name == role {
			return r.Template
		}
	}
	return ""
}

// wantedGroups returns the wanted state as an input of package groups.
func (w wanted) wantedGroups() groups.Wanted {
	out := groups.Wanted{Replicas: w.Replicas, Pooled: w.Pooled, Order: w.Order, Unavailable: w.Unavailable}
	if w.Gone {
		out.Replicas = 0
	}
	for _, r := range w.Roles {
		out.Roles = append(out.Roles, groups.Role{Name: r.Name, Units: r.Instances, Stable: r.Stable, StartsAfter: r.StartsAfter, Unavailable: r.Unavailable, Stays: r.Stays, YieldsWhenFull: r.YieldsWhenFull})
	}
	return out
}

// block is a reason that keeps an instance from starting.
type block struct {
	Reason, Message string
	// Until is the time of the next attempt.
	Until time.Time
	// OtherCause means that the instance waits for another reason than room, so stopping another instance would not
	// help it.
	OtherCause bool
}

// seen is the observed state of one instance.
type seen struct {
	record
	// Live means that the instance's shim runs. Starting means that it is not known yet whether the
	// shim will run. Busy means that an operation on the instance is under way, and must end before
	// the next one begins.
	Live, Starting, Busy bool
	// Passes and Fails are the numbers of checks in a row that passed and failed, in this attempt.
	Passes, Fails int
	// LastCheck is the result of the last failed check.
	LastCheck string
	Blocked   *block
	// Released means that no gateway sends to the instance any more, or that its stop does not
	// depend on gateways. For several roles, see workload.isReleased.
	Released bool
	// Unrouted means that no gateway sends to the instance, although gateways may.
	Unrouted bool
	// Waits says for which roles the instance's first start waits.
	Waits string
}

type slotKey struct {
	Role  string
	Group int
	Slot  int
}

func (s seen) key() slotKey { return slotKey{s.Role, s.Group, s.Slot} }

// isServing reports whether the instance is ready, is not stopping, and is not losing its health.
func (s seen) isServing() bool {
	return s.Live && s.Ready && s.Stop == nil && s.Fails < s.Health.Unhealthy
}

type actionKind string

const (
	doCreate  actionKind = "create" // a new instance in Slot
	doStart   actionKind = "start"
	doStop    actionKind = "stop"   // SIGTERM and grace period; then the instance starts again
	doRetire  actionKind = "retire" // SIGTERM and grace period; then the instance is forgotten
	doOrder   actionKind = "order"  // give the order to stop that was held back
	doKill    actionKind = "kill"   // kill the processes that the shim failed to kill
	doForget  actionKind = "forget" // remove all traces of an instance that does not run any more
	doReady   actionKind = "ready"
	doUnready actionKind = "unready"
)

type action struct {
	Kind    actionKind
	ID      string
	Slot    slotKey
	Reason  string
	Message string
}

type plan struct {
	Actions []action
	// Waits says which roles first starts wait for, by instance id.
	Waits map[string]string
	// Next is the time to decide again if nothing happens before. Zero: never.
	Next time.Time
}

func (p *plan) do(a action) { p.Actions = append(p.Actions, a) }

func (p *plan) wakeBy(t time.Time) {
	if p.Next.IsZero() || t.Before(p.Next) {
		p.Next = t
	}
}

// decideWorkload returns the actions that bring the instances of one workload closer to the wanted state.
// Invariants, tested as properties:
//
//   - no slot ever has two instances;
//   - without a pool, a change of template takes a replica out of service only if at most
//     Unavailable replicas are then out of service;
//   - of a replica with one role, a change of template takes one ready instance at a time;
//   - no action starts an instance that runs, and no action stops an instance that does not run.
func decideWorkload(w wanted, instances []seen, now time.Time) plan {
	p := plan{Waits: map[string]string{}}
	slices.SortFunc(instances, bySeat)
	d := groups.Decide(w.wantedGroups(), observedGroups(w, instances))
	deleted, replaced := setOf(d.Delete), setOf(d.Replace)

	for _, s := range instances {
		if deleted[s.ID] {
			letLeave(&p, s, now, runtime.ReasonStopped, "no longer wanted")
			continue
		}
		switch {
		case s.Stop != nil && s.Stop.Final:
			letLeave(&p, s, now, s.Stop.Reason, s.Stop.Message)
		case replaced[s.ID] && !s.Ready && !w.Paused:
			// The instance is not in service, so it is replaced at once: a broken instance must never
			// delay the version that repairs it.
			letLeave(&p, s, now, runtime.ReasonReplaced, replacedWords)
		case s.Sick >= replaceAfter && s.hasEnded() && !w.Paused:
			p.do(action{Kind: doForget, ID: s.ID, Slot: s.key(), Reason: runtime.ReasonReplaced})
		default:
			if why := d.Wait[s.identityOf()]; why != "" {
				p.Waits[s.ID] = why
			}
			keepLive(&p, w, s, now)
		}
	}
	for _, c := range d.Create {
		if !w.Paused {
			p.do(action{Kind: doCreate, Slot: slotKey{c.Role, c.Group, c.Slot}})
		}
	}
	for _, s := range instances {
		if replaced[s.ID] && s.isServing() && w.Held == nil && !w.Paused {
			letLeave(&p, s, now, runtime.ReasonReplaced, replacedWords)
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

func (s seen) identityOf() groups.ID { return groups.ID{Group: s.Group, Role: s.Role, Slot: s.Slot} }

// observedGroups returns the instances as an input of package groups.
func observedGroups(w wanted, instances []seen) []groups.Instance {
	out := make([]groups.Instance, 0, len(instances))
	for _, s := range instances {
		// An instance that makes room for its successor keeps its slot.
		leaves := s.Stop != nil && s.Stop.Final && s.Stop.Reason != runtime.ReasonReplaced
		out = append(out, groups.Instance{
			ID: s.identityOf(), Key: s.ID, Started: s.Attempt > 0, Ready: s.isServing(),
			Unrouted: s.Unrouted, Leaving: leaves, Old: s.Template != w.templateOf(s.Role),
			// An instance that never fitted does not delay others, because no order of replacements
			// makes room for it.
			Unfit: s.Attempt == 0 && s.Blocked != nil && !s.Blocked.OtherCause,
		})
	}
	return out
}

// keepLive adds the actions for an instance that should stay.
func keepLive(p *plan, w wanted, s seen, now time.Time) {
	switch {
	case s.Busy:
	case s.Live && s.Stop != nil:
		endOverdue(p, s, now)
	case s.Live && w.Paused:
		p.do(action{Kind: doStop, ID: s.ID, Slot: s.key(), Reason: runtime.ReasonStopped, Message: "the agent stops, and stops its instances"})
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
			p.wakeBy(at)
		case w.Held == nil:
			p.do(action{Kind: doStart, ID: s.ID, Slot: s.key()})
		}
	}
}

// startAt returns when the backoff allows the instance to start.
func (s seen) startAt(delay backoff.Policy) time.Time {
	if !s.hasEnded() || s.End.Free {
		return time.Time{}
	}
	if s.End.Reason == runtime.ReasonDiskFull {
		return s.End.At.Add(diskRetry + time.Duration(s.End.Jitter*float64(diskRetry)))
	}
	d := delay.Delay(max(s.Streak-1, 0), func() float64 { return s.End.Jitter })
	return s.End.At.Add(d)
}

// checkHealth adds the actions that follow from the checks of a running instance.
func checkHealth(p *plan, s seen, now time.Time) {
	never := s.ReadyAt.IsZero()
	switch {
	case !s.Ready && s.Passes >= s.Health.Healthy:
		p.do(action{Kind: doReady, ID: s.ID, Slot: s.key()})
	case s.Ready && s.Fails >= s.Health.Unhealthy:
		p.do(action{Kind: doUnready, ID: s.ID, Slot: s.key()})
	case !s.Ready && !never && s.Fails >= s.Health.Unhealthy+restartAfter:
		p.do(action{
			Kind: doStop, ID: s.ID, Slot: s.key(), Reason: runtime.ReasonHealthCheckFailed,
			Message: fmt.Sprintf("%s in a row failed: %s", plural.Count(s.Fails, "check"), s.LastCheck),
		})
	case !s.Ready && never:
		deadline := s.StartedAt.Add(s.Health.Budget)
		if now.Before(deadline) {
			p.wakeBy(deadline)
			return
		}
		m := fmt.Sprintf("not ready within %s", s.Health.Budget)
		if s.LastCheck != "" {
			m += ": " + s.LastCheck
		}
		p.do(action{Kind: doStop, ID: s.ID, Slot: s.key(), Reason: runtime.ReasonStartupTimeout, Message: m})
	}
}

// letLeave adds the actions for an instance that should go.
func letLeave(p *plan, s seen, now time.Time, reason, message string) {
	switch {
	case s.Busy:
	case !s.Live:
		p.do(action{Kind: doForget, ID: s.ID, Slot: s.key(), Reason: reason})
	case s.Stop == nil || !s.Stop.Final:
		p.do(action{Kind: doRetire, ID: s.ID, Slot: s.key(), Reason: reason, Message: message})
	default:
		endOverdue(p, s, now)
	}
}

// endOverdue adds the actions for an instance that is stopping. The instance gets the order to stop
// once no gateway sends to it any more, and is killed if it does not end.
func endOverdue(p *plan, s seen, now time.Time) {
	if await := s.Stop.Await; !await.IsZero() {
		if !s.Released && now.Before(await) {
			p.wakeBy(await)
			return
		}
		p.do(action{Kind: doOrder, ID: s.ID, Slot: s.key()})
		return
	}
	deadline := s.Stop.deadlineOf(s.Grace).Add(killMargin)
	if now.Before(deadline) {
		p.wakeBy(deadline)
		return
	}
	p.do(action{Kind: doKill, ID: s.ID, Slot: s.key()})
	p.wakeBy(now.Add(killMargin))
}

func bySeat(a, b seen) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.ID, b.ID))
}
