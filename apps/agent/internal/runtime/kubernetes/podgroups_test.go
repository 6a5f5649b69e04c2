package kubernetes_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// podGroup has the fields of a PodGroup that tests read.
type podGroup struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		SchedulingPolicy struct {
			Gang struct {
				MinCount int `json:"minCount"`
			} `json:"gang"`
		} `json:"schedulingPolicy"`
	} `json:"spec"`
}

// podGroups returns the PodGroups in the namespace.
func (p *placed) podGroups(t *testing.T) []podGroup {
	t.Helper()
	body, err := p.api.CoreV1().RESTClient().Get().AbsPath("/apis/scheduling.k8s.io/v1alpha2/namespaces/"+p.namespace+"/podgroups").
		SetHeader("Accept", "application/json").DoRaw(t.Context())
	require.NoError(t, err)
	var list struct {
		Items []podGroup `json:"items"`
	}
	require.NoError(t, json.Unmarshal(body, &list))
	return list.Items
}

// isQueued reports whether the scheduler gives no node to any of two pods, and the instance says so.
func (p *placed) isQueued(t *testing.T) bool {
	t.Helper()
	pods, bound := p.bound(t)
	all := p.instances(t)
	return pods == 2 && bound == 0 && len(all) == 1 && all[0].Reason == runtime.ReasonUnschedulable && all[0].Message != ""
}

func podGroupsShareNoRoom(t *testing.T) {
	p := &placed{harness: newHarness(t, byScheduler), a: assignment("dep_native_a", 1, gangHosts)}
	nodes := p.gangNodes(t)
	p.openNodes(t, nodes[:3]...)
	p.begin(t)
	p, q := firstReady(t, p, p.beside(t, assignment("dep_native_b", 1, gangHosts)))
	until(t, "the other gang waits in the scheduler's queue", func() bool { return q.isQueued(t) })
	all := p.podGroups(t)
	require.Len(t, all, 2)
	for _, g := range all {
		require.Equal(t, 2, g.Spec.SchedulingPolicy.Gang.MinCount)
		require.Len(t, g.Metadata.OwnerReferences, 2)
	}

	// Another agent changes nothing.
	before := p.pods(t)
	p.replaceAgent(t, q)
	keeps(t, func() {
		_, bound := q.bound(t)
		require.Zero(t, bound, "a gang that waits has no node")
	})
	for name, pod := range p.pods(t) {
		require.Equal(t, before[name].UID, pod.UID, name)
	}
	require.Len(t, p.pods(t), 4)

	p.openNodes(t, nodes...)
	q.getsRoom(t)
	require.True(t, p.isReady(t))
	require.InDelta(t, 0, p.counted(t, "windlass_agent_kubernetes_gangs", map[string]string{"state": "waits"}), 0)

	// A lost rank restarts the instance, as without a PodGroup.
	p.loseRank(t)
	p.untilEpoch(t, 2, "2")

	p.removes(t, p, q)
	until(t, "no PodGroup is left", func() bool { return len(p.podGroups(t)) == 0 })
}

func podGroupGivesBack(t *testing.T) {
	p := &placed{harness: newHarness(t, byScheduler, pausing(2*time.Second)), a: assignment("dep_native_back", 1, gangHosts, impatient)}
	p.begin(t)
	p.loseRoom(t)
	until(t, "no pod holds a node", func() bool { return p.isQueued(t) })
	keeps(t, func() {
		_, bound := p.bound(t)
		require.Zero(t, bound)
	})
	p.openNodes(t, p.gangNodes(t)...)
	p.runsWhole(t)
	p.removes(t, p)
}

func podGroupOfGroup(t *testing.T) {
	p := &placed{harness: newHarness(t, byScheduler), a: assignment("dep_native_group", 1, gangGroup)}
	nodes := p.gangNodes(t)
	p.openNodes(t, nodes[:3]...)
	p.begin(t)
	until(t, "all pods are in the scheduler's queue", func() bool { return len(p.pods(t)) == 4 })
	keeps(t, func() {
		for _, pod := range p.pods(t) {
			require.Empty(t, pod.Spec.NodeName)
		}
	})
	all := p.podGroups(t)
	require.Len(t, all, 1)
	require.Equal(t, 4, all[0].Spec.SchedulingPolicy.Gang.MinCount)
	p.openNodes(t, nodes...)
	p.awaits(t, 3, 0)
	p.removes(t, p)
}

// agentKeepsItsGangs checks which gangs the agent starts itself, although the cluster serves PodGroups.
func agentKeepsItsGangs(t *testing.T) {
	p := &placed{
		harness: newHarness(t, byScheduler, inRacks),
		a:       assignment("dep_native_rack", 1, gangHosts, packed(windlassv1.Topology_MODE_REQUIRED)),
	}
	nodes := p.gangNodes(t)
	p.setRacks(t, "x", "y", "", "y")
	p.begin(t)
	until(t, "the gang runs", func() bool { return p.isReady(t) })
	require.Equal(t, []string{nodes[1], nodes[3]}, p.nodesOf(t))
	require.Empty(t, p.podGroups(t), "the scheduler does not know racks")
	p.removes(t, p)
}
