package replacement

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Pods of another template are replaced in place: no GPU is free for one more. Where gateways
// send, the agent decides which pod goes when, as it does to scale down:
//
//	old template kept --mark--> draining --released--> new template, one may be of it
//	                              ^                       |
//	                              '------- next pods -----'  ready: one more may be of it
//
// It is a native Deployment all the while, whose controller takes old pods down to
//
//	all - (replicas - maxUnavailable) - (new - available of the new)
//
// With no surge, all is replicas. With a minReadySeconds that never passes no new pod is ever
// available, and what is left is maxUnavailable - new: maxUnavailable says how many pods may
// be of the new template, and the controller makes it so and stops. It takes those that are
// not ready first and then those with the least deletion cost, which the marks are. So the
// agent raises that number by as many as it has marked and gateways have released, and puts
// the ordinary fields back when no old pod is left.
//
// What the agent needs to go on is in the cluster: marks, the fields, and how many may be new
// as an annotation. While the agent is away no pod is replaced, and pods that crash or lose
// their node are made again from the template that they had.
//
// A change of mind is a replacement like any other, whichever templates there are: the pods
// that are of the wanted one count as new. A replacement that Kubernetes began by itself is one,
// too, from when the agent sees it: no gateway sent then, or another client edited the template.
// Where the template changes twice before the first replacement is over, up to twice as many pods
// as allowed may be out of service: the controller takes pods of the oldest template that was
// given up, though those of a younger one are not ready.

// mayReplace says how many pods may be of the workload's template, while the agent replaces
// them; without it, that is Kubernetes' own to find out.
const mayReplace = render.Domain + "may-replace"

// Fields of a workload whose pods the agent replaces.
const (
	// neverAvailable is a minReadySeconds of 68 years.
	neverAvailable = noDeadline - 1
	// noDeadline is how a progressDeadlineSeconds says that there is none. It must be more
	// than minReadySeconds. Windlass has its own eye on the progress.
	noDeadline = math.MaxInt32
)

// cohort are the pods of one template: a ReplicaSet, as its controller counts.
type cohort struct {
	// wanted: it is of the template that all pods should have; live: of the one that the
	// workload has.
	wanted, live        bool
	created             time.Time
	replicas, available int
	// guarded: its pods never become available.
	guarded bool
	// failing: its controller cannot make pods that are missing.
	failing bool
	// pods are those that count.
	pods []*corev1.Pod
}

// replacement is what there is to decide on.
type replacement struct {
	cohorts  []cohort
	replicas int
	// most may be out of service for the replacement.
	most int
	// may is what mayReplace says; 0: nothing.
	may int
	// observed: the controller has acted on the workload as it is. available is how many
	// available pods it counted.
	observed  bool
	available int
}

// next decides what must be done now. It is pure.
//
// It waits until what was decided before has happened, because with any count that is too low
// the controller would take a pod that is not marked. So no cohort may have more pods than its
// controller knows of, and the workload must have the number that it should have. A pod that is
// yet to be made, and could be ready when a pod has to go, is waited for as well, unless its
// controller reports a failure.
func (m *replacement) next(released func(*corev1.Pod) bool, patience time.Duration, now time.Time) Drain {
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
		told++ // any of those that are not ready may be the one that goes, and be ready by then
	}
	leaving := order[:told]
	for _, p := range leaving {
		switch {
		case p == nil:
		case !render.Drains(p):
			out.Mark = append(out.Mark, p)
			if isReady(p) {
				out.Left = patience
			}
		case isReady(p) && !released(p):
			out.Left = max(out.Left, min(drainsSince(p).Add(patience).Sub(now), patience))
		}
	}
	out.Unmark = marked(m.cohorts, leaving)
	if leaves == 0 || len(out.Mark)+len(out.Unmark) > 0 || out.Left > 0 {
		return out
	}
	out.Hold, out.may = false, freshReplicas+leaves
	if !switched || m.may == 0 {
		// Pods of the template that are there are available until their controller has heard
		// that they never are: no more than these go even if all are.
		out.may = leaves
	}
	return out
}

// settled reports whether what was decided has happened, and all that is known is of after it.
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

// goes orders pods as the controller takes them: of the oldest ReplicaSet before others,
// those that are not available before those that are. nil is one that is yet to be made.
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

// marked are the pods that drain, but for some.
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
