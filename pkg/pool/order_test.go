package pool

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func update(order windlassv1.PoolUpdate_Order, sequence ...string) *windlassv1.PoolUpdate {
	return &windlassv1.PoolUpdate{Order: order, Sequence: sequence}
}

// pair returns 8 prefill and 2 decode servers, with the numbers that may be out of service.
func pair(prefill, decode int) []Progress {
	return []Progress{{Name: "prefill", Units: 8, Unavailable: prefill}, {Name: "decode", Units: 2, Unavailable: decode}}
}

// restStates returns the new units after each step of an order: "1,1 / 2,2".
func restStates(o Order, roles []Progress) string {
	var out []string
	for {
		done, row := true, []string{}
		for i, b := range o.Bounds(roles) {
			done = done && roles[i].isDone()
			roles[i].Ready = b.New
			row = append(row, fmt.Sprint(b.New))
		}
		if done {
			return strings.Join(out, " / ")
		}
		out = append(out, strings.Join(row, ","))
	}
}

func TestOrder_RestStates(t *testing.T) {
	interleaved := OrderOf(update(windlassv1.PoolUpdate_ORDER_INTERLEAVED))
	require.Equal(t, "1,1 / 2,2 / 3,2 / 4,2 / 5,2 / 6,2 / 7,2 / 8,2", restStates(interleaved, pair(0, 0)))
	require.Equal(t, "3,1 / 6,2 / 8,2", restStates(interleaved, pair(3, 1)))
	require.Equal(t, "8,2", restStates(OrderOf(update(windlassv1.PoolUpdate_ORDER_PARALLEL)), pair(0, 0)))
	require.Equal(t, "8,0 / 8,2", restStates(OrderOf(update(windlassv1.PoolUpdate_ORDER_SEQUENTIAL)), pair(0, 0)))
	require.Equal(t, "0,2 / 8,2", restStates(OrderOf(update(windlassv1.PoolUpdate_ORDER_SEQUENTIAL, "decode")), pair(0, 0)))
}

func TestOrder_Forecast(t *testing.T) {
	sequential, parallel := OrderOf(update(windlassv1.PoolUpdate_ORDER_SEQUENTIAL)), OrderOf(update(windlassv1.PoolUpdate_ORDER_PARALLEL))
	interleaved := OrderOf(update(windlassv1.PoolUpdate_ORDER_INTERLEAVED))
	for _, c := range []struct {
		name            string
		order           Order
		roles           []Progress
		capacity, steps int
	}{
		{"one role after the other", sequential, pair(0, 0), 0, 10},
		{"all roles at once", parallel, pair(0, 0), 0, 8},
		{"in steps of one", interleaved, pair(0, 0), 25, 8},
		{"in steps of two and one, without room", interleaved, pair(2, 1), 25, 4},
		{"in steps of half of each", interleaved, pair(4, 1), 50, 2},
		{"one and one, with room", interleaved, []Progress{{Name: "a", Units: 1}, {Name: "b", Units: 1}}, 100, 1},
		{"one and one, without room", interleaved, []Progress{{Name: "a", Units: 1, Unavailable: 1}, {Name: "b", Units: 1, Unavailable: 1}}, 0, 1},
		{"one role, with room", sequential, pair(0, 0)[:1], 100, 8},
		{"one role, without room", OrderOf(nil), pair(2, 0)[:1], 75, 4},
		{"no role", OrderOf(nil), nil, 100, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := Foresee(c.order, c.roles)
			require.Equal(t, c.capacity, f.Capacity)
			require.Equal(t, c.steps, f.Steps)
		})
	}
	require.Equal(t, [][]int{{1, 0}, {0, 1}}, Foresee(sequential, pair(0, 0)).More)
	require.Equal(t, [][]int{{1, 1}}, Foresee(parallel, pair(0, 0)).More)
	require.Equal(t, [][]int{{0, 1}}, Foresee(parallel, pair(2, 0)).More)
}

func TestOrder_TakesThePoolOver(t *testing.T) {
	for value := range windlassv1.PoolUpdate_Order_name {
		u := update(windlassv1.PoolUpdate_Order(value))
		isCoherent := value <= int32(windlassv1.PoolUpdate_ORDER_COHERENT)
		require.True(t, OrderOf(u).InPlace(1), "%s: only one role differs", OrderName(u))
		require.Equal(t, !isCoherent, OrderOf(u).InPlace(2), OrderName(u))
		require.Equal(t, isCoherent, OrderName(u) == "coherent")
		_, known := orders[windlassv1.PoolUpdate_Order(value)]
		require.Equal(t, value > 0, known)
	}
}

// From any state, each order lets at least one role move, and it never reduces a bound that it gave before.
func TestOrder_EveryMoveEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := OrderOf(&windlassv1.PoolUpdate{
			Order:    windlassv1.PoolUpdate_Order(rapid.IntRange(0, len(windlassv1.PoolUpdate_Order_name)-1).Draw(t, "order")),
			Sequence: rapid.Permutation([]string{"a", "b", "c", "d"}).Draw(t, "sequence")[:rapid.IntRange(0, 4).Draw(t, "named")],
		})
		var roles []Progress
		for _, name := range []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "roles")] {
			n := rapid.IntRange(1, 12).Draw(t, "units")
			roles = append(roles, Progress{Name: name, Units: n, Ready: rapid.IntRange(0, n).Draw(t, "ready"), Unavailable: rapid.IntRange(0, n).Draw(t, "unavailable")})
		}
		for range 1000 {
			before := order.Bounds(roles)
			require.Len(t, before, len(roles))
			var may []int
			for i, r := range roles {
				require.LessOrEqual(t, before[i].New, r.Units)
				require.LessOrEqual(t, before[i].Old, r.Units)
				if min(before[i].New, r.Units) > r.Ready {
					may = append(may, i)
				}
			}
			if len(may) == 0 {
				break
			}
			roles[rapid.SampledFrom(may).Draw(t, "moves")].Ready++
			for i, b := range order.Bounds(roles) {
				require.GreaterOrEqual(t, b.New, before[i].New, "role %s", roles[i].Name)
				require.LessOrEqual(t, b.Old, before[i].Old, "role %s", roles[i].Name)
			}
		}
		for _, r := range roles {
			require.Equal(t, r.Units, r.Ready, "role %s", r.Name)
		}
	})
}
