package placement

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const gib = int64(1) << 30

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func byModel(decisions []Decision) map[string]Decision {
	all := map[string]Decision{}
	for _, d := range decisions {
		all[d.Model] = d
	}
	return all
}

func TestPlace_Vectors(t *testing.T) {
	first, second := Key{"shared", 0}, Key{"shared", 1}
	servers := []Server{{App: "shared", Index: 0, Memory: 10 * gib}, {App: "shared", Index: 1, Memory: 20 * gib}}
	model := func(id string, memory int64) Model { return Model{ID: id, Memory: memory, Replicas: 1, MinReplicas: 1} }

	t.Run("the most free memory first", func(t *testing.T) {
		got := byModel(Place(noon, servers, []Model{model("a", 8*gib), model("b", 8*gib), model("c", 8*gib), model("d", 8*gib)}))
		require.Equal(t, []Key{second}, got["a"].Servers)
		require.Equal(t, []Key{second}, got["b"].Servers)
		require.Equal(t, []Key{first}, got["c"].Servers)
		d := got["d"]
		require.Empty(t, d.Servers)
		require.Equal(t, 1, d.Short)
		require.Equal(t, "2 servers lack 4 GiB and 6 GiB of the 8 GiB needed", d.Refused.String())
		require.Equal(t, second, d.Refused.Nearest)
		require.Equal(t, NoMemory, d.Refused.NearestReason)
	})
	t.Run("a server holds models up to exactly its memory", func(t *testing.T) {
		got := byModel(Place(noon, servers[:1], []Model{model("a", 10*gib), model("b", 1), model("c", 0)}))
		require.Len(t, got["a"].Servers, 1)
		require.Equal(t, "1 server lacks 1 byte of the 1 byte needed", got["b"].Refused.String())
		require.Len(t, got["c"].Servers, 1)
	})
	t.Run("a model spreads over servers", func(t *testing.T) {
		got := Place(noon, servers, []Model{{ID: "a", Memory: gib, Replicas: 3, MinReplicas: 1}})[0]
		require.Equal(t, []Key{second, first}, got.Servers)
		require.Equal(t, 1, got.Short)
		require.Equal(t, "2 servers have a replica already", got.Refused.String())
	})
	t.Run("reasons are counted, each server once", func(t *testing.T) {
		got := Place(noon, []Server{
			{App: "a", Index: 0, Capabilities: []string{"sklearn"}, Memory: gib},
			{App: "a", Index: 1, Capabilities: []string{"sklearn"}, Memory: gib},
			{App: "b", Index: 0, Capabilities: []string{"onnx"}, Memory: 20 * gib, Draining: true},
			{App: "b", Index: 1, Capabilities: []string{"onnx"}, Memory: 20 * gib, Slots: 1, Holds: []Held{{Model: "x"}}},
			{App: "c", Index: 0, Capabilities: []string{"onnx"}, Memory: 20 * gib},
			{App: "d", Index: 0, Capabilities: []string{"onnx"}, Memory: 10*gib + gib/2},
		}, []Model{{ID: "m", Requires: []string{"onnx"}, Memory: 14 * gib, Replicas: 1, MinReplicas: 1, Quarantined: []string{"c"}}})[0]
		require.Equal(t, "2 servers lack capability onnx; 1 server is of an app whose servers the model has killed; 1 server drains or is not ready; "+
			"1 server has no free slot; 1 server lacks 3.5 GiB of the 14 GiB needed", got.Refused.String())
		require.Equal(t, Key{"d", 0}, got.Refused.Nearest)
	})
	t.Run("no server is a reason", func(t *testing.T) {
		require.Equal(t, "there is no server for models", Place(noon, nil, []Model{model("a", 1)})[0].Refused.String())
		require.Equal(t, "2 servers are of other apps than none, which the model requires", Place(noon, servers, []Model{{ID: "a", App: "none", Replicas: 1}})[0].Refused.String())
	})
	t.Run("many servers that lack memory are one number", func(t *testing.T) {
		many := make([]Server, 5)
		for i := range many {
			many[i] = Server{App: "a", Index: i, Memory: int64(i) * gib}
		}
		require.Equal(t, "5 servers lack memory, at least 4 GiB of the 8 GiB needed", Place(noon, many, []Model{model("a", 8*gib)})[0].Refused.String())
	})
	t.Run("an app that holds the model comes first", func(t *testing.T) {
		got := Place(noon, []Server{
			{App: "a", Index: 0, Memory: 10 * gib, Holds: []Held{{Model: "m", Memory: gib, Serving: true}}},
			{App: "a", Index: 1, Memory: 2 * gib},
			{App: "b", Index: 0, Memory: 40 * gib},
		}, []Model{{ID: "m", Memory: gib, Replicas: 3, MinReplicas: 1}})[0]
		require.Equal(t, []Key{{"a", 0}, {"a", 1}, {"b", 0}}, got.Servers)
		require.Equal(t, []Key{{"a", 1}, {"b", 0}}, got.Load)
	})
	t.Run("minimums come before the rest", func(t *testing.T) {
		got := byModel(Place(noon, servers, []Model{
			{ID: "a", Memory: 10 * gib, Replicas: 2, MinReplicas: 1},
			{ID: "b", Memory: 10 * gib, Replicas: 2, MinReplicas: 1},
			{ID: "c", Memory: 10 * gib, Replicas: 1, MinReplicas: 1},
		}))
		for _, id := range []string{"a", "b", "c"} {
			require.Len(t, got[id].Servers, 1, id)
		}
	})
	t.Run("a server has one model of a name", func(t *testing.T) {
		got := byModel(Place(noon, servers[:1], []Model{
			{ID: "v1", Name: "m", Memory: gib, Replicas: 1, MinReplicas: 1}, {ID: "v2", Name: "m", Memory: gib, Replicas: 1, MinReplicas: 1},
		}))
		require.Len(t, got["v1"].Servers, 1)
		require.Equal(t, "1 server has another version of the model", got["v2"].Refused.String())
	})
	t.Run("servers of other scopes do not exist", func(t *testing.T) {
		got := Place(noon, servers, []Model{{ID: "m", Scope: "other", Replicas: 1}})[0]
		require.Equal(t, "there is no server for models", got.Refused.String())
		require.Empty(t, got.Refused.Nearest)
	})
	t.Run("overcommit adds percent", func(t *testing.T) {
		over := []Server{{App: "a", Memory: 10 * gib, Overcommit: 10}}
		require.Len(t, Place(noon, over, []Model{model("m", 11*gib)})[0].Servers, 1)
		require.Empty(t, Place(noon, over, []Model{model("m", 11*gib+1)})[0].Servers)
	})
}

