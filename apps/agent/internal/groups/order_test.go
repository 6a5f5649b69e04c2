package groups

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/pkg/pool"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func orderOf(value windlassv1.PoolUpdate_Order, sequence ...string) pool.Order {
	return pool.OrderOf(&windlassv1.PoolUpdate{Order: value, Sequence: sequence})
}

// newOrderSimulation returns a pool in which all units serve with an older template.
func newOrderSimulation(order pool.Order, roles ...Role) *simulation {
	s := &simulation{want: Wanted{Replicas: 1, Pooled: true, Order: order, Roles: roles}, template: map[string]int{}, made: map[string]int{}}
	for _, r := range roles {
		for slot := range r.Units {
			i := at(fmt.Sprintf("%s/0.%d", r.Name, slot))
			s.all = append(s.all, i)
			s.made[i.Key] = 0
		}
		s.template[r.Name] = 1
	}
	return s
}

// apply carries out the whole decision.
func (s *simulation) apply(d Decision) {
	s.all = slices.DeleteFunc(s.all, func(i Instance) bool { return slices.Contains(d.Delete, i.Key) })
	for _, c := range d.Create {
		s.n++
		key := fmt.Sprint("i", s.n)
		s.all = append(s.all, Instance{ID: c.ID, Key: key, Epoch: c.Epoch})
		s.made[key] = s.template[c.Role]
	}
}

// counts returns the numbers of ready units of each role, with the present template and with older
// ones.
func (s *simulation) counts() (current, old []int) {
	current, old = make([]int, len(s.want.Roles)), make([]int, len(s.want.Roles))
	for n, r := range s.want.Roles {
		for _, i := range s.all {
			switch {
			case i.Role != r.Name || !i.Ready || i.Leaving:
			case s.made[i.Key] == s.template[i.Role]:
				current[n]++
			default:
				old[n]++
			}
		}
	}
	return current, old
}

// trace carries out decisions until no action is left. It returns the numbers of ready new units of
// each role, once for each change.
func (s *simulation) trace(t require.TestingT) string {
	var out []string
	for range 1000 {
		s.start()
		current, _ := s.counts()
		if text := strings.Trim(strings.ReplaceAll(fmt.Sprint(current), " ", ","), "[]"); len(out) == 0 || out[len(out)-1] != text {
			out = append(out, text)
		}
		d := s.decide()
		if show(d) == "" {
			return strings.Join(out, " / ")
		}
		s.apply(d)
	}
	require.Fail(t, "the replacement does not end", "%v", out)
	return ""
}

func TestPoolOrder_Traces(t *testing.T) {
	prefill, decode := Role{Name: "prefill", Units: 8}, Role{Name: "decode", Units: 2}
	two, one := Role{Name: "prefill", Units: 8, Unavailable: 2}, Role{Name: "decode", Units: 2, Unavailable: 1}
	for _, c := range []struct {
		name  string
		order pool.Order
		roles []Role
		trace string
	}{
		{"interleaved", orderOf(windlassv1.PoolUpdate_ORDER_INTERLEAVED), []Role{prefill, decode}, "0,0 / 1,1 / 2,2 / 3,2 / 4,2 / 5,2 / 6,2 / 7,2 / 8,2"},
		{"interleaved without room", orderOf(windlassv1.PoolUpdate_ORDER_INTERLEAVED), []Role{two, one}, "0,0 / 2,1 / 4,2 / 6,2 / 8,2"},
		{"parallel", orderOf(windlassv1.PoolUpdate_ORDER_PARALLEL), []Role{prefill, decode}, "0,0 / 1,1 / 2,2 / 3,2 / 4,2 / 5,2 / 6,2 / 7,2 / 8,2"},
		{"sequential", orderOf(windlassv1.PoolUpdate_ORDER_SEQUENTIAL, "decode"), []Role{two, decode}, "0,0 / 0,1 / 0,2 / 2,2 / 4,2 / 6,2 / 8,2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.trace, newOrderSimulation(c.order, c.roles...).trace(t))
		})
	}
}

// startWithin starts units while fewer than room run. Other units have no room.
func (s *simulation) startWithin(room int) {
	runs := 0
	for _, i := range s.all {
		if i.Started {
			runs++
		}
	}
	for n := range s.all {
		i := &s.all[n]
		if !i.Started && runs < room {
			i.Started = true
			runs++
		}
		i.Ready, i.Unfit = i.Started, !i.Started
	}
}

