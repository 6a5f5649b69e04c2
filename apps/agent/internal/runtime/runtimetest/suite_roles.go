package runtimetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// makePairs gives each group of the assignment two prefill instances and one decode instance. Decode is
// the entry, and starts after prefill.
func makePairs(a *runtime.Assignment) {
	a.Deployment.Spec.Roles = []*windlassv1.RoleSpec{
		{Name: "prefill", Instances: 2},
		{Name: "decode", Entry: true, StartsAfter: []string{"prefill"}},
	}
}

// makePooled gives the assignment the layout pooled: one group, of which a replica is one percent.
func makePooled(a *runtime.Assignment) { a.Deployment.Spec.Layout = windlassv1.Layout_LAYOUT_POOLED }

// roleInstances sets the number of instances of a role.
func roleInstances(role string, n int32) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) {
		for _, r := range a.Deployment.Spec.Roles {
			if r.Name == role {
				r.Instances = n
			}
		}
	}
}

// roleEnv sets a variable of one role.
func roleEnv(role, name, value string) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) {
		for _, r := range a.Deployment.Spec.Roles {
			if r.Name == role {
				r.Env = map[string]string{name: value} // a clone of an empty map is nil
			}
		}
	}
}

// roleTemplates sets the templates of the two roles.
func roleTemplates(prefill, decode string) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) {
		a.TemplateHash = prefill + decode
		a.RoleTemplates = map[string]string{"prefill": prefill, "decode": decode}
	}
}

// requirePlaced fails if two instances that are not draining have the same place.
func requirePlaced(t *testing.T, all []runtime.Instance) {
	t.Helper()
	seen := map[string]bool{}
	for _, in := range all {
		if in.Status == draining || in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			continue
		}
		at := slotText(in)
		require.False(t, seen[at], "%s exists twice:\n%s", at, describeInstances(all))
		seen[at] = true
	}
}

func slotText(in runtime.Instance) string { return fmt.Sprintf("%s/%d.%d", in.Role, in.Group, in.Slot) }

func placesOf(all []runtime.Instance) []string {
	var out []string
	for _, in := range all {
		out = append(out, slotText(in))
	}
	slices.Sort(out)
	return out
}

// completeGroups returns the groups that are complete with the newest templates.
func (s *suite) completeGroups(t *testing.T) map[int]bool {
	t.Helper()
	d := s.observedOf(t, "dep_1")
	if d == nil {
		return nil
	}
	return d.CompleteGroups(d.IsCurrent)
}

func ofRole(role string) func(runtime.Instance) bool {
	return func(in runtime.Instance) bool { return in.Role == role }
}

func idsOf(all []runtime.Instance, ok func(runtime.Instance) bool) []string {
	var out []string
	for _, in := range all {
		if ok(in) {
			out = append(out, in.ID)
		}
	}
	slices.Sort(out)
	return out
}

var twoGroups = []string{"decode/0.0", "decode/1.0", "prefill/0.0", "prefill/0.1", "prefill/1.0", "prefill/1.1"}

func severalRoles(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2, makePairs, roleEnv("decode", "COLOUR", "blue"), withEnv("COLOUR", "green"))
	s.apply(t, a)
	all := s.awaitReady(t, "dep_1", 6)
	require.Equal(t, twoGroups, placesOf(all))
	require.Equal(t, map[int]bool{0: true, 1: true}, s.completeGroups(t))
	roles := s.observedOf(t, "dep_1").Roles
	require.Len(t, roles, 2)
	require.Equal(t, runtime.RoleCount{Name: "decode", Instances: 1, Entry: true, TemplateHash: "template-1"}, roles[1])
	for _, in := range all {
		require.Equal(t, in.Role, variableOf(t, in, "WINDLASS_ROLE"))
		require.Equal(t, fmt.Sprint(in.Group), variableOf(t, in, "WINDLASS_GROUP"))
		require.Equal(t, fmt.Sprint(in.Slot), variableOf(t, in, "WINDLASS_SLOT"))
		require.Equal(t, "2", variableOf(t, in, "WINDLASS_REPLICAS"))
		require.Equal(t, map[string]string{"decode": "blue", "prefill": "green"}[in.Role], variableOf(t, in, "COLOUR"))
		require.NotEmpty(t, variableOf(t, in, runtime.PeersEnv))
		require.Equal(t, "template-1", in.TemplateHash)
	}
	if !s.Platform.HidesFiles {
		for _, in := range all {
			s.untilPeers(t, in, all)
		}
	}

	a = next(a, withReplicas(3))
	s.apply(t, a)
	more := s.awaitReady(t, "dep_1", 9)
	for _, in := range all {
		require.Contains(t, more, in, "scaling changes no existing group")
	}
	s.apply(t, next(a, withReplicas(1)))
	left := s.awaitReady(t, "dep_1", 3)
	require.Equal(t, []string{"decode/0.0", "prefill/0.0", "prefill/0.1"}, placesOf(left), "the highest groups go")
	for _, in := range left {
		require.Contains(t, all, in)
	}
}

