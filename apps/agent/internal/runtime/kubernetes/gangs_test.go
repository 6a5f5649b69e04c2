package kubernetes_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestGangs has one test after another, because they share the nodes.
func TestGangs(t *testing.T) { //nolint:tparallel // the subtests share nodes
	t.Parallel()
	t.Run("two gangs of two and room for three pods", gangsShareNoRoom)
	t.Run("a gang that loses its room gives back the rest", gangGivesBack)
	t.Run("a group starts as a whole", gangOfGroup)
	t.Run("pods start one by one if the spec says so", gangOfNone)
	t.Run("a gang runs in one rack", gangsArePacked)
	t.Run("a gang prefers one rack", gangsPreferOneRack)
	t.Run("the scheduler places two gangs of two with room for three pods", podGroupsShareNoRoom)
	t.Run("a gang of the scheduler that loses its room holds nothing", podGroupGivesBack)
	t.Run("the scheduler places a group as a whole", podGroupOfGroup)
	t.Run("the agent places gangs of racks although the scheduler places others", agentKeepsItsGangs)
}

func gangsShareNoRoom(t *testing.T) {
	p := &placed{harness: newHarness(t), a: assignment("dep_gang_a", 1, gangHosts)}
	nodes := p.gangNodes(t)
	p.openNodes(t, nodes[:3]...)
	p.begin(t)
	p, q := firstReady(t, p, p.beside(t, assignment("dep_gang_b", 1, gangHosts)))
	until(t, "the other gang says what it lacks", func() bool {
		in, ok := q.waitsFor(t, runtime.ReasonUnschedulable)
		return ok && strings.Contains(in.Message, "waits for room for all of its 2 pods: there is room for 1, and each needs 1 nvidia.com/gpu, 100 millicores, 64 MiB on one of 3 nodes")
	})

	// Neither time nor another agent lets it start.
	p.replaceAgent(t, q)
	keeps(t, func() { require.Empty(t, q.ranks(t, "0"), "a gang that waits has no pods") })
	require.InDelta(t, 1, p.counted(t, "windlass_agent_kubernetes_gangs", map[string]string{"state": "waits"}), 0)

	p.openNodes(t, nodes...)
	q.getsRoom(t)
	require.True(t, p.isReady(t))

	// When a gang is removed, the next gang gets its room.
	third := p.beside(t, assignment("dep_gang_c", 1, gangHosts))
	until(t, "the third gang waits", func() bool {
		in, ok := third.waitsFor(t, runtime.ReasonUnschedulable)
		return ok && strings.Contains(in.Message, "there is room for 0")
	})
	require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
	until(t, "the third gang runs", func() bool { return third.isReady(t) })
	p.removes(t, q, third)
}

func gangGivesBack(t *testing.T) {
	p := &placed{harness: newHarness(t, pausing(4*time.Second)), a: assignment("dep_gang_back", 1, gangHosts, impatient)}
	p.begin(t)
	p.loseRoom(t)
	until(t, "the ranks that had a node are gone", func() bool {
		in, ok := p.waitsFor(t, runtime.ReasonGangTimeout)
		return ok && strings.Contains(in.Message, "not all of its 2 pods had a node within 3s")
	})
	require.InDelta(t, 1, p.counted(t, "windlass_agent_kubernetes_gang_timeouts_total", nil), 0)
	until(t, "it waits again after its pause", func() bool {
		_, ok := p.waitsFor(t, runtime.ReasonUnschedulable)
		return ok
	})
	p.openNodes(t, p.gangNodes(t)...)
	p.runsWhole(t)
	p.removes(t, p)
}

