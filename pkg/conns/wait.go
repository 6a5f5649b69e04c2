package conns

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// freeRefusals is how many streams of a held-back caller a connection may open without a wait although they are
	// refused. Each further refusal doubles firstWait, up to longestWait. longestWait is shorter than the time in which
	// servers and clients expect a call to begin.
	freeRefusals           = 3
	firstWait, longestWait = time.Second, 20 * time.Second
	// refusalsFor is how long a connection keeps its wait after its last refused stream.
	refusalsFor = 2 * time.Minute
	// mostWaiting is how many streams of a table may wait, because each waiting stream uses memory.
	mostWaiting = 8 << 10
)

// refusals are the refused streams of a connection.
type refusals struct {
	number int
	last   time.Time
}

// Refused counts a stream of the connection that was refused with a time for the next try. caller identifies the caller.
// Empty: the caller is not known, and its address counts instead. A caller with too many refused streams is held
// back. Then Wait delays the streams of a connection that continues to open such streams.
//
// Other callers of the address do not wait, and neither do other connections of the caller. Streams on connections of
// exempt addresses never wait, because these connections also carry streams of other clients.
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
	if !e.table.callers.chargeFault(caller, now) {
		return
	}
	if now.Sub(e.refusals.last) > refusalsFor {
		e.refusals.number = 0
	}
	e.refusals = refusals{e.refusals.number + 1, now}
}

// wait returns the longest time that a stream of the connection must wait.
func (e *Entry) wait(now time.Time) time.Duration {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	doubled := e.refusals.number - freeRefusals - 1
	if doubled < 0 || now.Sub(e.refusals.last) > refusalsFor {
		return 0
	}
	return min(firstWait<<min(doubled, 10), longestWait)
}

// Wait must be called when a stream begins, before a byte of the stream is read. It reports whether the connection
// continues to open streams that are refused. If so, Wait returns after a time, or when ctx ends.
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
	timer := time.NewTimer(wait/2 + rand.N(wait/2)) // random, so that streams that came together do not continue together
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}
