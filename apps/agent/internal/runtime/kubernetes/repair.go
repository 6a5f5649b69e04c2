package kubernetes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/desired"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// repairWorkers look at workloads that something happened to. Looking is cheap and
// calls nothing; two of them keep one slow repair from holding up the next.
const repairWorkers = 2

// calmAfter without a repair, the next one is at once again.
const calmAfter = 10 * time.Minute

// repairs are the workloads to look at: something happened to an object of theirs.
type repairs struct {
	queue  workqueue.TypedRateLimitingInterface[render.Ref]
	policy backoff.Policy
	random func() float64

	mu sync.Mutex
	// suspects lack a Secret, as their pods tell.
	suspects map[render.Ref]bool
	history  map[render.Ref]*repaired
}

// repaired is how often a workload had to be repaired, and when last.
type repaired struct {
	times int
	last  time.Time
}

func newRepairs(policy backoff.Policy, random func() float64) *repairs {
	return &repairs{
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[render.Ref]()),
		policy: policy, random: random,
		suspects: map[render.Ref]bool{}, history: map[render.Ref]*repaired{},
	}
}

func (r *repairs) add(all ...render.Ref) {
	for _, w := range all {
		if w.Name != "" {
			r.queue.Add(w)
		}
	}
}

func (r *repairs) suspect(w render.Ref) {
	r.mu.Lock()
	r.suspects[w] = true
	r.mu.Unlock()
	r.add(w)
}

func (r *repairs) suspected(w render.Ref) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suspects[w]
}

// wait is how long the next repair of w has to wait: a client that undoes every repair
// must not keep the agent and the API server busy.
func (r *repairs) wait(w render.Ref, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.history[w]
	if h == nil || now.Sub(h.last) > calmAfter {
		delete(r.history, w)
		return 0
	}
	// The same delay however often one asks in between.
	return max(0, h.last.Add(r.policy.Delay(h.times-1, func() float64 { return 0.5 })).Sub(now))
}

// done notes a repair.
func (r *repairs) done(w render.Ref, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.suspects, w)
	h := r.history[w]
	if h == nil {
		h = &repaired{}
		r.history[w] = h
	}
	h.times++
	h.last = now
}

func (r *repairs) forget(w render.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.suspects, w)
	delete(r.history, w)
}

// repair looks at workloads until ctx ends.
func (r *Runtime) repair(ctx context.Context) {
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
				// Something has to change first, and we will be told.
				r.repairs.queue.Forget(w)
				continue
			}
			r.cfg.Log.WarnContext(ctx, "cannot put a workload right; will try again", "workload", w.String(), "error", err)
			r.repairs.queue.AddRateLimited(w)
		}
	}
}

// lookAt looks at one workload and repairs what is not as wanted.
func (r *Runtime) lookAt(ctx context.Context, w render.Ref) error {
	if r.wantOf(w) == nil {
		return nil
	}
	let := r.locks.Together("Namespace " + w.Namespace)
	defer let()
	unlock := r.locks.Alone(w.String())
	defer unlock()
	known := r.wantOf(w)
	if known == nil || known.hash == "" {
		// The assignment was taken back while we waited, or is not applied yet: Remove or Apply
		// does all that is needed.
		return nil
	}
	objects, err := r.rendered(known.assignment)
	if err != nil {
		return err
	}
	suspect := r.repairs.suspected(w)
	s, err := r.plan(w, known.assignment, objects, suspect)
	if err != nil {
		return err
	}
	if s.idle() {
		if s.drain.left > 0 {
			r.repairs.queue.AddAfter(w, s.drain.left)
		}
		return r.prune(ctx, s)
	}
	if (known.drains || len(s.drain.unmark) > 0) && !suspect && !s.Drifted() {
		return r.ensure(ctx, w, known.assignment, objects, false) // nothing was wrong
	}
	if wait := r.repairs.wait(w, time.Now()); wait > 0 {
		r.repairs.queue.AddAfter(w, wait)
		return nil
	}
	if err := r.ensure(ctx, w, known.assignment, objects, suspect); err != nil {
		return err
	}
	r.repairs.done(w, time.Now())
	return nil
}

// tellDrift says, on the object and to the deployment's people, what somebody changed
// and that it is put back.
func (r *Runtime) tellDrift(s *plan, st desired.Step, now render.Object) {
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
	r.signal()
}

// ownersOf are the workloads that an object is for.
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

// workloadsOf are the workloads that are there with the value in the index. Without any, they
// are all workloads that are wanted in the namespace.
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
	return r.wantedIn(namespace)
}

// wantedIn are the workloads that are wanted in a namespace.
func (r *Runtime) wantedIn(namespace string) []render.Ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []render.Ref
	for w := range r.wanted {
		if w.Namespace == namespace {
			out = append(out, w)
		}
	}
	return out
}

// lacksSecret reports whether a pod cannot start for want of a Secret.
func lacksSecret(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerConfigError"
	})
}

func sameMeta(a, b metav1.Object) bool {
	return sameMap(a.GetLabels(), b.GetLabels()) && sameMap(a.GetAnnotations(), b.GetAnnotations()) &&
		(a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil)
}

func sameMap(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// finished looks at a workload again when Kubernetes has done what it was told: more may
// be to do, and when a rollout of it is over, Secrets of the template before may go.
func (r *Runtime) finished(o render.Object) {
	d, ok := o.(*appsv1.Deployment)
	if !ok {
		return
	}
	if w := render.NewRef(render.KindWorkload, d.Namespace, d.Name); r.drains(w) || rolledOut(d) && len(desired.StaleSecrets(d)) > 0 {
		r.repairs.add(w)
	}
}

func rolledOut(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Spec.Replicas != nil &&
		d.Status.UpdatedReplicas == *d.Spec.Replicas && d.Status.Replicas == d.Status.UpdatedReplicas
}

// prune removes Secrets that no pod and no template refers to any more. Until it
// has, the workload lists them.
func (r *Runtime) prune(ctx context.Context, s *plan) error {
	if s.Live == nil || !rolledOut(s.Live) {
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
		r.mu.Lock()
		r.pruned[at] = true
		r.mu.Unlock()
	}
	// Its list is shorter now.
	r.repairs.add(s.Ref)
	return nil
}

// prunable reports whether a Secret need not be listed any more.
func (r *Runtime) prunable(namespace, name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pruned[render.NewRef(render.KindSecret, namespace, name)]
}
