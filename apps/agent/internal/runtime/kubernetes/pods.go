package kubernetes

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/desired"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/replacement"
)

var _ runtime.Drainer = (*Runtime)(nil)

// Drain implements runtime.Drainer.
func (r *Runtime) Drain(released func(instanceID string) bool, patience func(instanceID string) time.Duration) (again func()) {
	r.released, r.patience = released, patience
	return func() {
		r.repairs.add(r.wanted.drainingWorkloads()...)
	}
}

// drainOf returns the pods to mark and to wait for before the workload can be as planned.
func (r *Runtime) drainOf(p *desired.Plan) replacement.Drain {
	u := p.Assignment.Unit
	if u != nil && u.Holds && p.Live != nil && !p.Switched() {
		return replacement.Drain{Hold: true}
	}
	follows := u != nil && u.Rank > 0
	if r.released == nil && !follows || p.Live == nil || u != nil && (p.Restarts() || p.Moves()) && !u.Leaves {
		return replacement.Drain{}
	}
	in := replacement.Input{
		Live: p.Live, Goal: p.Goal, Assignment: p.Assignment, Switched: p.Switched(),
		Pods: r.caches.PodsOf(p.Live.Namespace, p.Live.Labels[render.LabelWorkload]), Sets: r.caches.ReplicaSetsOf(p.Live),
		Released: func(pod *corev1.Pod) bool { return r.released(render.InstanceID(pod.UID)) },
		Patience: func(pod *corev1.Pod) time.Duration { return r.patience(render.InstanceID(pod.UID)) },
		Now:      time.Now(),
	}
	switch {
	case follows:
		leaders{r}.followLeader(&in)
	case u != nil && !u.IsEntryOfPool():
		at := familyRef(p.Ref.Namespace, p.Assignment)
		in.Released = func(*corev1.Pod) bool { return families{r}.releasedInGroup(at, u) }
	}
	return replacement.DrainOf(in)
}

// markPods annotates pods with the decision whether they leave or stay.
func (r *Runtime) markPods(ctx context.Context, w *appsv1.Deployment, d replacement.Drain, now time.Time) error {
	var errs []error
	for _, n := range d.Notes(w, now) {
		errs = append(errs, r.api.Annotate(ctx, n.Pod, n.Annotations))
	}
	return worstOf(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
}

// isUnsettled reports whether Kubernetes may still create pods that the workload's assignment does
// not want.
func (r *Runtime) isUnsettled(w *appsv1.Deployment) bool {
	if w.DeletionTimestamp != nil {
		return false // Observe lists the workload until all of it is gone
	}
	wanted := int(ptr.Deref(w.Spec.Replicas, 1))
	if known := r.wanted.get(render.NewRef(render.KindWorkload, w.Namespace, w.Name)); known != nil {
		wanted = int(known.assignment.Deployment.GetReplicas())
	}
	return replacement.IsUnsettled(w, r.caches.ReplicaSetsOf(w), wanted, func() int {
		return len(r.caches.PodsOf(w.Namespace, w.Labels[render.LabelWorkload]))
	})
}

// forceLost deletes pods that stay terminating because their node is lost, if the configuration
// allows this.
func (r *Runtime) forceLost(ctx context.Context, now time.Time) error {
	after := r.cfg.ForceDeleteLostAfter
	if after == 0 {
		return nil
	}
	for _, p := range r.caches.EveryPod() {
		if !replacement.LostFor(p, r.caches.Node(p.Spec.NodeName), after, now) {
			continue
		}
		none := int64(0)
		if err := r.api.DeletePod(ctx, p, &none); err != nil && !access.IsNotFound(err) {
			return err
		}
		r.metrics.forced.Inc()
		r.cfg.Log.WarnContext(ctx, "deleted a pod of a lost node without confirmation from the node", "pod", p.Namespace+"/"+p.Name, "node", p.Spec.NodeName)
		r.recorder.Event(p, corev1.EventTypeWarning, "ForceDeleted", "its node "+p.Spec.NodeName+" is lost; deleted without its confirmation, because of --force-delete-lost-after")
	}
	return nil
}

// removeEnded deletes the ended pods of each workload, except the newest few.
func (r *Runtime) removeEnded(ctx context.Context, now time.Time) error {
	for _, p := range r.cfg.Ended.Due(r.caches.EveryPod(), r.caches.Get, now) {
		if err := r.api.DeletePod(ctx, p, nil); err != nil && !access.IsNotFound(err) {
			return err
		}
		r.metrics.ended.Inc()
		r.cfg.Log.InfoContext(ctx, "removed a pod that had ended", "pod", p.Namespace+"/"+p.Name, "reason", p.Status.Reason, "ended", replacement.EndedAt(p))
	}
	return nil
}
