package process

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
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
	Template     string
	Replicas     int
	Roles        []roleCount
	// Unavailable is how many replicas may be out of service while instances are replaced.
	Unavailable int
	// Held, when set, says why nothing may be started now.
	Held *block
	// Delay spaces the starts of an instance that keeps ending.
	Delay backoff.Policy
}

type roleCount struct {
	Name      string
	Instances int
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
	// Released: no gateway sends to it any more, or its stop does not depend on that.
	Released bool
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
	var p plan
	slices.SortFunc(instances, bySeat)

	places := map[place]bool{}
	if !w.Gone {
		for _, g := range groups(w, instances) {
			for _, role := range w.Roles {
				for slot := range role.Instances {
					places[place{role.Name, g, slot}] = true
				}
			}
		}
	}

	occupied := map[place]bool{}
	away := map[int]bool{} // groups out of service
	for _, s := range instances {
		if occupied[s.place()] || !places[s.place()] {
			leave(&p, s, now, runtime.ReasonStopped, "no longer wanted")
			continue
		}
		occupied[s.place()] = true
		switch {
		case s.Stop != nil && s.Stop.Final:
			away[s.Group] = true
			leave(&p, s, now, s.Stop.Reason, s.Stop.Message)
		case s.Template != w.Template && !s.Ready && !w.Paused:
			// Not in service: it costs nothing to replace it at once, and a broken
			// one must never hold up the version that repairs it.
			away[s.Group] = true
			leave(&p, s, now, runtime.ReasonReplaced, replacedWords)
		case s.Sick >= replaceAfter && s.ended() && !w.Paused:
			away[s.Group] = true
			p.do(action{Kind: doForget, ID: s.ID, Place: s.place(), Reason: runtime.ReasonReplaced})
		default:
			// An instance that never fitted does not hold up others: no order of replacing makes
			// room for it.
			never := s.Attempt == 0 && s.Blocked != nil
			if !s.serves() && !never {
				away[s.Group] = true
			}
			live(&p, w, s, now)
		}
	}
	for _, pl := range sorted(places) {
		if !occupied[pl] && !w.Paused {
			away[pl.Group] = true
			p.do(action{Kind: doCreate, Place: pl})
		}
	}
	for w.Held == nil && !w.Paused && len(away) < max(w.Unavailable, 1) {
		s, ok := nextReplaced(w, instances, places, away)
		if !ok {
			break
		}
		away[s.Group] = true
		leave(&p, s, now, runtime.ReasonReplaced, replacedWords)
	}
	return p
}

const replacedWords = "makes room for a newer template"

// nextReplaced picks the ready instance of an older template that goes next, of a group
// that is in service. A group that is partly new already is finished first.
func nextReplaced(w wanted, instances []seen, places map[place]bool, away map[int]bool) (seen, bool) {
	mixed := map[int]bool{}
	for _, s := range instances {
		mixed[s.Group] = mixed[s.Group] || s.Template == w.Template
	}
	var found *seen
	for i, s := range instances {
		if s.Template == w.Template || !places[s.place()] || away[s.Group] {
			continue
		}
		if found == nil || mixed[s.Group] && !mixed[found.Group] {
			found = &instances[i]
		}
	}
	if found == nil {
		return seen{}, false
	}
	return *found, true
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
	case w.Paused:
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

// groups picks which groups stay. A group's number is its name, not a rank: it
// keeps it for life, and gaps are allowed. Scaling down takes groups that leave
// anyway first, then groups that are not ready, and among equals the highest
// numbers. Scaling up fills the lowest free numbers.
func groups(w wanted, instances []seen) []int {
	type group struct{ n, ready, leaving int }
	byN := map[int]*group{}
	for _, s := range instances {
		g := byN[s.Group]
		if g == nil {
			g = &group{n: s.Group}
			byN[s.Group] = g
		}
		switch {
		case s.Stop != nil && s.Stop.Final && s.Stop.Reason != runtime.ReasonReplaced:
			g.leaving++
		case s.Ready && s.Stop == nil:
			g.ready++
		}
	}
	size := 0
	for _, r := range w.Roles {
		size += r.Instances
	}
	all := make([]group, 0, len(byN))
	for _, g := range byN {
		all = append(all, *g)
	}
	rank := func(g group) int {
		switch {
		case g.leaving > 0:
			return 2
		case g.ready < size:
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b group) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.n, b.n))
	})
	keep := []int{}
	for _, g := range all[:min(w.Replicas, len(all))] {
		keep = append(keep, g.n)
	}
	for n := 0; len(keep) < w.Replicas; n++ {
		if !slices.Contains(keep, n) {
			keep = append(keep, n)
		}
	}
	slices.Sort(keep)
	return keep
}

func bySeat(a, b seen) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.ID, b.ID))
}

func sorted(places map[place]bool) []place {
	out := make([]place, 0, len(places))
	for pl := range places {
		out = append(out, pl)
	}
	slices.SortFunc(out, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Slot, b.Slot))
	})
	return out
}