// untilPeers waits until the peers file of an instance lists exactly the ready instances of its
// group.
func (s *suite) untilPeers(t *testing.T, in runtime.Instance, all []runtime.Instance) {
	t.Helper()
	want := runtime.Peers{Group: in.Group, Roles: map[string][]string{"decode": {}, "prefill": {}}}
	sorted := slices.SortedFunc(slices.Values(all), func(a, b runtime.Instance) int { return a.Slot - b.Slot })
	for _, other := range sorted {
		if other.Group == in.Group && isReady(other) {
			want.Roles[other.Role] = append(want.Roles[other.Role], other.Address)
		}
	}
	deadline := time.Now().Add(patience)
	for {
		var got runtime.Peers
		text := get(t, in, "/file?env="+runtime.PeersEnv)
		require.NoError(t, json.Unmarshal([]byte(text), &got), text)
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		require.False(t, time.Now().After(deadline), "peers of %s: want %v, got %v", slotText(in), want, got)
		s.wait()
	}
}

func startsAfter(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, makePairs, roleEnv("prefill", FaultEnv, FaultNeverReady))
	s.apply(t, a)
	all := s.awaitInstances(t, "an instance that waits", "dep_1", func(all []runtime.Instance) bool {
		return len(all) == 3 && count(all, hasStatus(pending, runtime.ReasonWaitsForRole)) == 1 &&
			count(all, hasStatus(running, runtime.ReasonNotReady)) == 2
	})
	in := all[slices.IndexFunc(all, ofRole("decode"))]
	require.Equal(t, "waits for role prefill, of which 0 of 2 are ready", in.Message)
	require.False(t, in.Doomed)
	require.Empty(t, s.completeGroups(t))
	for _, in := range all {
		if in.Role != "prefill" {
			continue
		}
		for !isAnswering(t, in) {
			s.wait() // the process does not listen yet
		}
		tellInstance(t, in, "/well")
	}
	s.awaitReady(t, "dep_1", 3)
	require.Len(t, s.completeGroups(t), 1)
}

func oneRoleChanges(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2, makePairs, roleTemplates("p1", "d1"))
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 6)
	s.apply(t, next(a, roleTemplates("p1", "d2"), roleEnv("decode", "COLOUR", "blue")))
	all := s.awaitInstances(t, "decodes replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		require.GreaterOrEqual(t, count(all, isReady), 5, "one instance at a time is replaced:\n%s", describeInstances(all))
		return len(all) == 6 && count(all, isReady) == 6 && len(s.completeGroups(t)) == 2
	})
	require.Equal(t, twoGroups, placesOf(all))
	for _, in := range before {
		if in.Role == "prefill" {
			require.Contains(t, all, in, "the instance keeps its id and uptime")
		}
	}
	require.NotEqual(t, idsOf(before, ofRole("decode")), idsOf(all, ofRole("decode")))
	for _, in := range all {
		if in.Role == "decode" {
			require.Equal(t, "blue", variableOf(t, in, "COLOUR"))
		}
	}
}

func groupsAreReplaced(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2, makePairs)
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 6)
	s.apply(t, next(a, withTemplate("template-2")))
	s.awaitInstances(t, "all replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		ready := map[int]map[string]int{}
		for _, in := range all {
			if isReady(in) {
				if ready[in.Group] == nil {
					ready[in.Group] = map[string]int{}
				}
				ready[in.Group][in.TemplateHash]++
			}
		}
		serving := 0
		for _, by := range ready {
			if by["template-1"] == 3 || by["template-2"] == 3 {
				serving++
			}
		}
		require.GreaterOrEqual(t, serving, 1, "a group serves at every moment:\n%s", describeInstances(all))
		return len(all) == 6 && count(all, isOf("template-2")) == 6
	})
	for _, in := range before {
		require.NotContains(t, idsOf(s.listInstances(t, "dep_1"), isReady), in.ID)
	}
	require.Equal(t, map[int]bool{0: true, 1: true}, s.completeGroups(t))
}

