package balance

import "sync/atomic"

// RoundRobin chooses instances in turn.
var RoundRobin = registerStrategy("round_robin", func() Strategy { return &roundRobin{} })

type roundRobin struct{ turn atomic.Uint64 }

func (s *roundRobin) Pick(candidates []*Endpoint, _ Request) int {
	return int((s.turn.Add(1) - 1) % uint64(len(candidates)))
}
