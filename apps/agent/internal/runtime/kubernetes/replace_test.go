package kubernetes_test

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// ledger records what happens to a deployment's pods, from a watch of the API server.
type ledger struct {
	d *door

	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
	// served has the pods to which gateways may have sent requests, because the pods were ready before they
	// were marked.
	served map[types.UID]bool
	// wrong has the pods that were deleted while gateways still sent to them.
	wrong []string
	// fewest is the lowest number of pods that served at the same time. then describes the pods at
	// that time.
	fewest int
	then   string
}

// follow records what happens to the pods until the test ends.
func (p *placed) follow(t *testing.T, d *door) *ledger {
	t.Helper()
	list, err := p.api.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	l := &ledger{d: d, pods: map[types.UID]*corev1.Pod{}, served: map[types.UID]bool{}}
	for n := range list.Items {
		l.saw(&list.Items[n])
	}
	l.fewest = len(list.Items)
	w, err := p.api.CoreV1().Pods(p.namespace).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			if one, ok := e.Object.(*corev1.Pod); ok {
				l.saw(one)
			}
		}
	}()
	return l
}

func (l *ledger) saw(now *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.pods[now.UID]
	l.pods[now.UID] = now
	if was != nil && was.DeletionTimestamp == nil && now.DeletionTimestamp != nil && up(was) && l.served[now.UID] && !l.d.released(render.InstanceID(now.UID)) {
		l.wrong = append(l.wrong, fmt.Sprintf("%s of %s, drains: %t", now.Name, now.Annotations[render.AnnotationTemplateHash], render.Drains(was)))
	}
	l.served[now.UID] = l.served[now.UID] || up(now) && !render.Drains(now)
	serve := 0
	for _, one := range l.pods {
		if up(one) && one.DeletionTimestamp == nil && !render.Drains(one) {
			serve++
		}
	}
	if serve < l.fewest {
		l.fewest, l.then = serve, ""
		for _, one := range l.pods {
			l.then += fmt.Sprintf("%s of %s: ready %t, deleted %t, drains %t, changed now: %t\n",
				one.Name, one.Annotations[render.AnnotationTemplateHash], up(one), one.DeletionTimestamp != nil, render.Drains(one), one.UID == now.UID)
		}
	}
}

func up(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// requireOrderly checks that no pod was deleted while gateways sent to it, and that at least fewest
// pods served at every moment.
func (l *ledger) requireOrderly(t *testing.T, fewest int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.wrong)
	require.GreaterOrEqual(t, l.fewest, fewest, l.then)
}

// gateways plays the gateways: it releases draining instances after a moment, until the test ends or stop is
// called.
func (p *placed) gateways(t *testing.T, d *door) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			list, err := p.api.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, one := range list.Items {
				if render.Drains(&one) {
					d.release(render.InstanceID(one.UID))
				}
			}
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// replace gives the deployment another template.
func (p *placed) replace(t *testing.T, template string, change ...func(*runtime.Assignment)) {
	t.Helper()
	p.change(t, append(change, func(a *runtime.Assignment) { a.TemplateHash = template })...)
}

func atOnce(n int) func(*runtime.Assignment) {
	return func(a *runtime.Assignment) { a.Deployment.MaxUnavailable = int32(n) }
}

func brokenNow(a *runtime.Assignment) { staged("never-ready")(a.Deployment.Spec) }
func soundNow(a *runtime.Assignment)  { a.Deployment.Spec.Kubernetes = nil }

// all waits until the template has this number of ready pods, and no pod has another template.
func (p *placed) all(t *testing.T, replicas int, template string) {
	t.Helper()
	until(t, fmt.Sprintf("%d pods of %s, and no others", replicas, template), func() bool {
		pods := p.pods(t)
		for _, one := range pods {
			if !up(&one) || one.Annotations[render.AnnotationTemplateHash] != template || render.Drains(&one) {
				return false
			}
		}
		return len(pods) == replicas
	})
}

