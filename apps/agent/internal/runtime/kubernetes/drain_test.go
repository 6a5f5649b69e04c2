package kubernetes_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// door plays the gateways: it has the instances that they have released.
type door struct {
	again func()

	mu   sync.Mutex
	done map[string]bool
}

func (d *door) released(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done[id]
}

// release makes the gateways release instances.
func (d *door) release(ids ...string) {
	d.mu.Lock()
	for _, id := range ids {
		d.done[id] = true
	}
	d.mu.Unlock()
	d.again()
}

// gated returns a ready deployment to which gateways send requests.
func gated(t *testing.T, replicas int, longest time.Duration) (*placed, *door) {
	t.Helper()
	t.Parallel()
	d := &door{done: map[string]bool{}}
	p := &placed{harness: newHarness(t), a: assignment("dep_chat", replicas)}
	p.before = func(rt *kubernetes.Runtime) {
		d.again = rt.Drain(d.released, func(string) time.Duration { return longest })
	}
	p.rt = p.open(t)
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	p.name, p.namespace = render.WorkloadName(p.a), p.namespaceOf(t, p.a)
	p.awaits(t, replicas, 0)
	return p, d
}

// awaits waits until the number of ready instances is serving and the number of draining instances
// is leaving. It returns the ids of the draining instances.
func (p *placed) awaits(t *testing.T, serving, leaving int) (ids []string) {
	t.Helper()
	until(t, "the serving and the draining instances", func() bool {
		o, err := p.rt.Observe(t.Context())
		require.NoError(t, err)
		at := slices.IndexFunc(o.Deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == p.a.Deployment.Id })
		if at < 0 {
			return false
		}
		up := 0
		ids = nil
		for _, i := range o.Deployments[at].Instances {
			switch i.Status {
			case ready:
				up++
			case draining:
				ids = append(ids, i.ID)
			default:
			}
		}
		return up == serving && len(ids) == leaving
	})
	return ids
}

func (p *placed) scale(t *testing.T, replicas int) {
	t.Helper()
	p.change(t, func(a *runtime.Assignment) { a.Deployment.Replicas = int32(replicas) })
}

// pods returns the deployment's pods that are not being deleted, by instance.
func (p *placed) pods(t *testing.T) map[string]corev1.Pod {
	t.Helper()
	list, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	out := map[string]corev1.Pod{}
	for _, one := range list.Items {
		if one.DeletionTimestamp == nil {
			out[render.InstanceID(one.UID)] = one
		}
	}
	return out
}

func TestDrain_ScaledDownPodWaitsForGatewaysAlsoForTheNextAgent(t *testing.T) {
	p, gateways := gated(t, 4, time.Hour)
	before := p.pods(t)
	p.scale(t, 2)
	leave := p.awaits(t, 2, 2)
	require.EqualValues(t, 4, *p.workload(t).Spec.Replicas)

	gateways.release(leave[0])
	p.rt = p.open(t) // the previous agent was killed, so it hands nothing over
	require.NoError(t, p.rt.Apply(t.Context(), p.a))
	require.ElementsMatch(t, leave, p.awaits(t, 2, 2), "another agent drains no other pod")
	require.Len(t, p.pods(t), 4)
	require.EqualValues(t, 4, *p.workload(t).Spec.Replicas)

	gateways.release(leave[1])
	until(t, "fewer replicas", func() bool { return *p.workload(t).Spec.Replicas == 2 })
	until(t, "the end of the chosen pods", func() bool { return len(p.pods(t)) == 2 })
	for id := range before {
		_, stays := p.pods(t)[id]
		require.Equal(t, !slices.Contains(leave, id), stays, id)
	}
	p.awaits(t, 2, 0)
}

func TestDrain_PodThatIsWantedAgainServesAgain(t *testing.T) {
	p, gateways := gated(t, 3, time.Hour)
	before := p.pods(t)
	p.scale(t, 0)
	p.awaits(t, 0, 3)
	p.scale(t, 2)
	leave := p.awaits(t, 2, 1)
	p.scale(t, 3)
	p.awaits(t, 3, 0)
	gateways.release(leave...)
	until(t, "no mark on a pod", func() bool {
		for id, one := range p.pods(t) {
			require.Contains(t, before, id)
			if one.Annotations[corev1.PodDeletionCost] != "" || render.Drains(&one) {
				return false
			}
		}
		return true
	})
	require.Len(t, p.pods(t), 3)
	require.EqualValues(t, 3, *p.workload(t).Spec.Replicas)
}

func TestDrain_EndsAtItsDeadline(t *testing.T) {
	p, _ := gated(t, 2, 2*time.Second)
	p.scale(t, 1)
	p.awaits(t, 1, 1)
	until(t, "fewer replicas", func() bool { return *p.workload(t).Spec.Replicas == 1 })
	p.awaits(t, 1, 0)
}

func TestDrain_WithoutGatewaysScalesDownAtOnce(t *testing.T) {
	p, gateways := gated(t, 2, time.Hour)
	for id := range p.pods(t) {
		gateways.release(id)
	}
	p.scale(t, 1)
	require.EqualValues(t, 1, *p.workload(t).Spec.Replicas)
	for _, one := range p.pods(t) {
		require.False(t, render.Drains(&one))
	}
}
