package dispatch

import (
	"sync"
	"time"
)

const (
	// signsPerSecond is the target rate of reports that are only signs of life, because each of them wakes this
	// process. With the longest lease, the rate can be higher, but these reports then arrive together, in answer to
	// bookmarks.
	signsPerSecond = 60
	// signsPerLease is the number of signs of life in the time of a lease: three, and a little more because of
	// jitter.
	signsPerLease = 3 / 0.9
	// longestLease is the maximum lease, for the largest fleets.
	longestLease = time.Minute
)

// Lease computes the length of leases. Up to about 270 agents on this process, it is the shortest length. Above that,
// it grows with their number, so that the load of an idle fleet stays the same. It only becomes shorter after all
// agents that know the longer lease have renewed it.
type Lease struct {
	shortest time.Duration

	mu     sync.Mutex
	agents int
	// length is the newest length that agents got, and since is the time at which it was computed.
	length time.Duration
	since  time.Time
}

// NewLease returns the lease of a process. shortest 0 means 15 s.
func NewLease(shortest time.Duration) *Lease {
	if shortest == 0 {
		shortest = 15 * time.Second
	}
	return &Lease{shortest: shortest}
}

// Length returns the current length of leases.
func (l *Lease) Length() time.Duration { return l.leftAt(time.Now()) }

func (l *Lease) leftAt(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wanted := leaseOf(l.shortest, l.agents); wanted >= l.length || now.Sub(l.since) > longestLease {
		l.length, l.since = wanted, now
	}
	return l.length
}

// setAgents sets the number of agents with streams on this process.
func (l *Lease) setAgents(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agents = n
}

func leaseOf(shortest time.Duration, agents int) time.Duration {
	scaled := time.Duration(float64(agents) * signsPerLease / signsPerSecond * float64(time.Second))
	return max(shortest, min(scaled, longestLease))
}
