package dispatch

import (
	"sync"
	"time"
)

const (
	// signsPerSecond is how many signs of life a second this process wants from agents that
	// have nothing else to say, because each one that comes alone wakes the process. With the
	// longest leases they come in answer to bookmarks, more of them, but together.
	signsPerSecond = 60
	// signsPerLease is how often agents give a sign of life in the time of their lease: three
	// times, and a little more often because of their jitter.
	signsPerLease = 3 / 0.9
	// longestLease is how long a region of however large a fleet may be silent.
	longestLease = time.Minute
)

// Lease is the time for which an agent's sign of life holds. It is the shortest one for some 270
// agents, and grows with the agents whose streams this process has, so that what a fleet costs at
// rest does not grow with it. It becomes no shorter before agents that know the longer lease have
// given another sign of life.
type Lease struct {
	shortest time.Duration

	mu     sync.Mutex
	agents int
	// length is the lease that agents got last, and since is when it was computed.
	length time.Duration
	since  time.Time
}

// NewLease returns the lease of a process. The shortest is 15 s if it is 0: three signs of life.
func NewLease(shortest time.Duration) *Lease {
	if shortest == 0 {
		shortest = 15 * time.Second
	}
	return &Lease{shortest: shortest}
}

// Length returns how long the lease is now.
func (l *Lease) Length() time.Duration { return l.at(time.Now()) }

func (l *Lease) at(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wanted := leaseOf(l.shortest, l.agents); wanted >= l.length || now.Sub(l.since) > longestLease {
		l.length, l.since = wanted, now
	}
	return l.length
}

// setAgents notes how many agents have their streams on this process.
func (l *Lease) setAgents(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agents = n
}

func leaseOf(shortest time.Duration, agents int) time.Duration {
	scaled := time.Duration(float64(agents) * signsPerLease / signsPerSecond * float64(time.Second))
	return max(shortest, min(scaled, longestLease))
}
