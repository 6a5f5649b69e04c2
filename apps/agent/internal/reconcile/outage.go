package reconcile

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// outages makes keys wait together for a dependency that does not answer: the API server, the
// control plane or the disk. While the dependency is away, one key at a time is tried, however many
// keys wait. This key is the probe. When the dependency answers, all keys are tried at once. So an
// outage costs the same for one deployment as for a thousand. The end of an outage is found within
// the longest delay of the policy, however long the outage lasted.
//
//	fails because X is missing        the probe fails: to the end of the line
//	        |                             .--------------.
//	        v                             v              |
//	     waiting for X --first, in turn--> probe --------'
//	        ^                                |  X answered, with yes or no
//	        '-- again without X --- all <----'
//
// A key whose own fault looks like an outage costs only one attempt per round, because the keys are
// probes in turn.
//
// outages is guarded by the Reconciler's mutex.
type outages struct {
	policy backoff.Policy
	random func() float64
	queue  *queue
	lock   sync.Locker        // the Reconciler's mutex, for timers
	all    map[string]*outage // by the dependency that does not answer
	of     map[inbox.Key]*outage
}

func newOutages(policy backoff.Policy, random func() float64, q *queue, lock sync.Locker) *outages {
	return &outages{policy: policy, random: random, queue: q, lock: lock, all: map[string]*outage{}, of: map[inbox.Key]*outage{}}
}

// outage is the state of one dependency that does not answer.
type outage struct {
	// waiting has the keys in the order of their last failures.
	waiting []inbox.Key
	// failures is the number of failed probes in a row. last is the time of the last failure.
	failures int
	last     time.Time
	// probe is the key that is being tried. It is nil while timer runs, which will choose the next
	// probe.
	probe *inbox.Key
	timer *time.Timer
}

// calm is how long a dependency must be without failures until the next failure counts as a new
// outage. So the delays keep growing for a dependency that fails half of the calls.
const calm = 10 * time.Second

// missingDependency names the dependency that did not answer, if this is why a key failed. It
// returns "" if the key failed by itself or did not fail. An error that is not a runtime.Rejection,
// such as a disk error or a deadline, counts as an outage.
func missingDependency(err error) string {
	if err == nil {
		return ""
	}
	rejection, ok := errors.AsType[*runtime.Rejection](err)
	switch {
	case !ok:
		return "host"
	case rejection.Retryable && (rejection.Code == runtime.ReasonUnavailable || rejection.Code == runtime.ReasonSecretUnavailable):
		return rejection.Code
	}
	return ""
}

// noteTried records the attempt for a key. away names the dependency that did not answer, if any.
func (r *Reconciler) noteTried(ctx context.Context, k inbox.Key, away string) {
	r.mu.Lock()
	released := r.outages.noteTried(k, away)
	r.mu.Unlock()
	if released > 0 {
		r.cfg.Log.InfoContext(ctx, "a dependency answers again: retrying all keys that waited for it", "keys", released)
	}
}

// noteTried records that a key was tried, and the dependency that did not answer, if any. It
// returns how many keys are released because their dependency answered.
func (o *outages) noteTried(k inbox.Key, missing string) (released int) {
	if was := o.of[k]; was != nil && (missing == "" || was != o.all[missing]) {
		o.dropKey(was, k)
		released = o.releaseAll(was)
	}
	if missing != "" {
		o.addKey(k, missing)
	}
	return released
}

func (o *outages) addKey(k inbox.Key, missing string) {
	out := o.all[missing]
	if out == nil {
		out = &outage{}
		o.all[missing] = out
	}
	now := time.Now()
	if len(out.waiting) == 0 && now.Sub(out.last) > calm {
		out.failures = 0
	}
	out.last = now
	switch {
	case out.probe != nil && *out.probe == k:
		out.probe = nil
		out.failures++
		out.waiting = append(slices.DeleteFunc(out.waiting, func(w inbox.Key) bool { return w == k }), k)
	case o.of[k] == nil:
		out.waiting = append(out.waiting, k)
		o.of[k] = out
	}
	o.armProbe(out)
}

// forgetKey removes a key that need not be tried any more.
func (o *outages) forgetKey(k inbox.Key) {
	if out := o.of[k]; out != nil {
		o.dropKey(out, k)
		o.armProbe(out)
	}
}

func (o *outages) dropKey(out *outage, k inbox.Key) {
	delete(o.of, k)
	out.waiting = slices.DeleteFunc(out.waiting, func(w inbox.Key) bool { return w == k })
	if out.probe != nil && *out.probe == k {
		out.probe = nil
	}
}

// releaseAll enqueues all keys that wait.
func (o *outages) releaseAll(out *outage) int {
	all := out.waiting
	out.waiting, out.probe = nil, nil
	o.armProbe(out)
	for _, k := range all {
		delete(o.of, k)
	}
	o.queue.add(all...)
	return len(all)
}

// armProbe makes sure that there is a probe or a timer while keys wait. The timer will choose a
// probe.
func (o *outages) armProbe(out *outage) {
	switch {
	case len(out.waiting) == 0:
		if out.timer != nil {
			out.timer.Stop()
			out.timer = nil
		}
	case out.probe == nil && out.timer == nil:
		var timer *time.Timer
		timer = time.AfterFunc(o.policy.Delay(out.failures, o.random), func() {
			o.lock.Lock()
			defer o.lock.Unlock()
			if out.timer != timer {
				return // the timer had fired before it was stopped
			}
			out.timer = nil
			first := out.waiting[0]
			out.probe = &first
			o.queue.add(first)
		})
		out.timer = timer
	}
}

// stopTimers ends the timers.
func (o *outages) stopTimers() {
	for _, out := range o.all {
		if out.timer != nil {
			out.timer.Stop()
			out.timer = nil
		}
	}
}
