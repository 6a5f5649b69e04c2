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

// Scaling down takes pods out of rotation first, and lowers the number of replicas when
// gateways are done with them, or have had their time:
//
//	serving --mark--> draining --released, or patience is over--> fewer replicas
//	   ^                 |
//	   '---- unmark -----' wanted after all
//
// A mark is two annotations of the pod: since when it drains, by which it is told as
// draining, and the least deletion cost, by which its replica set takes it before others
// that are ready. So all that an agent needs to know is in the cluster, and an agent that starts
// in the middle of it goes on from there. Pods to which no gateway sends are not marked.
//
// Pods of another template go in the same way, see replace.go. Scaling down and replacing wait for
// each other, because the controller chooses which of several templates' pods go when their
// number is lowered. The number is lowered before the pods that are left are replaced; once some
// are replaced, all are before the number is lowered. Scaling to zero does not wait: it leaves the
// controller nothing to choose.
//
// Only what the agent decides waits. A pod that is evicted, as when its node is drained, has
// the delay of its preStop, in which gateways hear that it goes. The Eviction API asks only
// budgets, and an image need not have code of ours that waits. A budget that allows nothing until
// an agent says so would block node drains for as long as the agent is away. The same holds for a
// pod that is deleted by hand, and for a template that another client edits.

// Drain is what taking pods away comes to at one moment.
type Drain struct {
	// waits: there is more to do, when something happens or after left, if that is not 0.
	Waits bool
	Left  time.Duration
	// replicas that the workload keeps for now; nil: as many as are wanted.
	replicas *int32
	// hold: it keeps its template for now.
	Hold bool
	// may is how many pods may be of its template; 0: as Kubernetes finds.
	may int
	// Mark are the pods that are to leave and do not know yet; unmark stay after all.
	Mark, Unmark []*corev1.Pod
}

// Input is a workload whose pods may have to go, as it was seen.
type Input struct {
	// Live is the workload as it is, Goal as it should be when nothing has to wait.
	Live *appsv1.Deployment
	Goal *appsac.DeploymentApplyConfiguration
	// Pods and Sets are all of the workload.
	Pods       []*corev1.Pod
	Sets       []*appsv1.ReplicaSet
	Assignment runtime.Assignment
	// Switched: Live has the template of the assignment already.
	Switched bool
	// Released reports whether no gateway sends to an instance. Patience is how long a pod that drains waits for that.
	Released func(instanceID string) bool
	Patience time.Duration
	Now      time.Time
}

// DrainOf finds out what must be done before the workload is as it should be.
func DrainOf(in Input) Drain {
	if in.Live.Spec.Replicas == nil {
		return Drain{}
	}
	want := int(*in.Live.Spec.Replicas) // another client sets it
	if in.Goal.Spec.Replicas != nil {
		want = int(*in.Goal.Spec.Replicas)
	}
	released := func(p *corev1.Pod) bool { return in.Released(render.InstanceID(p.UID)) }
	pods := slices.DeleteFunc(slices.Clone(in.Pods), func(p *corev1.Pod) bool { return !counts(p) })
	m := replacementOf(in.Live, pods, in.Sets, in.Assignment, in.Switched)
	return m.decide(pods, want, in.Switched, released, in.Patience, in.Now)
}

// decide what must be done before the workload has want replicas, of the wanted template.
// pods are all that count. It is pure.
func (m *replacement) decide(pods []*corev1.Pod, want int, switched bool, released func(*corev1.Pod) bool, patience time.Duration, now time.Time) Drain {
	// A pod that is not ready, or not made yet, may become one that gateways send to before it
	// goes. Pods to which no gateway sends are not marked.
	sends := len(pods) < m.replicas || slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		return !isReady(p) || render.Drains(p) || !released(p)
	})
	replaces := m.may > 0 || sends && (!switched || m.mixed())
	switch {
	case want != m.replicas && max(len(pods), m.sum()) > m.replicas, want < m.replicas && m.may > 0 && !m.settled():
		// Kubernetes chooses among all that are marked: until it has taken those that it was
		// told to, no more are, and none is that stays after all.
		return Drain{Waits: true, Hold: replaces && !switched, may: m.may, replicas: new(int32(m.replicas))}
	case m.replicas == 0:
		return drained(pods, 0, want, true, released, patience, now)
	case !replaces:
		return drained(pods, m.replicas, want, !switched || m.mixed(), released, patience, now)
	case want == 0 || want < m.replicas && !m.mixed():
		d := drained(pods, m.replicas, want, false, released, patience, now)
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

// Shape has the workload wait as it is to.
func (d *Drain) Shape(c *appsac.DeploymentApplyConfiguration) {
	if d.replicas != nil {
		c.Spec.Replicas = d.replicas
	}
	if d.may > 0 {
		c.Annotations[mayReplace] = strconv.Itoa(d.may)
		c.Spec.WithMinReadySeconds(neverAvailable).WithProgressDeadlineSeconds(noDeadline).
			WithStrategy(render.InPlace(d.may))
	}
}

// counts reports whether the pod is one of those that replicas count.
func counts(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded
}

// drained decides for the pods of a workload that count. replaces: some are being replaced.
// It is pure.
func drained(pods []*corev1.Pod, replicas, want int, replaces bool, released func(*corev1.Pod) bool, patience time.Duration, now time.Time) Drain {
	var out Drain
	surplus := len(pods) - want
	switch {
	case surplus <= 0:
		// Those that Kubernetes has yet to take stay marked until it has.
		out.Unmark = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !render.Drains(p) })
		return out
	case replicas <= want || replaces:
		return out
	}
	if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !released(p) }) {
		return out // no gateway sends to any of them, so it does not matter which go
	}
	slices.SortFunc(pods, leavesFirst)
	for n, p := range pods {
		switch marked := render.Drains(p); {
		case n >= surplus && marked:
			out.Unmark = append(out.Unmark, p)
		case n >= surplus:
		case !marked:
			out.Mark = append(out.Mark, p)
			out.Left = patience
		case !released(p):
			out.Left = max(out.Left, min(drainsSince(p).Add(patience).Sub(now), patience))
		}
	}
	if out.Left > 0 {
		out.Waits, out.replicas = true, new(int32(replicas))
	}
	return out
}

// leavesFirst orders pods by who goes when there are too many: those that were told
// already, so that no wait begins anew; then as a replica set chooses.
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

// leastCost is below any that a person gives.
const leastCost = "-2147483648"

// drainsSince is when the pod was marked; the zero time if its annotation cannot be read.
func drainsSince(p *corev1.Pod) time.Time {
	t, _ := time.Parse(time.RFC3339, p.Annotations[render.AnnotationDraining])
	return t
}

// Note is what the annotations of a pod change to; nil removes one.
type Note struct {
	Pod         *corev1.Pod
	Annotations map[string]any
}

// Notes tell pods of w that they stay, and others, which may go in their stead, that they leave.
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

// Marks reports whether pods have to be told.
func (d *Drain) Marks() bool { return len(d.Mark)+len(d.Unmark) > 0 }

// DrainMoved reports whether what became of a pod matters to who is to go.
func DrainMoved(old, now *corev1.Pod) bool {
	return render.Drains(old) || render.Drains(now) || counts(old) != counts(now) || isReady(old) != isReady(now)
}
