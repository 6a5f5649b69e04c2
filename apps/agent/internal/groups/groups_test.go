package groups

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// at returns an instance that serves. "prefill/0.2" has group 0 and slot 2. "decode/1.0.3" has group 1, slot 0 and rank 3.
func at(place string, change ...func(*Instance)) Instance {
	i := Instance{Key: place, Epoch: 1, Started: true, Ready: true}
	role, rest, _ := strings.Cut(place, "/")
	i.Role = role
	if n, _ := fmt.Sscanf(rest, "%d.%d.%d", &i.Group, &i.Slot, &i.Rank); n < 2 {
		panic(place)
	}
	for _, c := range change {
		c(&i)
	}
	return i
}

func named(key string) func(*Instance) { return func(i *Instance) { i.Key = key } }
func epoch(n int) func(*Instance)      { return func(i *Instance) { i.Epoch = n } }
func unready(i *Instance)              { i.Ready = false }
func unrouted(i *Instance)             { i.Unrouted = true }
func leaving(i *Instance)              { i.Ready, i.Leaving = false, true }
func ended(i *Instance)                { i.Ready, i.Ended = false, true }
func unstarted(i *Instance)            { i.Ready, i.Started = false, false }
func old(i *Instance)                  { i.Old = true }
func wasWhole(i *Instance)             { i.Joined = true }
func unfit(i *Instance)                { i.Ready, i.Started, i.Unfit = false, false, true }

