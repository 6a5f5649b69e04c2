package replacement

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// To scale down, the agent first drains pods. It lowers the number of replicas when gateways have
// released the pods, or when their patience is over:
//
//	serving --mark--> draining --released, or patience is over--> fewer replicas
//	   ^                 |
//	   '---- unmark -----' wanted after all
//
// A mark is two annotations of the pod. One has the time at which the pod began to drain, and makes
// observe report the pod as draining. The other has the least deletion cost, and makes the
// ReplicaSet delete the pod before other ready pods. So the whole state is in the cluster, and an
// agent that starts in the middle continues from there. If no gateway sends to any pod of the
// workload, no pod is marked.
//
// Pods of another template go in the same way; see replace.go. Scaling down and replacing wait for
// each other, because the controller chooses among pods of several templates when the number is
// lowered. If no pod is replaced yet, the number is lowered first. If some pods are replaced, the
// other pods are replaced first. Scaling to zero does not wait, because it leaves the controller no
// choice.
//
// Only decisions of the agent wait. An evicted pod, for example on a drained node, has only the
// delay of its preStop hook. In this delay, gateways learn that the pod stops. A longer wait is not
// possible: the Eviction API checks only disruption budgets, and an image need not contain code of
// Windlass that waits. A budget that allows nothing until an agent agrees would block node drains
// while the agent is away. A pod that a person deletes does not wait either, nor does a pod that
// Kubernetes replaces because another client edited the template.

// Drain is the decision, at one moment, how pods are taken away.
type Drain struct {
	// Waits means that more must be done later: on an event, or after Left if that is not 0.
	Waits bool
	Left  time.Duration
	// replicas is the number of replicas that the workload keeps for now. Nil: as many as are
	// wanted.
	replicas *int32
	// Hold means that the workload keeps its template for now.
	Hold bool
	// may is how many pods may have the workload's template. 0: Kubernetes decides.
	may int
	// Mark has the pods that will leave and have no mark yet. Unmark has the marked pods that will
	// stay.
	Mark, Unmark []*corev1.Pod
}

// Input is the observed state of a workload whose pods may have to go.
type Input struct {
	// Live is the workload as it is. Goal is the workload as it should be in the end.
	Live *appsv1.Deployment
	Goal *appsac.DeploymentApplyConfiguration
	// Pods and Sets are all pods and all ReplicaSets of the workload.
	Pods       []*corev1.Pod
	Sets       []*appsv1.ReplicaSet
	Assignment runtime.Assignment
	// Switched means that Live has the template of the assignment already.
	Switched bool
	// Released reports whether a pod may go, because no gateway sends to it. Patience is the
	// longest time that a draining pod waits for that.
	Released func(*corev1.Pod) bool
	Patience func(*corev1.Pod) time.Duration
	Now      time.Time
}

// DrainOf decides what must be done before the workload can be as it should be.
func DrainOf(in Input) Drain {
	if in.Live.Spec.Replicas == nil {
		return Drain{}
	}
	want := int(*in.Live.Spec.Replicas) // another client has set the number
	if in.Goal.Spec.Replicas != nil {
		want = int(*in.Goal.Spec.Replicas)
	}
	pods := slices.DeleteFunc(slices.Clone(in.Pods), func(p *corev1.Pod) bool { return !countsAsReplica(p) })
	m := replacementOf(in.Live, pods, in.Sets, in.Assignment, in.Switched)
	return m.decideSteps(pods, want, in.Switched, in.Released, in.Patience, in.Now)
}

// decideSteps returns what must be done before the workload has want replicas of the wanted template.
// pods are the pods for which countsAsReplica returns true. decide is a pure function.
func (m *replacement) decideSteps(pods []*corev1.Pod, want int, switched bool, released func(*corev1.Pod) bool, patience func(*corev1.Pod) time.Duration, now time.Time) Drain {
	// A pod that is not ready, or not created yet, may become ready before it goes, and gateways
	// would then send to it. If no gateway sends to any pod, no pod is marked.
	sends := len(pods) < m.replicas || slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		return !isReady(p) || render.Drains(p) || !released(p)
	})
	replaces := m.may > 0 || sends && (!switched || m.isMixed())
	switch {
	case want != m.replicas && max(len(pods), m.wantedSum()) > m.replicas, want < m.replicas && m.may > 0 && !m.isSettled():
		// Kubernetes chooses among all marked pods. Until it has removed as many as it should, no
		// pod is marked or unmarked.
		return Drain{Waits: true, Hold: replaces && !switched, may: m.may, replicas: new(int32(m.replicas))}
	case m.replicas == 0:
		return drainedPods(pods, 0, want, true, released, patience, now)
	case !replaces:
		return drainedPods(pods, m.replicas, want, !switched || m.isMixed(), released, patience, now)
	case want == 0 || want < m.replicas && !m.isMixed():
		d := drainedPods(pods, m.replicas, want, false, released, patience, now)
		if want > 0 || d.Waits {
			d.Waits, d.Hold, d.may = true, !switched, m.may
		}
		return d
	}
	d := m.next(released, patience, now)
	if want < m.replicas {
		d.Waits, d.replicas = true, new(int32(m.replicas))
	}
	return d
}

