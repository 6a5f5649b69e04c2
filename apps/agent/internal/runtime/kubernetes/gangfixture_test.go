package kubernetes_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
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

// gangGroup makes a group of four pods one gang.
func gangGroup(s *windlassv1.DeploymentSpec) {
	gangHosts(s)
	s.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Instances: 2}, {Name: "decode", Hosts: 2, Entry: true}}
	s.Gang = &windlassv1.Gang{Of: windlassv1.Gang_OF_GROUP}
}

// gangTimeout is the timeout of gangs in tests of gangs that lose their room.
const gangTimeout = 3 * time.Second

// impatient gives a gang the timeout gangTimeout.
func impatient(s *windlassv1.DeploymentSpec) {
	s.Gang = &windlassv1.Gang{Timeout: durationpb.New(gangTimeout)}
}

// pausing sets how long a gang that gave back its pods waits before it may start again.
func pausing(pause time.Duration) func(*kubernetes.Config) {
	return func(c *kubernetes.Config) { c.Gangs = backoff.Policy{Min: pause, Max: pause} }
}

// byScheduler lets the cluster's scheduler start gangs.
func byScheduler(c *kubernetes.Config) { c.GangsBy = kubernetes.GangsByEither }

// rackLabel is the label of nodes that the region's word "rack" stands for.
const rackLabel = "example.com/rack"

// inRacks gives the region the word "rack".
func inRacks(c *kubernetes.Config) { c.Topology = map[string]string{"rack": rackLabel} }

// packed returns a change of a spec that runs the pods of each gang in one rack.
func packed(mode windlassv1.Topology_Mode) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Topology = &windlassv1.Topology{Pack: "rack", Mode: mode} }
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

// openNodes opens these nodes of the gang tests to new pods, and closes the others until the end of the test.
func (h *harness) openNodes(t *testing.T, open ...string) {
	t.Helper()
	nodes := h.gangNodes(t)
	cordon := func(isOpen func(node string) bool) {
		for _, node := range nodes {
			patch := fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, !isOpen(node))
			_, err := h.api.CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			require.NoError(t, err)
		}
	}
	cordon(func(node string) bool { return slices.Contains(open, node) })
	t.Cleanup(func() { cordon(func(string) bool { return true }) })
}

// setRacks puts the nodes of the gang tests into racks until the end of the test. A node without a rack has an empty one.
func (h *harness) setRacks(t *testing.T, racks ...string) {
	t.Helper()
	nodes := h.gangNodes(t)
	label := func(racks []string) {
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
	label(racks)
	t.Cleanup(func() { label(make([]string, len(racks))) })
}

// beside applies another deployment in the same region.
func (p *placed) beside(t *testing.T, a runtime.Assignment) *placed {
	t.Helper()
	require.NoError(t, p.rt.Apply(t.Context(), a))
	return &placed{harness: p.harness, rt: p.rt, a: a, namespace: p.namespace}
}

// replaceAgent replaces the agent of p and q.
func (p *placed) replaceAgent(t *testing.T, q *placed) {
	t.Helper()
	p.rt = p.open(t)
	q.rt = p.rt
	require.NoError(t, p.rt.Apply(t.Context(), q.a))
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
}

func (p *placed) isReady(t *testing.T) bool {
	t.Helper()
	return slices.ContainsFunc(p.instances(t), func(in runtime.Instance) bool { return in.Status == ready })
}

// firstReady waits until p or q runs, and returns the one that runs before the other.
func firstReady(t *testing.T, p, q *placed) (runs, waits *placed) {
	t.Helper()
	until(t, "one gang runs", func() bool { return p.isReady(t) || q.isReady(t) })
	if q.isReady(t) {
		return q, p
	}
	return p, q
}

// getsRoom waits until the instance is ready, for a minute at most. A gang takes seconds, unless the machine is busy.
func (p *placed) getsRoom(t *testing.T) {
	t.Helper()
	began := time.Now()
	until(t, "the gang runs", func() bool { return p.isReady(t) })
	require.Less(t, time.Since(began), time.Minute)
	t.Logf("ready %v after there was room", time.Since(began))
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

// keeps calls check for a few seconds.
func keeps(t *testing.T, check func()) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		check()
	}
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

// nodesOf returns the nodes of the ranks of the one instance, sorted.
func (p *placed) nodesOf(t *testing.T) (out []string) {
	t.Helper()
	for _, pod := range p.ranks(t, "0") {
		out = append(out, pod.Spec.NodeName)
	}
	slices.Sort(out)
	return out
}

// loseRank deletes the pod of rank 1.
func (p *placed) loseRank(t *testing.T) {
	t.Helper()
	require.NoError(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), p.ranks(t, "0")["1"].Name, metav1.DeleteOptions{}))
}

// loseRoom waits until the gang runs, and leaves room for its leader only.
func (p *placed) loseRoom(t *testing.T) {
	t.Helper()
	p.untilEpoch(t, 2, "1")
	p.openNodes(t, p.ranks(t, "0")["0"].Spec.NodeName)
	p.loseRank(t)
}

// runsWhole waits until the instance is ready with both ranks in one epoch.
func (p *placed) runsWhole(t *testing.T) {
	t.Helper()
	until(t, "the gang runs, with all ranks in one epoch", func() bool {
		of := p.epochs(t, "0")
		return len(of) == 2 && of["0"] == of["1"] && p.isReady(t)
	})
}

// removes removes deployments, and waits until no pod is left.
func (p *placed) removes(t *testing.T, all ...*placed) {
	t.Helper()
	for _, one := range all {
		require.NoError(t, p.rt.Remove(t.Context(), one.a.Deployment.Id))
	}
	until(t, "nothing is left", func() bool { return len(p.pods(t)) == 0 })
}
