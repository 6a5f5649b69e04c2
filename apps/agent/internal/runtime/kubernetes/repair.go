package kubernetes

import (
	"context"
	"errors"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/desired"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/replacement"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// repairWorkers is the number of goroutines that look at changed workloads. A look alone makes no
// call. With two goroutines, one slow repair does not delay the next.
const repairWorkers = 2

// repairs is the queue of workloads with a changed object.
type repairs struct {
	*replacement.History

	queue workqueue.TypedRateLimitingInterface[render.Ref]
}

func newRepairs(policy backoff.Policy) *repairs {
	return &repairs{
		History: replacement.NewHistory(policy),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[render.Ref]()),
	}
}

func (r *repairs) add(all ...render.Ref) {
	for _, w := range all {
		if w.Name != "" {
			r.queue.Add(w)
		}
	}
}

// repairWorkloads looks at workloads until ctx ends.
func (r *Runtime) repairWorkloads(ctx context.Context) {
	stop := context.AfterFunc(ctx, r.repairs.queue.ShutDown)
	defer stop()
	for {
		w, shutdown := r.repairs.queue.Get()
		if shutdown {
			return
		}
		err := r.lookAt(ctx, w)
		r.repairs.queue.Done(w)
		switch {
		case err == nil:
			r.repairs.queue.Forget(w)
		case ctx.Err() != nil:
		default:
			rej, ok := errors.AsType[*runtime.Rejection](err)
			if ok && (!rej.Retryable || rej.Code == runtime.ReasonPaused) {
				// An object must change first, and the event of that change queues the workload again.
				r.repairs.queue.Forget(w)
				continue
			}
			r.cfg.Log.WarnContext(ctx, "cannot repair a workload; will try again", "workload", w.String(), "error", err)
			r.repairs.queue.AddRateLimited(w)
		}
	}
}

// lookAt looks at one workload, and repairs objects that are not as wanted.
func (r *Runtime) lookAt(ctx context.Context, w render.Ref) error {
	if w == gangsRef {
		families{r}.admitGangs()
		return nil
	}
	if w.Kind == render.KindRoles {
		return families{r}.lookAtRoles(ctx, w)
	}
	if r.wanted.get(w) == nil {
		return nil
	}
	let := r.locks.Shared("Namespace " + w.Namespace)
	defer let()
	unlock := r.locks.Exclusive(w.String())
	defer unlock()
	known := r.wanted.get(w)
	if known == nil || known.hash == "" {
		// The assignment was removed while lookAt waited, or is not applied yet. Remove or Apply
		// does everything that is needed.
		return nil
	}
	objects, err := r.renderObjects(known.assignment)
	if err != nil {
		return err
	}
	suspect := r.repairs.Suspected(w)
	s, err := r.planPuts(w, known.assignment, objects, suspect)
	if err != nil {
		return err
	}
	if s.isIdle() {
		if s.drain.Left > 0 {
			r.repairs.queue.AddAfter(w, s.drain.Left)
		}
		return r.pruneSecrets(ctx, s)
	}
	if (known.drains || len(s.drain.Unmark) > 0) && !suspect && !s.Drifted() {
		return r.ensureObjects(ctx, w, known.assignment, objects, false) // no drift
	}
	if wait := r.repairs.Wait(w, time.Now()); wait > 0 {
		r.repairs.queue.AddAfter(w, wait)
		return nil
	}
	if err := r.ensureObjects(ctx, w, known.assignment, objects, suspect); err != nil {
		return err
	}
	r.repairs.Done(w, time.Now())
	return nil
}

// tellDrift reports what another client changed, and that the change was undone, as an event of the
// object and as a notice.
func (r *Runtime) tellDrift(s *plan, st desired.Write, now render.Object) {
	if !st.Drift || now == nil {
		return
	}
	what := "somebody removed it; it was made again"
	if st.Live != nil && len(st.Diffs) > 0 {
		what = "put back what somebody changed: " + desired.Summary(st.Ref.Kind, st.Diffs)
	}
	r.metrics.drift.WithLabelValues(string(st.Ref.Kind)).Inc()
	r.cfg.Log.Warn("drift", "object", st.Ref.String(), "workload", s.Ref.String(), "what", what)
	r.recorder.Event(now, corev1.EventTypeWarning, "Drift", what)
	r.notices.add(subject{agentv1.Notice_KIND_DRIFT, s.Assignment.Deployment.GetId(), st.Ref.String()}, what, time.Now())
	r.signalChange()
}

// ownersOf returns the workloads that an object belongs to.
func (r *Runtime) ownersOf(o render.Object) []render.Ref {
	if _, ok := o.(*appsv1.Deployment); ok {
		return []render.Ref{render.NewRef(render.KindWorkload, o.GetNamespace(), o.GetName())}
	}
	if v := o.GetLabels()[render.LabelWorkload]; v != "" {
		return r.workloadsOf(o.GetNamespace(), access.ByWorkload, o.GetNamespace()+"/"+v)
	}
	if v := o.GetLabels()[render.LabelApp]; v != "" {
		return r.workloadsOf(o.GetNamespace(), access.ByApp, o.GetNamespace()+"/"+v)
	}
	return r.workloadsOf(o.GetNamespace(), "", "")
}

// workloadsOf returns the existing workloads with the value in the index. If there are none, it returns all
// workloads that are wanted in the namespace.
func (r *Runtime) workloadsOf(namespace, index, value string) []render.Ref {
	var out []render.Ref
	if index != "" {
		for _, w := range r.caches.List(render.KindWorkload, index, value) {
			out = append(out, render.NewRef(render.KindWorkload, w.GetNamespace(), w.GetName()))
		}
		if len(out) > 0 {
			return out
		}
	}
	return r.wanted.workloadsIn(namespace)
}

// workloadChanged queues a workload after its status changed. A workload that drains may be ready for its
// next step. After a rollout, Secrets of the old template can be removed.
func (r *Runtime) workloadChanged(o render.Object) {
	d, ok := o.(*appsv1.Deployment)
	if !ok {
		return
	}
	if w := render.NewRef(render.KindWorkload, d.Namespace, d.Name); r.wanted.hasDrains(w) || replacement.RolledOut(d) && len(desired.StaleSecrets(d)) > 0 {
		r.repairs.add(w)
	}
}

// pruneSecrets removes Secrets to which no pod and no template refers any more. The workload lists them
// until then.
func (r *Runtime) pruneSecrets(ctx context.Context, s *plan) error {
	if s.Live == nil || !replacement.RolledOut(s.Live) {
		return nil
	}
	stale := desired.StaleSecrets(s.Live)
	for _, p := range r.caches.PodsOf(s.Ref.Namespace, s.Live.Labels[render.LabelWorkload]) {
		used := render.SecretNames(p)
		stale = slices.DeleteFunc(stale, func(n string) bool { return slices.Contains(used, n) })
	}
	if len(stale) == 0 {
		return nil
	}
	for _, name := range stale {
		at := render.NewRef(render.KindSecret, s.Ref.Namespace, name)
		err := r.api.Remove(ctx, at, metav1.DeleteOptions{})
		if err != nil && !access.IsNotFound(err) {
			return err
		}
		r.wanted.forgetSecret(at)
	}
	// The workload must be written again, with a shorter list.
	r.repairs.add(s.Ref)
	return nil
}
