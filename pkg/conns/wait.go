package conns

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// freeRefusals is how many refused streams of a caller that is held back its connection may bring before the next
	// ones wait. Each refused one after that doubles firstWait, up to longestWait, which is shorter than what servers and
	// clients let a call take to begin.
	freeRefusals           = 3
	firstWait, longestWait = time.Second, 20 * time.Second
	// refusalsFor is how long a connection without a refused stream keeps its wait.
	refusalsFor = 2 * time.Minute
	// mostWaiting is how many streams of a table may wait, because each keeps its memory while it does.
	mostWaiting = 8 << 10
)

// refusals are the refused streams of a connection.
type refusals struct {
	number int
	last   time.Time
}

// Refused counts a stream of the connection that was refused with a time to wait. The caller is the same text for all
// calls of one caller; empty: it is not known, and its address stands for it. A caller that has too many of them is held
// back: Wait then delays the streams of a connection that goes on with them.
//
// Neither other callers of the address nor other connections of the caller wait. Nothing waits on connections of exempt
// addresses, because they carry streams of other clients.
func (e *Entry) Refused(caller string) {
	if e == nil || e.exempt {
		return
	}
	if caller == "" {
		caller = e.address.String()
	}
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	now := time.Now()
	if !e.table.callers.charge(caller, now) {
		return
	}
	if now.Sub(e.refusals.last) > refusalsFor {
		e.refusals.number = 0
	}
	e.refusals = refusals{e.refusals.number + 1, now}
}

// wait returns how long a stream of the connection has to wait at most.
func (e *Entry) wait(now time.Time) time.Duration {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	doubled := e.refusals.number - freeRefusals - 1
	if doubled < 0 || now.Sub(e.refusals.last) > refusalsFor {
		return 0
	}
	return min(firstWait<<min(doubled, 10), longestWait)
}

// Wait is called when a stream begins, before anything is read for it. It reports whether the connection of the stream
// goes on to open streams that are refused. If so, it returns after a time, or when ctx ends.
func (e *Entry) Wait(ctx context.Context) (inLoop bool) {
	if e == nil {
		return false
	}
	wait := e.wait(time.Now())
	if wait == 0 {
		return false
	}
	defer e.table.waiting.Add(-1)
	if e.table.waiting.Add(1) > mostWaiting {
		return true
	}
	e.tally.heldBack.Add(1)
	timer := time.NewTimer(wait/2 + rand.N(wait/2)) // so that those of one moment do not go on in one
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}
