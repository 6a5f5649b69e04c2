package gang

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var begin = time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)

const timeout = 10 * time.Minute

func pause(failures int) time.Duration { return time.Duration(failures+1) * time.Minute }

func TestEntry(t *testing.T) {
	at := begin.Add
	waits := Entry{State: Waits, Since: begin}
	starts := Entry{State: Starts, Since: begin, Failures: 2}
	back := Entry{State: GivesBack, Retry: at(time.Minute), Failures: 3}
	for name, c := range map[string]struct {
		was  Entry
		seen Seen
		now  time.Duration
		want Entry
	}{
		"a new gang waits":                        {Entry{}, Seen{Pods: 2}, 0, waits},
		"a gang that waits keeps its turn":        {waits, Seen{Pods: 2}, time.Hour, waits},
		"a gang of an earlier agent still starts": {Entry{}, Seen{Pods: 2, Bound: 1, Started: true, Left: true, Oldest: begin}, time.Minute, Entry{State: Starts, Since: begin}},
		"a gang of an earlier agent is whole":     {Entry{}, Seen{Pods: 2, Bound: 2, Started: true, Left: true}, 0, Entry{State: Whole}},
		"a gang of an earlier agent continues to give back": {
			Entry{}, Seen{Pods: 2, Bound: 1, Started: true, Left: true, GaveBack: true}, 0, Entry{State: GivesBack, Retry: at(time.Minute), Failures: 1},
		},
		"a gang that gave back under an earlier agent waits": {Entry{}, Seen{Pods: 2, GaveBack: true}, 0, waits},
		"a gang that was let in starts before its pods":      {starts, Seen{Pods: 2}, time.Minute, starts},
		"a gang that starts has time":                        {starts, Seen{Pods: 2, Bound: 1, Started: true, Left: true}, timeout - 1, starts},
		"a gang that is whole has no failures":               {starts, Seen{Pods: 2, Bound: 2, Started: true, Left: true}, timeout, Entry{State: Whole}},
		"a gang that is late gives back": {
			starts, Seen{Pods: 2, Bound: 1, Started: true, Left: true}, timeout, Entry{State: GivesBack, Retry: at(timeout + 3*time.Minute), Failures: 3},
		},
		"a gang whose pods were never made gives back": {
			starts, Seen{Pods: 2}, timeout, Entry{State: GivesBack, Retry: at(timeout + 3*time.Minute), Failures: 3},
		},
		"a gang in the scheduler's queue waits for ever": {starts, Seen{Pods: 2, Started: true, Left: true, Queued: true, Oldest: begin}, time.Hour, Entry{State: Starts, Since: at(time.Hour), Failures: 2}},
		"a gang of an earlier agent in the scheduler's queue waits on": {
			Entry{}, Seen{Pods: 2, Started: true, Left: true, Queued: true, Oldest: begin}, time.Hour, Entry{State: Starts, Since: at(time.Hour)},
		},
		"a gang in the scheduler's queue that holds a node gives back": {
			starts, Seen{Pods: 2, Bound: 1, Started: true, Left: true, Queued: true}, timeout, Entry{State: GivesBack, Retry: at(timeout + 3*time.Minute), Failures: 3},
		},
		"a gang gives back while pods are left": {back, Seen{Pods: 2, Left: true, Started: true}, time.Hour, back},
		"a gang pauses":                         {back, Seen{Pods: 2}, time.Minute - 1, back},
		"a gang waits after its pause":          {back, Seen{Pods: 2}, time.Minute, Entry{State: Waits, Since: at(time.Minute), Failures: 3}},
		"a whole gang stays":                    {Entry{State: Whole}, Seen{Pods: 2, Bound: 2, Started: true, Left: true}, time.Hour, Entry{State: Whole}},
		"a gang that lost a node starts again": {
			Entry{State: Whole}, Seen{Pods: 2, Bound: 1, Started: true, Left: true, Oldest: at(time.Hour)}, time.Hour + time.Minute, Entry{State: Starts, Since: at(time.Hour)},
		},
		"a gang that lost all pods waits": {Entry{State: Whole}, Seen{Pods: 2}, 0, waits},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, c.was.Next(c.seen, at(c.now), timeout, pause))
		})
	}
}

