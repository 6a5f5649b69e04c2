// Package balance chooses: the deployment of a route by weight, in turn or by a key, and the
// instance of a deployment by a strategy. It is pure: randomness and time come in as arguments, and
// what is under way at an instance is a counter that the caller keeps.
//
// A strategy is one file: it implements Strategy, and Observer if it goes by how requests fare,
// and registers itself by name. One is made for each deployment of each route and lives as long as
// that does, so that its state (a turn, a counter) outlives changes of the instances.
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
	// ID of the instance, and where it listens: "host:port".
	ID, Address string
	hash        uint64
	inFlight    atomic.Int64
	meter       atomic.Pointer[meter]
}

// NewEndpoint returns one with nothing under way.
func NewEndpoint(id, address string) *Endpoint {
	return &Endpoint{ID: id, Address: address, hash: hashOf(id)}
}

// InFlight is how many requests are under way at it from this gateway.
func (e *Endpoint) InFlight() int64 { return e.inFlight.Load() }

// Begin counts a request in and returns how many are under way with it.
func (e *Endpoint) Begin() int64 { return e.inFlight.Add(1) }

// End counts it out.
func (e *Endpoint) End() int64 { return e.inFlight.Add(-1) }

// Request is what a strategy may go by.
type Request struct {
	// Affinity is the value of the header or cookie that the route names; empty: none.
	Affinity string
	// Random is drawn anew for each choice.
	Random uint64
	// Now is when the choice is made.
	Now time.Time
}

// Strategy chooses among instances. It is safe for concurrent use and does not keep
// candidates.
type Strategy interface {
	// Pick returns the index of one of candidates, of which there is at least one.
	Pick(candidates []*Endpoint, req Request) int
}

// Observer is a Strategy that chooses by how requests fare, and by the load that instances report.
// It is told when each request begins and ends at an endpoint. For a Strategy that is no Observer,
// neither is looked at.
type Observer interface {
	Strategy

	Began(e *Endpoint, now time.Time)
	Ended(e *Endpoint, now time.Time, how Outcome)
	// Reported is called for each report; failed: it came with an answer that is a failure.
	Reported(e *Endpoint, now time.Time, load orca.Load, failed bool)
}

// Outcome of a request, as far as it tells what work the instance does.
type Outcome int32

const (
	// Nothing: the client went away, or the instance refused what was asked.
	Nothing Outcome = iota
	// Served: the answer was passed on, whole.
	Served
	// Failed: it was the instance that failed.
	Failed
)

// registry is filled while the package's variables are made, by one line of each
// strategy's file.
var registry = map[string]func() Strategy{}

func register(name string, create func() Strategy) string {
	if registry[name] != nil {
		panic("two strategies are called " + name)
	}
	registry[name] = create
	return name
}

// New makes a strategy by its name.
func New(name string) (Strategy, error) {
	if create := registry[name]; create != nil {
		return create(), nil
	}
	return nil, fmt.Errorf("balancing strategy %q is not known: use one of %v", name, Names())
}

// Names of all strategies, sorted.
func Names() []string { return slices.Sorted(maps.Keys(registry)) }

// Turns spread choices over weights by a sequence that fills the unit interval evenly
// (Weyl's, by the golden ratio): after any number of draws, what each weight got is
// within a few draws of its share. Independent draws would be off by one percent once
// in twenty runs of 10,000. The zero value begins at zero; begin elsewhere so that many
// gateways do not march in step.
type Turns struct{ at atomic.Uint64 }

// golden is 2^64 divided by the golden ratio.
const golden = 0x9E3779B97F4A7C15

// Begin the sequence at a random place.
func (t *Turns) Begin(random uint64) { t.at.Store(random) }

// Next returns the index of one of weights, or -1 if none is positive.
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

// hashOf is FNV-1a, mixed: the same in every gateway, so that they agree about who
// holds whose cache.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// below draws a number in [0, n) from random.
func below(random uint64, n int) int {
	hi, _ := bits.Mul64(random, uint64(n))
	return int(hi)
}
