package simulated

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func withRoles(a runtime.Assignment) runtime.Assignment {
	a.Deployment.Spec = &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{
		{Name: "prefill", Instances: 2}, {Name: "decode", Entry: true, StartsAfter: []string{"prefill"}},
	}}
	return a
}

func TestRoles_GroupsStartInOrderAndStopAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Start: func() time.Duration { return time.Second }, Stop: func() time.Duration { return time.Second }})
		require.NoError(t, r.Apply(t.Context(), withRoles(assignment("dep_1", 2, 1, "a"))))
		seen := func() (waits, ready int, groups map[int]bool) {
			d := observe(t, r).Deployments[0]
			for _, in := range d.Instances {
				switch {
				case in.Reason == runtime.ReasonWaitsForRole:
					waits++
				case in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
					ready++
				}
			}
			return waits, ready, d.CompleteGroups(d.IsCurrent)
		}
		waits, ready, groups := seen()
		require.Equal(t, []int{2, 0, 0}, []int{waits, ready, len(groups)})
		time.Sleep(1500 * time.Millisecond)
		waits, ready, groups = seen()
		require.Equal(t, []int{0, 4, 0}, []int{waits, ready, len(groups)})
		time.Sleep(time.Second)
		_, ready, groups = seen()
		require.Equal(t, []int{6, 2}, []int{ready, len(groups)})

		before := r.Ready()["dep_1"]
		next := withRoles(assignment("dep_1", 2, 2, "b"))
		next.RoleTemplates = map[string]string{"prefill": "a"}
		require.NoError(t, r.Apply(t.Context(), next))
		for range 40 {
			_, _, groups = seen()
			if len(groups) == 2 {
				break
			}
			require.GreaterOrEqual(t, len(r.Ready()["dep_1"]), 5, "at most one decode instance is out of service")
			time.Sleep(100 * time.Millisecond)
		}
		_, _, groups = seen()
		require.Len(t, groups, 2)
		kept := 0
		for _, id := range r.Ready()["dep_1"] {
			for _, was := range before {
				if id == was {
					kept++
				}
			}
		}
		require.Equal(t, 4, kept, "prefill instances have the same template, and stay")

		require.NoError(t, r.Crash("dep_1"))
		require.NoError(t, r.Apply(t.Context(), withRoles(assignment("dep_1", 1, 3, "b"))))
		time.Sleep(10 * time.Second)
		_, ready, groups = seen()
		require.Equal(t, 3, ready)
		require.Equal(t, map[int]bool{1: true}, groups, "the group that was not complete was deleted")
		require.NoError(t, r.Remove(t.Context(), "dep_1"))
		time.Sleep(2 * time.Second)
		require.Empty(t, observe(t, r).Deployments)
	})
}

func TestRoles_PoolWithoutRoom(t *testing.T) {
	for whenFull, replaced := range map[windlassv1.PoolUpdate_WhenFull]int{
		windlassv1.PoolUpdate_WHEN_FULL_WAIT: 0, windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE: 3,
	} {
		t.Run(whenFull.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				second := func() time.Duration { return time.Second }
				r := New(Config{Start: second, Stop: second, Room: 3})
				pool := func(generation int64, template string) runtime.Assignment {
					a := assignment("dep_1", 100, generation, template)
					a.Deployment.Spec = &windlassv1.DeploymentSpec{
						Layout: windlassv1.Layout_LAYOUT_POOLED, Update: &windlassv1.PoolUpdate{WhenFull: whenFull},
						Roles: []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Entry: true}},
					}
					return a
				}
				require.NoError(t, r.Apply(t.Context(), pool(1, "a")))
				time.Sleep(2 * time.Second)
				require.Len(t, r.Ready()["dep_1"], 3)
				require.NoError(t, r.Apply(t.Context(), pool(2, "b")))
				for range 100 {
					require.GreaterOrEqual(t, len(r.Ready()["dep_1"]), 1, "one of each role at a time")
					time.Sleep(100 * time.Millisecond)
				}
				made, waits := 0, 0
				for _, in := range observe(t, r).Deployments[0].Instances {
					switch {
					case in.Reason == runtime.ReasonUnschedulable:
						waits++
					case in.TemplateHash == "b":
						made++
					}
				}
				require.Equal(t, replaced, made)
				require.Equal(t, replaced == 0, waits > 0, "it is seen that they wait")
			})
		})
	}
}