func TestPoolOrder_WithoutRoom(t *testing.T) {
	for _, c := range []struct {
		name   string
		order  pool.Order
		yields bool
		room   int
		trace  string
	}{
		{"it waits", orderOf(windlassv1.PoolUpdate_ORDER_PARALLEL), false, 6, "0,0"},
		{"an old unit goes", orderOf(windlassv1.PoolUpdate_ORDER_PARALLEL), true, 6, "0,0 / 1,1 / 2,2 / 3,2 / 4,2"},
		{"in steps", orderOf(windlassv1.PoolUpdate_ORDER_INTERLEAVED), true, 6, "0,0 / 1,1 / 2,2 / 3,2 / 4,2"},
		{"role by role", orderOf(windlassv1.PoolUpdate_ORDER_SEQUENTIAL, "decode"), true, 6, "0,0 / 0,1 / 0,2 / 1,2 / 2,2 / 3,2 / 4,2"},
		{"with room for one", orderOf(windlassv1.PoolUpdate_ORDER_SEQUENTIAL), true, 7, "0,0 / 1,0 / 2,0 / 3,0 / 4,0 / 4,1 / 4,2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newOrderSimulation(c.order, Role{Name: "prefill", Units: 4, YieldsWhenFull: c.yields}, Role{Name: "decode", Units: 2, YieldsWhenFull: c.yields})
			for n := range s.all {
				s.all[n].Started = true
			}
			var out []string
			for range 100 {
				s.startWithin(c.room)
				current, old := s.counts()
				for n, r := range s.want.Roles {
					require.GreaterOrEqual(t, current[n]+old[n], r.Units-1, "units of %s that serve", r.Name)
				}
				if text := strings.Trim(strings.ReplaceAll(fmt.Sprint(current), " ", ","), "[]"); len(out) == 0 || out[len(out)-1] != text {
					out = append(out, text)
				}
				s.apply(s.decide())
			}
			require.Equal(t, c.trace, strings.Join(out, " / "))
			require.Empty(t, show(s.decide()))
		})
	}
}

func TestPool_StartsNoMoreUnitsWhileOneTakesTheRoomOfAnother(t *testing.T) {
	s := newOrderSimulation(orderOf(windlassv1.PoolUpdate_ORDER_PARALLEL), Role{Name: "prefill", Units: 4, YieldsWhenFull: true})
	for n := range s.all {
		s.all[n].Started = true
	}
	s.apply(s.decide()) // a new unit
	s.startWithin(4)    // it has no room
	d := s.decide()
	require.Len(t, d.Delete, 1)
	s.apply(d)
	for n := range s.all {
		if !s.all[n].Started { // it has room now, and loads its model
			s.all[n].Started, s.all[n].Unfit, s.all[n].Ready = true, false, false
		}
	}
	require.Empty(t, show(s.decide()), "a second new unit would find no room")
}

func TestPoolOrder_NeverWaitsForABrokenOldUnit(t *testing.T) {
	for value := range windlassv1.PoolUpdate_Order_name {
		t.Run(windlassv1.PoolUpdate_Order(value).String(), func(t *testing.T) {
			s := newOrderSimulation(orderOf(windlassv1.PoolUpdate_Order(value), "prefill"), Role{Name: "prefill", Units: 8, Unavailable: 2}, Role{Name: "decode", Units: 2})
			for n := range s.all {
				if broken := s.all[n].Slot%2 == 0; broken {
					s.all[n].Ready = false
				}
			}
			// Broken old units are replaced at once, whichever role has its turn.
			require.Subset(t, s.decide().Delete, []string{"decode/0.0", "prefill/0.0", "prefill/0.2", "prefill/0.4", "prefill/0.6"})
			require.True(t, strings.HasSuffix(s.trace(t), "8,2"))
		})
	}
}

