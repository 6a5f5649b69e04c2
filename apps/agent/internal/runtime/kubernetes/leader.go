package kubernetes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/groups"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/replacement"
)

// The leader of an instance of several hosts, rank 0, cannot finish its requests without the other ranks. So these
// outlive it:
//
//	leader  serving --> draining --> terminated, for its grace period at most
//	others  serving --> draining ---------------> terminated
//
// This holds when an instance is scaled in, replaced or removed, and when the leader's pod alone is deleted or evicted.
// The agent makes the others wait, because an image need not contain code of ours that does. Without an agent, all pods
// of a deployment that is deleted by hand stop together.

// stopMargin is how long after its grace period a pod may take to be gone. After that, ranks do not wait for it.
const stopMargin = 10 * time.Second

// rankSet names the ranks of an instance that run together: those of one template and epoch.
type rankSet struct {
	namespace, family string
	groups.Unit

	template string
	epoch    int
}

func rankSetOf(p *corev1.Pod) rankSet {
	return rankSet{
		p.Namespace, p.Labels[render.LabelUnitOf], placeOf(p.Labels).Unit(),
		p.Annotations[render.AnnotationTemplateHash], epochOf(p.Annotations),
	}
}

// leaders are the ranks 0 of a Runtime.
type leaders struct{ *Runtime }

// of returns the leader's pods of a set of ranks, also those that are being deleted.
func (r leaders) of(s rankSet) (out []*corev1.Pod) {
	for _, p := range r.caches.PodsOfGroup(s.namespace, s.family, s.Group) {
		if p.Labels[render.LabelRank] == "0" && rankSetOf(p) == s {
			out = append(out, p)
		}
	}
	return out
}

// worksUntil returns when a leader's pod has finished its requests at the latest. It is zero if it has.
func (r leaders) worksUntil(p *corev1.Pod, now time.Time) time.Time {
	if node := r.caches.Node(p.Spec.NodeName); !containerRuns(p) || node != nil && !answers(node) {
		return time.Time{}
	}
	if p.DeletionTimestamp != nil {
		return p.DeletionTimestamp.Add(stopMargin) // its time is that of the end of the grace period
	}
	begin := now
	if since := replacement.DrainsSince(p); !since.IsZero() {
		begin = since
	}
	if r.patience != nil {
		begin = begin.Add(r.patience(render.InstanceID(p.UID)))
	}
	if grace := p.Spec.TerminationGracePeriodSeconds; grace != nil {
		begin = begin.Add(time.Duration(*grace) * time.Second)
	}
	return begin.Add(stopMargin)
}

// containerRuns reports whether the app's container runs.
func containerRuns(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == render.ContainerName {
			return c.State.Running != nil
		}
	}
	return false
}

// awaitedUntil returns when the leader of a pod has finished its requests at the latest. It is zero if it has.
func (r leaders) awaitedUntil(p *corev1.Pod, now time.Time) (until time.Time) {
	for _, leader := range r.of(rankSetOf(p)) {
		if at := r.worksUntil(leader, now); at.After(until) {
			until = at
		}
	}
	return until
}

// follow makes pods of a rank above 0 wait for the end of their leader instead of for gateways.
func (r leaders) follow(in *replacement.Input) {
	now := in.Now
	in.Released = func(p *corev1.Pod) bool { return !r.awaitedUntil(p, now).After(now) }
	in.Patience = func(p *corev1.Pod) time.Duration {
		begin := now
		if since := replacement.DrainsSince(p); !since.IsZero() {
			begin = since
		}
		return max(0, r.awaitedUntil(p, now).Sub(begin))
	}
}

// stopFor returns how long a leader whose pod is being deleted may still need the other ranks of its instance. It
// is 0 if one of these has ended.
func (r leaders) stopFor(ranks []*unit, now time.Time) (left time.Duration) {
	for _, u := range ranks {
		if u.Rank == 0 {
			continue
		}
		if !u.rank.there || u.rank.began.IsZero() {
			return 0
		}
		for _, leader := range r.of(rankSet{u.ref.Namespace, u.live.Labels[render.LabelUnitOf], u.Unit(), u.rank.template, u.rank.epoch}) {
			if leader.DeletionTimestamp != nil {
				left = max(left, r.worksUntil(leader, now).Sub(now))
			}
		}
	}
	return left
}

// outlives returns how long a workload must stay for its leader, and of which deployment it is. It returns 0 unless the
// workload is a rank above 0.
func (r leaders) outlives(w render.Ref, now time.Time) (at render.Ref, left time.Duration) {
	o := r.caches.Get(w)
	if o == nil || o.GetDeletionTimestamp() != nil || placeOf(o.GetLabels()).Rank == 0 {
		return at, 0
	}
	for _, p := range r.caches.PodsOf(w.Namespace, o.GetLabels()[render.LabelWorkload]) {
		if observe.Holds(p) {
			left = max(left, r.awaitedUntil(p, now).Sub(now))
		}
	}
	at, _ = render.RolesOf(o)
	return at, left
}

// removeWorkloads removes the workloads of a deployment. Ranks above 0 stay until their leader has ended. A look at the
// deployment then removes them.
func (r *Runtime) removeWorkloads(ctx context.Context, deploymentID string) error {
	for _, w := range r.workloadsToRemove(deploymentID) {
		at, left := leaders{r}.outlives(w, time.Now())
		if left <= 0 {
			if err := r.removeWorkload(ctx, w, deploymentID); err != nil {
				return err
			}
			continue
		}
		r.wanted.noteRemoval(at, deploymentID)
		unlock := r.locks.Exclusive(w.String())
		r.unwant(w, deploymentID)
		unlock()
		r.repairs.queue.AddAfter(at, left)
	}
	return nil
}