// nodes returns nodes with these numbers of free GPUs, named n0, n1 and so on.
func nodes(free ...int64) (out []Node) {
	for i, n := range free {
		out = append(out, Node{fmt.Sprint("n", i), Resources{"nvidia.com/gpu": n, "cpu": 1000 * n}})
	}
	return out
}

// on returns count pods, each with this number of GPUs, that may run on the nodes.
func on(of []Node, count int, gpus int64) (out []Pod) {
	names := map[string]bool{}
	for _, n := range of {
		names[n.Name] = true
	}
	for range count {
		out = append(out, Pod{Needs: Resources{"nvidia.com/gpu": gpus, "cpu": gpus}, Nodes: names, Pool: "a", GPUs: gpus})
	}
	return out
}

func TestAdmit(t *testing.T) {
	three := nodes(1, 1, 1)
	gang := func(key string, age int, pods []Pod) Gang {
		return Gang{Key: key, Since: begin.Add(-time.Duration(age) * time.Second), Pods: pods}
	}
	for name, c := range map[string]struct {
		nodes   []Node
		pending []Pod
		quotas  map[string]int64
		waiting []Gang
		starts  []string
		lacks   map[string]Lack
	}{
		"two gangs of two and room for three pods: the older one starts": {
			nodes: three, waiting: []Gang{gang("young", 1, on(three, 2, 1)), gang("old", 2, on(three, 2, 1))},
			starts: []string{"old"}, lacks: map[string]Lack{"young": {Fits: 1}},
		},
		"room for both": {
			nodes: nodes(2, 2), waiting: []Gang{gang("b", 1, on(nodes(2, 2), 2, 1)), gang("a", 1, on(nodes(2, 2), 2, 1))}, starts: []string{"a", "b"},
		},
		"pods without a node have room first": {
			nodes: three, pending: on(three, 2, 1), waiting: []Gang{gang("a", 1, on(three, 2, 1))}, lacks: map[string]Lack{"a": {Fits: 1}},
		},
		"a pod without room takes none": {
			nodes: three, pending: on(three, 5, 2), waiting: []Gang{gang("a", 1, on(three, 3, 1))}, starts: []string{"a"},
		},
		"a smaller gang does not wait for a larger one": {
			nodes: three, waiting: []Gang{gang("large", 2, on(three, 4, 1)), gang("small", 1, on(three, 3, 1))},
			starts: []string{"small"}, lacks: map[string]Lack{"large": {Fits: 3}},
		},
		"only nodes on which a pod may run count": {
			nodes: three, waiting: []Gang{gang("a", 1, on(three[:1], 2, 1))}, lacks: map[string]Lack{"a": {Fits: 1}},
		},
		"a pod does not fit on the GPUs of two nodes": {
			nodes: nodes(4, 4), waiting: []Gang{gang("a", 1, on(nodes(4, 4), 1, 8))}, lacks: map[string]Lack{"a": {}},
		},
		"pods of different roles": {
			nodes:   nodes(8, 4),
			waiting: []Gang{gang("a", 1, slices.Concat(on(nodes(8, 4), 2, 2), on(nodes(8, 4), 1, 8)))}, starts: []string{"a"},
		},
		"the quota counts": {
			nodes: three, quotas: map[string]int64{"a": 1}, waiting: []Gang{gang("a", 1, on(three, 2, 1))}, lacks: map[string]Lack{"a": {Fits: 2, Pool: "a", Quota: 1}},
		},
		"the quota is shared": {
			nodes: nodes(4), quotas: map[string]int64{"a": 3}, waiting: []Gang{gang("a", 2, on(nodes(4), 2, 1)), gang("b", 1, on(nodes(4), 2, 1))},
			starts: []string{"a"}, lacks: map[string]Lack{"b": {Fits: 2, Pool: "a", Quota: 1}},
		},
		"a resource that no node has": {
			nodes: three, waiting: []Gang{gang("a", 1, []Pod{{Needs: Resources{"acme.example/nic": 1}, Nodes: map[string]bool{"n0": true}}})}, lacks: map[string]Lack{"a": {}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			starts, lacks, _, _ := Admit(c.nodes, c.pending, c.quotas, c.waiting)
			require.Equal(t, c.starts, starts)
			if c.lacks == nil {
				c.lacks = map[string]Lack{}
			}
			require.Equal(t, c.lacks, lacks)
		})
	}
}

