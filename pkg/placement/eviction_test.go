package placement

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fullServer is a server whose models have served for an hour.
func fullServer(index, slots int, models ...string) Server {
	s := Server{App: "base", Index: index, Slots: slots, Eviction: &Eviction{PerMinute: 2, Keep: 20 * time.Second}}
	for _, m := range models {
		s.Holds = append(s.Holds, Held{Model: m, Serving: true, Since: noon.Add(-time.Hour)})
	}
	return s
}

// onRequest is a model that was last used some time ago.
func onRequest(id string, unused time.Duration) Model {
	return Model{ID: id, Replicas: 1, MinReplicas: 1, OnRequest: true, LastUsed: noon.Add(-unused)}
}

func requested(id string, waits time.Duration) Model {
	m := onRequest(id, time.Hour)
	m.Requested = noon.Add(-waits)
	return m
}

func TestPlace_Evicts(t *testing.T) {
	first, second := Key{"base", 0}, Key{"base", 1}

	t.Run("the least recently used model, and the requested one waits for its room", func(t *testing.T) {
		servers := []Server{fullServer(0, 2, "a", "b")}
		models := []Model{onRequest("a", time.Minute), onRequest("b", 2*time.Minute), requested("m", time.Second)}
		got := byModel(Place(noon, servers, models))
		require.Equal(t, []Key{first}, got["b"].Evict)
		require.Equal(t, 1, got["b"].Short)
		require.True(t, got["b"].OnRequest)
		require.Empty(t, got["a"].Evict)
		require.Empty(t, got["m"].Load)

		// While b is unloaded, nothing else is evicted, and no other model takes the room.
		servers[0].Holds[1].Leaving, servers[0].Holds[1].Serving = true, false
		got = byModel(Place(noon, servers, append(models, onRequest("x", 0))))
		require.Empty(t, got["a"].Evict)
		require.Empty(t, got["m"].Load)
		servers[0].Holds = servers[0].Holds[:1]
		got = byModel(Place(noon, servers, append(models, onRequest("x", 0))))
		require.Equal(t, []Key{first}, got["m"].Load)
		require.Empty(t, got["x"].Load)
	})
	t.Run("not before it has served for a time, and not with requests in flight", func(t *testing.T) {
		servers := []Server{fullServer(0, 1, "a")}
		busy := onRequest("a", time.Minute)
		busy.Busy = true
		require.Empty(t, byModel(Place(noon, servers, []Model{busy, requested("m", 0)}))["a"].Evict)
		servers[0].Holds[0].Since = noon.Add(-19 * time.Second)
		require.Empty(t, byModel(Place(noon, servers, []Model{onRequest("a", time.Minute), requested("m", 0)}))["a"].Evict)
		servers[0].Holds[0].Since = noon.Add(-20 * time.Second)
		require.NotEmpty(t, byModel(Place(noon, servers, []Model{onRequest("a", time.Minute), requested("m", 0)}))["a"].Evict)
	})
	t.Run("as many a minute as the server allows, for those that wait longest", func(t *testing.T) {
		servers := []Server{fullServer(0, 4, "a", "b", "c", "d")}
		servers[0].Eviction.Past = []time.Time{noon.Add(-time.Minute), noon.Add(-59 * time.Second)}
		models := []Model{
			onRequest("a", 4*time.Minute), onRequest("b", 3*time.Minute), onRequest("c", 2*time.Minute), onRequest("d", time.Minute),
			requested("m", time.Second), requested("n", 2*time.Second),
		}
		got := byModel(Place(noon, servers, models))
		require.Equal(t, []Key{first}, got["a"].Evict)
		require.Empty(t, got["b"].Evict)
		servers[0].Holds = servers[0].Holds[1:]
		got = byModel(Place(noon, servers, models))
		require.Equal(t, []Key{first}, got["n"].Load)
		require.Empty(t, got["m"].Load)
	})
	t.Run("only models that are loaded on request, for a request or for models that are not", func(t *testing.T) {
		servers := []Server{fullServer(0, 1, "a")}
		firm := Model{ID: "a", Replicas: 1, MinReplicas: 1}
		got := byModel(Place(noon, servers, []Model{firm, requested("m", 0)}))
		require.Empty(t, got["a"].Evict)
		require.False(t, got["m"].OnRequest, "no request can load it")
		got = byModel(Place(noon, servers, []Model{onRequest("a", time.Minute), onRequest("m", 0)}))
		require.Empty(t, got["a"].Evict, "no request waits for m")
		require.True(t, got["m"].OnRequest)
		got = byModel(Place(noon, servers, []Model{onRequest("a", time.Minute), {ID: "m", Replicas: 1, MinReplicas: 1}}))
		require.Equal(t, []Key{first}, got["a"].Evict)
		servers[0].Eviction = nil
		got = byModel(Place(noon, servers, []Model{onRequest("a", time.Minute), requested("m", 0)}))
		require.Empty(t, got["a"].Evict)
		require.False(t, got["m"].OnRequest)
	})
	t.Run("a new model comes after requested ones", func(t *testing.T) {
		servers := []Server{fullServer(0, 1, "a")}
		fresh := onRequest("f", 0)
		fresh.New = true
		got := byModel(Place(noon, servers, []Model{onRequest("a", time.Minute), fresh}))
		require.Equal(t, []Key{first}, got["a"].Evict)
		servers[0].Holds = nil
		got = byModel(Place(noon, servers, []Model{onRequest("a", time.Minute), fresh, requested("m", 0)}))
		require.Equal(t, []Key{first}, got["m"].Load)
	})
	t.Run("the server with fewer requests, if both have a model that is unused for long", func(t *testing.T) {
		servers := []Server{fullServer(0, 2, "hot", "a"), fullServer(1, 2, "warm", "b")}
		hot, warm := onRequest("hot", 0), onRequest("warm", 0)
		hot.Rate, warm.Rate = 9, 1
		models := []Model{hot, warm, onRequest("a", 10*time.Minute), onRequest("b", 6*time.Minute), requested("m", 0)}
		require.Equal(t, []Key{second}, byModel(Place(noon, servers, models))["b"].Evict)
		models[3] = onRequest("b", 4*time.Minute)
		require.Equal(t, []Key{first}, byModel(Place(noon, servers, models))["a"].Evict)
	})
	t.Run("several models, if the room of one is not enough", func(t *testing.T) {
		server := fullServer(0, 0, "a", "b", "c")
		server.Memory = 6
		for i := range server.Holds {
			server.Holds[i].Memory = 2
		}
		big := requested("m", 0)
		big.Memory = 4
		models := []Model{onRequest("a", 3*time.Minute), onRequest("b", 2*time.Minute), onRequest("c", time.Minute), big}
		got := byModel(Place(noon, []Server{server}, models))
		require.Equal(t, []Key{first}, got["a"].Evict)
		require.Equal(t, []Key{first}, got["b"].Evict)
		require.Empty(t, got["c"].Evict)
		models[3].Memory = 7
		got = byModel(Place(noon, []Server{server}, models))
		require.Empty(t, got["a"].Evict, "the server never has the room")
		require.False(t, got["m"].OnRequest)
	})
	t.Run("nothing for a model whose load has failed, until it is tried again", func(t *testing.T) {
		failed := requested("m", 0)
		failed.Failed = []Key{second}
		got := byModel(Place(noon, []Server{fullServer(0, 1, "a"), fullServer(1, 1)}, []Model{onRequest("a", time.Minute), failed}))
		require.Empty(t, got["a"].Evict)
		require.Empty(t, got["m"].Load)
	})
	t.Run("free room goes to the models that were used last", func(t *testing.T) {
		got := byModel(Place(noon, []Server{fullServer(0, 1)}, []Model{onRequest("a", time.Hour), onRequest("b", time.Minute)}))
		require.Empty(t, got["a"].Load)
		require.Equal(t, []Key{first}, got["b"].Load)
	})
}

