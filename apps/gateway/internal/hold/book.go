package hold

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/share"
)

const (
	// wakeInterval is the time from an answer of the agent to the next call for the same app.
	wakeInterval = time.Second
	// idleSleep is how long Run sleeps while no request waits.
	idleSleep = time.Hour
	// minRetryAfter is the shortest Retry-After of a refused request.
	minRetryAfter = time.Second
)

// callBackoff is the time from a failed call of the agent to the next call.
var callBackoff = backoff.Policy{Min: 20 * time.Millisecond, Max: time.Second}

// book has the apps for which requests came, and counts the requests that wait. It is pure.
type book struct {
	// permits limits the requests that wait, of all apps together. Apps share the permits fairly, because a
	// tenant sets the limit of its app, and anyone on the internet may send requests.
	permits *share.Permits
	apps    map[string]*app
}

type app struct {
	name string
	// startedAt is when the first request began to wait for the current start. Zero: no start is under way.
	startedAt time.Time
	// startDuration is how long a start takes: the agent's answer, or the last start that this gateway saw.
	// 0: not known.
	startDuration time.Duration
	// wanted is whether a request came since the last call of the agent. If it is set, the agent must be called
	// even if no request waits.
	wanted bool
	// due is the earliest time of the next call. Zero: now.
	due time.Time
	// calling is whether a call is under way.
	calling bool
	// failures is the number of calls in a row that failed.
	failures int
}

// count is the number of requests that wait for an app.
type count struct {
	appID, name string
	waiting     int
}

func newBook(most int) *book { return &book{permits: share.NewPermits(most), apps: map[string]*app{}} }

// takePermit takes a permit for a request. If there is none, refused is not nil. wake reports whether the agent must
// be called, now or when the next call is due.
func (b *book) takePermit(id, name string, p Policy, now time.Time) (refused *Refusal, wake bool) {
	a := b.apps[id]
	if a == nil {
		a = &app{}
		b.apps[id] = a
	}
	a.name = name
	held := b.permits.Held(id)
	if held == 0 {
		// This is the first request that waits. It begins a new start, unless an earlier start may still be under way.
		if a.startedAt.IsZero() || now.Sub(a.startedAt) > max(a.startDuration, p.Start, p.Wait) {
			a.startedAt, a.failures = now, 0
		}
		a.wanted, wake = true, true
	}
	switch {
	case held >= p.Most:
		refused = &Refusal{RetryAfter: b.retryAfter(id, p, now)}
	case !b.permits.Take(id):
		refused = &Refusal{Process: true, RetryAfter: b.retryAfter(id, p, now)}
	}
	return refused, wake
}

// freePermit frees a permit. released is whether the request got an instance. If this is the first request that is
// released after a start, startDuration is how long the start took. Otherwise it is 0.
func (b *book) freePermit(id string, released bool, now time.Time) (name string, startDuration time.Duration) {
	a := b.apps[id]
	b.permits.GiveBack(id)
	if released && !a.startedAt.IsZero() {
		startDuration = max(now.Sub(a.startedAt), time.Nanosecond)
		a.startDuration, a.startedAt = startDuration, time.Time{}
	}
	return a.name, startDuration
}

// retryAfter returns the time until an instance should be ready.
func (b *book) retryAfter(id string, p Policy, now time.Time) time.Duration {
	a := b.apps[id]
	if a == nil {
		return max(cmp.Or(p.Start, p.Wait), minRetryAfter)
	}
	left := cmp.Or(p.Start, a.startDuration, p.Wait)
	if !a.startedAt.IsZero() {
		left -= now.Sub(a.startedAt)
	}
	return max(left, minRetryAfter)
}

// dueWakes returns the apps to wake now, and the time until the next one is due. atZero reports whether an app
// is still at zero.
func (b *book) dueWakes(now time.Time, atZero func(id string) bool) (ids []string, next time.Duration) {
	next = idleSleep
	for _, id := range slices.Sorted(maps.Keys(b.apps)) {
		a := b.apps[id]
		// A refused request holds no permit, but it wakes the app as well, by wanted.
		waiting := b.permits.Held(id) > 0
		if a.calling || !waiting && !a.wanted {
			continue
		}
		if wait := a.due.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		if !atZero(id) {
			// The route's queue will release the requests. While they wait, the next check is due in wakeInterval,
			// because the app may go back to zero.
			a.wanted, a.due, a.failures = false, time.Time{}, 0
			if waiting {
				a.due = now.Add(wakeInterval)
				next = min(next, wakeInterval)
			}
			continue
		}
		a.calling, a.wanted = true, false
		ids = append(ids, id)
	}
	return ids, next
}

// recordAnswer records the end of a call, and returns the number of calls in a row that failed. startDuration is the
// agent's answer, 0 if it does not know.
func (b *book) recordAnswer(id string, startDuration time.Duration, ok bool, now time.Time, rand func() float64) (failures int) {
	a := b.apps[id] // not nil, because forgetApps keeps an app while a call is under way
	a.calling = false
	if !ok {
		a.due = now.Add(callBackoff.Delay(a.failures, rand))
		a.failures++
		return a.failures
	}
	a.failures, a.due = 0, now.Add(wakeInterval)
	a.startDuration = cmp.Or(startDuration, a.startDuration)
	return 0
}

func (b *book) countsOf() []count {
	out := make([]count, 0, len(b.apps))
	for id, a := range b.apps {
		out = append(out, count{id, a.name, b.permits.Held(id)})
	}
	return out
}

// forgetApps drops apps that are not routed and have no waiting requests, and returns their IDs.
func (b *book) forgetApps(routed func(id string) bool) (ids []string) {
	for id, a := range b.apps {
		if b.permits.Held(id) == 0 && !a.calling && !routed(id) {
			delete(b.apps, id)
			ids = append(ids, id)
		}
	}
	return ids
}
