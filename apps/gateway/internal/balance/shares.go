package balance

import "math"

// Shares has each key of an affinity at one of several deployments, which therefore get keys, and
// not requests, by their weights: weighted rendezvous hashing. Each draws its number for the key,
// from the names of both, and the one whose number is largest by its weight has it. So every
// gateway has a key at the same one; and when weights change, or one has no weight for a time, only
// the keys move that the heavier gain or the lighter lose. In a canary, whose weight grows step by
// step, a session moves once, from the old version to the new.
//
// Numbers are as if drawn: of n keys, a deployment with the share p gets p·n, give or take
// sqrt(p·(1-p)·n), of 10,000 half a percent at most.
type Shares struct{ hashes []uint64 }

// NewShares are those of deployments by these ids.
func NewShares(ids []string) Shares {
	s := Shares{hashes: make([]uint64, len(ids))}
	for i, id := range ids {
		s.hashes[i] = hashOf(id)
	}
	return s
}

// Of the key is the index of the deployment that has it, given the weight of each; -1 if none is
// positive.
func (s Shares) Of(key string, weights []int64) int {
	best, at, least := -1, hashOf(key), math.Inf(1)
	for i, w := range weights {
		if w <= 0 {
			continue
		}
		// Of times that are exponentially distributed, by rates that are the weights, each is the
		// first as often as its share is. The number is in (0, 1), so that its logarithm is finite.
		u := (float64(mix(at^s.hashes[i])>>11) + 0.5) / (1 << 53)
		if t := -math.Log(u) / float64(w); t < least {
			best, least = i, t
		}
	}
	return best
}