func TestPlace_EvictionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := noon
		var servers []Server
		for i := range rapid.IntRange(1, 4).Draw(t, "servers") {
			servers = append(servers, fullServer(i, rapid.IntRange(1, 3).Draw(t, "slots")))
		}
		var models []Model
		for i := range rapid.IntRange(1, 12).Draw(t, "models") {
			models = append(models, onRequest(fmt.Sprint("m", i), time.Hour))
			models[i].OnRequest = rapid.IntRange(0, 4).Draw(t, "firm") > 0
		}
		evicted := map[Key][]time.Time{}
		for range rapid.IntRange(1, 20).Draw(t, "rounds") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "pause")) * time.Second)
			if m := &models[rapid.IntRange(0, len(models)-1).Draw(t, "requested")]; m.OnRequest && m.Requested.IsZero() {
				m.Requested, m.LastUsed = now, now
			}
			for _, d := range Place(now, servers, models) {
				for _, k := range d.Evict {
					s := &servers[k.Index]
					for i, h := range s.Holds {
						if h.Model != d.Model {
							continue
						}
						require.GreaterOrEqual(t, now.Sub(h.Since), s.Eviction.Keep)
						s.Holds = append(append([]Held{}, s.Holds[:i]...), s.Holds[i+1:]...)
						break
					}
					s.Eviction.Past = append(s.Eviction.Past, now)
					evicted[k] = append(evicted[k], now)
				}
				for _, k := range d.Load {
					servers[k.Index].Holds = append(servers[k.Index].Holds, Held{Model: d.Model, Serving: true, Since: now})
				}
				for i := range models {
					if models[i].ID == d.Model && len(d.Servers) > 0 {
						models[i].Requested = time.Time{}
					}
					if models[i].ID == d.Model && !models[i].OnRequest {
						require.Empty(t, d.Evict, "only models that are loaded on request")
					}
				}
			}
			for _, s := range servers {
				require.LessOrEqual(t, len(s.Holds), s.Slots)
			}
		}
		for k, times := range evicted {
			for i, at := range times {
				n := 0
				for _, other := range times[i:] {
					if other.Sub(at) < time.Minute {
						n++
					}
				}
				require.LessOrEqual(t, n, servers[k.Index].Eviction.PerMinute, "in any minute")
			}
		}
	})
}