func show(d Decision) string {
	var out []string
	for _, c := range d.Create {
		out = append(out, fmt.Sprintf("create %s/%d.%d.%d@%d", c.Role, c.Group, c.Slot, c.Rank, c.Epoch))
	}
	for _, key := range d.Delete {
		out = append(out, "delete "+key)
	}
	for _, key := range d.Replace {
		out = append(out, "replace "+key)
	}
	for _, r := range d.Restart {
		out = append(out, fmt.Sprintf("restart %s/%d.%d@%d", r.Role, r.Group, r.Slot, r.Epoch))
	}
	for id, why := range d.Wait {
		out = append(out, fmt.Sprintf("%s/%d.%d.%d %s", id.Role, id.Group, id.Slot, id.Rank, why))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestDecide(t *testing.T) {
	pair := []Role{{Name: "prefill", Units: 2}, {Name: "decode", Units: 1, StartsAfter: []string{"prefill"}}}
	workers := func(n int) Wanted { return Wanted{Replicas: 1, Roles: []Role{{Name: "w", Units: n}}} }
	stable := func(n int) Wanted { return Wanted{Replicas: 1, Roles: []Role{{Name: "w", Units: n, Stable: true}}} }
	wide := Wanted{Replicas: 1, Roles: []Role{{Name: "w", Units: 1, Hosts: 2}}}
	pairs := func(n int) Wanted {
		return Wanted{Replicas: n, Roles: []Role{{Name: "p", Units: 1}, {Name: "d", Units: 2}}}
	}
	five := []Instance{at("w/0.0"), at("w/0.1", unready), at("w/0.2"), at("w/0.3", unready), at("w/0.4")}
	for name, c := range map[string]struct {
		want Wanted
		have []Instance
		do   string
	}{
		"no instances: every role of every group is created": {
			want: Wanted{Replicas: 2, Roles: pair},
			do: "create decode/0.0.0@1, create decode/1.0.0@1, create prefill/0.0.0@1, create prefill/0.1.0@1, " +
				"create prefill/1.0.0@1, create prefill/1.1.0@1",
		},
		"as wanted: nothing": {want: Wanted{Replicas: 1, Roles: pair}, have: []Instance{at("prefill/0.0"), at("prefill/0.1"), at("decode/0.0")}},
		"a role waits for the one that it starts after": {
			want: Wanted{Replicas: 1, Roles: pair},
			have: []Instance{at("prefill/0.0"), at("prefill/0.1", unready), at("decode/0.0", unstarted)},
			do:   "decode/0.0.0 waits for role prefill, of which 1 of 2 are ready",
		},
		"an instance that was started does not wait again": {
			want: Wanted{Replicas: 1, Roles: pair},
			have: []Instance{at("prefill/0.0"), at("prefill/0.1", unready), at("decode/0.0", unready)},
		},
		"a role waits only for roles of its own group": {
			want: Wanted{Replicas: 2, Roles: pair},
			have: []Instance{
				at("prefill/0.0"), at("prefill/0.1"), at("decode/0.0", unstarted),
				at("prefill/1.0", unready), at("prefill/1.1"), at("decode/1.0"),
			},
		},

		"fewer units: units that are not ready go first":               {want: workers(3), have: five, do: "delete w/0.1, delete w/0.3"},
		"fewer units: then the highest slot":                           {want: workers(2), have: five, do: "delete w/0.1, delete w/0.3, delete w/0.4"},
		"fewer units: an instance that no gateway sends to goes first": {want: workers(1), have: []Instance{at("w/0.0", unrouted), at("w/0.1")}, do: "delete w/0.0"},
		"fewer units: an instance that is leaving goes first":          {want: workers(1), have: []Instance{at("w/0.0", leaving), at("w/0.1", unready)}, do: "delete w/0.0"},
		"more units: the lowest free slots":                            {want: workers(3), have: []Instance{at("w/0.1"), at("w/0.3")}, do: "create w/0.0.0@1"},
		"stable slots go from the top, ready or not":                   {want: stable(3), have: five, do: "delete w/0.3, delete w/0.4"},
		"stable slots are filled where they are missing":               {want: stable(2), have: []Instance{at("w/0.1"), at("w/0.2")}, do: "create w/0.0.0@1, delete w/0.2"},
		"groups of stable slots go from the top, ready or not": {
			want: Wanted{Replicas: 2, Roles: []Role{{Name: "w", Units: 1, Stable: true}}},
			have: []Instance{at("w/0.0", unready), at("w/1.0"), at("w/2.0")}, do: "delete w/2.0",
		},
		"groups of stable slots are filled where they are missing": {
			want: Wanted{Replicas: 2, Roles: []Role{{Name: "w", Units: 1, Stable: true}}},
			have: []Instance{at("w/1.0"), at("w/3.0")}, do: "create w/0.0.0@1, delete w/3.0",
		},
		"no units: all units of the role go":                  {want: workers(0), have: five, do: "delete w/0.0, delete w/0.1, delete w/0.2, delete w/0.3, delete w/0.4"},
		"a role that is not wanted goes":                      {want: workers(1), have: []Instance{at("w/0.0"), at("x/0.0")}, do: "delete x/0.0"},
		"two of one identity: the higher key goes":            {want: workers(1), have: []Instance{at("w/0.0", named("b")), at("w/0.0", named("a"))}, do: "delete b"},
		"an instance that leaves is replaced once it is gone": {want: workers(1), have: []Instance{at("w/0.0", leaving)}},

		"fewer replicas: the highest group goes as a whole": {
			want: Wanted{Replicas: 1, Roles: pair},
			have: []Instance{at("prefill/0.0"), at("prefill/0.1"), at("decode/0.0"), at("prefill/1.0"), at("prefill/1.1"), at("decode/1.0")},
			do:   "delete decode/1.0, delete prefill/1.0, delete prefill/1.1",
		},
		"fewer replicas: a group that lacks a role goes first": {
			want: Wanted{Replicas: 1, Roles: pair},
			have: []Instance{at("prefill/0.0"), at("prefill/0.1"), at("prefill/3.0"), at("prefill/3.1"), at("decode/3.0")},
			do:   "delete prefill/0.0, delete prefill/0.1",
		},
		"no replicas": {want: Wanted{Roles: pair}, have: []Instance{at("decode/4.0")}, do: "delete decode/4.0"},

		"another template: one ready instance goes at a time": {
			want: workers(2), have: []Instance{at("w/0.0", old), at("w/0.1", old)}, do: "replace w/0.0",
		},
		"another template: the next instance waits for the successor": {
			want: workers(2), have: []Instance{at("w/0.0", unready), at("w/0.1", old)},
		},
		"another template: a group of several roles goes as a whole": {
			want: pairs(2),
			have: []Instance{at("p/0.0", old), at("d/0.0", old), at("d/0.1", old), at("p/1.0", old), at("d/1.0", old), at("d/1.1", old)},
			do:   "replace d/0.0, replace d/0.1, replace p/0.0",
		},
		"another template of one role: the other roles of the group stay": {
			want: pairs(2),
			have: []Instance{at("p/0.0"), at("d/0.0", old), at("d/0.1", old), at("p/1.0"), at("d/1.0", old), at("d/1.1", old)},
			do:   "replace d/0.0, replace d/0.1",
		},
		"another template: the next group waits for the previous one": {
			want: pairs(2),
			have: []Instance{at("p/0.0"), at("d/0.0"), at("d/0.1", unready), at("p/1.0", old), at("d/1.0", old), at("d/1.1", old)},
		},
		"another template: two groups go if two may be out of service": {
			want: Wanted{Replicas: 2, Roles: pairs(2).Roles, Unavailable: 2},
			have: []Instance{at("p/0.0", old), at("d/0.0"), at("d/0.1"), at("p/1.0", old), at("d/1.0"), at("d/1.1")},
			do:   "replace p/0.0, replace p/1.0",
		},
		"another template: an instance that is not ready goes at once, and its group with it": {
			want: pairs(2),
			have: []Instance{at("p/0.0", old), at("d/0.0", old), at("d/0.1", old), at("p/1.0", old), at("d/1.0", old, unready), at("d/1.1", old)},
			do:   "replace d/1.0, replace d/1.1, replace p/1.0",
		},
		"another template: a half replaced group is finished first": {
			want: pairs(2),
			have: []Instance{at("p/0.0", old), at("d/0.0", old, leaving), at("d/0.1", old), at("p/1.0", old), at("d/1.0", old), at("d/1.1", old)},
			do:   "replace d/0.1, replace p/0.0",
		},
		"another template: a group with two templates goes first": {
			want: pairs(2),
			have: []Instance{at("p/0.0", old), at("d/0.0", old), at("d/0.1", old), at("p/1.0"), at("d/1.0", old), at("d/1.1")},
			do:   "replace d/1.0",
		},
		"another template: a group that lost an unchanged instance waits for it": {
			want: pairs(2),
			have: []Instance{at("p/0.0"), at("d/0.0", old), at("d/0.1", old), at("p/1.0", unready), at("d/1.0", old), at("d/1.1", old)},
		},
		"another template: a group without room is not out of service": {
			want: pairs(2),
			have: []Instance{at("p/0.0", old), at("d/0.0"), at("d/0.1"), at("p/1.0", unfit), at("d/1.0", unfit), at("d/1.1", unfit)},
			do:   "replace p/0.0",
		},

		"a unit that lost a rank restarts as one": {
			want: wide, have: []Instance{at("w/0.0.0"), at("w/0.0.1", ended)}, do: "restart w/0.0@2",
		},
		"a unit that lacks a rank restarts as one": {
			want: wide, have: []Instance{at("w/0.0.1", epoch(3))}, do: "create w/0.0.0@4, restart w/0.0@4",
		},
		"a restart that is under way keeps its epoch": {
			want: wide, have: []Instance{at("w/0.0.0", epoch(2), unready), at("w/0.0.1")}, do: "restart w/0.0@2",
		},
		"a unit that never started gets its missing rank": {
			want: wide, have: []Instance{at("w/0.0.0", unstarted)}, do: "create w/0.0.1@1",
		},
		"a unit that starts gets its missing rank": {
			want: wide, have: []Instance{at("w/0.0.0", unready)}, do: "create w/0.0.1@1",
		},
		"a unit that was ready once and lost a rank restarts": {
			want: wide, have: []Instance{at("w/0.0.0", unready, wasWhole)}, do: "create w/0.0.1@2, restart w/0.0@2",
		},
		"a unit that leaves is not restarted": {
			want: wide, have: []Instance{at("w/0.0.0", leaving), at("w/0.0.1", ended)},
		},
		"a unit gets no new rank while some of its ranks leave": {
			want: wide, have: []Instance{at("w/0.0.0", leaving)},
		},
		"a unit of one host is restarted by the runtime": {want: workers(1), have: []Instance{at("w/0.0", ended)}},
		"ranks that are not wanted go": {
			want: workers(1), have: []Instance{at("w/0.0.0"), at("w/0.0.1")}, do: "delete w/0.0.1",
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.do, show(Decide(c.want, c.have))) })
	}
}

