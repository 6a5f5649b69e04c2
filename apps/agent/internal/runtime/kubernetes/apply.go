package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/desired"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/replacement"
	"github.com/windlass-run/windlass/pkg/plural"
)

// putAtOnce is the maximum number of calls in flight for one assignment.
const putAtOnce = 4

// Apply puts the objects of assignment a into the cluster. It returns when the cluster has all of
// them as the assignment wants them. Kubernetes stores the objects, and its controllers do the
// rest.
func (r *Runtime) Apply(ctx context.Context, a runtime.Assignment) error {
	if err := r.awaitCaches(ctx); err != nil {
		return err
	}
	if spec := a.Deployment.GetSpec(); runtime.HasRoles(spec) || runtime.HasSeveralHosts(spec) || runtime.HasStableSlots(spec) {
		return families{r}.applyRoles(ctx, a)
	}
	objects, err := r.renderObjects(a)
	if err != nil {
		return err
	}
	w := render.RefOf(render.KindWorkload, objects.Workload)
	let := r.locks.Shared("Namespace " + w.Namespace)
	defer let()
	unlock := r.locks.Exclusive(w.String())
	defer unlock()
	return r.ensureObjects(ctx, w, a, objects, false)
}

// renderObjects returns the objects of an assignment. An environment keeps its namespace, because a project can be
// renamed and a namespace cannot.
func (r *Runtime) renderObjects(a runtime.Assignment) (*render.Objects, error) {
	cfg := r.render
	if id := a.Deployment.GetEnvironmentId(); id != "" {
		all := r.caches.List(render.KindNamespace, access.ByEnvironment, id)
		slices.SortFunc(all, func(a, b render.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
		for _, ns := range all {
			if ns.GetDeletionTimestamp() == nil || cfg.Namespace == "" {
				cfg.Namespace = ns.GetName()
			}
		}
	}
	return render.Render(cfg, a)
}

// ensureObjects makes the objects of an assignment what they should be. The caller holds the workload's
// lock. If all objects are as they should be, ensureObjects makes no call.
//
// The workload is written first, without replicas, because it owns the other objects. If the agent
// is killed after that, Kubernetes deletes these objects together with the workload. The workload
// is written again at the end, complete and with its hash. If the hash is missing or different, the
// next agent knows that work is left.
func (r *Runtime) ensureObjects(ctx context.Context, w render.Ref, a runtime.Assignment, objects *render.Objects, suspect bool) error {
	s, err := r.planPuts(w, a, objects, suspect)
	if err != nil {
		return err
	}
	if s.Live != nil && s.Live.DeletionTimestamp != nil {
		return access.BeingRemoved(w)
	}
	if s.isIdle() {
		r.markSettled(w, a, s)
		return nil
	}
	if s.Live != nil && s.Live.Annotations[render.AnnotationPaused] == "true" {
		return pausedRejection(w)
	}
	undo, err := r.quota.claimGPUs(w, a, func() []render.Object { return r.caches.Every(render.KindWorkload) })
	if err != nil {
		return err
	}
	if err := r.carryOut(ctx, s, a, suspect); err != nil {
		if rej, ok := errors.AsType[*runtime.Rejection](err); ok && !rej.Retryable {
			undo()
		}
		return err
	}
	return nil
}

func pausedRejection(w render.Ref) *runtime.Rejection {
	return &runtime.Rejection{
		Code: runtime.ReasonPaused, Retryable: true,
		Message: fmt.Sprintf("%s has the annotation %s=true: the agent leaves it as it is until that is removed", w, render.AnnotationPaused),
	}
}

// plan has the objects to put, and the drain of the pods that will go.
type plan struct {
	*desired.Plan

	drain replacement.Drain
}

func (s *plan) isIdle() bool {
	return s.Plan.Idle() && !s.drain.Marks()
}

// planPuts returns the objects to put, in order. It makes no call.
func (r *Runtime) planPuts(w render.Ref, a runtime.Assignment, objects *render.Objects, suspect bool) (*plan, error) {
	in := desired.Input{
		Ref: w, Assignment: a, Objects: objects, Seen: r.caches, Suspect: suspect,
		Pruned: func(secret string) bool {
			return r.wanted.isPruned(render.NewRef(render.KindSecret, w.Namespace, secret))
		},
	}
	if before := r.wanted.get(w); before != nil {
		in.Before = before.hash
	}
	p, err := desired.New(in)
	if err != nil {
		return nil, err
	}
	if p.Unreadable != nil {
		r.cfg.Log.Warn("the pod template is rendered again, which replaces instances", "workload", w.Name, "namespace", w.Namespace, "error", p.Unreadable)
	}
	d := r.drainOf(p)
	return &plan{Plan: p, drain: d}, p.Decide(d.Hold, d.Shape)
}

// carryOut puts the planned objects and marks pods.
func (r *Runtime) carryOut(ctx context.Context, s *plan, a runtime.Assignment, suspect bool) (err error) {
	w := s.Ref
	if s.Namespace != nil {
		o, err := r.put(ctx, *s.Namespace, false)
		if err != nil {
			return err
		}
		r.tellDrift(s, *s.Namespace, o)
	}
	if err := r.api.Enter(ctx, w.Namespace); err != nil {
		return err
	}
	if s.Live != nil && s.Live.Annotations[render.AnnotationTemplateHash] != a.TemplateHash {
		// This is a dry run. With it, the server can refuse an invalid workload before anything is
		// changed.
		if _, err := r.put(ctx, desired.Write{Ref: w, Config: s.Goal, Live: s.Live}, true); err != nil {
			return err
		}
	}
	r.wanted.recordWanted(w, a)
	if s.Live == nil {
		if s.Live, err = r.seedWorkload(ctx, s); err != nil {
			return err
		}
		// The plan is made again, because its objects can name their owner only now.
		if s, err = r.planPuts(w, a, s.Objects, suspect); err != nil {
			return err
		}
	}
	if err := r.putAll(ctx, s); err != nil {
		return err
	}
	if err := r.markPods(ctx, s.Live, s.drain, time.Now()); err != nil {
		return err
	}
	r.markSettled(w, a, s)
	if o := r.caches.Get(w); o != nil && !s.Complete && !s.drain.Waits {
		r.recorder.Eventf(o, corev1.EventTypeNormal, "Applied", "generation %d of deployment %s: version %d, %s",
			a.Generation, a.Deployment.GetId(), a.Deployment.GetVersion(), plural.Count(a.Deployment.GetReplicas(), "replica"))
	}
	return nil
}

// seedWorkload creates the workload without replicas, so that other objects can name it as their owner.
func (r *Runtime) seedWorkload(ctx context.Context, s *plan) (*appsv1.Deployment, error) {
	o, err := r.put(ctx, s.Plan.Seed(), false)
	if err != nil {
		return nil, err
	}
	return o.(*appsv1.Deployment), nil
}

// putAll puts the objects of the plan: the dependents, putAtOnce at a time, and then the workload.
func (r *Runtime) putAll(ctx context.Context, s *plan) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, putAtOnce)
	do := func(st desired.Write) {
		o, err := r.put(ctx, st, false)
		if err == nil {
			r.tellDrift(s, st, o)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var workload *desired.Write
	for i := range s.Writes {
		st := s.Writes[i]
		if st.Ref == s.Ref {
			workload = &s.Writes[i]
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(st)
		})
	}
	wg.Wait()
	if len(errs) == 0 && workload != nil {
		do(*workload)
	}
	return worstOf(errs)
}

// worstOf returns the most serious error: the first one that is not retryable, or else the first one.
func worstOf(errs []error) error {
	for _, err := range errs {
		if rej, ok := errors.AsType[*runtime.Rejection](err); !ok || !rej.Retryable {
			return err
		}
	}
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// put applies one object.
func (r *Runtime) put(ctx context.Context, st desired.Write, dry bool) (render.Object, error) {
	if st.Shared() {
		// Versions of an app share the claim. Each version writes all owners that exist now. Only
		// one version writes at a time, so the last version misses no owner.
		unlock := r.locks.Exclusive(st.Ref.String())
		defer unlock()
		if err := st.Reown(); err != nil {
			return nil, err
		}
	}
	return r.api.Apply(ctx, st.Ref, st.Config, st.Live, dry)
}

// markSettled records that the workload is as the assignment a wants it.
func (r *Runtime) markSettled(w render.Ref, a runtime.Assignment, s *plan) {
	now := s.Contest()
	began, said := r.wanted.settleWorkload(w, a, s.Hash, s.drain.Waits, now)
	if s.drain.Left > 0 {
		r.repairs.queue.AddAfter(w, s.drain.Left)
	}
	if began && len(s.drain.Mark) == 0 {
		r.repairs.add(w) // gateways may have released the pods already
	}
	if now != "" && now != said {
		r.metrics.conflicts.Inc()
		r.cfg.Log.Warn("another client scales a workload", "workload", w.String(), "deployment", a.Deployment.GetId(), "conflict", now)
		r.recorder.Event(s.Live, corev1.EventTypeWarning, runtime.ReasonConflict, now)
	}
}
