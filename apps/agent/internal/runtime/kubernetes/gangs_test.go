package kubernetes_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// gangHosts gives a spec instances of two hosts, each of which needs a whole node of the gang tests.
func gangHosts(s *windlassv1.DeploymentSpec) {
	ofHosts(2)(s)
	s.Resources.Gpu = &windlassv1.Gpu{Count: 1, Product: gangGPU}
	s.DrainDelay = durationpb.New(0)
}

// gangNodes returns the names of the nodes of the gang tests.
func (h *harness) gangNodes(t *testing.T) (out []string) {
	t.Helper()
	list, err := h.api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "nvidia.com/gpu.product=" + gangGPU})
	require.NoError(t, err)
	for _, n := range list.Items {
		out = append(out, n.Name)
	}
	require.Len(t, out, 4)
	return out
}

// cordon closes a node to new pods, or opens it.
func (h *harness) cordon(t *testing.T, node string, closed bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, closed)
	_, err := h.api.CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

// beside applies another deployment in the same region.
func (p *placed) beside(t *testing.T, a runtime.Assignment) *placed {
	t.Helper()
	require.NoError(t, p.rt.Apply(t.Context(), a))
	return &placed{harness: p.harness, rt: p.rt, a: a, namespace: p.namespace}
}

func (p *placed) isReady(t *testing.T) bool {
	t.Helper()
	return slices.ContainsFunc(p.instances(t), func(in runtime.Instance) bool { return in.Status == ready })
}

// waitsFor returns the one instance if it waits with this reason, and no pod of its deployment exists.
func (p *placed) waitsFor(t *testing.T, reason string) (runtime.Instance, bool) {
	t.Helper()
	all := p.instances(t)
	if len(all) != 1 || all[0].Reason != reason || len(p.ranks(t, "0")) > 0 {
		return runtime.Instance{}, false
	}
	return all[0], true
}

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
	p.cordon(t, nodes[3], true)
	t.Cleanup(func() { p.cordon(t, nodes[3], false) })
	p.begin(t)
	q := p.beside(t, assignment("dep_gang_b", 1, gangHosts))
	until(t, "one gang runs", func() bool { return p.isReady(t) || q.isReady(t) })
	if q.isReady(t) {
		p, q = q, p
	}
	until(t, "the other gang says what it lacks", func() bool {
		in, ok := q.waitsFor(t, runtime.ReasonUnschedulable)
		return ok && strings.Contains(in.Message, "waits for room for all of its 2 pods: there is room for 1, and each needs 1 nvidia.com/gpu, 100 millicores, 64 MiB on one of 3 nodes")
	})

	// Neither time nor another agent lets it start.
	p.rt = p.open(t)
	q.rt = p.rt
	require.NoError(t, p.rt.Apply(t.Context(), q.a))
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		require.Empty(t, q.ranks(t, "0"), "a gang that waits has no pods")
	}
	require.InDelta(t, 1, p.counted(t, "windlass_agent_kubernetes_gangs", map[string]string{"state": "waits"}), 0)

	p.cordon(t, nodes[3], false)
	begin := time.Now()
	until(t, "the other gang runs, too", func() bool { return q.isReady(t) })
	require.Less(t, time.Since(begin), 10*time.Second)
	t.Logf("ready %v after there was room", time.Since(begin))
	require.True(t, p.isReady(t))

	// When a gang is removed, the next gang gets its room.
	third := p.beside(t, assignment("dep_gang_c", 1, gangHosts))
	until(t, "the third gang waits", func() bool {
		in, ok := third.waitsFor(t, runtime.ReasonUnschedulable)
		return ok && strings.Contains(in.Message, "there is room for 0")
	})
	require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
	until(t, "the third gang runs", func() bool { return third.isReady(t) })
	require.NoError(t, p.rt.Remove(t.Context(), q.a.Deployment.Id))
	require.NoError(t, p.rt.Remove(t.Context(), third.a.Deployment.Id))
	until(t, "nothing is left", func() bool { return len(p.pods(t)) == 0 })
}

