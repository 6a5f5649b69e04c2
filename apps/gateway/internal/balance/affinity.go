package balance

// Affinity sends requests with the same key to the same instance, whose KV cache holds their prefix. It is rendezvous
// hashing with bounded load: an instance that has more than its share of the requests in flight is passed over. When
// an instance is added or removed, only its own keys move. Requests without a key use power of two.
var Affinity = registerStrategy("affinity", func() Strategy { return affinity{} })

// An instance gets the requests of its keys while its requests in flight are fewer than a limit: 5/4
// of the mean over all instances, plus overShare. At the limit another instance is better, because a
// cache miss costs one prefill, but a queue delays every request in it. overShare avoids moves while
// the mean is small.
const (
	boundNumerator, boundDenominator = 5, 4
	overShare                        = 2
)

type affinity struct{}

func (affinity) Pick(candidates []*Endpoint, req Request) int {
	if req.Affinity == "" {
		return powerOfTwo{}.Pick(candidates, req)
	}
	key := hashOf(req.Affinity)
	n := int64(len(candidates))
	total := int64(1)
	for _, c := range candidates {
		total += c.InFlight()
	}
	limit := (total*boundNumerator+n*boundDenominator-1)/(n*boundDenominator) + overShare
	best, least := -1, 0
	var score uint64
	for i, c := range candidates {
		load := c.InFlight()
		if load < candidates[least].InFlight() {
			least = i
		}
		if load >= limit {
			continue
		}
		if s := mixBits(key ^ c.hash); best < 0 || s > score {
			best, score = i, s
		}
	}
	if best < 0 { // all instances are at the limit, because the counters changed while they were read
		return least
	}
	return best
}
