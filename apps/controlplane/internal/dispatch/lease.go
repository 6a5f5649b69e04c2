package dispatch

import "time"

const (
	// signsPerSecond is how many signs of life this process wants from agents that have
	// nothing else to say: 60 that come one by one cost it 4 % of a core. With the longest
	// leases they come in answer to bookmarks, some more of them, at half the cost or less.
	signsPerSecond = 60
	// agents give a sign of life this often in the time of their lease: three times, and
	// a little earlier so that they do not come together.
	signsPerLease = 3 / 0.9
	// longestLease is how long a region of however large a fleet may be silent.
	longestLease = time.Minute
)

// Lease is the time for which an agent's sign of life holds. It is the configured one
// for some 270 agents, and grows with the agents that this process has: what a fleet
// costs at rest does not grow with it. It becomes no shorter before those to whom the
// longer one was told have spoken again.
func (s *Service) Lease() time.Duration {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.at(now, leaseOf(s.cfg.LeaseTTL, len(s.streams)))
}

// lease is what is told, and since when.
type lease struct {
	told  time.Duration
	since time.Time
}

func (l *lease) at(now time.Time, wanted time.Duration) time.Duration {
	if wanted >= l.told || now.Sub(l.since) > longestLease {
		l.told, l.since = wanted, now
	}
	return l.told
}

func leaseOf(shortest time.Duration, agents int) time.Duration {
	scaled := time.Duration(float64(agents) * signsPerLease / signsPerSecond * float64(time.Second))
	return max(shortest, min(scaled, longestLease))
}