// over waits until the replacement has ended and Kubernetes controls the workload as usual.
func (p *placed) over(t *testing.T, atOnce int) {
	t.Helper()
	until(t, "an ordinary workload", func() bool {
		w := p.workload(t)
		return w.Spec.MinReadySeconds == 0 && *w.Spec.ProgressDeadlineSeconds < 1e6 && w.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() == atOnce
	})
	require.Zero(t, p.counted(t, "windlass_agent_kubernetes_drift_total", map[string]string{"kind": "Deployment"}))
}

// leaves waits until the number of serving pods is serving and the number of draining pods is
// leaving. It returns the ids of the draining instances.
func (p *placed) leaves(t *testing.T, serving, leaving int) (ids []string) {
	t.Helper()
	until(t, "the pods that serve and those that drain", func() bool {
		serve := 0
		ids = nil
		for id, one := range p.pods(t) {
			switch {
			case render.Drains(&one):
				ids = append(ids, id)
			case up(&one):
				serve++
			}
		}
		return serve == serving && len(ids) == leaving
	})
	return ids
}

func (p *placed) of(t *testing.T, template string) (n int) {
	t.Helper()
	for _, one := range p.pods(t) {
		if one.Annotations[render.AnnotationTemplateHash] == template {
			n++
		}
	}
	return n
}

// stays checks for a second that ok keeps returning true.
func stays(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		require.True(t, ok())
	}
}

func TestReplace_PodWaitsForGateways(t *testing.T) {
	t.Parallel()
	for _, m := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d at once", m), func(t *testing.T) {
			p, gateways := gated(t, 4, time.Hour)
			l := p.follow(t, gateways)
			p.replace(t, "template-2", atOnce(m))
			for done := 0; done < 4; done += m {
				leave := p.leaves(t, 4-m, m)
				stays(t, func() bool { return p.of(t, "template-1") == 4-done && p.of(t, "template-2") == done })
				gateways.release(leave...)
				until(t, "the next new pods", func() bool { return p.of(t, "template-2") == done+m })
			}
			p.all(t, 4, "template-2")
			p.over(t, m)
			l.requireOrderly(t, 4-m)
		})
	}
}

func TestReplace_UnreleasedPodGoesAtItsDeadline(t *testing.T) {
	p, _ := gated(t, 2, 2*time.Second)
	p.replace(t, "template-2")
	p.leaves(t, 1, 1)
	p.all(t, 2, "template-2")
	p.over(t, 1)
}

func TestReplace_WithoutGatewaysIsByKubernetes(t *testing.T) {
	p, gateways := gated(t, 2, time.Hour)
	for id := range p.pods(t) {
		gateways.release(id)
	}
	p.replace(t, "template-2")
	require.Zero(t, p.workload(t).Spec.MinReadySeconds)
	p.all(t, 2, "template-2")
}

func TestReplace_ContinuesWithAnotherAgent(t *testing.T) {
	p, gateways := gated(t, 3, time.Hour)
	l := p.follow(t, gateways)
	again := func() {
		p.rt = p.open(t) // the previous agent was killed, so it hands nothing over
		require.NoError(t, p.rt.Apply(t.Context(), p.a))
	}
	p.replace(t, "template-2")
	leave := p.leaves(t, 2, 1)
	again()
	require.Equal(t, leave, p.leaves(t, 2, 1), "another agent drains no other pod")
	p.shut(t)
	gateways.mu.Lock()
	gateways.done[leave[0]] = true
	gateways.mu.Unlock()
	stays(t, func() bool { return p.of(t, "template-1") == 3 })
	again()
	until(t, "the first new pod", func() bool { return p.of(t, "template-2") == 1 })
	next := p.leaves(t, 2, 1)

	// Without an agent, no pod is replaced. A pod that crashes is made again from its old template.
	p.shut(t)
	for id, one := range p.pods(t) {
		if id != next[0] && one.Annotations[render.AnnotationTemplateHash] == "template-1" {
			gateways.mu.Lock()
			gateways.done[id] = true
			gateways.mu.Unlock()
			require.NoError(t, p.api.CoreV1().Pods(p.namespace).Delete(t.Context(), one.Name, metav1.DeleteOptions{}))
		}
	}
	until(t, "a new pod in its place", func() bool { return p.of(t, "template-1") == 2 })
	stays(t, func() bool { return p.of(t, "template-1") == 2 && p.of(t, "template-2") == 1 })
	again()
	p.gateways(t, gateways)
	p.all(t, 3, "template-2")
	p.over(t, 1)
	l.requireOrderly(t, 0)
}

