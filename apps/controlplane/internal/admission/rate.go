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

// PerMinute returns the number of tokens that come back in a minute, 0 for no limit.
func (r Rate) PerMinute() int64 {
	if !r.Limited() {
		return 0
	}
	return time.Minute.Microseconds() / r.Interval
}

// Limited reports whether there is a limit.
func (r Rate) Limited() bool { return r.Interval > 0 }

// Take takes one token, and returns the time at which the bucket is then full. If the bucket is empty, Take returns
// fullAt and the time until the next token. A fullAt from a clock that was ahead (a restored backup, another server)
// counts as an empty bucket.
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

// Left returns the number of tokens in the bucket, -1 for no limit.
func (r Rate) Left(fullAt, now int64) int64 {
	if !r.Limited() {
		return -1
	}
	return max(r.Burst-(max(fullAt-now, 0)+r.Interval-1)/r.Interval, 0)
}

// lookAgain is how long a Limiter refuses calls before it lets one through to the database. After a limit was raised,
// a delay of a second does not matter, and one query a second costs little.
const lookAgain = time.Second

// maxWorkspaces is the maximum number of workspaces in a Limiter, which bounds its memory. Calls of further workspaces
// pass.
const maxWorkspaces = 10_000

// Limiter refuses floods of calls before they cost a transaction. It is safe for concurrent use. Times are
// microseconds of one clock, which the caller chooses.
type Limiter struct {
	mu         sync.Mutex
	workspaces map[string]*copied
}

// copied is the copy of one bucket.
type copied struct {
	rate   Rate
	fullAt int64
	// learned is the time at which the copy was last updated, or a call was last let through to the database.
	learned int64
}

// NewLimiter returns a Limiter that knows no workspaces, so that all calls pass.
func NewLimiter() *Limiter { return &Limiter{workspaces: map[string]*copied{}} }

// Enter takes a token of the copy, or returns the time until the next token. It also returns the rate.
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

// Learn updates the copy from the row. missing is the time until the bucket is full.
func (g *Limiter) Learn(workspaceID string, rate Rate, missing time.Duration, now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.workspaces[workspaceID]
	if c == nil || c.rate != rate {
		if !rate.Limited() {
			delete(g.workspaces, workspaceID)
			return
		}
		if len(g.workspaces) >= maxWorkspaces {
			g.forgetFull(now)
		}
		if c == nil && len(g.workspaces) >= maxWorkspaces {
			return
		}
		c = &copied{rate: rate}
		g.workspaces[workspaceID] = c
	}
	c.fullAt, c.learned = max(c.fullAt, now+missing.Microseconds()), now
}

// forgetFull removes the buckets that are full, because a missing bucket counts as full.
func (g *Limiter) forgetFull(now int64) {
	for id, c := range g.workspaces {
		if c.fullAt <= now {
			delete(g.workspaces, id)
		}
	}
}