// TestPoolOrder_KeepsTheForecast checks that the replacement ends in each order, and that the
// capacity never falls below the forecast, whatever action comes next.
func TestPoolOrder_KeepsTheForecast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var roles []Role
		var moving []pool.Progress
		for _, name := range []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "roles")] {
			n := rapid.IntRange(1, 6).Draw(t, "units")
			r := Role{Name: name, Units: n, Unavailable: rapid.IntRange(0, n).Draw(t, "unavailable")}
			roles, moving = append(roles, r), append(moving, pool.Progress{Name: name, Units: n, Unavailable: r.Unavailable})
		}
		order := orderOf(windlassv1.PoolUpdate_Order(rapid.IntRange(1, 4).Draw(t, "order")), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "first"))
		s, forecast := newOrderSimulation(order, roles...), pool.Foresee(order, moving)
		for n := 0; show(s.decide()) != "" || slices.ContainsFunc(s.all, func(i Instance) bool { return !i.Ready }); n++ {
			require.Less(t, n, 2000, "the replacement does not end")
			var waiting []int
			for i, in := range s.all {
				if !in.Ready {
					waiting = append(waiting, i)
				}
			}
			if len(waiting) > 0 && (show(s.decide()) == "" || rapid.Bool().Draw(t, "one is ready")) {
				in := &s.all[rapid.SampledFrom(waiting).Draw(t, "ready")]
				in.Started, in.Ready = true, true
			} else {
				s.step(t)
			}
			current, old := s.counts()
			for i, a := range roles {
				exist := 0
				for _, in := range s.all {
					if in.Role == a.Name {
						exist++
					}
				}
				require.LessOrEqual(t, exist, a.Units+1-min(a.Unavailable, 1), "units of %s", a.Name)
				for j, b := range roles {
					capacity := pool.Whole * (current[i]*b.Units + old[j]*a.Units) / (a.Units * b.Units)
					require.GreaterOrEqual(t, capacity, forecast.Capacity, "new %v, old %v", current, old)
				}
			}
		}
		current, old := s.counts()
		for i, r := range roles {
			require.Equal(t, r.Units, current[i])
			require.Zero(t, old[i])
		}
	})
}

func TestPoolOrder_NeverWaitsForARoleWithoutOldUnits(t *testing.T) {
	for value := range windlassv1.PoolUpdate_Order_name {
		for _, c := range []struct {
			router, decode Role
			do             string
		}{
			{Role{Name: "router", Units: 1}, Role{Name: "decode", Units: 4}, "create decode/0.4"},
			{Role{Name: "router", Units: 1, Unavailable: 1, Stays: true}, Role{Name: "decode", Units: 4, Unavailable: 2}, "delete decode/0.2, delete decode/0.3"},
		} {
			t.Run(windlassv1.PoolUpdate_Order(value).String(), func(t *testing.T) {
				s := newOrderSimulation(orderOf(windlassv1.PoolUpdate_Order(value)), c.router, c.decode)
				for n := range s.all {
					if i := &s.all[n]; i.Role == "router" {
						i.Ready, s.made[i.Key] = false, s.template[i.Role] // router is broken until decode is repaired
					}
				}
				require.Contains(t, show(s.decide()), c.do)
			})
		}
	}
}

// An agent that is not told which roles move waits for a role whose old units are all gone.
func TestPoolOrder_WaitsForARoleThatMoves(t *testing.T) {
	for stays, do := range map[bool]string{false: "", true: "delete decode/0.2, delete decode/0.3"} {
		prefill := Role{Name: "prefill", Units: 2, Unavailable: 2, Stays: stays}
		s := newOrderSimulation(orderOf(windlassv1.PoolUpdate_ORDER_SEQUENTIAL), prefill, Role{Name: "decode", Units: 4, Unavailable: 2})
		for n := range s.all {
			if i := &s.all[n]; i.Role == "prefill" {
				i.Ready, s.made[i.Key] = false, s.template[i.Role]
			}
		}
		require.Equal(t, do, show(s.decide()))
	}
}

// With the order coherent, several roles have old units when a rollout in another order goes back.
func TestPoolOrder_WayBackKeepsRolesTogether(t *testing.T) {
	s := newOrderSimulation(orderOf(windlassv1.PoolUpdate_ORDER_COHERENT), Role{Name: "prefill", Units: 8}, Role{Name: "decode", Units: 2})
	require.Equal(t, "0,0 / 1,1 / 2,2 / 3,2 / 4,2 / 5,2 / 6,2 / 7,2 / 8,2", s.trace(t))
}
