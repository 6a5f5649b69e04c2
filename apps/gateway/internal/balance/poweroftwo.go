package balance

// PowerOfTwo draws two instances and takes the one with fewer requests under way. With
// several gateways that each see only their own requests it spreads better than the
// least of all, which all of them would take at once.
var PowerOfTwo = register("power_of_two", func() Strategy { return powerOfTwo{} })

type powerOfTwo struct{}

func (powerOfTwo) Pick(candidates []*Endpoint, req Request) int {
	n := len(candidates)
	if n == 1 {
		return 0
	}
	a := below(req.Random, n)
	b := below(mix(req.Random+golden), n-1)
	if b >= a {
		b++
	}
	if candidates[b].InFlight() < candidates[a].InFlight() {
		return b
	}
	return a
}