func gangGivesBack(t *testing.T) {
	p := &placed{
		harness: newHarness(t, func(c *kubernetes.Config) { c.Gangs = backoff.Policy{Min: 4 * time.Second, Max: 4 * time.Second} }),
		a: assignment("dep_gang_back", 1, gangHosts, func(s *windlassv1.DeploymentSpec) {
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
	until(t, "the ranks that had a node are gone", func() bool {
		in, ok := p.waitsFor(t, runtime.ReasonGangTimeout)
		return ok && strings.Contains(in.Message, "not all of its 2 pods had a node within 3s")
	})
	require.InDelta(t, 1, p.counted(t, "windlass_agent_kubernetes_gang_timeouts_total", nil), 0)
	until(t, "it waits again after its pause", func() bool {
		_, ok := p.waitsFor(t, runtime.ReasonUnschedulable)
		return ok
	})
	for _, n := range nodes {
		p.cordon(t, n, false)
	}
	until(t, "it runs again, with all ranks in one epoch", func() bool {
		of := p.epochs(t, "0")
		return len(of) == 2 && of["0"] == of["1"] && p.isReady(t)
	})
	require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
	until(t, "nothing is left", func() bool { return len(p.pods(t)) == 0 })
}

func gangOfGroup(t *testing.T) {
	p := &placed{harness: newHarness(t), a: assignment("dep_gang_group", 1, func(s *windlassv1.DeploymentSpec) {
		gangHosts(s)
		s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Hosts: 2, Entry: true}}
		s.Gang = &windlassv1.Gang{Of: windlassv1.Gang_OF_GROUP}
	})}
	nodes := p.gangNodes(t)
	p.cordon(t, nodes[3], true)
	t.Cleanup(func() { p.cordon(t, nodes[3], false) })
	p.begin(t)
	until(t, "all instances wait", func() bool {
		all := p.instances(t)
		return len(all) == 3 && !slices.ContainsFunc(all, func(in runtime.Instance) bool {
			return in.Reason != runtime.ReasonUnschedulable || !strings.Contains(in.Message, "all of its 4 pods: there is room for 3")
		})
	})
	require.Empty(t, p.pods(t))
	p.cordon(t, nodes[3], false)
	p.awaits(t, 3, 0)
	require.NoError(t, p.rt.Remove(t.Context(), p.a.Deployment.Id))
	until(t, "nothing is left", func() bool { return len(p.pods(t)) == 0 })
}

func gangOfNone(t *testing.T) {
	p := &placed{harness: newHarness(t), a: assignment("dep_gang_none", 1, gangHosts, func(s *windlassv1.DeploymentSpec) {
		s.Gang = &windlassv1.Gang{Of: windlassv1.Gang_OF_NONE}
	})}
	nodes := p.gangNodes(t)
	for _, n := range nodes[1:] {
		p.cordon(t, n, true)
	}
	t.Cleanup(func() {
		for _, n := range nodes {
			p.cordon(t, n, false)
		}
	})
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

// rackLabel is the label of nodes that the region's word "rack" stands for.
const rackLabel = "example.com/rack"

// inRacks gives the region the word "rack".
func inRacks(c *kubernetes.Config) { c.Topology = map[string]string{"rack": rackLabel} }

// racks puts the nodes of the gang tests into racks. A node without a rack has an empty one.
func (h *harness) racks(t *testing.T, nodes []string, racks ...string) {
	t.Helper()
	for i, rack := range racks {
		value := "null"
		if rack != "" {
			value = fmt.Sprintf("%q", rack)
		}
		patch := fmt.Appendf(nil, `{"metadata": {"labels": {%q: %s}}}`, rackLabel, value)
		_, err := h.api.CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), nodes[i], types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		require.NoError(t, err)
	}
}

// packed returns a change of a spec that runs the pods of each gang in one rack.
func packed(mode windlassv1.Topology_Mode) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Topology = &windlassv1.Topology{Pack: "rack", Mode: mode} }
}

// nodesOf returns the nodes of the ranks of the one instance, sorted.
func (p *placed) nodesOf(t *testing.T) (out []string) {
	t.Helper()
	for _, pod := range p.ranks(t, "0") {
		out = append(out, pod.Spec.NodeName)
	}
	slices.Sort(out)
	return out
}

func (p *placed) removes(t *testing.T, all ...*placed) {
	t.Helper()
	for _, one := range all {
		require.NoError(t, p.rt.Remove(t.Context(), one.a.Deployment.Id))
	}
	until(t, "nothing is left", func() bool { return len(p.pods(t)) == 0 })
}

func gangsArePacked(t *testing.T) {
	const required = windlassv1.Topology_MODE_REQUIRED
	p := &placed{harness: newHarness(t, inRacks), a: assignment("dep_packed_a", 1, gangHosts, packed(required))}
	nodes := p.gangNodes(t)
	t.Cleanup(func() { p.racks(t, nodes, "", "", "", "") })
	p.racks(t, nodes, "x", "y", "y", "")
	p.begin(t)
	until(t, "the gang runs", func() bool { return p.isReady(t) })
	require.Equal(t, []string{nodes[1], nodes[2]}, p.nodesOf(t), "rack y is the only one with room for both pods")

	q := p.beside(t, assignment("dep_packed_b", 1, gangHosts, packed(required)))
	until(t, "the other gang says what it lacks", func() bool {
		in, ok := q.waitsFor(t, runtime.ReasonUnschedulable)
		return ok && strings.Contains(in.Message, "waits for room for all of its 2 pods in one rack: there is room for 1")
	})

	// Neither a lost rank nor another agent moves the gang.
	p.rt = p.open(t)
	q.rt = p.rt
	require.NoError(t, p.rt.Apply(t.Context(), q.a))
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	require.NoError(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), p.ranks(t, "0")["1"].Name, metav1.DeleteOptions{}))
	p.untilEpoch(t, 2, "2")
	require.Equal(t, []string{nodes[1], nodes[2]}, p.nodesOf(t))
	require.Empty(t, q.ranks(t, "0"))

	p.racks(t, nodes, "x", "y", "y", "x")
	begin := time.Now()
	until(t, "the other gang runs, too", func() bool { return q.isReady(t) })
	require.Less(t, time.Since(begin), time.Minute) // seconds, unless the machine is busy
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
	t.Cleanup(func() { p.racks(t, nodes, "", "", "", "") })
	p.racks(t, nodes, "x", "y", "z", "y")
	p.begin(t)
	until(t, "the gang runs", func() bool { return p.isReady(t) })
	require.Equal(t, []string{nodes[1], nodes[3]}, p.nodesOf(t), "rack y has room for both pods")

	q := p.beside(t, assignment("dep_prefers_b", 1, gangHosts, packed(windlassv1.Topology_MODE_PREFERRED)))
	until(t, "the other gang runs in two racks", func() bool { return q.isReady(t) })
	require.Equal(t, []string{nodes[0], nodes[2]}, q.nodesOf(t))
	p.removes(t, p, q)
}
