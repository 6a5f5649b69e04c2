package runtimetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// stableRole gives the assignment one role with stable slots.
func stableRole(a *runtime.Assignment) {
	a.Deployment.Spec.Roles = []*windlassv1.RoleSpec{{Name: "cache", Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
}

// findIdentity returns the identity that an instance gets from its slot: its host name in
// Kubernetes, otherwise the text that markSlots stored in the slot's directory.
func (s *suite) findIdentity(t *testing.T, in runtime.Instance) string {
	t.Helper()
	if s.Platform.HidesFiles {
		return variableOf(t, in, "WINDLASS_SLOT_HOST")
	}
	return get(t, in, "/kept")
}

// markSlots gives each slot its own content, and returns the identity of each instance by its place.
func (s *suite) markSlots(t *testing.T, all []runtime.Instance) map[string]string {
	t.Helper()
	out, seen := map[string]string{}, map[string]bool{}
	for _, in := range all {
		if !s.Platform.HidesFiles {
			require.Empty(t, s.findIdentity(t, in), "a new slot is empty")
			tellInstance(t, in, "/keep?text="+slotText(in))
		}
		id := s.findIdentity(t, in)
		require.NotEmpty(t, id)
		require.False(t, seen[id], "two slots have the identity %s", id)
		out[slotText(in)], seen[id] = id, true
	}
	return out
}

func (s *suite) findIdentities(t *testing.T, all []runtime.Instance) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, in := range all {
		out[slotText(in)] = s.findIdentity(t, in)
	}
	return out
}

func stableSlots(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 3, stableRole)
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 3)
	require.Equal(t, []string{"cache/0.0", "cache/1.0", "cache/2.0"}, placesOf(before))
	marks := s.markSlots(t, before)

	a = next(a, withTemplate("template-2"))
	s.apply(t, a)
	all := s.awaitInstances(t, "all replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		require.GreaterOrEqual(t, count(all, isReady), 2, "one slot at a time:\n%s", describeInstances(all))
		return len(all) == 3 && count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "template-2" }) == 3
	})
	require.Equal(t, placesOf(before), placesOf(all))
	require.Equal(t, marks, s.findIdentities(t, all), "the successor has the slot")
	for _, in := range all {
		require.NotContains(t, idsOf(before, isReady), in.ID)
	}

	// Another deployment takes the slots over.
	b := s.newAssignment("dep_2", 3, stableRole, withTemplate("template-3"))
	b.WorkloadKey, b.WorkloadVersion = "dep_1", a.WorkloadVersion
	s.apply(t, b)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	all = s.awaitInstances(t, "all replaced by the other deployment", "dep_2", func(all []runtime.Instance) bool {
		return len(all) == 3 && count(all, func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "template-3" }) == 3
	})
	require.Equal(t, marks, s.findIdentities(t, all))

	failing := all[slices.IndexFunc(all, func(in runtime.Instance) bool { return slotText(in) == "cache/0.0" })]
	tellInstance(t, failing, "/sick")
	s.awaitInstances(t, "one that is not ready", "dep_2", func(all []runtime.Instance) bool { return count(all, isReady) == 2 })
	b = next(b, withReplicas(2))
	s.apply(t, b)
	left := s.awaitInstances(t, "the highest slot gone", "dep_2", func(all []runtime.Instance) bool { return len(all) == 2 })
	require.Equal(t, []string{"cache/0.0", "cache/1.0"}, placesOf(left), "the highest slot goes, ready or not")
	s.awaitReady(t, "dep_2", 2) // it is repaired in its slot

	s.reopenRuntime(t)
	b = next(b, withReplicas(0))
	s.apply(t, b)
	s.awaitInstances(t, "none", "dep_2", everyInstance(0, isReady))
	b = next(b, withReplicas(3))
	s.apply(t, b)
	back := s.awaitReady(t, "dep_2", 3)
	require.Equal(t, placesOf(before), placesOf(back))
	if s.Platform.HidesFiles {
		require.Equal(t, marks, s.findIdentities(t, back))
	} else {
		marks["cache/2.0"] = ""
		require.Equal(t, marks, s.findIdentities(t, back), "only the slot that was scaled away is empty")
	}
	require.NoError(t, s.rt.Remove(t.Context(), "dep_2"))
	s.awaitGone(t, "dep_2")
	s.awaitNoLeftovers(t)
}

func stablePool(t *testing.T, s *suite) {
	stable := func(a *runtime.Assignment) {
		a.Deployment.Spec.Roles[1].Slots = windlassv1.RoleSpec_SLOTS_STABLE
		a.Deployment.Spec.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_SEQUENTIAL, Sequence: []string{"decode"}}
		a.Deployment.MaxUnavailable = 1
	}
	a := s.newAssignment("dep_1", 100, makePairs, makePooled, stable, roleInstances("decode", 3), roleInstances("prefill", 1), roleTemplates("p1", "d1"))
	s.apply(t, a)
	before := s.awaitReady(t, "dep_1", 4)
	decodes := func(all []runtime.Instance) []runtime.Instance {
		return slices.DeleteFunc(slices.Clone(all), func(in runtime.Instance) bool { return in.Role != "decode" })
	}
	marks := s.markSlots(t, decodes(before))

	a = next(a, roleTemplates("p1", "d2"))
	s.apply(t, a)
	all := s.awaitInstances(t, "decodes replaced", "dep_1", func(all []runtime.Instance) bool {
		requirePlaced(t, all)
		require.GreaterOrEqual(t, count(decodes(all), isReady), 2, "one slot at a time:\n%s", describeInstances(all))
		for _, in := range all {
			require.Less(t, in.Slot, 3, fmt.Sprint("no additional instance starts: ", slotText(in)))
		}
		return len(all) == 4 && count(decodes(all), func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == "d2" }) == 3
	})
	require.Equal(t, marks, s.findIdentities(t, decodes(all)))
	s.apply(t, next(a, roleInstances("decode", 2)))
	left := s.awaitReady(t, "dep_1", 3)
	require.Equal(t, []string{"decode/0.0", "decode/0.1", "prefill/0.0"}, placesOf(left))
	for _, in := range left {
		require.Contains(t, all, in, "scaling changes no other instance")
	}
}
