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
	// again is the time from an answer of the agent to the next call.
	again = time.Second
	// idle is how long Run sleeps while nothing waits.
	idle = time.Hour
	// leastRetry is the shortest retry time that a refused request gets.
	leastRetry = time.Second
)

// failed is the time from a call that failed to the next one.
var failed = backoff.Policy{Min: 20 * time.Millisecond, Max: time.Second}

// book counts the requests that wait, by app. It is pure.
type book struct {
	// places has one for each request that waits. Apps share them, because an app's own limit is its tenant's to
	// set, and strangers send the requests.
	places *share.Places
	apps   map[string]*app
}

type app struct {
	name string
	// since is when the first request began to wait for the current start. Zero: there is none.
	since time.Time
	// start is how long a start takes, from the agent's answer or from the last start that was seen
	// here; 0: not known.
	start time.Duration
	// wanted is whether a request came since the last call. The agent must be called even if it does not
	// wait. due is the earliest time of the next call. Zero: now. calling is whether a call is under way.
	// failures counts the calls that failed in a row.
	wanted   bool
	due      time.Time
	calling  bool
	failures int
}

// count is how many requests of an app wait.
type count struct {
	appID, name string
	held        int
}

func newBook(most int) *book { return &book{places: share.NewPlaces(most), apps: map[string]*app{}} }

// takePlace takes a place for a request, or refuses it. wake reports whether the agent must be called, now or
// when the next call is due.
func (b *book) takePlace(id, name string, p Policy, now time.Time) (refused *Refusal, wake bool) {
	a := b.apps[id]
	if a == nil {
		a = &app{}
		b.apps[id] = a
	}
	a.name = name
	held := b.places.Held(id)
	if held == 0 {
		// No request waits. If the last start has had time to end, a new one begins now.
		if a.since.IsZero() || now.Sub(a.since) > max(a.start, p.Start, p.Wait) {
			a.since, a.failures = now, 0
		}
		a.wanted, wake = true, true
	}
	switch {
	case held >= p.Most:
		refused = &Refusal{RetryAfter: b.retryAfter(id, p, now)}
	case !b.places.Take(id):
		refused = &Refusal{Process: true, RetryAfter: b.retryAfter(id, p, now)}
	}
	return refused, wake
}

// freePlace frees a place. For the first request that is released after a start, start is how long the start
// took. For all others it is 0.
func (b *book) freePlace(id string, released bool, now time.Time) (name string, start time.Duration) {
	a := b.apps[id]
	b.places.GiveBack(id)
	if released && !a.since.IsZero() {
		start = max(now.Sub(a.since), time.Nanosecond)
		a.start, a.since = start, time.Time{}
	}
	return a.name, start
}

func (b *book) retryAfter(id string, p Policy, now time.Time) time.Duration {
	a := b.apps[id]
	if a == nil {
		return max(cmp.Or(p.Start, p.Wait), leastRetry)
	}
	left := cmp.Or(p.Start, a.start, p.Wait)
	if !a.since.IsZero() {
		left -= now.Sub(a.since)
	}
	return max(left, leastRetry)
}

// dueWakes returns the apps to wake now, and the time until the next one is due. held reports whether an app
// is still at zero.
func (b *book) dueWakes(now time.Time, held func(id string) bool) (ids []string, next time.Duration) {
	next = idle
	for _, id := range slices.Sorted(maps.Keys(b.apps)) {
		a := b.apps[id]
		// A request that was refused wakes the app as well: it holds no place, but sets wanted.
		waiting := b.places.Held(id) > 0
		if a.calling || !waiting && !a.wanted {
			continue
		}
		if wait := a.due.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		if !held(id) {
			// The route's queue releases the requests. If the app goes back to zero meanwhile, it is woken again.
			a.wanted, a.due, a.failures = false, time.Time{}, 0
			if waiting {
				a.due = now.Add(again)
				next = min(next, again)
			}
			continue
		}
		a.calling, a.wanted = true, false
		ids = append(ids, id)
	}
	return ids, next
}

// noteAnswer notes the end of a call, and returns how many failed in a row.
func (b *book) noteAnswer(id string, start time.Duration, ok bool, now time.Time, rand func() float64) (failures int) {
	a := b.apps[id] // forget keeps an app with a call under way
	a.calling = false
	if !ok {
		a.due = now.Add(failed.Delay(a.failures, rand))
		a.failures++
		return a.failures
	}
	a.failures, a.due = 0, now.Add(again)
	a.start = cmp.Or(start, a.start)
	return 0
}

func (b *book) counts() []count {
	out := make([]count, 0, len(b.apps))
	for id, a := range b.apps {
		out = append(out, count{id, a.name, b.places.Held(id)})
	}
	return out
}

// forgetApps drops apps that are not routed and for which no request waits.
func (b *book) forgetApps(routed func(id string) bool) (gone []string) {
	for id, a := range b.apps {
		if b.places.Held(id) == 0 && !a.calling && !routed(id) {
			delete(b.apps, id)
			gone = append(gone, id)
		}
	}
	return gone
}
