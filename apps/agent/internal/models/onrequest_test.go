package models

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/modelstate"
)

// addSlots adds a server that evicts models.
func (h *harness) addSlots(id string, slots, evictions int, keep time.Duration) {
	h.add(id, "base", 1000)
	h.update(func() {
		s := h.servers[id]
		s.Slots, s.Evictions, s.Keep = slots, evictions, keep
		h.holds = true
	})
}

// adapter is a model that was loaded before and is loaded on request.
func adapter(id string) Model {
	m := model(id, 1)
	m.Memory, m.Deployment, m.OnRequest, m.Loaded = 1, id, true, true
	return m
}

func TestManager_LoadsOnRequest(t *testing.T) {
	run(t, "a request evicts the model that was unused for longest", func(h *harness) {
		h.addSlots("s1", 2, 10, 20*time.Second)
		h.show()
		h.set(adapter("a"), adapter("b"), adapter("c"))
		h.settle()
		require.Equal(h.t, []string{"s1"}, h.where("a"))
		require.Empty(h.t, h.where("c"))
		require.True(h.t, h.status("c").OnRequest)
		h.pass(20 * time.Second)
		h.manager.Used("a", 1)
		h.pass(time.Second)
		require.Empty(h.t, h.where("c"), "without a request, nothing moves")
		h.manager.Request("c")
		h.pass(time.Second)
		require.Equal(h.t, []string{"s1"}, h.routed("c"))
		require.Empty(h.t, h.where("b"))
		require.True(h.t, h.status("b").OnRequest)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Equal(h.t, 1, h.countUnloads())
	})
	run(t, "a model with requests in flight stays, and the request for another one waits", func(h *harness) {
		h.addSlots("s1", 1, 10, time.Second)
		h.busy = map[string]bool{"a": true}
		h.show()
		h.set(adapter("a"), adapter("b"))
		h.settle()
		for range 5 {
			h.manager.Request("b")
			h.pass(time.Second)
		}
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		h.update(func() { h.busy = nil })
		h.manager.Request("b")
		h.pass(2 * time.Second)
		require.Equal(h.t, []string{"s1"}, h.routed("b"))
	})
	run(t, "a request that is not repeated ends, and evicts nothing later", func(h *harness) {
		h.addSlots("s1", 1, 10, time.Minute)
		h.show()
		h.set(adapter("a"), adapter("b"))
		h.settle()
		h.manager.Request("b")
		h.pass(5 * time.Minute)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Zero(h.t, h.countUnloads())
	})
	run(t, "while a gateway cannot hold requests, nothing is evicted", func(h *harness) {
		h.addSlots("s1", 1, 10, time.Second)
		h.holds = false
		h.show()
		h.set(adapter("a"), adapter("b"))
		h.settle()
		h.manager.Request("b")
		h.pass(5 * time.Second)
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
	})
	run(t, "a new model is loaded once, and a model that is not loaded on request stays", func(h *harness) {
		h.addSlots("s1", 2, 10, time.Second)
		h.show()
		firm := model("a", 1)
		h.set(firm, adapter("b"))
		h.settle()
		fresh := adapter("c")
		fresh.Loaded = false
		h.set(firm, adapter("b"), fresh)
		h.pass(time.Second)
		require.Equal(h.t, []string{"s1"}, h.routed("c"))
		require.Equal(h.t, []string{"s1"}, h.routed("a"))
		require.Empty(h.t, h.where("b"))
	})
	run(t, "two versions of a model are not evicted during an update", func(h *harness) {
		h.addSlots("s1", 2, 10, time.Second)
		h.show()
		older, newer := adapter("a"), adapter("b")
		newer.Name, newer.Order = "b", 1
		h.set(older, newer, adapter("c"))
		h.settle()
		next := adapter("a2")
		next.Name, next.Order = "a", 2
		h.set(older, newer, adapter("c"), next)
		h.settle()
		h.manager.Request("c")
		h.pass(time.Second)
		require.Equal(h.t, []string{"s1"}, h.routed("a"), "only b may be evicted")
		require.Equal(h.t, []string{"s1"}, h.routed("c"))
	})
}

// TestManager_ManyAdapters loads 200 adapters on 8 servers of 4 slots under requests with a Zipf
// distribution: as many as the servers can load adapters for, and several times as many. It logs how
// long requests waited, how many models were evicted and how the requests spread.
func TestManager_ManyAdapters(t *testing.T) {
	t.Run("one request a second", func(t *testing.T) { testManyAdapters(t, 1, 6*time.Minute, 0) })
	t.Run("more than the bound of evictions allows", func(t *testing.T) { testManyAdapters(t, 4, 3*time.Minute, 10*time.Second) })
}