func groupWithFailedRole(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2, makePairs)
	// The instance stays unready until the test is over.
	a.Deployment.Spec.HealthCheck.UnhealthyThreshold = 3
	s.apply(t, a)
	all := s.awaitReady(t, "dep_1", 6)
	failing := all[slices.IndexFunc(all, func(in runtime.Instance) bool { return slotText(in) == "prefill/0.1" })]
	tellInstance(t, failing, "/sick")
	s.awaitInstances(t, "a group that is not complete", "dep_1", func([]runtime.Instance) bool {
		_, first := s.completeGroups(t)[0]
		return !first
	})
	require.Equal(t, map[int]bool{1: true}, s.completeGroups(t))
	s.apply(t, next(a, withReplicas(1)))
	left := s.awaitReady(t, "dep_1", 3)
	require.Equal(t, []string{"decode/1.0", "prefill/1.0", "prefill/1.1"}, placesOf(left), "the incomplete group is removed")
	for _, in := range left {
		require.Contains(t, all, in)
	}
}

func pooledRoles(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 100, makePairs, makePooled, roleInstances("decode", 2), roleTemplates("p1", "d1"))
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 4)
	require.Equal(t, []string{"decode/0.0", "decode/0.1", "prefill/0.0", "prefill/0.1"}, placesOf(before))
	require.Equal(t, runtime.RoleCount{Name: "prefill", Instances: 2, Pool: 2, TemplateHash: "p1"}, s.observedOf(t, "dep_1").Roles[0])
	for _, in := range before {
		require.Equal(t, "1", variableOf(t, in, "WINDLASS_REPLICAS"))
	}

	a = next(a, roleTemplates("p1", "d2"), roleEnv("decode", "COLOUR", "blue"))
	s.apply(t, a)
	all := s.awaitInstances(t, "decodes replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		require.GreaterOrEqual(t, count(all, isReady), 4, "a new instance starts before an old one goes:\n%s", describeInstances(all))
		return len(all) == 4 && count(all, func(in runtime.Instance) bool {
			return isReady(in) && (in.Role == "prefill" || in.TemplateHash == "d2")
		}) == 4
	})
	for _, in := range before {
		require.Equal(t, in.Role == "prefill", slices.Contains(idsOf(all, isReady), in.ID), "of %s, only decodes are replaced", slotText(in))
	}

	a = next(a, roleInstances("decode", 3))
	s.apply(t, a)
	more := s.awaitReady(t, "dep_1", 5)
	for _, in := range all {
		require.Contains(t, more, in, "scaling a role changes no existing instance")
	}
	a = next(a, roleInstances("prefill", 1), withReplicas(50))
	s.apply(t, a)
	left := s.awaitReady(t, "dep_1", 3)
	require.Len(t, idsOf(left, ofRole("decode")), 2, "50 percent of three decode instances")
	require.Len(t, idsOf(left, ofRole("prefill")), 1)
	for _, in := range left {
		require.Contains(t, more, in)
	}
	require.Equal(t, map[int]bool{0: true}, s.completeGroups(t))

	a = next(a, withReplicas(0))
	s.apply(t, a)
	s.awaitInstances(t, "no role", "dep_1", everyInstance(0, isReady))
	require.NotNil(t, s.observedOf(t, "dep_1"), "a pool at zero is not removed")
	s.awaitNoLeftovers(t)
	a = next(a, withReplicas(100), roleInstances("prefill", 2))
	s.apply(t, a)
	back := s.awaitReady(t, "dep_1", 5)
	require.Len(t, idsOf(back, ofRole("decode")), 3)
	require.Equal(t, map[int]bool{0: true}, s.completeGroups(t))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}

func orderedRoles(t *testing.T, s *suite) {
	inOrder := func(a *runtime.Assignment) {
		a.Deployment.Spec.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_SEQUENTIAL, Sequence: []string{"decode"}}
	}
	a := s.newAssignment("dep_1", 100, makePairs, makePooled, roleInstances("decode", 2), roleTemplates("p1", "d1"))
	s.apply(t, a)
	s.awaitReady(t, "dep_1", 4)

	s.apply(t, next(a, inOrder, roleTemplates("p2", "d2")))
	s.awaitInstances(t, "both roles replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		made := func(template string) int {
			return count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == template })
		}
		started := slices.ContainsFunc(all, func(in runtime.Instance) bool { return in.TemplateHash == "p2" })
		require.False(t, started && made("d2") < 2, "a prefill instance is replaced before all decode instances:\n%s", describeInstances(all))
		return len(all) == 4 && made("d2") == 2 && made("p2") == 2
	})
}