func TestReplace_NeverReadyVersionRespectsMaxUnavailable(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]string{"back": "template-1", "on": "template-3"} {
		t.Run(name, func(t *testing.T) {
			p, gateways := gated(t, 4, time.Hour)
			l := p.follow(t, gateways)
			p.gateways(t, gateways)
			p.replace(t, "template-2", atOnce(1), brokenNow)
			until(t, "a pod that is not ready", func() bool { return p.of(t, "template-2") == 1 })
			stays(t, func() bool { return p.of(t, "template-1") == 3 && p.of(t, "template-2") == 1 })
			p.leaves(t, 3, 0)
			p.replace(t, back, soundNow)
			p.all(t, 4, back)
			p.over(t, 1)
			l.requireOrderly(t, 3)
		})
	}
}

func TestReplace_AnotherTemplateMidwayTakesNoPodInService(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]string{"back": "template-1", "on": "template-3"} {
		t.Run(name, func(t *testing.T) {
			p, gateways := gated(t, 4, time.Hour)
			l := p.follow(t, gateways)
			p.replace(t, "template-2")
			for done := range 2 {
				gateways.release(p.leaves(t, 3, 1)...)
				until(t, "the next new pod", func() bool { return p.of(t, "template-2") == done+1 })
			}
			p.leaves(t, 3, 1)
			p.replace(t, to)
			p.gateways(t, gateways)
			p.all(t, 4, to)
			p.over(t, 1)
			l.requireOrderly(t, 3)
		})
	}
}

func TestReplace_WithOtherReplicasTakesNoPodInService(t *testing.T) {
	t.Parallel()
	for name, replicas := range map[string]int{"more": 5, "fewer": 1, "none": 0} {
		for _, amid := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, amid: %t", name, amid), func(t *testing.T) {
				p, gateways := gated(t, 3, time.Hour)
				l := p.follow(t, gateways)
				if amid {
					p.replace(t, "template-2")
					gateways.release(p.leaves(t, 2, 1)...)
					until(t, "the first new pod", func() bool { return p.of(t, "template-2") == 1 })
					p.leaves(t, 2, 1)
				}
				p.replace(t, "template-2", func(a *runtime.Assignment) { a.Deployment.Replicas = int32(replicas) })
				p.gateways(t, gateways)
				until(t, "the number", func() bool { return int(*p.workload(t).Spec.Replicas) == replicas })
				p.all(t, replicas, "template-2")
				p.over(t, 1)
				l.requireOrderly(t, min(replicas, 2)-min(replicas, 1))
			})
		}
	}
}

func TestReplace_ContinuesWhileANodeIsDrained(t *testing.T) {
	p, gateways := gated(t, 3, time.Hour)
	p.gateways(t, gateways)
	p.replace(t, "template-2")
	until(t, "the first new pod", func() bool { return p.of(t, "template-2") >= 1 })
	var node string
	for _, one := range p.pods(t) {
		node = cmp.Or(node, one.Spec.NodeName) // the new pod may have no node yet
	}
	cordon := func(ctx context.Context, yes bool) {
		_, err := p.api.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	cordon(t.Context(), true)
	t.Cleanup(func() { cordon(context.WithoutCancel(t.Context()), false) })
	until(t, "an empty node", func() bool {
		left := 0
		for _, one := range p.pods(t) {
			if one.Spec.NodeName == node {
				left++
				// The disruption budget refuses an eviction while another pod is unavailable.
				_ = p.api.PolicyV1().Evictions(p.namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: one.Name}})
			}
		}
		return left == 0
	})
	p.all(t, 3, "template-2")
	p.over(t, 1)
}