// simulation is a runtime that carries out actions of decisions one at a time, in any order.
type simulation struct {
	want Wanted
	all  []Instance
	n    int // number of instances ever created
	// template has the present template of each role. made has the template of each instance, by
	// key.
	template map[string]int
	made     map[string]int
}

// decide marks the instances of older templates, and decides.
func (s *simulation) decide() Decision {
	for n := range s.all {
		in := &s.all[n]
		in.Old = s.made[in.Key] != s.template[in.Role]
	}
	return Decide(s.want, s.all)
}

func (s *simulation) find(key string) int {
	return slices.IndexFunc(s.all, func(i Instance) bool { return i.Key == key })
}

// step carries out one action of the present decision. It reports whether there was one.
func (s *simulation) step(t *rapid.T) bool {
	d := s.decide()
	total := len(d.Create) + len(d.Delete) + len(d.Replace) + len(d.Restart)
	if total == 0 {
		return false
	}
	n := rapid.IntRange(0, total-1).Draw(t, "action")
	switch {
	case n < len(d.Create):
		c := d.Create[n]
		s.n++
		s.all = append(s.all, Instance{ID: c.ID, Key: fmt.Sprint("i", s.n), Epoch: c.Epoch})
		s.made[fmt.Sprint("i", s.n)] = s.template[c.Role]
	case n < len(d.Create)+len(d.Delete):
		i := s.find(d.Delete[n-len(d.Create)])
		s.all = slices.Delete(s.all, i, i+1)
	case n < len(d.Create)+len(d.Delete)+len(d.Replace):
		// The instance is gone at once. Creating its successor is another action.
		i := s.find(d.Replace[n-len(d.Create)-len(d.Delete)])
		s.all = slices.Delete(s.all, i, i+1)
	default:
		r := d.Restart[n-len(d.Create)-len(d.Delete)-len(d.Replace)]
		for i := range s.all {
			if in := &s.all[i]; in.Unit() == r.Unit && (in.Epoch < r.Epoch || in.Ended) {
				in.Epoch, in.Started, in.Ended, in.Ready = r.Epoch, true, false, false
				break // the next rank is another action, and any other action may come before it
			}
		}
	}
	return true
}