func TestPlace_Leaving(t *testing.T) {
	held := func(serving bool) []Held { return []Held{{Model: "m", Memory: gib, Serving: serving}} }
	one := []Model{{ID: "m", Memory: gib, Replicas: 1, MinReplicas: 1}}

	t.Run("replicas that do not serve are unloaded first", func(t *testing.T) {
		got := Place(noon, []Server{
			{App: "a", Index: 0, Memory: 9 * gib, Holds: held(false)},
			{App: "a", Index: 1, Memory: 2 * gib, Holds: held(true)},
			{App: "a", Index: 2, Memory: 9 * gib, Holds: held(false)},
		}, one)[0]
		require.Equal(t, []Key{{"a", 1}}, got.Servers)
		require.Equal(t, []Key{{"a", 0}, {"a", 2}}, got.Unload)
	})
	t.Run("a drain waits until the model serves elsewhere", func(t *testing.T) {
		servers := []Server{{App: "a", Index: 0, Memory: 9 * gib, Draining: true, Holds: held(true)}, {App: "a", Index: 1, Memory: 9 * gib}}
		got := Place(noon, servers, one)[0]
		require.Equal(t, []Key{{"a", 1}}, got.Load)
		require.Empty(t, got.Unload)
		servers[1].Holds = held(false)
		require.Empty(t, Place(noon, servers, one)[0].Unload)
		servers[1].Holds = held(true)
		require.Equal(t, []Key{{"a", 0}}, Place(noon, servers, one)[0].Unload)
	})
	t.Run("a drain without room elsewhere keeps the model", func(t *testing.T) {
		got := Place(noon, []Server{{App: "a", Memory: 9 * gib, Draining: true, Holds: held(true)}}, one)[0]
		require.Equal(t, 1, got.Short)
		require.Empty(t, got.Unload)
	})
	t.Run("a model without replicas is unloaded everywhere", func(t *testing.T) {
		got := Place(noon, []Server{{App: "a", Memory: gib, Holds: held(true)}}, []Model{{ID: "m", Memory: gib}})[0]
		require.Equal(t, []Key{{"a", 0}}, got.Unload)
		require.Empty(t, got.Servers)
	})
	t.Run("a model that unloads still uses its memory", func(t *testing.T) {
		got := byModel(Place(noon, []Server{{App: "a", Memory: gib, Holds: []Held{{Model: "m", Memory: gib, Leaving: true}}}},
			[]Model{{ID: "m", Memory: gib, Replicas: 1}, {ID: "n", Memory: gib, Replicas: 1}}))
		require.Empty(t, got["m"].Servers)
		require.Empty(t, got["n"].Servers)
		require.Empty(t, got["m"].Unload)
		require.Equal(t, "1 server has a replica already", got["m"].Refused.String())
	})
	t.Run("a quarantined model is unloaded", func(t *testing.T) {
		got := Place(noon, []Server{{App: "a", Memory: 9 * gib, Holds: held(true)}}, []Model{{ID: "m", Memory: gib, Replicas: 1, Quarantined: []string{"a"}}})[0]
		require.Equal(t, []Key{{"a", 0}}, got.Unload)
	})
}