// Shape changes the workload so that Kubernetes does not go beyond d.
func (d *Drain) Shape(c *appsac.DeploymentApplyConfiguration) {
	if d.replicas != nil {
		c.Spec.Replicas = d.replicas
	}
	if d.may > 0 {
		c.Annotations[mayReplace] = strconv.Itoa(d.may)
		c.Spec.WithMinReadySeconds(neverAvailable).WithProgressDeadlineSeconds(noDeadline)
		// A workload that is recreated has one pod, and d.may is 1: the strategy removes no more.
		if *c.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
			c.Spec.WithStrategy(render.InPlace(d.may))
		}
	}
}

// countsAsReplica reports whether the number of replicas includes the pod.
func countsAsReplica(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded
}

// drainedPods decides which pods to mark and unmark. pods are the pods for which countsAsReplica returns true.
// replaces means that pods are being replaced. drained is a pure function.
func drainedPods(pods []*corev1.Pod, replicas, want int, replaces bool, released func(*corev1.Pod) bool, patience func(*corev1.Pod) time.Duration, now time.Time) Drain {
	var out Drain
	surplus := len(pods) - want
	switch {
	case surplus <= 0:
		// Kubernetes has removed enough pods, so no pod must be drained.
		out.Unmark = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !render.Drains(p) })
		return out
	case replicas <= want || replaces:
		// Pods that Kubernetes still has to remove stay marked.
		return out
	}
	if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !released(p) }) {
		return out // no gateway sends to these pods, so it does not matter which of them go
	}
	slices.SortFunc(pods, leavesFirst)
	for n, p := range pods {
		switch marked := render.Drains(p); {
		case n >= surplus && marked:
			out.Unmark = append(out.Unmark, p)
		case n >= surplus:
		case !marked:
			out.Mark = append(out.Mark, p)
			out.Left = max(out.Left, patience(p))
		case !released(p):
			out.Left = max(out.Left, min(DrainsSince(p).Add(patience(p)).Sub(now), patience(p)))
		}
	}
	if out.Left > 0 {
		out.Waits, out.replicas = true, new(int32(replicas))
	}
	return out
}

// leavesFirst orders pods by which one goes first if the workload has too many. Marked pods come
// first, so that no wait starts again. The rest of the order is that of a ReplicaSet.
func leavesFirst(a, b *corev1.Pod) int {
	return cmp.Or(
		-compareBool(render.Drains(a), render.Drains(b)),
		-compareBool(a.Spec.NodeName == "", b.Spec.NodeName == ""),
		compareBool(isReady(a), isReady(b)),
		cmp.Compare(deletionCost(a), deletionCost(b)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func deletionCost(p *corev1.Pod) int64 {
	cost, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return cost
}

// leastCost is the least deletion cost that Kubernetes accepts.
const leastCost = "-2147483648"

// DrainsSince returns when the pod was marked, or the zero time if its annotation cannot be read.
func DrainsSince(p *corev1.Pod) time.Time {
	t, _ := time.Parse(time.RFC3339, p.Annotations[render.AnnotationDraining])
	return t
}

// Note has changes of a pod's annotations. A nil value removes an annotation.
type Note struct {
	Pod         *corev1.Pod
	Annotations map[string]any
}

// Notes returns the changes that unmark and mark pods of w.
func (d *Drain) Notes(w *appsv1.Deployment, now time.Time) []Note {
	var out []Note
	for _, p := range d.Unmark {
		was := map[string]any{render.AnnotationDraining: nil, corev1.PodDeletionCost: nil}
		if cost, ok := w.Spec.Template.Annotations[corev1.PodDeletionCost]; ok {
			was[corev1.PodDeletionCost] = cost
		}
		out = append(out, Note{p, was})
	}
	for _, p := range d.Mark {
		out = append(out, Note{p, map[string]any{
			render.AnnotationDraining: now.UTC().Format(time.RFC3339), corev1.PodDeletionCost: leastCost,
		}})
	}
	return out
}

// Marks reports whether any pod must be marked or unmarked.
func (d *Drain) Marks() bool { return len(d.Mark)+len(d.Unmark) > 0 }

// DrainMoved reports whether a change of a pod affects the decision about which pods go.
func DrainMoved(old, now *corev1.Pod) bool {
	return render.Drains(old) || render.Drains(now) || countsAsReplica(old) != countsAsReplica(now) || isReady(old) != isReady(now)
}