// stayingRole replaces only the decode servers of a pool. They must not wait for the prefill
// server, which comes first in the order, is never ready, and does not move.
func stayingRole(t *testing.T, s *suite) {
	inOrder := func(a *runtime.Assignment) {
		a.Deployment.Spec.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_SEQUENTIAL, Sequence: []string{"prefill"}}
		a.Deployment.Spec.Roles[1].StartsAfter = nil
		a.Deployment.MaxUnavailable = 50
	}
	a := s.newAssignment("dep_1", 100, makePairs, makePooled, roleInstances("decode", 2), inOrder, roleTemplates("p1", "d1"), roleEnv("prefill", FaultEnv, FaultNeverReady))
	s.apply(t, a)
	s.awaitInstances(t, "decodes ready", "dep_1", func(all []runtime.Instance) bool {
		return len(all) == 4 && count(all, func(in runtime.Instance) bool { return isReady(in) && in.Role == "decode" }) == 2
	})
	moves := func(a *runtime.Assignment) { a.Deployment.MovingRoles = []string{"decode"} }
	s.apply(t, next(a, moves, roleTemplates("p1", "d2")))
	s.awaitInstances(t, "decodes replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		return count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "d2" }) == 2
	})
}

func fullPool(t *testing.T, s *suite) {
	if s.GPUs < 2 || s.Platform.HidesGPUs {
		t.Skip("this harness has fewer than two GPUs of its own")
	}
	whenFull := func(value windlassv1.PoolUpdate_WhenFull) func(*runtime.Assignment) {
		return func(a *runtime.Assignment) { a.Deployment.Spec.Update = &windlassv1.PoolUpdate{WhenFull: value} }
	}
	a := s.newAssignment("dep_1", 100, makePairs, makePooled, s.withGPUs(1), roleInstances("prefill", int32(s.GPUs-1)), roleTemplates("p1", "d1"))
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", s.GPUs)
	a = next(a, roleTemplates("p1", "d2"), whenFull(windlassv1.PoolUpdate_WHEN_FULL_WAIT))
	s.apply(t, a)
	s.awaitInstances(t, "one that waits for room", "dep_1", func(all []runtime.Instance) bool {
		return count(all, isReady) == s.GPUs && count(all, hasStatus(pending, runtime.ReasonUnschedulable)) == 1
	})
	s.apply(t, next(a, whenFull(windlassv1.PoolUpdate_WHEN_FULL_REPLACE_IN_PLACE)))
	all := s.awaitInstances(t, "decode replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		require.GreaterOrEqual(t, count(all, isReady), s.GPUs-1, "one at a time:\n%s", describeInstances(all))
		return len(all) == s.GPUs && count(all, func(in runtime.Instance) bool {
			return isReady(in) && (in.Role == "prefill" || in.TemplateHash == "d2")
		}) == s.GPUs
	})
	for _, in := range before {
		require.Equal(t, in.Role == "prefill", slices.Contains(idsOf(all, isReady), in.ID), "of %s, only decode is replaced", slotText(in))
	}
}

func rolesReopened(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2, makePairs, roleTemplates("p1", "d1"))
	reopen := func() {
		s.reopenRuntime(t)
		s.apply(t, a)
	}
	once := func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		return len(all) > 0
	}
	s.apply(t, a)
	reopen()
	s.awaitInstances(t, "some", "dep_1", once)
	reopen()
	all := s.awaitReady(t, "dep_1", 6)
	require.Equal(t, twoGroups, placesOf(all))
	reopen()
	require.Equal(t, idsOf(all, isReady), idsOf(s.awaitReady(t, "dep_1", 6), isReady), "a restart of the agent replaces no instance")

	a = next(a, roleTemplates("p2", "d2"))
	s.apply(t, a)
	reopen()
	s.awaitInstances(t, "an instance of the new template", "dep_1", func(all []runtime.Instance) bool {
		return once(all) && count(all, func(in runtime.Instance) bool { return in.TemplateHash == "p2" }) > 0
	})
	reopen()
	s.awaitInstances(t, "all instances of the new template", "dep_1", func(all []runtime.Instance) bool {
		return once(all) && len(all) == 6 && count(all, isReady) == 6 && len(s.completeGroups(t)) == 2
	})

	a = next(a, withReplicas(1))
	s.apply(t, a)
	reopen()
	require.Equal(t, []string{"decode/0.0", "prefill/0.0", "prefill/0.1"}, placesOf(s.awaitReady(t, "dep_1", 3)))
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.reopenRuntime(t)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}