// drawGangs draws nodes, gangs of alike pods, and pods without a node.
func drawGangs(t *rapid.T) (all []Node, pending []Pod, waiting []Gang) {
	all = nodes(rapid.SliceOfN(rapid.Int64Range(0, 8), 1, 6).Draw(t, "free")...)
	some := func(name string) []Node {
		return rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, len(all), func(n Node) string { return n.Name }).Draw(t, name)
	}
	pending = on(some("pending on"), rapid.IntRange(0, 3).Draw(t, "pending"), rapid.Int64Range(1, 4).Draw(t, "pending GPUs"))
	for g := range rapid.IntRange(1, 5).Draw(t, "gangs") {
		waiting = append(waiting, Gang{
			Key: fmt.Sprint("g", g), Since: begin.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "since"))),
			Pods: on(some("nodes"), rapid.IntRange(1, 5).Draw(t, "pods"), rapid.Int64Range(1, 8).Draw(t, "GPUs")),
		})
	}
	return all, pending, waiting
}

// roomFor returns how many alike pods the nodes have room for.
func roomFor(all []Node, p Pod) (n int64) {
	for _, node := range all {
		if p.Nodes[node.Name] {
			n += node.Free["nvidia.com/gpu"] / p.GPUs
		}
	}
	return n
}

func TestAdmit_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, pending, waiting := drawGangs(t)
		starts, lacks, _, _ := Admit(all, pending, nil, waiting)
		again, _, _, _ := Admit(all, pending, nil, slices.Concat(waiting[1:], waiting[:1]))
		require.Equal(t, starts, again, "the order of the input does not matter")
		require.Len(t, lacks, len(waiting)-len(starts), "each gang starts or has a reason")
		for i := range waiting {
			waiting[i].Pods = slices.Clone(waiting[i].Pods)
			for j := range waiting[i].Pods {
				waiting[i].Pods[j].Shape = fmt.Sprint(waiting[i].Pods[j])
			}
		}
		shaped, why, _, _ := Admit(all, pending, nil, waiting)
		require.Equal(t, starts, shaped, "shapes change nothing")
		require.Equal(t, lacks, why)

		var free, taken int64
		for _, n := range all {
			free += n.Free["nvidia.com/gpu"]
		}
		for _, g := range waiting {
			room := roomFor(all, g.Pods[0])
			if slices.Contains(starts, g.Key) {
				taken += g.Pods[0].GPUs * int64(len(g.Pods))
				require.GreaterOrEqual(t, room, int64(len(g.Pods)), "%s has room for all its pods", g.Key)
			} else {
				require.LessOrEqual(t, lacks[g.Key].Fits, len(g.Pods)-1)
			}
		}
		require.LessOrEqual(t, taken, free, "gangs that start together share the room")

		oldest := slices.MinFunc(waiting, func(a, b Gang) int {
			if order := a.Since.Compare(b.Since); order != 0 {
				return order
			}
			if a.Key < b.Key {
				return -1
			}
			return 1
		})
		if len(pending) == 0 && roomFor(all, oldest.Pods[0]) >= int64(len(oldest.Pods)) {
			require.Contains(t, starts, oldest.Key, "nothing is before the oldest gang")
		}
	})
}

