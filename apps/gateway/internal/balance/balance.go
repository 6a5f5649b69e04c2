// Package balance chooses a deployment of a route and an instance of that deployment. Turns and
// Shares choose the deployment by weight, a Strategy chooses the instance. Randomness and time are
// arguments, and the caller counts the requests in flight at each instance.
//
// Each strategy has its own file. It implements Strategy, and also Observer if it depends on the
// outcomes of requests, and registers itself by name. Each deployment of each route has its own
// Strategy, whose state stays when the instances change.
package balance

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

// Endpoint is an instance as strategies see it.
type Endpoint struct {
	// ID is the id of the instance. Address is where the instance listens: "host:port".
	ID, Address string
	hash        uint64 // hashOf(ID)
	inFlight    atomic.Int64
	meter       atomic.Pointer[meter]
}

// NewEndpoint returns an Endpoint without requests in flight.
func NewEndpoint(id, address string) *Endpoint {
	return &Endpoint{ID: id, Address: address, hash: hashOf(id)}
}

// InFlight returns how many requests from this gateway are in flight at the instance.
func (e *Endpoint) InFlight() int64 { return e.inFlight.Load() }

// Begin counts a request that begins. It returns how many are in flight, including this one.
func (e *Endpoint) Begin() int64 { return e.inFlight.Add(1) }

// End counts a request that ended. It returns how many are still in flight.
func (e *Endpoint) End() int64 { return e.inFlight.Add(-1) }

// Request is what a Strategy knows about the request.
type Request struct {
	// Affinity is the value of the header or cookie that the route names; empty if there is none.
	Affinity string
	// Random is a new random number for each choice.
	Random uint64
	// Now is the time of the choice.
	Now time.Time
}

// Strategy chooses among instances. It is safe for concurrent use. It does not retain the slice
// of candidates.
type Strategy interface {
	// Pick returns the index of one of the candidates. There must be at least one.
	Pick(candidates []*Endpoint, req Request) int
}

// Observer is a Strategy that chooses by the outcomes of requests and by the load that instances
// report. Its methods are called for each request and each report.
type Observer interface {
	Strategy

	Began(e *Endpoint, now time.Time)
	Ended(e *Endpoint, now time.Time, how Outcome)
	// Reported is called for each load report. failed: the answer that carried the report is a failure.
	Reported(e *Endpoint, now time.Time, load orca.Load, failed bool)
}

// Outcome says, at the end of a request, what work the instance did for it.
type Outcome int32

const (
	// Ignored: the request says nothing about the instance's work. The client went away, or the instance
	// refused the request.
	Ignored Outcome = iota
	// Served: the whole answer was passed on.
	Served
	// Failed: the instance failed.
	Failed
)

// registry holds the constructors of all strategies by name. The file of each strategy calls
// register when the package is initialized.
var registry = map[string]func() Strategy{}

func registerStrategy(name string, create func() Strategy) string {
	if registry[name] != nil {
		panic("two balancing strategies have the name " + name)
	}
	registry[name] = create
	return name
}

// New returns a new Strategy by its name.
func New(name string) (Strategy, error) {
	if create := registry[name]; create != nil {
		return create(), nil
	}
	return nil, fmt.Errorf("balancing strategy %q is not known: use one of %v", name, Names())
}

// Names returns the names of all strategies, sorted.
func Names() []string { return slices.Sorted(maps.Keys(registry)) }

// Turns spreads choices in proportion to weights. It uses a Weyl sequence (multiples of the golden
// ratio), which fills the unit interval evenly: after any number of choices, the count of each weight
// differs from its exact share by a few choices only. With random numbers it would differ by one percent
// in one of twenty runs of 10,000 choices. The zero value begins at zero. Begin makes gateways differ.
type Turns struct{ at atomic.Uint64 }

// golden is 2^64 divided by the golden ratio.
const golden = 0x9E3779B97F4A7C15

// Begin starts the sequence at a random point.
func (t *Turns) Begin(random uint64) { t.at.Store(random) }

// Next returns the index of the next choice in weights, or -1 if no weight is positive.
func (t *Turns) Next(weights []int64) int {
	var total uint64
	last := -1
	for i, w := range weights {
		if w > 0 {
			total += uint64(w)
			last = i
		}
	}
	if last < 0 {
		return -1
	}
	point, _ := bits.Mul64(t.at.Add(golden), total)
	for i, w := range weights {
		if w <= 0 {
			continue
		}
		if point < uint64(w) {
			return i
		}
		point -= uint64(w)
	}
	return last
}

// hashOf returns the FNV-1a hash of s, mixed. All gateways use it, so that they choose the same
// instance for a key.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mixBits(h)
}

// mixBits is the finalizer of splitmix64.
func mixBits(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// numberBelow maps random to a number in [0, n).
func numberBelow(random uint64, n int) int {
	hi, _ := bits.Mul64(random, uint64(n))
	return int(hi)
}
