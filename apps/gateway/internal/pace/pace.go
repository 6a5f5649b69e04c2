// Package pace bounds how long a client is waited for. It is a value and its transitions: pure, with
// time as an argument.
package pace

import "time"

// Least is the slowest that a client may be; the zero value bounds nothing.
type Least struct {
	// Rate in bytes a second; 0: any.
	Rate int64
	// After is how long a client is waited for in all before its rate counts.
	After time.Duration
}

// Pace is how a client has sent a body, or taken an answer. Only the time counts in which it was waited
// for: what an instance takes is not the client's.
type Pace struct {
	least  Least
	bytes  int64
	waited time.Duration
}

// Of returns the pace of a client that has not begun.
func Of(least Least) Pace { return Pace{least: least} }

// Left is how long the client may be waited for now, at most slow; n bytes are counted as if they had
// been moved, for a wait that ends only when they have. It is never zero, because deadlines of zero are none.
func (p *Pace) Left(n int, slow time.Duration) time.Duration {
	if p.least.Rate <= 0 {
		return slow
	}
	moved := p.bytes + int64(n)
	earned := time.Duration(moved/p.least.Rate)*time.Second + time.Duration(moved%p.least.Rate)*time.Second/time.Duration(p.least.Rate)
	return max(min(slow, p.least.After+earned-p.waited), time.Millisecond)
}

// Moved counts n bytes, for which the client was waited for that long.
func (p *Pace) Moved(n int, waited time.Duration) {
	p.bytes += int64(n)
	p.waited += waited
}

// Waited is how long the client was waited for in all.
func (p *Pace) Waited() time.Duration { return p.waited }
