package balance

// Affinity sends requests with the same key to the same instance, whose KV cache holds
// their prefix, as long as that has no more than its share of the work: rendezvous
// hashing with bounded load. When an instance comes or goes, only the keys that it
// gains or had move. A request without a key goes by power of two.
var Affinity = register("affinity", func() Strategy { return affinity{} })

// An instance takes a key's requests up to 5/4 of the mean that is under way, and always
// overShare more: a cache that is lost costs a prefill, a queue costs it to all who
// wait. The constant keeps few requests, whose mean says little, at their place.
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
		if s := mix(key ^ c.hash); best < 0 || s > score {
			best, score = i, s
		}
	}
	if best < 0 { // counters moved while they were read
		return least
	}
	return best
}
