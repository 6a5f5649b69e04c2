package pool

import (
	"fmt"
	"slices"
	"strings"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Order says how the roles of a pool move to another version. Each order has a file. A new order needs a value of the
// proto's enum, a file in this package, and a line in the table orders.
type Order interface {
	// InPlace reports whether the region replaces units of the pool one by one. differing is the number of roles that
	// the new version changes. If InPlace is false, both versions run, each with a share of the pool, and units of
	// different versions never serve each other.
	InPlace(differing int) bool
	// Bounds returns how far each role may move now. The result has an entry for each of roles.
	Bounds(roles []Progress) []Bound
}

// Progress is how far a role is on the way to the new version. A role that does not differ has all its units ready, or is
// Settled.
type Progress struct {
	Name string
	// Units is how many units the role should have, and Ready how many units of the new version are ready.
	Units, Ready int
	// Unavailable is how many units may be out of service. 0 means that one more unit may exist instead.
	Unavailable int
	// HasOld is whether a unit of an older version exists.
	HasOld bool
	// Settled is whether the role has moved or does not need to move. Then other roles do not wait for its units that
	// are not ready. Such units may be broken, or new units without room.
	Settled bool
}

// batchSize returns how many units of the role move at a time.
func (p Progress) batchSize() int { return max(1, p.Unavailable) }

// isDone reports whether other roles need not wait for the role.
func (p Progress) isDone() bool { return p.Ready >= p.Units || p.Settled }

// Bound is how far a role may move now.
type Bound struct {
	// New is how many units of the new version the role may have.
	New int
	// Old is how many units of older versions stay if they are ready.
	Old int
}

// orders has the orders by their value in a spec.
var orders = map[windlassv1.PoolUpdate_Order]func(sequence []string) Order{
	windlassv1.PoolUpdate_ORDER_COHERENT:    func([]string) Order { return coherent{} },
	windlassv1.PoolUpdate_ORDER_SEQUENTIAL:  func(sequence []string) Order { return sequential{sequence} },
	windlassv1.PoolUpdate_ORDER_PARALLEL:    func([]string) Order { return parallel{} },
	windlassv1.PoolUpdate_ORDER_INTERLEAVED: func([]string) Order { return interleaved{} },
}

// OrderOf returns the order of an update. Default: coherent.
func OrderOf(u *windlassv1.PoolUpdate) Order {
	if of, ok := orders[u.GetOrder()]; ok {
		return of(u.GetSequence())
	}
	return coherent{}
}

// OrderName returns the name of an update's order, as app files write it.
func OrderName(u *windlassv1.PoolUpdate) string {
	order := u.GetOrder()
	if _, ok := orders[order]; !ok {
		order = windlassv1.PoolUpdate_ORDER_COHERENT
	}
	return strings.ToLower(strings.TrimPrefix(order.String(), "ORDER_"))
}

// fullBounds returns bounds with which every role moves as far as it can.
func fullBounds(roles []Progress) []Bound {
	out := make([]Bound, len(roles))
	for i, r := range roles {
		out[i].New = r.Units
	}
	return out
}

// Forecast says what a move in place means for a pool.
type Forecast struct {
	// Capacity is the lowest set capacity of both versions together at any moment, in percent of the pool.
	Capacity int
	// Steps is how many batches of units start one after another.
	Steps int
	// More has one element for each moment of the move: how many more units of each role exist than the pool has.
	More [][]int
}

// Foresee returns the forecast of a move of the roles that differ. At the start of the move, Ready of each role is 0.
func Foresee(o Order, roles []Progress) Forecast {
	roles = slices.Clone(roles)
	f := Forecast{Capacity: Whole}
	for i := range roles {
		roles[i].Ready = 0
	}
	for slices.ContainsFunc(roles, func(r Progress) bool { return !r.isDone() }) {
		bounds := o.Bounds(roles)
		f.Capacity = min(f.Capacity, lowestCapacity(roles, bounds))
		more, steps, moved := make([]int, len(roles)), 0, false
		for i := range roles {
			r := &roles[i]
			to := min(max(bounds[i].New, r.Ready), r.Units)
			if to == r.Ready {
				continue
			}
			moved = true
			steps = max(steps, (to-r.Ready+r.batchSize()-1)/r.batchSize())
			if r.Unavailable == 0 {
				more[i] = 1
			}
			r.Ready = to
		}
		if !moved {
			panic(fmt.Sprintf("order %T stands still at %v", o, roles))
		}
		f.Steps += steps
		f.More = append(f.More, more)
	}
	return f
}

// lowestCapacity returns the lowest set capacity of both versions together while the roles move up to their bounds, each at its
// own speed. The set capacity of a version is the share of its scarcest role. So lowest takes the smallest sum of the
// new share of one role and the old share of any role.
func lowestCapacity(roles []Progress, bounds []Bound) int {
	out := Whole
	for i, a := range roles {
		lost := min(a.Unavailable, max(0, min(bounds[i].New, a.Units)-a.Ready))
		out = min(out, Whole*(a.Units-lost)/a.Units)
		for j, b := range roles {
			if i != j {
				old := max(bounds[j].Old, b.Units-max(bounds[j].New, b.Ready), 0)
				old = min(old, b.Units-b.Ready)
				out = min(out, Whole*(a.Ready*b.Units+old*a.Units)/(a.Units*b.Units))
			}
		}
	}
	return out
}