func testManyAdapters(t *testing.T, perSecond int, lasts, median time.Duration) {
	const (
		servers, slots, adapters = 8, 4, 200
		perMinute                = 10
		hold                     = time.Minute
	)
	run(t, "zipf", func(h *harness) {
		h.loadTime = time.Second
		for i := range servers {
			h.addSlots(fmt.Sprint("s", i), slots, perMinute, 20*time.Second)
		}
		h.show()
		var all []Model
		for i := range adapters {
			all = append(all, adapter(fmt.Sprintf("m%03d", i)))
		}
		h.set(all...)
		h.settle()

		source := rand.New(rand.NewPCG(7, 7))
		popular := rand.NewZipf(source, 1.1, 1, adapters-1)
		names := source.Perm(adapters) // so that the popular ones are not the first ones
		waiting := map[string][]time.Time{}
		var waits []time.Duration
		served, asked, late := map[string]int{}, map[string]int{}, 0
		var evictions []int
		began, before := time.Now(), h.countUnloads()
		for n := 0; time.Since(began) < lasts; n++ {
			id := all[names[popular.Uint64()]].ID
			waiting[id] = append(waiting[id], time.Now())
			for _, id := range slices.Sorted(maps.Keys(waiting)) {
				on := h.routed(id)
				if len(on) == 0 {
					if n%perSecond == 0 || len(waiting[id]) == 1 {
						h.manager.Request(id)
					}
					waiting[id] = slices.DeleteFunc(waiting[id], func(since time.Time) bool {
						gone := time.Since(since) >= hold
						if gone {
							late++
						}
						return gone
					})
				} else {
					require.True(h.t, h.request(id))
					h.manager.Used(id, uint64(len(waiting[id])))
					for _, since := range waiting[id] {
						waits = append(waits, time.Since(since))
					}
					served[on[0]] += len(waiting[id])
					asked[id] += len(waiting[id])
					waiting[id] = nil
				}
				if len(waiting[id]) == 0 {
					delete(waiting, id)
				}
			}
			time.Sleep(time.Second / time.Duration(perSecond))
			if n%(60*perSecond) == 60*perSecond-1 {
				evictions, before = append(evictions, h.countUnloads()-before), h.countUnloads()
			}
		}
		slices.Sort(waits)
		total, most, popularMost := 0, 0, 0
		for _, n := range served {
			total, most = total+n, max(most, n)
		}
		for _, n := range asked {
			popularMost = max(popularMost, n)
		}
		ofMean := func(n int) float64 { return float64(n) * servers / float64(total) }
		at := func(q float64) time.Duration { return waits[int(q*float64(len(waits)-1))] }
		h.t.Logf("%d requests, %d gave up after %s; waits: median %s, 90th percentile %s, 99th %s; evictions a minute on %d servers: %v; busiest server: %.2f of the mean, most popular adapter: %.2f",
			total+late, late, hold, at(0.5), at(0.9), at(0.99), servers, evictions, ofMean(most), ofMean(popularMost))
		for _, n := range evictions {
			require.LessOrEqual(h.t, n, servers*perMinute)
		}
		require.LessOrEqual(h.t, at(0.5), median)
		require.LessOrEqual(h.t, late, total/50)
		require.Less(h.t, ofMean(most), max(ofMean(popularMost), 1)+0.5, "requests spread over servers")
		require.Empty(h.t, h.breaches)

		// A server that ends has its slots full again before gateways send to it.
		h.settle()
		h.restart("s0")
		h.pass(3 * time.Second)
		back := 0
		for _, m := range all {
			switch on := h.routed(m.ID); {
			case slices.Contains(on, "s0"):
				require.Contains(h.t, h.where(m.ID), "s0")
				back++
			default:
				require.True(h.t, len(on) > 0 || h.status(m.ID).OnRequest, m.ID)
			}
		}
		require.Equal(h.t, slots, back)
		require.Equal(h.t, modelstate.ModelAvailable, h.status(slices.MaxFunc(all, func(a, b Model) int {
			return len(h.routed(a.ID)) - len(h.routed(b.ID))
		}).ID).State)
		synctest.Wait()
	})
}

func TestManager_SaysWhichRoomModelsNeed(t *testing.T) {
	run(t, "slots", func(h *harness) {
		h.addSlots("s1", 4, 10, time.Second)
		h.addSlots("s2", 4, 10, time.Second)
		h.show()
		need := func(id string) float64 {
			percent, ok := h.manager.Need(id)
			require.True(h.t, ok)
			return percent
		}
		_, ok := h.manager.Need("s1")
		require.False(h.t, ok, "servers have not answered yet")
		h.set(model("a", 1), model("b", 2), adapter("c"))
		h.settle()
		require.InDelta(h.t, 100*3.0/8, need("s1"), 1e-9, "c is loaded and not in use")
		h.manager.Used("c", 1)
		h.pass(2 * time.Minute)
		need("s2")
		h.pass(time.Second)
		require.InDelta(h.t, 100*4.0/8, need("s2"), 1e-9)
		h.pass(10 * time.Minute)
		need("s2")
		h.pass(time.Second)
		require.InDelta(h.t, 100*3.0/8, need("s2"), 1e-9, "time passes")
		h.kill("s2")
		h.settle()
		require.InDelta(h.t, 100*2.0/4, need("s1"), 1e-9, "no other server can have the second replica of b")
		_, ok = h.manager.Need("s2")
		require.False(h.t, ok)
	})
}
