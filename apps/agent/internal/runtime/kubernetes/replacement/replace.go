package replacement

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Pods of another template are replaced in place, because no GPU is free for one more. If gateways send to
// pods, the agent decides which pod goes when, as it does to scale down:
//
//	old template kept --mark--> draining --released--> new template, one pod may have it
//	                              ^                       |
//	                              '------- next pods -----'  ready: one more pod may have it
//
// The workload stays a native Deployment. Its controller takes this number of old pods down:
//
//	all - (replicas - maxUnavailable) - (new - available of the new)
//
// Without surge, all equals replicas. With a minReadySeconds that never passes, no new pod ever becomes
// available, and maxUnavailable - new is left. So maxUnavailable says how many pods may have the new
// template, and the controller stops there. It takes pods that are not ready first, and then those with the
// least deletion cost, which marks set. So the agent raises maxUnavailable by the number of pods that it has
// marked and gateways have released. It puts the ordinary fields back when no old pod is left.
//
// All state is in the cluster: marks, the fields, and an annotation with how many pods may be new. While the
// agent is away no pod is replaced. Pods that crash or lose their node are created again from the template
// that they had.
//
// Going back to an earlier template is a replacement like any other: pods that have it count as new.
// Kubernetes may begin a replacement by itself, because no gateway sent to the pods or because another client
// edited the template. The agent takes it over as soon as it sees it. If the template changes twice before
// the first replacement is over, up to twice as many pods as allowed may be out of service. The reason is
// that the controller takes pods of the oldest template first, even if younger ones are not ready.

// mayReplace is the annotation with how many pods may have the workload's template while the agent replaces
// them. Without it, Kubernetes decides.
const mayReplace = render.Domain + "may-replace"

// Fields of a workload whose pods the agent replaces.
const (
	// neverAvailable is a minReadySeconds of 68 years.
	neverAvailable = noDeadline - 1
	// noDeadline is a progressDeadlineSeconds that means no deadline. It must be more than minReadySeconds.
	// Windlass checks the progress itself.
	noDeadline = math.MaxInt32
)

// cohort is the pods of one template, which is one ReplicaSet, with the counts of its controller.
type cohort struct {
	// wanted is whether it has the template that all pods should have. live is whether it has the workload's
	// present template.
	wanted, live        bool
	created             time.Time
	replicas, available int
	// guarded is whether its pods never become available.
	guarded bool
	// failing is whether its controller cannot create missing pods.
	failing bool
	// pods are its pods for which counts is true.
	pods []*corev1.Pod
}

// replacement is the state of a workload that a decision depends on.
type replacement struct {
	cohorts  []cohort
	replicas int
	// most is how many pods may be out of service for the replacement.
	most int
	// may is the value of mayReplace, or 0 without it.
	may int
	// observed is whether the controller has seen the workload's present spec. available is how many
	// available pods the controller counted.
	observed  bool
	available int
}

// next decides what must be done now. It is a pure function.
//
// It waits until the decision before has been carried out, because with a count that is too low the
// controller would take an unmarked pod. So no cohort may have more pods than its controller knows of, and
// the workload must have its full number. next also waits for missing pods, because they may become ready and
// take the place of a pod that has to go. It does not wait if their controller reports a failure.
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
		return Drain{Unmark: marked(fresh, nil)} // nothing is left to replace
	}
	out := Drain{Waits: true, Hold: !switched, may: m.may}
	if !m.settled() {
		return out
	}

	order := goes(old)
	leaves := max(0, min(m.most-(freshReplicas-ready), len(order)))
	told := leaves
	unready := func(p *corev1.Pod) bool { return p == nil || !isReady(p) }
	for told > 0 && told < len(order) && unready(order[told-1]) && unready(order[told]) {
		told++ // any pod that is not ready may be the one that goes, and may be ready by then
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
	out.Unmark = marked(m.cohorts, leaving)
	if leaves == 0 || len(out.Mark)+len(out.Unmark) > 0 || out.Left > 0 {
		return out
	}
	out.Hold, out.may = false, freshReplicas+leaves
	if !switched || m.may == 0 {
		// Existing pods of the template count as available until their controller knows minReadySeconds. So
		// may is leaves alone, without freshReplicas: no more pods than that go, even if all are available.
		out.may = leaves
	}
	return out
}

// settled reports whether the last decision has been carried out, and whether all counts are newer than that.
func (m *replacement) settled() bool {
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

// goes returns pods in the order in which the controller takes them. Unavailable pods come before available
// ones, and older ReplicaSets before younger ones. Nil stands for a pod that is not created yet.
func goes(old []cohort) (order []*corev1.Pod) {
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

// marked returns the marked pods, except those in but.
func marked(all []cohort, but []*corev1.Pod) (out []*corev1.Pod) {
	for _, c := range all {
		for _, p := range c.pods {
			if render.Drains(p) && !slices.Contains(but, p) {
				out = append(out, p)
			}
		}
	}
	return out
}