func TestMemory_Saturates(t *testing.T) {
	require.Equal(t, int64(math.MaxInt64), memoryLimit(math.MaxInt64, 10))
	require.Equal(t, int64(math.MaxInt64), memoryLimit(math.MaxInt64/2, math.MaxInt))
	require.Equal(t, int64(0), memoryLimit(-5, 10))
	require.Equal(t, int64(110), memoryLimit(100, 10))
	require.Equal(t, int64(math.MinInt64), saturatingSubtract(math.MinInt64, 1))
	require.Equal(t, int64(math.MinInt64), saturatingSubtract(-2, math.MaxInt64))
	require.Equal(t, int64(3), saturatingSubtract(3, -1))
	require.Equal(t, int64(math.MaxInt64), add(math.MaxInt64-1, 2))
	got := byModel(Place(noon, []Server{{App: "a", Memory: math.MaxInt64, Overcommit: 100}}, []Model{
		{ID: "a", Memory: math.MaxInt64, Replicas: 1}, {ID: "b", Memory: math.MaxInt64, Replicas: 1},
	}))
	require.Len(t, got["a"].Servers, 1)
	require.Empty(t, got["b"].Servers)
	require.Equal(t, "8388608 TiB", formatBytes(math.MaxInt64))
}

// region has the servers and models that a test draws and changes.
type region struct {
	servers []Server
	models  []Model
}

func drawRegion(t *rapid.T) *region {
	r := &region{}
	capabilities := []string{"onnx", "sklearn"}
	for i := range rapid.IntRange(0, 6).Draw(t, "servers") {
		r.servers = append(r.servers, Server{
			App: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app"), Index: i,
			Capabilities: rapid.SliceOfDistinct(rapid.SampledFrom(capabilities), rapid.ID).Draw(t, "capabilities"),
			Memory:       rapid.Int64Range(0, 20).Draw(t, "memory"), Slots: rapid.IntRange(0, 4).Draw(t, "slots"),
			Draining: rapid.IntRange(0, 5).Draw(t, "draining") == 0,
		})
	}
	for i := range rapid.IntRange(0, 8).Draw(t, "models") {
		replicas := rapid.IntRange(0, 4).Draw(t, "replicas")
		r.models = append(r.models, Model{
			ID: fmt.Sprint("m", i), Memory: rapid.Int64Range(0, 9).Draw(t, "needs"),
			Requires: rapid.SliceOfNDistinct(rapid.SampledFrom(capabilities), 0, 1, rapid.ID).Draw(t, "requires"),
			Replicas: replicas, MinReplicas: rapid.IntRange(0, replicas).Draw(t, "min"),
		})
	}
	return r
}

