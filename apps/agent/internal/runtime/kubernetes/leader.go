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

// The leader of an instance of several hosts is rank 0. It cannot finish its requests without the
// other ranks, so these outlive it:
//
//	leader  serving --> draining --> terminated, within its grace period
//	others  serving --> draining ---------------> terminated
//
// This holds when an instance is scaled in, replaced or removed, and when only the leader's pod is
// deleted or evicted. The agent delays the end of the other ranks, because an image need not
// contain code of Windlass that could do so. If a person deletes a deployment while no agent runs,
// all its pods stop at the same time.

// stopMargin is how long after its grace period a pod may still exist. After that, ranks do not
// wait for it.
const stopMargin = 10 * time.Second

// rankSet identifies the ranks of an instance that run together, with one template and one epoch.
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

// leaders is a Runtime with the methods about leaders, the pods of rank 0.
type leaders struct{ *Runtime }

// podsOf returns the leader's pods of a set of ranks, including pods that are being deleted.
func (r leaders) podsOf(s rankSet) (out []*corev1.Pod) {
	for _, p := range r.caches.PodsOfGroup(s.namespace, s.family, s.Group) {
		if p.Labels[render.LabelRank] == "0" && rankSetOf(p) == s {
			out = append(out, p)
		}
	}
	return out
}

// worksUntil returns the latest time at which a leader's pod has finished its requests. It is zero
// if the pod has finished them, or if its node does not answer.
func (r leaders) worksUntil(p *corev1.Pod, now time.Time) time.Time {
	if node := r.caches.Node(p.Spec.NodeName); !containerRuns(p) || node != nil && !isAnswering(node) {
		return time.Time{}
	}
	if p.DeletionTimestamp != nil {
		return p.DeletionTimestamp.Add(stopMargin) // DeletionTimestamp is the end of the grace period
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

// awaitedUntil returns the latest time at which the leader of a pod has finished its requests. It
// is zero if the leader has finished them.
func (r leaders) awaitedUntil(p *corev1.Pod, now time.Time) (until time.Time) {
	for _, leader := range r.podsOf(rankSetOf(p)) {
		if at := r.worksUntil(leader, now); at.After(until) {
			until = at
		}
	}
	return until
}

// followLeader changes the input for a pod of a rank above 0: the pod waits for the end of its leader
// instead of for gateways.
func (r leaders) followLeader(in *replacement.Input) {
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

// stopFor returns how long a leader whose pod is being deleted may still need the other ranks of
// its instance. It is 0 if one of the other ranks has ended.
func (r leaders) stopFor(ranks []*unit, now time.Time) (left time.Duration) {
	for _, u := range ranks {
		if u.Rank == 0 {
			continue
		}
		if !u.rank.there || u.rank.began.IsZero() {
			return 0
		}
		for _, leader := range r.podsOf(rankSet{u.ref.Namespace, u.live.Labels[render.LabelUnitOf], u.Unit(), u.rank.template, u.rank.epoch}) {
			if leader.DeletionTimestamp != nil {
				left = max(left, r.worksUntil(leader, now).Sub(now))
			}
		}
	}
	return left
}

// outlivesFor returns how long a workload must stay for its leader, and the family that it belongs to.
// It returns 0 if the workload is not a rank above 0.
func (r leaders) outlivesFor(w render.Ref, now time.Time) (at render.Ref, left time.Duration) {
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

// removeWorkloads removes the workloads of a deployment. Ranks above 0 stay until their leader has
// ended. A later look at the deployment then removes them.
func (r *Runtime) removeWorkloads(ctx context.Context, deploymentID string) error {
	for _, w := range r.workloadsToRemove(deploymentID) {
		at, left := leaders{r}.outlivesFor(w, time.Now())
		if left <= 0 {
			if err := r.removeWorkload(ctx, w, deploymentID); err != nil {
				return err
			}
			continue
		}
		r.wanted.noteRemoval(at, deploymentID)
		unlock := r.locks.Exclusive(w.String())
		r.forgetWanted(w, deploymentID)
		unlock()
		r.repairs.queue.AddAfter(at, left)
	}
	return nil
}
