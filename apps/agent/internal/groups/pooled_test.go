package groups

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestPool(t *testing.T) {
	pool := func(unavailable int) Wanted {
		return Wanted{Replicas: 1, Pooled: true, Roles: []Role{{Name: "p", Units: 2}, {Name: "d", Units: 2, Unavailable: unavailable}}}
	}
	stable := func(unavailable int) Wanted {
		w := pool(unavailable)
		w.Roles[1].Stable = true
		return w
	}
	prefill := []Instance{at("p/0.0"), at("p/0.1")}
	for name, c := range map[string]struct {
		want Wanted
		have []Instance
		do   string
	}{
		"another template: one unit more of the role": {
			want: pool(0), have: []Instance{at("d/0.0", old), at("d/0.1", old)}, do: "create d/0.2.0@1",
		},
		"another template: no old unit goes before the new unit is ready": {
			want: pool(0), have: []Instance{at("d/0.0", old), at("d/0.1", old), at("d/0.2", unready)},
		},
		"another template: an old unit goes once a new one is ready": {
			want: pool(0), have: []Instance{at("d/0.0", old), at("d/0.1", old), at("d/0.2")}, do: "delete d/0.1",
		},
		"another template: the next new unit starts once the old unit is gone": {
			want: pool(0), have: []Instance{at("d/0.0", old), at("d/0.1", old, leaving), at("d/0.2")}, do: "delete d/0.1",
		},
		"another template: the next new unit takes the free slot": {
			want: pool(0), have: []Instance{at("d/0.0", old), at("d/0.2")}, do: "create d/0.1.0@1",
		},
		"another template: a broken old unit goes at once": {
			want: pool(0), have: []Instance{at("d/0.0", old), at("d/0.1", old, unready)}, do: "create d/0.2.0@1, delete d/0.1",
		},
		"another template: all new units serve": {
			want: pool(0), have: []Instance{at("d/0.0"), at("d/0.1", old), at("d/0.2")}, do: "delete d/0.1",
		},
		"without room for one more unit: an old unit goes first": {
			want: pool(1), have: []Instance{at("d/0.0", old), at("d/0.1", old)}, do: "delete d/0.1",
		},
		"without room for one more unit: the successor starts once the old unit is gone": {
			want: pool(1), have: []Instance{at("d/0.0", old)}, do: "create d/0.1.0@1",
		},
		"without room for one more unit: the next old unit waits for the successor": {
			want: pool(1), have: []Instance{at("d/0.0", old), at("d/0.1", unready)},
		},
		"stable slots: an old unit is replaced in its slot, the highest first": {
			want: stable(1), have: []Instance{at("d/0.0", old), at("d/0.1", old)}, do: "replace d/0.1",
		},
		"stable slots: no unit more starts": {
			want: stable(0), have: []Instance{at("d/0.0", old), at("d/0.1", old)}, do: "replace d/0.1",
		},
		"stable slots: the successor starts in the same slot": {
			want: stable(1), have: []Instance{at("d/0.0", old)}, do: "create d/0.1.0@1",
		},
		"stable slots: the next one waits for the successor": {
			want: stable(1), have: []Instance{at("d/0.0", old), at("d/0.1", unready)},
		},
		"stable slots: then the next one": {
			want: stable(1), have: []Instance{at("d/0.0", old), at("d/0.1")}, do: "replace d/0.0",
		},
		"stable slots: a broken old unit is replaced at once": {
			want: stable(1), have: []Instance{at("d/0.0", old, unready), at("d/0.1", old)}, do: "replace d/0.0",
		},
		"stable slots: those above the wanted number go": {
			want: stable(1), have: []Instance{at("d/0.0", old), at("d/0.1"), at("d/0.2")}, do: "delete d/0.2, replace d/0.0",
		},
		"back to the previous template: the new unit goes": {
			want: pool(0), have: []Instance{at("d/0.0"), at("d/0.1"), at("d/0.2", old, unready)}, do: "delete d/0.2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.do, show(Decide(c.want, slices.Concat(prefill, c.have))))
		})
	}
}