func gangOfGroup(t *testing.T) {
	p := &placed{harness: newHarness(t), a: assignment("dep_gang_group", 1, gangGroup)}
	nodes := p.gangNodes(t)
	p.openNodes(t, nodes[:3]...)
	p.begin(t)
	until(t, "all instances wait", func() bool {
		all := p.instances(t)
		return len(all) == 3 && !slices.ContainsFunc(all, func(in runtime.Instance) bool {
			return in.Reason != runtime.ReasonUnschedulable || !strings.Contains(in.Message, "all of its 4 pods: there is room for 3")
		})
	})
	require.Empty(t, p.pods(t))
	p.openNodes(t, nodes...)
	p.awaits(t, 3, 0)
	p.removes(t, p)
}

func gangOfNone(t *testing.T) {
	p := &placed{harness: newHarness(t), a: assignment("dep_gang_none", 1, gangHosts, func(s *windlassv1.DeploymentSpec) {
		s.Gang = &windlassv1.Gang{Of: windlassv1.Gang_OF_NONE}
	})}
	p.openNodes(t, p.gangNodes(t)[0])
	p.begin(t)
	until(t, "one of two pods has a node", func() bool {
		of := p.ranks(t, "0")
		bound := 0
		for _, one := range of {
			if one.Spec.NodeName != "" && one.Status.Phase == corev1.PodRunning {
				bound++
			}
		}
		return len(of) == 2 && bound == 1
	})
}

func gangsArePacked(t *testing.T) {
	const required = windlassv1.Topology_MODE_REQUIRED
	p := &placed{harness: newHarness(t, inRacks), a: assignment("dep_packed_a", 1, gangHosts, packed(required))}
	nodes := p.gangNodes(t)
	p.setRacks(t, "x", "y", "y", "")
	p.begin(t)
	until(t, "the gang runs", func() bool { return p.isReady(t) })
	require.Equal(t, []string{nodes[1], nodes[2]}, p.nodesOf(t), "rack y is the only one with room for both pods")

	q := p.beside(t, assignment("dep_packed_b", 1, gangHosts, packed(required)))
	until(t, "the other gang says what it lacks", func() bool {
		in, ok := q.waitsFor(t, runtime.ReasonUnschedulable)
		return ok && strings.Contains(in.Message, "waits for room for all of its 2 pods in one rack: there is room for 1")
	})

	// Neither a lost rank nor another agent moves the gang.
	p.replaceAgent(t, q)
	p.loseRank(t)
	p.untilEpoch(t, 2, "2")
	require.Equal(t, []string{nodes[1], nodes[2]}, p.nodesOf(t))
	require.Empty(t, q.ranks(t, "0"))

	p.setRacks(t, "x", "y", "y", "x")
	q.getsRoom(t)
	require.Equal(t, []string{nodes[0], nodes[3]}, q.nodesOf(t))
	p.removes(t, p, q)

	// The region has no such word.
	err := p.rt.Apply(t.Context(), assignment("dep_packed_c", 1, gangHosts, func(s *windlassv1.DeploymentSpec) { s.Topology = &windlassv1.Topology{Pack: "pod"} }))
	var rej *runtime.Rejection
	require.ErrorAs(t, err, &rej)
	require.Equal(t, runtime.ReasonUnsupported, rej.Code)
	require.Contains(t, rej.Message, `topology.pack: the region has no word "pod", but rack`)
}

func gangsPreferOneRack(t *testing.T) {
	p := &placed{harness: newHarness(t, inRacks), a: assignment("dep_prefers_a", 1, gangHosts, packed(windlassv1.Topology_MODE_PREFERRED))}
	nodes := p.gangNodes(t)
	p.setRacks(t, "x", "y", "z", "y")
	p.begin(t)
	until(t, "the gang runs", func() bool { return p.isReady(t) })
	require.Equal(t, []string{nodes[1], nodes[3]}, p.nodesOf(t), "rack y has room for both pods")

	q := p.beside(t, assignment("dep_prefers_b", 1, gangHosts, packed(windlassv1.Topology_MODE_PREFERRED)))
	until(t, "the other gang runs in two racks", func() bool { return q.isReady(t) })
	require.Equal(t, []string{nodes[0], nodes[2]}, q.nodesOf(t))
	p.removes(t, p, q)
}
