package replacement

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Pods of another template are replaced in place, because no GPU is free for one more pod. If
// gateways send to pods, the agent decides which pod goes when, as in scaling down:
//
//	old template kept --mark--> draining --released--> new template, one pod may have it
//	                              ^                       |
//	                              '------- next pods -----'  ready: one more pod may have it
//
// The workload stays a native Deployment. Its controller removes this number of old pods:
//
//	all - (replicas - maxUnavailable) - (new - available of the new)
//
// Without surge, all equals replicas. If minReadySeconds never passes, no new pod ever becomes
// available, and the result is maxUnavailable - new. So maxUnavailable is the number of pods that
// may have the new template, and the controller stops there. It removes pods that are not ready
// first, and then pods with the least deletion cost, which marks set. So the agent raises
// maxUnavailable by the number of pods that it has marked and that gateways have released. When no
// old pod is left, it restores the ordinary fields.
//
// The whole state is in the cluster: the marks, the fields, and an annotation with the number of
// pods that may be new. While the agent is away, no pod is replaced. Pods that crash or lose their
// node are created again from the template that they had.
//
// Going back to an earlier template is a replacement like any other: pods that have this template
// count as new. Kubernetes may start a replacement by itself, because no gateway sends to the pods
// or because another client edited the template. The agent takes over such a replacement as soon as
// it sees it. If the template changes twice before the first replacement is over, up to twice as
// many pods as allowed may be out of service. The reason is that the controller removes pods of the
// oldest template first, even if younger pods are not ready.

// mayReplace is the annotation with the number of pods that may have the workload's template while
// the agent replaces pods. Without it, Kubernetes decides.
const mayReplace = render.Domain + "may-replace"

// The values of fields of a workload while the agent replaces its pods.
const (
	// neverAvailable is a minReadySeconds of 68 years.
	neverAvailable = noDeadline - 1
	// noDeadline is a progressDeadlineSeconds that means no deadline. It must be greater than
	// minReadySeconds. Windlass itself checks the progress.
	noDeadline = math.MaxInt32
)

// cohort has the pods of one template, which belong to one ReplicaSet, and the counts of its
// controller.
type cohort struct {
	// wanted means that the cohort has the template that all pods should have. live means that it
	// has the workload's present template.
	wanted, live        bool
	created             time.Time
	replicas, available int
	// guarded means that the cohort's pods never become available.
	guarded bool
	// failing means that the cohort's controller cannot create missing pods.
	failing bool
	// pods are the cohort's pods for which countsAsReplica returns true.
	pods []*corev1.Pod
}

// replacement is the state of a workload on which a decision depends.
type replacement struct {
	cohorts  []cohort
	replicas int
	// most is how many pods may be out of service during the replacement.
	most int
	// may is the value of mayReplace, or 0 without it.
	may int
	// observed means that the controller has seen the workload's present spec. available is the
	// number of available pods that the controller counted.
	observed  bool
	available int
}

// next decides the next action. It is a pure function.
//
// It waits until the previous decision has been carried out, because with too low a count the
// controller would remove an unmarked pod. So no cohort may have more pods than its controller
// knows, and the workload must have its full number. next also waits for missing pods, because they
// may become ready and take the place of a pod that must go. It does not wait for them if their
// controller reports a failure.
func (m *replacement) next(released func(*corev1.Pod) bool, patience func(*corev1.Pod) time.Duration, now time.Time) Drain {
	var old, fresh []cohort
	left, freshReplicas, ready := 0, 0, 0
	switched := false
	for _, c := range m.cohorts {
		if !c.wanted {
			old = append(old, c)
			left += max(c.replicas, len(c.pods))
			continue
		}
		fresh = append(fresh, c)
		switched = switched || c.live
		freshReplicas += c.replicas
		for _, p := range c.pods {
			if isReady(p) && !render.Drains(p) {
				ready++
			}
		}
	}
	if m.observed && left == 0 && freshReplicas == m.replicas {
		return Drain{Unmark: markedExcept(fresh, nil)} // nothing is left to replace
	}
	out := Drain{Waits: true, Hold: !switched, may: m.may}
	if !m.isSettled() {
		return out
	}

	order := removalOrder(old)
	leaves := max(0, min(m.most-(freshReplicas-ready), len(order)))
	told := leaves
	unready := func(p *corev1.Pod) bool { return p == nil || !isReady(p) }
	for told > 0 && told < len(order) && unready(order[told-1]) && unready(order[told]) {
		told++ // the controller may remove any pod that is not ready, and that pod may be ready by then
	}
	leaving := order[:told]
	for _, p := range leaving {
		switch {
		case p == nil:
		case !render.Drains(p):
			out.Mark = append(out.Mark, p)
			if isReady(p) {
				out.Left = max(out.Left, patience(p))
			}
		case isReady(p) && !released(p):
			out.Left = max(out.Left, min(DrainsSince(p).Add(patience(p)).Sub(now), patience(p)))
		}
	}
	out.Unmark = markedExcept(m.cohorts, leaving)
	if leaves == 0 || len(out.Mark)+len(out.Unmark) > 0 || out.Left > 0 {
		return out
	}
	out.Hold, out.may = false, freshReplicas+leaves
	if !switched || m.may == 0 {
		// Existing pods of the template count as available until their controller knows
		// minReadySeconds. So may is only leaves, without freshReplicas: even if all of them are
		// available, no more pods go.
		out.may = leaves
	}
	return out
}

// isSettled reports whether the last decision has been carried out, and whether all counts are newer
// than the decision.
func (m *replacement) isSettled() bool {
	sum, available, old, live := 0, 0, 0, -1
	for n, c := range m.cohorts {
		sum, available = sum+c.replicas, available+c.available
		if max(len(c.pods), c.available) > c.replicas || !c.wanted && !c.failing && len(c.pods) < c.replicas {
			return false
		}
		if c.live {
			live = n
		} else {
			old += c.replicas
		}
	}
	switch {
	case !m.observed || sum != m.replicas:
		return false
	case m.may == 0:
		return true
	case live < 0 || available != m.available:
		return false
	}
	c := m.cohorts[live]
	return c.guarded && c.available == 0 && (old == 0 || m.may <= c.replicas)
}

// removalOrder returns pods in the order in which the controller removes them. Unavailable pods come before
// available pods, and older ReplicaSets before younger ones. A nil pod is not created yet.
func removalOrder(old []cohort) (order []*corev1.Pod) {
	var rest []*corev1.Pod
	for _, c := range slices.SortedStableFunc(slices.Values(old), func(a, b cohort) int { return a.created.Compare(b.created) }) {
		pods := slices.SortedFunc(slices.Values(c.pods), func(a, b *corev1.Pod) int {
			return cmp.Or(compareBool(isReady(a), isReady(b)), leavesFirst(a, b))
		})
		pods = append(make([]*corev1.Pod, max(0, c.replicas-len(pods))), pods...)
		n := max(0, len(pods)-c.available)
		order, rest = append(order, pods[:n]...), append(rest, pods[n:]...)
	}
	return append(order, rest...)
}

// markedExcept returns the marked pods, except the pods in but.
func markedExcept(all []cohort, but []*corev1.Pod) (out []*corev1.Pod) {
	for _, c := range all {
		for _, p := range c.pods {
			if render.Drains(p) && !slices.Contains(but, p) {
				out = append(out, p)
			}
		}
	}
	return out
}
