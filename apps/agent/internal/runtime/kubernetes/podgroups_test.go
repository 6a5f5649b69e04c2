package kubernetes_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// byScheduler lets the cluster's scheduler start gangs.
func byScheduler(c *kubernetes.Config) { c.GangsBy = kubernetes.GangsByEither }

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

// bound returns how many pods of the one instance exist, and how many have a node.
func (p *placed) bound(t *testing.T) (pods, bound int) {
	t.Helper()
	for _, pod := range p.ranks(t, "0") {
		pods++
		if pod.Spec.NodeName != "" {
			bound++
		}
	}
	return pods, bound
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
	p.cordon(t, nodes[3], true)
	t.Cleanup(func() { p.cordon(t, nodes[3], false) })
	p.begin(t)
	q := p.beside(t, assignment("dep_native_b", 1, gangHosts))
	until(t, "one gang runs", func() bool { return p.isReady(t) || q.isReady(t) })
	if q.isReady(t) {
		p, q = q, p
	}
	until(t, "the other gang waits in the scheduler's queue", func() bool { return q.isQueued(t) })
	all := p.podGroups(t)
	require.Len(t, all, 2)
	for _, g := range all {
		require.Equal(t, 2, g.Spec.SchedulingPolicy.Gang.MinCount)
		require.Len(t, g.Metadata.OwnerReferences, 2)
	}

	// Another agent changes nothing.
	before := p.pods(t)
	p.rt = p.open(t)
	q.rt = p.rt
	require.NoError(t, p.rt.Apply(t.Context(), q.a))
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, bound := q.bound(t)
		require.Zero(t, bound, "a gang that waits has no node")
	}
	for name, pod := range p.pods(t) {
		require.Equal(t, before[name].UID, pod.UID, name)
	}
	require.Len(t, p.pods(t), 4)

	p.cordon(t, nodes[3], false)
	begin := time.Now()
	until(t, "the other gang runs, too", func() bool { return q.isReady(t) })
	require.Less(t, time.Since(begin), time.Minute) // seconds, unless the machine is busy
	t.Logf("ready %v after there was room", time.Since(begin))
	require.True(t, p.isReady(t))
	require.InDelta(t, 0, p.counted(t, "windlass_agent_kubernetes_gangs", map[string]string{"state": "waits"}), 0)

	// A lost rank restarts the instance, as without a PodGroup.
	require.NoError(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), p.ranks(t, "0")["1"].Name, metav1.DeleteOptions{}))
	p.untilEpoch(t, 2, "2")

	p.removes(t, p, q)
	until(t, "no PodGroup is left", func() bool { return len(p.podGroups(t)) == 0 })
}

func podGroupGivesBack(t *testing.T) {
	p := &placed{
		harness: newHarness(t, byScheduler, func(c *kubernetes.Config) { c.Gangs = backoff.Policy{Min: 2 * time.Second, Max: 2 * time.Second} }),
		a: assignment("dep_native_back", 1, gangHosts, func(s *windlassv1.DeploymentSpec) {
			s.Gang = &windlassv1.Gang{Timeout: durationpb.New(3 * time.Second)}
		}),
	}
	nodes := p.gangNodes(t)
	t.Cleanup(func() {
		for _, n := range nodes {
			p.cordon(t, n, false)
		}
	})
	p.begin(t)
	p.untilEpoch(t, 2, "1")
	leader := p.ranks(t, "0")["0"]
	for _, n := range nodes {
		p.cordon(t, n, n != leader.Spec.NodeName)
	}
	require.NoError(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), p.ranks(t, "0")["1"].Name, metav1.DeleteOptions{}))
	until(t, "no pod holds a node", func() bool { return p.isQueued(t) })
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, bound := p.bound(t)
		require.Zero(t, bound)
	}
	for _, n := range nodes {
		p.cordon(t, n, false)
	}
	until(t, "it runs again, with all ranks in one epoch", func() bool {
		of := p.epochs(t, "0")
		return len(of) == 2 && of["0"] == of["1"] && p.isReady(t)
	})
	p.removes(t, p)
}

func podGroupOfGroup(t *testing.T) {
	p := &placed{harness: newHarness(t, byScheduler), a: assignment("dep_native_group", 1, func(s *windlassv1.DeploymentSpec) {
		gangHosts(s)
		s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Hosts: 2, Entry: true}}
		s.Gang = &windlassv1.Gang{Of: windlassv1.Gang_OF_GROUP}
	})}
	nodes := p.gangNodes(t)
	p.cordon(t, nodes[3], true)
	t.Cleanup(func() { p.cordon(t, nodes[3], false) })
	p.begin(t)
	until(t, "all pods are in the scheduler's queue", func() bool { return len(p.pods(t)) == 4 })
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, pod := range p.pods(t) {
			require.Empty(t, pod.Spec.NodeName)
		}
	}
	all := p.podGroups(t)
	require.Len(t, all, 1)
	require.Equal(t, 4, all[0].Spec.SchedulingPolicy.Gang.MinCount)
	p.cordon(t, nodes[3], false)
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
	t.Cleanup(func() { p.racks(t, nodes, "", "", "", "") })
	p.racks(t, nodes, "x", "y", "", "y")
	p.begin(t)
	until(t, "the gang runs", func() bool { return p.isReady(t) })
	require.Equal(t, []string{nodes[1], nodes[3]}, p.nodesOf(t))
	require.Empty(t, p.podGroups(t), "the scheduler does not know racks")
	p.removes(t, p)
}
