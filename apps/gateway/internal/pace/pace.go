// Package pace limits how long the gateway waits for a client that sends or reads slowly. It is pure: time is an
// argument.
package pace

import "time"

// Least is the slowest pace that a client may have. The zero value allows any pace.
type Least struct {
	// Rate is in bytes per second. 0: any.
	Rate int64
	// After is how long the gateway waits for a client, in all, before Rate counts.
	After time.Duration
}

// Pace measures how fast a client sends a body or reads an answer. Only the time in which the gateway waits for
// the client counts, and not the time in which it waits for an instance.
type Pace struct {
	least  Least
	bytes  int64
	waited time.Duration
}

// Of returns the pace of a client that has not begun.
func Of(least Least) Pace { return Pace{least: least} }

// Left returns how long the gateway may wait for the client now: at most slow, and at least 1 ms, because a timeout
// of zero means no timeout. n is how many bytes must have moved when the wait ends. They count as moved.
func (p *Pace) Left(n int, slow time.Duration) time.Duration {
	if p.least.Rate <= 0 {
		return slow
	}
	moved := p.bytes + int64(n)
	earned := time.Duration(moved/p.least.Rate)*time.Second + time.Duration(moved%p.least.Rate)*time.Second/time.Duration(p.least.Rate)
	return max(min(slow, p.least.After+earned-p.waited), time.Millisecond)
}

// Moved counts n bytes, and the time that the gateway waited for the client to send or read them.
func (p *Pace) Moved(n int, waited time.Duration) {
	p.bytes += int64(n)
	p.waited += waited
}

// Waited returns how long the gateway has waited for the client in all.
func (p *Pace) Waited() time.Duration { return p.waited }
