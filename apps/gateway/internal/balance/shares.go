package balance

import "math"

// Shares assigns each affinity key to one of several deployments by weighted rendezvous hashing. The
// weights therefore divide the keys, not the requests. A deployment's score for a key is a hash of
// both, scaled by its weight, and the best score wins. So all gateways assign a key to the same
// deployment. When weights change, a key moves only away from a deployment whose share shrank, or to
// one whose share grew. In a canary, whose weight grows step by step, a session moves once, from the
// old version to the new one.
//
// Scores behave like random numbers: of n keys, a deployment with the share p gets p·n with a
// standard deviation of sqrt(p·(1-p)·n). For 10,000 keys that is at most half a percent.
type Shares struct{ hashes []uint64 }

// NewShares returns the Shares of the deployments with these ids.
func NewShares(ids []string) Shares {
	s := Shares{hashes: make([]uint64, len(ids))}
	for i, id := range ids {
		s.hashes[i] = hashOf(id)
	}
	return s
}

// Of returns the index of the deployment that the key is assigned to, given the weight of each
// deployment, or -1 if no weight is positive.
func (s Shares) Of(key string, weights []int64) int {
	best, keyHash, least := -1, hashOf(key), math.Inf(1)
	for i, w := range weights {
		if w <= 0 {
			continue
		}
		// t is exponentially distributed with the weight as its rate. The probability that it is the
		// least is then the deployment's share. u is in (0, 1), so that its logarithm is finite.
		u := (float64(mixBits(keyHash^s.hashes[i])>>11) + 0.5) / (1 << 53)
		if t := -math.Log(u) / float64(w); t < least {
			best, least = i, t
		}
	}
	return best
}