// TestGangs_NeverHoldPartsForever runs gangs against a scheduler that places pods one by one, in any order, on nodes
// that come and go.
func TestGangs_NeverHoldPartsForever(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 4).Draw(t, "size")
		count := rapid.IntRange(2, 4).Draw(t, "gangs")
		free := rapid.IntRange(size, size*count).Draw(t, "room")
		entries := make([]Entry, count)
		asked, bound := make([]bool, count), make([]int, count)
		now := begin
		look := func(i int) {
			left := asked[i] && entries[i].MayRun() || bound[i] > 0
			entries[i] = entries[i].Next(Seen{Pods: size, Bound: bound[i], Started: asked[i], Left: left}, now, timeout, pause)
			asked[i] = entries[i].MayRun()
			if !asked[i] {
				free += bound[i]
				bound[i] = 0
			}
		}
		step := func(steals bool) {
			var pending []Pod
			var waiting []Gang
			here := nodes(int64(free))
			for i, e := range entries {
				switch e.State {
				case Waits:
					waiting = append(waiting, Gang{Key: fmt.Sprint(i), Since: e.Since, Pods: on(here, size, 1)})
				case Starts:
					pending = append(pending, on(here, size-bound[i], 1)...)
				default:
				}
			}
			starts, _, _, _ := Admit(here, pending, nil, waiting)
			for _, key := range starts {
				i := int(key[0] - '0')
				entries[i] = entries[i].LetIn(now)
				asked[i] = true
			}
			if steals && free > 0 && rapid.Bool().Draw(t, "another client takes a node") {
				free--
			}
			for range rapid.IntRange(0, 2*size).Draw(t, "binds") {
				i := rapid.IntRange(0, count-1).Draw(t, "which")
				if asked[i] && bound[i] < size && free > 0 {
					free--
					bound[i]++
				}
			}
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, timeout}).Draw(t, "time"))
			for i := range entries {
				look(i)
				require.True(t, entries[i].MayRun() || bound[i] == 0, "a gang that waits holds nothing")
			}
		}
		for i := range entries {
			look(i)
		}
		for range 10 {
			step(true)
		}
		// Later, nothing takes room from the gangs, and every pod with room gets its node.
		for range 200 {
			step(false)
			for i := range entries {
				for asked[i] && bound[i] < size && free > 0 {
					free--
					bound[i]++
				}
			}
		}
		whole, parts := 0, 0
		for i := range entries {
			if bound[i] == size {
				whole++
			} else {
				parts += bound[i]
			}
		}
		require.Zero(t, parts, "no gang holds a part: %v of %d, %d free", bound, size, free)
		require.True(t, whole == count || free < size, "no gang waits while there is room: %v, %d free", bound, free)
	})
}

func TestStuck_PodsThatGetNoNodeKeepNoRoom(t *testing.T) {
	t.Parallel()
	all := []Node{{Name: "a", Free: Resources{"nvidia.com/gpu": 1}}, {Name: "b", Free: Resources{"nvidia.com/gpu": 1}}}
	pod := Pod{Needs: Resources{"nvidia.com/gpu": 1}, Nodes: map[string]bool{"a": true, "b": true}, GPUs: 1}
	spread := pod
	spread.Key = "spread"
	pending, waiting := []Pod{spread}, []Gang{{Key: "ranks", Since: begin, Pods: []Pod{pod, pod}}}
	var stuck Stuck
	decide := func(now time.Time) []string {
		starts, _, roomy, _ := Admit(all, stuck.Without(pending, now), nil, waiting)
		stuck.Note(pending, roomy, now)
		return starts
	}
	now := begin
	for ; now.Before(begin.Add(stuckAfter)); now = now.Add(5 * time.Second) {
		require.Empty(t, decide(now), "the pod may get a node soon")
	}
	for range 10 {
		require.Equal(t, []string{"ranks"}, decide(now))
		now = now.Add(5 * time.Second)
	}
	// A pod that had no room for a while is not stuck: it gets the room that becomes free first.
	stuck = Stuck{}
	decide(now)
	all[0].Free, all[1].Free = Resources{}, Resources{}
	now = now.Add(5 * time.Second)
	decide(now)
	all[0].Free, all[1].Free = Resources{"nvidia.com/gpu": 1}, Resources{"nvidia.com/gpu": 1}
	now = now.Add(stuckAfter)
	require.Empty(t, decide(now))
	// A pod that got a node is forgotten.
	pending = nil
	require.Equal(t, []string{"ranks"}, decide(now))
	require.Empty(t, stuck.since)
}

// BenchmarkAdmit decides about 1,000 gangs that wait for 500 full nodes.
func BenchmarkAdmit(b *testing.B) {
	all := nodes(make([]int64, 500)...)
	var waiting []Gang
	for i := range 1000 {
		pods := on(all, 4, 8)
		for n := range pods {
			pods[n].Shape = "large"
		}
		waiting = append(waiting, Gang{Key: fmt.Sprint(i), Since: begin, Pods: pods})
	}
	for b.Loop() {
		starts, _, _, _ := Admit(all, nil, nil, waiting)
		require.Empty(b, starts)
	}
}