// start starts the instances that may start, and makes running instances ready. An ended instance
// of a unit with one host starts again.
func (s *simulation) start() {
	wait := s.decide().Wait
	wide := map[string]bool{}
	for _, r := range s.want.Roles {
		wide[r.Name] = r.hostCount() > 1
	}
	for i := range s.all {
		in := &s.all[i]
		if _, waits := wait[in.ID]; waits || in.Leaving {
			continue
		}
		in.Ended = in.Ended && wide[in.Role]
		in.Started, in.Ready, in.Unfit = true, !in.Ended, false
	}
}

func (s *simulation) check(t *rapid.T) {
	d := s.decide()
	s.checkReplaced(t, d)
	deleted := map[string]bool{}
	for _, key := range d.Delete {
		deleted[key] = true
	}
	leaves := map[Unit]bool{}
	for _, i := range s.all {
		leaves[i.Unit()] = leaves[i.Unit()] || i.Leaving && !deleted[i.Key]
	}
	// Once the decision is carried out, there is one instance of each wanted identity, and units
	// are complete.
	after := map[ID]bool{}
	for _, i := range s.all {
		if !deleted[i.Key] {
			require.False(t, after[i.ID], "two instances of %v", i.ID)
			after[i.ID] = true
		}
	}
	for _, c := range d.Create {
		require.False(t, after[c.ID], "%v exists already", c.ID)
		require.False(t, leaves[c.Unit()], "%v would join ranks that leave", c.ID)
		after[c.ID] = true
	}
	ranks, perRole, inGroup := map[Unit]int{}, map[string]int{}, map[int]bool{}
	for id := range after {
		ranks[id.Unit()]++
		inGroup[id.Group] = true
	}
	for u := range ranks {
		perRole[u.Role]++
	}
	some := false
	for _, r := range s.want.Roles {
		require.Equal(t, s.want.Replicas*r.Units, perRole[r.Name], r.Name)
		some = some || r.Units > 0
		for u, n := range ranks {
			if u.Role == r.Name && (r.hostCount() == 1 || !leaves[u]) {
				require.Equal(t, r.hostCount(), n, "ranks of %v", u)
			}
		}
	}
	if some {
		require.Len(t, inGroup, s.want.Replicas)
	}
	// The order of the instances does not matter, and a second call returns the same decision.
	again := slices.Clone(s.all)
	rand.New(rand.NewPCG(1, uint64(len(again)))).Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	require.Equal(t, show(d), show(Decide(s.want, again)))
	require.Equal(t, d.Replace, Decide(s.want, again).Replace)
}

