package simulated

import (
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// successor returns an assignment by which a deployment takes over another deployment's workload.
func successor(id, workload string, replicas int, generation int64, template string) runtime.Assignment {
	a := assignment(id, replicas, generation, template)
	a.WorkloadKey = workload
	return a
}

func TestWorkload_BelongsToTheLastAssignment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Start: func() time.Duration { return time.Second }, Stop: func() time.Duration { return time.Second }})
		old := assignment("dep_1", 2, 1, "a")
		require.NoError(t, r.Apply(t.Context(), old))
		time.Sleep(2 * time.Second)
		before := r.Ready()["dep_1"]
		require.Len(t, before, 2)
		require.NoError(t, r.Apply(t.Context(), successor("dep_2", "dep_1", 2, 1, "a")))
		require.Equal(t, before, r.Ready()["dep_2"], "the instances are the same")
		require.Empty(t, r.Ready()["dep_1"])
		require.NoError(t, r.Apply(t.Context(), old))
		require.Equal(t, before, r.Ready()["dep_2"], "a repeated assignment takes no instance back")
		require.NoError(t, r.Remove(t.Context(), "dep_1"))
		require.Equal(t, map[string]int{"dep_2": 2}, r.Running())
		require.Equal(t, before, r.Ready()["dep_2"])
		require.Equal(t, 2, r.Starts())
		require.NoError(t, r.Remove(t.Context(), "dep_2"))
		require.Equal(t, map[string]int{"dep_2": 2}, r.Running(), "the instances are stopping")
		time.Sleep(2 * time.Second)
		require.Empty(t, observe(t, r).Deployments)
	})
}

func TestTransfer_OfReadyInstancesIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		count := map[string]int{}
		r := New(Config{Start: func() time.Duration { return time.Second }, Ready: func(id, _ string) {
			mu.Lock()
			defer mu.Unlock()
			count[id]++
		}})
		reported := func() map[string]int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(count)
		}
		require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 2, 1, "a")))
		time.Sleep(2 * time.Second)
		require.NoError(t, r.Apply(t.Context(), successor("dep_2", "dep_1", 3, 1, "a")))
		require.Equal(t, map[string]int{"dep_1": 2, "dep_2": 2}, reported())
		time.Sleep(2 * time.Second)
		require.NoError(t, r.Apply(t.Context(), successor("dep_2", "dep_1", 3, 2, "a")))
		require.Equal(t, map[string]int{"dep_1": 2, "dep_2": 3}, reported())
		require.NoError(t, r.Apply(t.Context(), successor("dep_3", "dep_1", 3, 1, "b")))
		require.Zero(t, reported()["dep_3"], "the instances are replaced first")
		time.Sleep(10 * time.Second)
		require.Equal(t, 3, reported()["dep_3"])
	})
}

func TestReplacement_IsMaxUnavailableAtATime(t *testing.T) {
	for _, most := range []int{0, 1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			r := New(Config{Start: func() time.Duration { return time.Second }, Stop: func() time.Duration { return time.Second }})
			require.NoError(t, r.Apply(t.Context(), assignment("dep_1", 4, 1, "a")))
			time.Sleep(1500 * time.Millisecond)
			before := r.Ready()["dep_1"]
			a := successor("dep_2", "dep_1", 4, 1, "b")
			a.Deployment.MaxUnavailable = int32(most)
			require.NoError(t, r.Apply(t.Context(), a))
			for range 40 {
				require.GreaterOrEqual(t, len(r.Ready()["dep_2"]), 4-max(most, 1), "at most %d at a time", most)
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(10 * time.Second)
			require.Len(t, r.Ready()["dep_2"], 4)
			for _, id := range before {
				require.NotContains(t, r.Ready()["dep_2"], id)
			}
			require.Equal(t, 8, r.Starts())
		})
	}
}

// After any assignments and removals, a workload has the replicas and the template of its owner:
// the last assigned deployment that was not removed since.
func TestWorkload_FollowsItsOwnerProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			second := func() time.Duration { return time.Second }
			r := New(Config{Start: second, Stop: second})
			ids := []string{"dep_1", "dep_2", "dep_3"}
			var members []runtime.Assignment // deployments that were not removed, in the order of assignment
			drop := func(id string) {
				for i := range members {
					if members[i].Deployment.Id == id {
						members = append(members[:i:i], members[i+1:]...)
						return
					}
				}
			}
			for generation := range int64(rapid.IntRange(1, 20).Draw(rt, "steps")) {
				id := rapid.SampledFrom(ids).Draw(rt, "id")
				drop(id)
				if rapid.IntRange(0, 3).Draw(rt, "what") == 0 {
					require.NoError(t, r.Remove(t.Context(), id))
				} else {
					a := successor(id, "dep_1", rapid.IntRange(0, 4).Draw(rt, "replicas"), generation, rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "template"))
					a.Deployment.MaxUnavailable = int32(rapid.IntRange(0, 3).Draw(rt, "unavailable"))
					require.NoError(t, r.Apply(t.Context(), a))
					members = append(members, a)
				}
				time.Sleep(time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond)
			}
			time.Sleep(time.Minute)
			want := map[string]int{}
			for i, a := range members {
				want[a.Deployment.Id] = 0
				if i == len(members)-1 {
					want[a.Deployment.Id] = int(a.Deployment.Replicas)
				}
			}
			require.Equal(t, want, r.Running())
			for _, d := range observe(t, r).Deployments {
				for _, i := range d.Instances {
					require.Equal(t, d.TemplateHash, i.TemplateHash)
				}
			}
		})
	})
}