func TestAdmit_PacksAGangIntoOneDomain(t *testing.T) {
	nodes := []Node{{"a1", Resources{"gpu": 1}}, {"a2", Resources{"gpu": 0}}, {"b1", Resources{"gpu": 1}}, {"b2", Resources{"gpu": 1}}, {"c1", Resources{"gpu": 5}}}
	everywhere := map[string]bool{"a1": true, "a2": true, "b1": true, "b2": true, "c1": true}
	domains := map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2"}} // c1 is in none
	of := func(key string, pods int, required bool) Gang {
		g := Gang{Key: key, Since: begin, Pack: &Pack{Label: "rack", Domains: domains, Required: required}}
		for range pods {
			g.Pods = append(g.Pods, Pod{Shape: "one", Needs: Resources{"gpu": 1}, Nodes: everywhere, GPUs: 1})
		}
		return g
	}
	starts, lacks, _, in := Admit(nodes, nil, nil, []Gang{of("1", 2, true), of("2", 2, true)})
	require.Equal(t, []string{"1"}, starts)
	require.Equal(t, map[string]string{"1": "b"}, in, "the rack with room for all")
	require.Equal(t, map[string]Lack{"2": {Fits: 1}}, lacks, "the other one has room for one")

	starts, _, _, in = Admit(nodes, nil, nil, []Gang{of("1", 2, false), of("2", 2, false)})
	require.Equal(t, []string{"1", "2"}, starts, "it is only preferred")
	require.Equal(t, map[string]string{"1": "b"}, in)

	starts, lacks, _, _ = Admit(nodes, nil, nil, []Gang{of("1", 3, true), of("2", 3, false)})
	require.Equal(t, []string{"2"}, starts)
	require.Equal(t, map[string]Lack{"1": {Fits: 2}}, lacks)
}

func TestAdmit_PacksAGangIntoTheDomainWithTheLeastRoom(t *testing.T) {
	nodes := []Node{{"a1", Resources{"gpu": 4}}, {"b1", Resources{"gpu": 2}}, {"c1", Resources{"gpu": 3}}}
	pack := &Pack{Label: "rack", Domains: map[string][]string{"a": {"a1"}, "b": {"b1"}, "c": {"c1", "gone"}}, Required: true}
	of := func(key string, pods int) Gang {
		g := Gang{Key: key, Since: begin, Pack: pack}
		for range pods {
			g.Pods = append(g.Pods, Pod{Needs: Resources{"gpu": 1}, Nodes: map[string]bool{"a1": true, "b1": true, "c1": true}})
		}
		return g
	}
	starts, lacks, _, in := Admit(nodes, nil, nil, []Gang{of("1", 2), of("2", 4), of("3", 3), of("4", 1)})
	require.Equal(t, []string{"1", "2", "3"}, starts, "a small gang leaves large domains to large gangs")
	require.Equal(t, map[string]string{"1": "b", "2": "a", "3": "c"}, in)
	require.Equal(t, map[string]Lack{"4": {}}, lacks)

	_, lacks, _, _ = Admit(nodes, nil, nil, []Gang{{Key: "1", Since: begin, Pods: of("1", 1).Pods, Pack: &Pack{Label: "zone", Required: true}}})
	require.Equal(t, map[string]Lack{"1": {}}, lacks, "no node is in a domain")
}

func TestAdmit_PackedGangsAreInOneDomain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, pending, waiting := drawGangs(t)
		domains, of := map[string][]string{}, map[string]string{}
		for _, n := range all {
			if domain := rapid.SampledFrom([]string{"", "x", "y", "z"}).Draw(t, "domain"); domain != "" {
				domains[domain], of[n.Name] = append(domains[domain], n.Name), domain
			}
		}
		for i := range waiting {
			if rapid.Bool().Draw(t, "packed") {
				waiting[i].Pack = &Pack{Label: "rack", Domains: domains, Required: rapid.Bool().Draw(t, "required")}
			}
		}
		starts, lacks, _, in := Admit(all, pending, nil, waiting)
		require.Len(t, lacks, len(waiting)-len(starts))
		for _, g := range waiting {
			domain, packed := in[g.Key]
			switch started := slices.Contains(starts, g.Key); {
			case packed:
				require.True(t, started && g.Pack != nil, "only packed gangs that start have a domain")
				for _, p := range g.Pack.In(domain, g.Pods) {
					require.NotEmpty(t, p.Nodes)
					for name := range p.Nodes {
						require.Equal(t, domain, of[name])
					}
				}
			case started:
				require.True(t, g.Pack == nil || !g.Pack.Required, "a gang that must be packed starts in a domain only")
			}
		}
	})
}