// carryOut makes the servers hold the models as decided. Loaded models serve at once.
func (r *region) carryOut(decisions []Decision) {
	at := map[Key]*Server{}
	for i := range r.servers {
		at[r.servers[i].Key()] = &r.servers[i]
	}
	memory := map[string]int64{}
	for _, m := range r.models {
		memory[m.ID] = m.Memory
	}
	for _, d := range decisions {
		for _, k := range d.Unload {
			at[k].Holds = slices.DeleteFunc(slices.Clone(at[k].Holds), func(h Held) bool { return h.Model == d.Model })
		}
		for _, k := range d.Load {
			at[k].Holds = append(slices.Clone(at[k].Holds), Held{Model: d.Model, Memory: memory[d.Model], Serving: true})
		}
	}
}

func TestPlace_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRegion(t)
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			decisions := Place(noon, r.servers, r.models)
			require.Equal(t, decisions, Place(noon, slices.Clone(r.servers), r.models), "the same input gives the same answer")
			shuffled := rapid.Permutation(r.servers).Draw(t, "order")
			require.Equal(t, decisions, Place(noon, shuffled, rapid.Permutation(r.models).Draw(t, "order of models")), "order does not matter")

			used, counts := map[Key]int64{}, map[Key]int{}
			for _, s := range r.servers {
				for _, h := range s.Holds {
					used[s.Key()] += h.Memory
					counts[s.Key()]++
				}
			}
			need := map[string]Model{}
			for _, m := range r.models {
				need[m.ID] = m
			}
			for _, d := range decisions {
				m := need[d.Model]
				require.LessOrEqual(t, len(d.Servers), m.Replicas)
				require.Equal(t, m.Replicas, len(d.Servers)+d.Short)
				require.Len(t, slices.Compact(slices.Sorted(maps.Keys(keySet(d.Servers)))), len(d.Servers), "a server holds a model once")
				for _, k := range d.Load {
					used[k] += m.Memory
					counts[k]++
				}
			}
			for _, s := range r.servers {
				require.LessOrEqual(t, used[s.Key()], s.Memory, "never more than a server has")
				if s.Slots > 0 {
					require.LessOrEqual(t, counts[s.Key()], s.Slots)
				}
			}
			for _, d := range decisions {
				m := need[d.Model]
				for _, s := range r.servers {
					fits := !s.Draining && permitReason(&s, &m) == 0 && used[s.Key()]+m.Memory <= s.Memory && (s.Slots == 0 || counts[s.Key()] < s.Slots) &&
						!slices.Contains(d.Servers, s.Key()) && !slices.ContainsFunc(s.Holds, func(h Held) bool { return h.Model == m.ID })
					require.False(t, fits && d.Short > 0, "%s is short while %v has room", d.Model, s.Key())
				}
				require.Equal(t, d.Short > 0, d.Refused.String() != "" && d.Refused.Counts != nil)
			}
			r.carryOut(decisions)
			if rapid.Bool().Draw(t, "change") && len(r.models) > 0 {
				i := rapid.IntRange(0, len(r.models)-1).Draw(t, "which")
				r.models[i].Replicas = rapid.IntRange(r.models[i].MinReplicas, 4).Draw(t, "replicas")
			}
		}
		// Rounds without a change end, and then nothing moves.
		for range 3 {
			r.carryOut(Place(noon, r.servers, r.models))
		}
		for _, d := range Place(noon, r.servers, r.models) {
			require.Empty(t, d.Load, "nothing moves without a cause")
			require.Empty(t, d.Unload, "nothing moves without a cause")
		}
	})
}

func keySet(keys []Key) map[string]bool {
	set := map[string]bool{}
	for _, k := range keys {
		set[fmt.Sprint(k)] = true
	}
	return set
}

func BenchmarkPlace(b *testing.B) {
	var r region
	for i := range 100 {
		r.servers = append(r.servers, Server{App: "a", Index: i, Memory: 100})
	}
	for i := range 5000 {
		r.models = append(r.models, Model{ID: fmt.Sprintf("m%05d", i), Memory: 1, Replicas: 1, MinReplicas: 1})
	}
	for b.Loop() {
		Place(noon, r.servers, r.models)
	}
}