func rolesLeaveNothing(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 1, makePairs)
	s.apply(t, a)
	s.awaitReady(t, "dep_1", 3)
	a = next(a, withReplicas(0))
	s.apply(t, a)
	s.awaitInstances(t, "none", "dep_1", everyInstance(0, isReady))
	require.NotNil(t, s.observedOf(t, "dep_1"), "a deployment without replicas is not removed")
	require.Equal(t, a.Generation, s.observedOf(t, "dep_1").Generation)
	s.awaitNoLeftovers(t)
	a = next(a, withReplicas(1))
	s.apply(t, a)
	s.awaitReady(t, "dep_1", 3)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}

func rolesRefused(t *testing.T, s *suite) {
	refused := map[string]func(*runtime.Assignment){
		"layout": func(a *runtime.Assignment) {
			makePooled(a)
			a.Deployment.Spec.Roles = a.Deployment.Spec.Roles[:1]
		},
		"roles[1].name":             func(a *runtime.Assignment) { a.Deployment.Spec.Roles[1].Name = "prefill" },
		"2 roles are the entry":     func(a *runtime.Assignment) { a.Deployment.Spec.Roles[0].Entry = true },
		"there is no role":          func(a *runtime.Assignment) { a.Deployment.Spec.Roles[0].StartsAfter = []string{"router"} },
		"role prefill waits for it": func(a *runtime.Assignment) { a.Deployment.Spec.Roles[0].StartsAfter = []string{"decode"} },
	}
	if !s.Platform.SpansHosts {
		refused["roles[0].hosts"] = func(a *runtime.Assignment) { a.Deployment.Spec.Roles[0].Hosts = 2 }
	}
	for says, change := range refused {
		var rej *runtime.Rejection
		require.ErrorAs(t, s.rt.Apply(t.Context(), s.newAssignment("dep_1", 1, makePairs, change)), &rej, says)
		require.False(t, rej.Retryable)
		require.Contains(t, rej.Message, says)
	}
	require.Nil(t, s.observedOf(t, "dep_1"))
}

// severalHosts checks that the platform runs each rank of an instance, and that the runtime reports
// one instance.
func severalHosts(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 2, func(a *runtime.Assignment) {
		a.Deployment.Spec.Roles = []*windlassv1.RoleSpec{{Name: "shard", Hosts: 2}}
	})
	if !s.Platform.SpansHosts {
		var rej *runtime.Rejection
		require.ErrorAs(t, s.rt.Apply(t.Context(), a), &rej)
		require.Equal(t, runtime.ReasonUnsupported, rej.Code)
		require.Contains(t, rej.Message, "roles[0].hosts")
		return
	}
	s.apply(t, a)
	all := s.awaitReady(t, "dep_1", 2)
	require.Equal(t, []string{"shard/0.0", "shard/1.0"}, placesOf(all))
	require.Empty(t, s.observedOf(t, "dep_1").Roles, "one role")
	leaders := map[string]bool{}
	for _, in := range all {
		require.Equal(t, "0", variableOf(t, in, "WINDLASS_RANK"), "requests go to rank 0")
		require.Equal(t, "2", variableOf(t, in, "WINDLASS_HOSTS"))
		require.Equal(t, "1", variableOf(t, in, "WINDLASS_UNIT_EPOCH"))
		leaders[variableOf(t, in, "WINDLASS_LEADER")] = true
	}
	require.Len(t, leaders, 2, "each instance has its own leader")

	first, other := all[0], all[1]
	tellInstance(t, first, "/exit?code=3")
	again := s.awaitInstances(t, "a restart of all ranks", "dep_1", func(all []runtime.Instance) bool {
		return count(all, isReady) == 2 && !slices.ContainsFunc(all, func(in runtime.Instance) bool { return in.ID == first.ID && isReady(in) })
	})
	again = slices.DeleteFunc(again, func(in runtime.Instance) bool { return !isReady(in) })
	require.Equal(t, "2", variableOf(t, again[0], "WINDLASS_UNIT_EPOCH"))
	require.Equal(t, 1, again[0].Restarts, "all ranks restart once")
	require.False(t, leaders[variableOf(t, again[0], "WINDLASS_LEADER")], "ranks of another epoch have another leader")
	requireUntouched(t, other, again[1])

	s.apply(t, next(a, withTemplate("template-2")))
	s.awaitInstances(t, "both instances are replaced", "dep_1", func(all []runtime.Instance) bool {
		return count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "template-2" }) == 2
	})
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}