func drawPool(t *rapid.T) Wanted {
	w := Wanted{Replicas: rapid.IntRange(0, 1).Draw(t, "replicas"), Pooled: true}
	order := windlassv1.PoolUpdate_Order(rapid.IntRange(0, len(windlassv1.PoolUpdate_Order_name)-1).Draw(t, "order"))
	w.Order = orderOf(order, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "first"))
	for _, name := range []string{"a", "b"} {
		w.Roles = append(w.Roles, Role{
			Name: name, Units: rapid.IntRange(1, 4).Draw(t, "units"), Hosts: map[string]int{"a": 1, "b": 2}[name],
			Unavailable: rapid.IntRange(0, 2).Draw(t, "unavailable"), YieldsWhenFull: rapid.Bool().Draw(t, "yields"),
			Stable: rapid.Bool().Draw(t, "stable"),
		})
	}
	return w
}

// serving returns how many units of a role serve once the decision is carried out. Units above the stable slots do not
// count, because they go whatever their state is.
func (s *simulation) serving(role Role, d Decision) (n int) {
	ranks, bad := map[Unit]int{}, map[Unit]bool{}
	for _, i := range s.all {
		if i.Role == role.Name && (!role.Stable || i.Slot < role.Units) {
			ranks[i.Unit()]++
			bad[i.Unit()] = bad[i.Unit()] || !i.Ready || i.Leaving || slices.Contains(d.Delete, i.Key) || slices.Contains(d.Replace, i.Key)
		}
	}
	for u, have := range ranks {
		if have == role.hostCount() && !bad[u] {
			n++
		}
	}
	return n
}

func TestPool_ServesFromAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &simulation{want: drawPool(t), template: map[string]int{}, made: map[string]int{}}
		one := func(name string) *Instance {
			if len(s.all) == 0 {
				t.Skip("there are no instances")
			}
			return &s.all[rapid.IntRange(0, len(s.all)-1).Draw(t, name)]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				d := s.decide()
				for _, r := range s.want.Roles {
					require.True(t, r.Stable || !slices.ContainsFunc(s.all, func(i Instance) bool { return i.Role == r.Name && slices.Contains(d.Replace, i.Key) }), r.Name)
					before, after := s.serving(r, Decision{}), s.serving(r, d)
					if s.want.Replicas > 0 {
						may := r.Unavailable
						if r.Stable {
							may = max(may, 1)
						}
						if r.YieldsWhenFull && slices.ContainsFunc(s.all, func(i Instance) bool { return i.Unfit && i.Role == r.Name }) {
							may = max(may, 1)
						}
						require.GreaterOrEqual(t, after, min(before, r.Units-may), "units of %s that serve", r.Name)
					}
				}
			},
			"wanted": func(t *rapid.T) { s.want = drawPool(t) },
			"template": func(t *rapid.T) {
				s.template[rapid.SampledFrom([]string{"a", "b"}).Draw(t, "role")] = rapid.IntRange(0, 2).Draw(t, "template")
			},
			"step":    func(t *rapid.T) { s.step(t) },
			"start":   func(*rapid.T) { s.start() },
			"unready": func(*rapid.T) { one("unready").Ready = false },
			"unfit":   func(*rapid.T) { i := one("unfit"); i.Unfit = !i.Started },
			"vanish": func(*rapid.T) {
				i := s.find(one("vanishes").Key)
				s.all = slices.Delete(s.all, i, i+1)
			},
			"leave": func(*rapid.T) { i := one("leaves"); i.Leaving, i.Ready = true, false },
		})
		s.all = slices.DeleteFunc(s.all, func(i Instance) bool { return i.Leaving })
		for range 1000 {
			if !s.step(t) {
				s.start()
			}
		}
		require.Empty(t, show(s.decide()), "there are actions left")
		perRole := map[string]int{}
		for _, i := range s.all {
			require.True(t, i.Ready, "%v is not ready in the end", i.ID)
			require.Equal(t, s.template[i.Role], s.made[i.Key], "template of %v", i.ID)
			perRole[i.Role]++
		}
		for _, r := range s.want.Roles {
			for _, i := range s.all {
				require.True(t, !r.Stable || i.Role != r.Name || i.Slot < r.Units, "%v is above the stable slots", i.ID)
			}
			require.Equal(t, s.want.Replicas*r.Units*r.hostCount(), perRole[r.Name], r.Name)
		}
	})
}
