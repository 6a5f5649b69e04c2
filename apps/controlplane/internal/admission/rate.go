package admission

import (
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// Rate is the rate of a bucket (GCRA), which holds Burst tokens and gets one back every Interval. The state
// of a bucket is one number: the time at which it is full again, in microseconds. The zero Rate is no limit.
type Rate struct {
	Interval int64 // us
	Burst    int64
}

// RateOf returns the rate of starts that the limits allow.
func RateOf(l model.Limits) Rate {
	r := PerMinute(l.StartsPerMinute)
	if r.Limited() && l.StartsBurst > 0 {
		r.Burst = l.StartsBurst
	}
	return r
}

// PerMinute returns the rate of n tokens a minute, with a burst of n. 0: no limit.
func PerMinute(n int64) Rate {
	if n <= 0 {
		return Rate{}
	}
	return Rate{Interval: max(1, time.Minute.Microseconds()/n), Burst: n}
}

// PerMinute returns how many tokens come back in a minute; 0 for no limit.
func (r Rate) PerMinute() int64 {
	if !r.Limited() {
		return 0
	}
	return time.Minute.Microseconds() / r.Interval
}

// Limited reports whether there is a limit.
func (r Rate) Limited() bool { return r.Interval > 0 }

// Take takes one token and returns when the bucket is full after that. If it is empty, Take returns fullAt
// and how long to wait. A fullAt from a clock that was ahead (a restored backup, another server) counts as an
// empty bucket.
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

// Left returns how many tokens the bucket has; -1: no limit.
func (r Rate) Left(fullAt, now int64) int64 {
	if !r.Limited() {
		return -1
	}
	return max(r.Burst-(max(fullAt-now, 0)+r.Interval-1)/r.Interval, 0)
}

// lookAgain is how long a gate refuses calls before it lets one ask the database again. After a limit was
// raised, a second is too short to notice, and one query a second costs little.
const lookAgain = time.Second

// maxGates bounds a gate's memory: calls of workspaces beyond it pass the gate.
const maxGates = 10_000

// Gate refuses floods of calls before they cost a transaction. It is safe for concurrent use. Times are
// microseconds of any one clock.
type Limiter struct {
	mu         sync.Mutex
	workspaces map[string]*copied
}

// copied is what a gate knows of one bucket.
type copied struct {
	rate   Rate
	fullAt int64
	// learned is when the gate last learned from the database, or let a call ask it.
	learned int64
}

// NewGate returns a gate that knows no workspaces: all calls may pass.
func NewLimiter() *Limiter { return &Limiter{workspaces: map[string]*copied{}} }

// Enter takes a token of the copy, or returns how long to wait. It also returns the rate.
func (g *Limiter) Enter(workspaceID string, now int64) (Rate, time.Duration) {
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

// Leave gives the token back, because the call did no work.
func (g *Limiter) Leave(workspaceID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.workspaces[workspaceID]; c != nil {
		c.fullAt -= c.rate.Interval
	}
}

// Learn updates the copy from the row: the rate, and how long until the bucket is full.
func (g *Limiter) Learn(workspaceID string, rate Rate, missing time.Duration, now int64) {
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

// forget removes the buckets that are full, because a missing bucket counts as full.
func (g *Limiter) forget(now int64) {
	for id, c := range g.workspaces {
		if c.fullAt <= now {
			delete(g.workspaces, id)
		}
	}
}