func TestRoles_PoolOfOneRoleIsRefused(t *testing.T) {
	a := assignment("dep_1", 1, 1, "a")
	a.Deployment.Spec = &windlassv1.DeploymentSpec{Layout: windlassv1.Layout_LAYOUT_POOLED}
	var rej *runtime.Rejection
	require.ErrorAs(t, New(Config{}).Apply(t.Context(), a), &rej)
	require.Equal(t, runtime.ReasonInvalidSpec, rej.Code)
}

func TestRoles_SeveralInstancesOfSeveralHostsNeedSeveralRoles(t *testing.T) {
	shard := &windlassv1.RoleSpec{Name: "shard", Hosts: 2, Instances: 2}
	rej := runtime.RefuseRoles(&windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{shard}})
	require.NotNil(t, rej)
	require.Equal(t, runtime.ReasonUnsupported, rej.Code)
	require.Contains(t, rej.Message, "roles[0].instances: ")
	require.Nil(t, runtime.RefuseRoles(&windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "router", Entry: true}, shard}}))
}

func TestRoles_StableSlotsAreReplacedInTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Start: func() time.Duration { return time.Second }, Stop: func() time.Duration { return time.Second }})
		stable := func(replicas int, generation int64, template string) runtime.Assignment {
			a := assignment("dep_1", replicas, generation, template)
			a.Deployment.Spec = &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "cache", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}}
			return a
		}
		places := func() map[int]string {
			out := map[int]string{}
			for _, in := range observe(t, r).Deployments[0].Instances {
				if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
					require.Empty(t, out[in.Group], "two instances have the slot")
					out[in.Group] = in.TemplateHash
				}
			}
			return out
		}
		require.NoError(t, r.Apply(t.Context(), stable(3, 1, "a")))
		time.Sleep(2 * time.Second)
		require.Equal(t, map[int]string{0: "a", 1: "a", 2: "a"}, places())
		require.NoError(t, r.Apply(t.Context(), stable(3, 2, "b")))
		for range 150 {
			require.GreaterOrEqual(t, len(places()), 2, "one slot at a time")
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, map[int]string{0: "b", 1: "b", 2: "b"}, places())
		require.NoError(t, r.Apply(t.Context(), stable(2, 3, "b")))
		time.Sleep(2 * time.Second)
		require.Equal(t, map[int]string{0: "b", 1: "b"}, places())
	})
}

// A secret that a version names without a version of the secret is fetched anew, and then every role has another template.
// The roles that the version once moved stay the same.
func TestRoles_StableSlotsOfAPoolAreKeptByARotatedSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := func() time.Duration { return time.Second }
		r := New(Config{Start: second, Stop: second})
		pool := func(generation int64, router, cache string) runtime.Assignment {
			a := assignment("dep_1", 100, generation, cache)
			a.RoleTemplates = map[string]string{"router": router, "cache": cache}
			a.Deployment.MaxUnavailable, a.Deployment.MovingRoles = 34, []string{"router"}
			a.Deployment.Spec = &windlassv1.DeploymentSpec{
				Layout: windlassv1.Layout_LAYOUT_POOLED, Update: &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_SEQUENTIAL},
				Roles: []*windlassv1.RoleSpec{{Name: "router", Entry: true}, {Name: "cache", Instances: 3, Slots: windlassv1.RoleSpec_SLOTS_STABLE}},
			}
			return a
		}
		templates := func() map[string]string {
			out := map[string]string{}
			for _, in := range observe(t, r).Deployments[0].Instances {
				if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
					place := fmt.Sprint(in.Role, in.Slot)
					require.NotContains(t, out, place, "two instances have the slot")
					out[place] = in.TemplateHash
				}
			}
			return out
		}
		require.NoError(t, r.Apply(t.Context(), pool(1, "r1", "c1")))
		time.Sleep(2 * time.Second)
		require.NoError(t, r.Apply(t.Context(), pool(2, "r2", "c1")), "only the router moves")
		time.Sleep(10 * time.Second)
		require.Equal(t, map[string]string{"router0": "r2", "cache0": "c1", "cache1": "c1", "cache2": "c1"}, templates())

		require.NoError(t, r.Apply(t.Context(), pool(3, "r3", "c3")))
		for range 200 {
			caches := 0
			for place := range templates() {
				if place != "router0" {
					caches++
				}
				require.Contains(t, []string{"router0", "cache0", "cache1", "cache2"}, place, "a slot in addition")
			}
			require.GreaterOrEqual(t, caches, 2, "one cache at a time")
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, map[string]string{"router0": "r3", "cache0": "c3", "cache1": "c3", "cache2": "c3"}, templates())
	})
}
