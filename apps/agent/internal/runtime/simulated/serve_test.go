package simulated

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// servers are the servers of a runtime's instances. Timers of the runtime end them.
type servers struct {
	mu      sync.Mutex
	serves  map[string]bool // true while they serve, false once they ended, by id
	crashed []string
}

func (s *servers) serve(app, id string) (string, func(bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serves[id] = true
	return app + "/" + id, func(crashed bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.serves[id] = false
		if crashed {
			s.crashed = append(s.crashed, id)
		}
	}
}

// all returns which servers serve, by id.
func (s *servers) all() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.serves)
}

// crashes returns the ids of instances whose servers ended with a crash.
func (s *servers) crashes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.crashed)
}

// serving returns a runtime of servers, and its holder. released has the ids of instances that gateways have released.
func serving() (r *Runtime, h *Held, s *servers, released *sync.Map, again func()) {
	s, released = &servers{serves: map[string]bool{}}, &sync.Map{}
	r = New(Config{Stop: func() time.Duration { return time.Second }, Serve: s.serve})
	h = r.Take()
	again = h.Drain(func(id string) bool { _, ok := released.Load(id); return ok }, func(string) time.Duration { return 30 * time.Second })
	return r, h, s, released, again
}

func TestServers_StopOnceGatewaysReleasedThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, s, released, again := serving()
		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 2, 1, "a")))
		first, second := r.Ready()["dep_1"][0], r.Ready()["dep_1"][1]
		for _, in := range observe(t, r).Deployments[0].Instances {
			require.Equal(t, "app/"+in.ID, in.Address)
		}
		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 1, 2, "a")))
		time.Sleep(29 * time.Second)
		require.True(t, s.all()[second])
		seen := map[string]windlassv1.InstanceStatus{}
		for _, in := range observe(t, r).Deployments[0].Instances {
			seen[in.ID] = in.Status
		}
		require.Equal(t, map[string]windlassv1.InstanceStatus{
			first: windlassv1.InstanceStatus_INSTANCE_STATUS_READY, second: windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING,
		}, seen)
		require.Equal(t, 2, r.Running()["dep_1"])
		released.Store(second, true)
		again()
		require.True(t, s.all()[second], "its stop takes a second")
		time.Sleep(2 * time.Second)
		require.False(t, s.all()[second])
		require.Equal(t, 1, r.Running()["dep_1"])
		require.Len(t, observe(t, r).Deployments[0].Instances, 1)

		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 0, 3, "a")))
		time.Sleep(30*time.Second + 1100*time.Millisecond)
		require.False(t, s.all()[first], "gateways did not release it in time")
		require.Empty(t, s.crashes())
	})
}

func TestServers_EndAtOnceWithACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, s, _, _ := serving()
		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 1, 1, "a")))
		id := r.Ready()["dep_1"][0]
		require.NoError(t, r.Crash("dep_1"))
		require.Equal(t, []string{id}, s.crashes())
		require.False(t, s.all()[id])
		require.True(t, s.all()[r.Ready()["dep_1"][0]])
	})
}

func TestServers_DrainWithoutAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts atomic.Int32
		s := &servers{serves: map[string]bool{}}
		r := New(Config{Start: func() time.Duration { starts.Add(1); return 10 * time.Second }, Serve: s.serve})
		h := r.Take()
		h.Drain(func(string) bool { return false }, func(string) time.Duration { return 30 * time.Second })
		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 2, 1, "a")))
		time.Sleep(11 * time.Second)
		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 2, 2, "b")))
		r.Take()
		time.Sleep(11 * time.Second) // the second instance is replaced while no agent has the runtime
		require.EqualValues(t, 4, starts.Load())
		serve := 0
		for _, on := range s.all() {
			if on {
				serve++
			}
		}
		require.Equal(t, 3, serve, "both old instances, and one new one")
		time.Sleep(lonePatience + time.Second)
		require.Len(t, r.Ready()["dep_1"], 2)
		for _, id := range r.Ready()["dep_1"] {
			require.True(t, s.all()[id])
		}
		require.Len(t, observe(t, r).Deployments[0].Instances, 2)
	})
}

func TestServers_RemovedDeploymentsWaitForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, s, _, _ := serving()
		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 2, 1, "a")))
		require.NoError(t, h.Apply(t.Context(), assignment("dep_1", 1, 2, "a")))
		require.NoError(t, h.Remove(t.Context(), "dep_1"))
		time.Sleep(2 * time.Second)
		require.Empty(t, observe(t, r).Deployments)
		for id, on := range s.all() {
			require.False(t, on, id)
		}
		require.Zero(t, r.draining)
	})
}

func TestServers_OfAPoolDrainIfTheyAreEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, s, _, _ := serving()
		pool := func(generation int64, prefill, decode int32) runtime.Assignment {
			a := assignment("dep_1", 100, generation, "a")
			a.Deployment.Spec = &windlassv1.DeploymentSpec{
				Layout: windlassv1.Layout_LAYOUT_POOLED,
				Roles:  []*windlassv1.RoleSpec{{Name: "prefill", Instances: prefill}, {Name: "decode", Instances: decode, Entry: true}},
			}
			return a
		}
		require.NoError(t, h.Apply(t.Context(), pool(1, 2, 2)))
		require.Len(t, r.Ready()["dep_1"], 4)
		require.NoError(t, h.Apply(t.Context(), pool(2, 1, 1)))
		time.Sleep(2 * time.Second)
		draining := map[string]int{}
		for _, in := range observe(t, r).Deployments[0].Instances {
			draining[fmt.Sprint(in.Role, " ", in.Status)]++
		}
		require.Equal(t, map[string]int{"prefill INSTANCE_STATUS_READY": 1, "decode INSTANCE_STATUS_READY": 1, "decode INSTANCE_STATUS_DRAINING": 1}, draining)
		require.Len(t, s.all(), 4)
	})
}

func TestUsage_IsOfARole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{CPU: func(app, role string) (float64, bool) {
			return map[string]float64{"prefill": 600, "decode": 100}[role], app == "app"
		}})
		a := assignment("dep_1", 100, 1, "a")
		a.Deployment.Spec = &windlassv1.DeploymentSpec{
			Layout: windlassv1.Layout_LAYOUT_POOLED, Roles: []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Entry: true}},
		}
		require.NoError(t, r.Apply(t.Context(), a))
		used := map[string]float64{}
		for _, in := range observe(t, r).Deployments[0].Instances {
			got, err := r.Usage(t.Context(), r.Ready()["dep_1"])
			require.NoError(t, err)
			used[in.Role] = got[in.ID].CPUMillicores
		}
		require.Equal(t, map[string]float64{"prefill": 300, "decode": 100}, used)
	})
}
