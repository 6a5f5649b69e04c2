package balance

// PowerOfTwo draws two instances and chooses the one with fewer requests in flight. With several
// gateways it spreads requests better than least requests, because gateways count only their
// own requests, and could all choose the same instance at once.
var PowerOfTwo = registerStrategy("power_of_two", func() Strategy { return powerOfTwo{} })

type powerOfTwo struct{}

func (powerOfTwo) Pick(candidates []*Endpoint, req Request) int {
	n := len(candidates)
	if n == 1 {
		return 0
	}
	a := numberBelow(req.Random, n)
	b := numberBelow(mixBits(req.Random+golden), n-1)
	if b >= a {
		b++
	}
	if candidates[b].InFlight() < candidates[a].InFlight() {
		return b
	}
	return a
}