// checkReplaced checks that a replacement takes no more groups out of service than allowed.
func (s *simulation) checkReplaced(t *rapid.T, d Decision) {
	taken, serving := map[int]bool{}, map[int]bool{}
	for _, i := range s.all {
		if slices.Contains(d.Delete, i.Key) {
			continue
		}
		serving[i.Group] = true
		if slices.Contains(d.Replace, i.Key) {
			require.True(t, i.Old, "%v is replaced, but has the template of its role", i.ID)
			taken[i.Group] = true
		}
	}
	for _, c := range d.Create {
		delete(serving, c.Group)
	}
	for _, i := range s.all {
		if !slices.Contains(d.Delete, i.Key) && (!i.Ready || i.Leaving) {
			delete(serving, i.Group)
		}
	}
	lost, left := 0, 0
	for g := range serving {
		if taken[g] {
			lost++
		} else {
			left++
		}
	}
	if lost > 0 {
		require.GreaterOrEqual(t, left, s.want.Replicas-max(s.want.Unavailable, 1), "groups that serve")
	}
}

func drawWanted(t *rapid.T) Wanted {
	w := Wanted{Replicas: rapid.IntRange(0, 3).Draw(t, "replicas"), Unavailable: rapid.IntRange(0, 2).Draw(t, "unavailable")}
	for _, name := range []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "roles")] {
		r := Role{
			Name: name, Units: rapid.IntRange(0, 3).Draw(t, "units"), Hosts: rapid.IntRange(1, 3).Draw(t, "hosts"),
			Stable: rapid.Bool().Draw(t, "stable"),
		}
		for _, before := range w.Roles { // only earlier roles, so that there is no cycle
			if rapid.Bool().Draw(t, "after") {
				r.StartsAfter = append(r.StartsAfter, before.Name)
			}
		}
		w.Roles = append(w.Roles, r)
	}
	return w
}

func TestDecide_ConvergesFromAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &simulation{want: drawWanted(t), template: map[string]int{}, made: map[string]int{}}
		one := func(name string) *Instance {
			if len(s.all) == 0 {
				t.Skip("there are no instances")
			}
			return &s.all[rapid.IntRange(0, len(s.all)-1).Draw(t, name)]
		}
		t.Repeat(map[string]func(*rapid.T){
			"":       s.check,
			"wanted": func(t *rapid.T) { s.want = drawWanted(t) },
			"template": func(t *rapid.T) {
				s.template[rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "role")] = rapid.IntRange(0, 2).Draw(t, "template")
			},
			"step":  func(t *rapid.T) { s.step(t) },
			"start": func(*rapid.T) { s.start() },
			"end": func(*rapid.T) {
				if i := one("ends"); i.Started {
					i.Ready, i.Ended = false, true
				}
			},
			"unready": func(*rapid.T) { one("unready").Ready = false },
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
		for _, i := range s.all {
			require.True(t, i.Ready, "%v is not ready in the end", i.ID)
			require.Equal(t, s.template[i.Role], s.made[i.Key], "template of %v", i.ID)
		}
		epochs := map[Unit]int{}
		for _, i := range s.all {
			require.Equal(t, i.Epoch, cmp.Or(epochs[i.Unit()], i.Epoch), "the ranks of a unit have one epoch")
			epochs[i.Unit()] = i.Epoch
		}
	})
}
