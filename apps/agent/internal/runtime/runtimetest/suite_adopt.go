package runtimetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

func withUnavailable(n int) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) { a.Deployment.MaxUnavailable = int32(n) }
}

// newSuccessor returns an assignment that takes over a's workload.
func (s *suite) newSuccessor(a runtime.Assignment, id string, change ...func(*runtime.Assignment)) runtime.Assignment {
	b := s.newAssignment(id, int(a.Deployment.Replicas), change...)
	b.WorkloadKey, b.WorkloadVersion = a.WorkloadKey, a.WorkloadVersion
	return b
}

func isOf(template string) func(runtime.Instance) bool {
	return func(in runtime.Instance) bool { return isReady(in) && in.TemplateHash == template }
}

func replacingSome(t *testing.T, s *suite) {
	a := s.newAssignment("dep_1", 4)
	s.apply(t, a)
	s.awaitReady(t, "dep_1", 4)
	// Instances of the next template are never ready, so the replacement stops at the limit.
	s.apply(t, next(a, withTemplate("template-2"), withFault(FaultNeverReady), withUnavailable(2)))
	s.awaitInstances(t, "two unready instances of the next template", "dep_1", func(all []runtime.Instance) bool {
		require.GreaterOrEqual(t, count(all, isReady), 2, "two of four serve at every moment:\n%s", describeInstances(all))
		require.LessOrEqual(t, len(s.countedInstances(all)), 4, "no instance is added meanwhile:\n%s", describeInstances(all))
		return count(all, hasStatus(running, runtime.ReasonNotReady)) == 2
	})
	s.apply(t, next(next(a), withTemplate("template-3"), withUnavailable(2)))
	s.awaitInstances(t, "all replaced", "dep_1", func(all []runtime.Instance) bool {
		require.GreaterOrEqual(t, count(all, isReady), 2, describeInstances(all))
		return len(all) == 4 && count(all, isOf("template-3")) == 4
	})
}

// servesIfSettled requires at least floor ready instances of the successor, once its counts are
// those of its assignment. So the successor must not report 0 instances while its predecessor still
// has them.
func (s *suite) servesIfSettled(t *testing.T, successor runtime.Assignment, floor int) {
	t.Helper()
	d := s.observedOf(t, successor.Deployment.Id)
	if d == nil || d.Unsettled || d.Generation != successor.Generation {
		return
	}
	require.GreaterOrEqual(t, count(d.Instances, isReady), floor, "%s is settled:\n%s", d.DeploymentID, describeInstances(d.Instances))
}

// adoptAndBack transfers a workload, and transfers it back while it is partly replaced.
func adoptAndBack(t *testing.T, s *suite) {
	const n, floor = 3, 2
	a := s.newAssignment("dep_1", n)
	s.apply(t, a)
	first := s.awaitReady(t, "dep_1", n)
	successor := a // the deployment that has the workload
	both := func(what string, ok func(all []runtime.Instance) bool) []runtime.Instance {
		t.Helper()
		return s.untilOf(t, what, []string{"dep_1", "dep_2"}, func(all []runtime.Instance) bool {
			s.servesIfSettled(t, successor, floor)
			seen := map[string]bool{}
			for _, in := range all {
				require.False(t, seen[in.ID], "one instance is reported twice:\n%s", describeInstances(all))
				seen[in.ID] = true
			}
			require.GreaterOrEqual(t, count(all, isReady), floor, describeInstances(all))
			require.LessOrEqual(t, len(s.countedInstances(all)), n, "no additional instance runs:\n%s", describeInstances(all))
			return ok(all)
		})
	}

	successor = s.newSuccessor(a, "dep_2", withTemplate("template-2"), withEnv("COLOUR", "blue"))
	s.apply(t, successor)
	both("a replaced instance", func(all []runtime.Instance) bool { return count(all, isOf("template-2")) >= 1 })
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.reopenRuntime(t)

	successor = next(a)
	s.apply(t, successor)
	require.NoError(t, s.rt.Remove(t.Context(), "dep_2"))
	all := both("all instances of template-1", func(all []runtime.Instance) bool {
		return len(all) == n && count(all, isOf("template-1")) == n
	})
	s.awaitGone(t, "dep_2")
	s.awaitReady(t, "dep_1", n)
	require.True(t, slices.ContainsFunc(all, func(in runtime.Instance) bool {
		return !slices.ContainsFunc(first, func(f runtime.Instance) bool { return f.ID == in.ID })
	}), "the replaced instance was replaced again")
	require.NoError(t, s.rt.Remove(t.Context(), "dep_1"))
	s.awaitGone(t, "dep_1")
	s.awaitNoLeftovers(t)
}
