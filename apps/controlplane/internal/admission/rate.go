package admission

import (
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// Rate of a bucket (GCRA): it holds Burst tokens and gets one back every Interval.
// What there is of it is one number, the time when it is full again, in microseconds.
// The zero Rate is no limit.
type Rate struct {
	Interval int64 // us
	Burst    int64
}

// RateOf the starts that the limits allow.
func RateOf(l model.Limits) Rate {
	r := PerMinute(l.StartsPerMinute)
	if r.Limited() && l.StartsBurst > 0 {
		r.Burst = l.StartsBurst
	}
	return r
}

// PerMinute is the rate of n tokens a minute, with as many at once. 0: no limit.
func PerMinute(n int64) Rate {
	if n <= 0 {
		return Rate{}
	}
	return Rate{Interval: max(1, time.Minute.Microseconds()/n), Burst: n}
}

// PerMinute is how many tokens come back in a minute; 0 for no limit.
func (r Rate) PerMinute() int64 {
	if !r.Limited() {
		return 0
	}
	return time.Minute.Microseconds() / r.Interval
}

// Limited reports whether there is a limit.
func (r Rate) Limited() bool { return r.Interval > 0 }

// Take one token. It returns when the bucket is full after that, or how long to wait
// for a token and what there was. A bucket from a clock that was ahead (a restored
// backup, another server) is empty at most.
func (r Rate) Take(fullAt, now int64) (after int64, wait time.Duration) {
	if !r.Limited() {
		return fullAt, 0
	}
	fullAt = min(max(fullAt, now), now+r.Interval*r.Burst)
	if late := fullAt + r.Interval - now - r.Interval*r.Burst; late > 0 {
		return fullAt, time.Duration(late) * time.Microsecond
	}
	return fullAt + r.Interval, 0
}

// Left is how many tokens there are; -1: no limit.
func (r Rate) Left(fullAt, now int64) int64 {
	if !r.Limited() {
		return -1
	}
	return max(r.Burst-(max(fullAt-now, 0)+r.Interval-1)/r.Interval, 0)
}

// lookAgain is how long a gate refuses calls without a new look at the limit. A second is too
// short to notice after a limit was raised, and one look a second costs little.
const lookAgain = time.Second

// maxGates bounds a gate's memory; beyond it, workspaces are not held back here.
const maxGates = 10_000

// Gate turns floods away before they cost anything. It is safe for concurrent use.
// Times are microseconds of any one clock.
type Gate struct {
	mu         sync.Mutex
	workspaces map[string]*copied
}

// copied is what a gate knows of one bucket.
type copied struct {
	rate   Rate
	fullAt int64
	// learned is when the database was asked last, or someone was let in to ask it.
	learned int64
}

// NewGate returns a gate that knows no workspaces: all calls may pass.
func NewGate() *Gate { return &Gate{workspaces: map[string]*copied{}} }

// Enter takes a token of the copy, or says how long to wait, and for which rate.
func (g *Gate) Enter(workspaceID string, now int64) (Rate, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.workspaces[workspaceID]
	if c == nil {
		return Rate{}, 0
	}
	after, wait := c.rate.Take(c.fullAt, now)
	c.fullAt = after
	if wait > 0 && now-c.learned >= lookAgain.Microseconds() {
		c.learned = now
		return c.rate, 0
	}
	return c.rate, wait
}

// Leave gives the token back: the call did no work.
func (g *Gate) Leave(workspaceID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.workspaces[workspaceID]; c != nil {
		c.fullAt -= c.rate.Interval
	}
}

// Learn what the row says: the rate, and how far it is from full.
func (g *Gate) Learn(workspaceID string, rate Rate, missing time.Duration, now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.workspaces[workspaceID]
	if c == nil || c.rate != rate {
		if !rate.Limited() {
			delete(g.workspaces, workspaceID)
			return
		}
		if len(g.workspaces) >= maxGates {
			g.forget(now)
		}
		if c == nil && len(g.workspaces) >= maxGates {
			return
		}
		c = &copied{rate: rate}
		g.workspaces[workspaceID] = c
	}
	c.fullAt, c.learned = max(c.fullAt, now+missing.Microseconds()), now
}

// forget the buckets that are full: to know of one is to know nothing.
func (g *Gate) forget(now int64) {
	for id, c := range g.workspaces {
		if c.fullAt <= now {
			delete(g.workspaces, id)
		}
	}
}
