package balance

import "sync/atomic"

// LeastRequests chooses the instance with the fewest requests in flight. Instances with equal
// counts take turns.
var LeastRequests = registerStrategy("least_requests", func() Strategy { return &leastRequests{} })

type leastRequests struct{ turn atomic.Uint64 }

func (s *leastRequests) Pick(candidates []*Endpoint, _ Request) int {
	n := len(candidates)
	start := int(s.turn.Add(1) % uint64(n))
	best, least := start, candidates[start].InFlight()
	for k := 1; k < n && least > 0; k++ {
		i := start + k
		if i >= n {
			i -= n
		}
		if load := candidates[i].InFlight(); load < least {
			best, least = i, load
		}
	}
	return best
}
