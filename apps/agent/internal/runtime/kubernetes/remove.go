package kubernetes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Remove deletes the workload of a deployment and the objects that it owns. Kubernetes decides the order and
// carries it out, even without an agent. A workload that a newer deployment has adopted is left alone.
func (r *Runtime) Remove(ctx context.Context, deploymentID string) error {
	if err := r.awaitCaches(ctx); err != nil {
		return err
	}
	for _, at := range r.wanted.familiesOf(deploymentID) {
		// This waits until a running look has ended. Otherwise the look could create an instance
		// again.
		unlock := r.locks.Exclusive(at.String())
		r.wanted.forgetRoles(at, deploymentID)
		r.gangs.forgetDeployment(at)
		unlock()
	}
	if err := r.removeWorkloads(ctx, deploymentID); err != nil {
		return err
	}
	return r.removeOrphans(ctx, deploymentID)
}

// workloadsToRemove returns the deployment's existing workloads and its wanted workloads, because a
// repair may be creating one of the wanted workloads right now.
func (r *Runtime) workloadsToRemove(deploymentID string) []render.Ref {
	var out []render.Ref
	for _, o := range r.caches.List(render.KindWorkload, access.ByDeployment, deploymentID) {
		out = append(out, render.NewRef(render.KindWorkload, o.GetNamespace(), o.GetName()))
	}
	for _, w := range r.wanted.workloadsOf(deploymentID) {
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

// forgetWanted forgets the wanted state of the deployment's workload. The caller holds the workload's
// lock, so a running repair cannot record the state again.
func (r *Runtime) forgetWanted(w render.Ref, deploymentID string) {
	if r.wanted.forgetWorkload(w, deploymentID) {
		r.repairs.Forget(w)
		r.quota.release(w)
	}
}

// removeAttempts is how often the removal of a workload is tried if the workload changes meanwhile.
// Its status changes often, but only while it starts.
const removeAttempts = 5

func (r *Runtime) removeWorkload(ctx context.Context, w render.Ref, deploymentID string) error {
	unlock := r.locks.Exclusive(w.String())
	defer unlock()
	r.forgetWanted(w, deploymentID)
	o := r.caches.Get(w)
	for attempt := 1; ; attempt++ {
		if o == nil || o.GetLabels()[render.LabelDeployment] != deploymentID || o.GetDeletionTimestamp() != nil {
			return nil
		}
		if o.GetAnnotations()[render.AnnotationPaused] == "true" {
			return pausedRejection(w)
		}
		err := r.removeAsSeen(ctx, w, o)
		if rej, ok := errors.AsType[*runtime.Rejection](err); !ok || rej.Code != runtime.ReasonConflict || attempt == removeAttempts {
			return err
		}
		// The cache may lag behind: another deployment may have adopted the workload since.
		o, err = r.api.Get(ctx, w)
		if access.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// removeAsSeen removes the workload if it has not changed since o was read.
func (r *Runtime) removeAsSeen(ctx context.Context, w render.Ref, o render.Object) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	foreground := metav1.DeletePropagationForeground
	err := r.api.Remove(ctx, w, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
	})
	if err != nil && !access.IsNotFound(err) {
		return err
	}
	r.caches.Deleted(uid)
	r.signalChange()
	return nil
}

// removeOrphans removes objects with the deployment's label that have no owner, for example after
// kubectl delete --cascade=orphan.
func (r *Runtime) removeOrphans(ctx context.Context, deploymentID string) error {
	spaces := map[string]bool{}
	for _, o := range r.leftoverObjects(deploymentID) {
		if len(o.GetOwnerReferences()) == 0 && o.GetDeletionTimestamp() == nil {
			spaces[o.GetNamespace()] = true
		}
	}
	// Pods have the label of their workload, which is named after the deployment that made it. If
	// another deployment has adopted the workload, the pods belong to the other deployment.
	adopted := r.wanted.isAdopted(deploymentID)
	for _, p := range r.caches.EveryPod() {
		if !adopted && render.ParentKey(p.Labels[render.LabelWorkload]) == deploymentID && p.DeletionTimestamp == nil && r.caches.Get(render.WorkloadOf(p)) == nil {
			spaces[p.Namespace] = true
		}
	}
	for _, s := range r.caches.EveryReplicaSet() {
		if !adopted && render.ParentKey(s.Labels[render.LabelWorkload]) == deploymentID && len(s.OwnerReferences) == 0 && s.DeletionTimestamp == nil {
			spaces[s.Namespace] = true
		}
	}
	for ns := range spaces {
		if err := r.api.RemoveOrphans(ctx, ns, deploymentID, adopted); err != nil {
			return err
		}
	}
	return nil
}

// leftoverObjects returns the cached objects of a deployment, without its workload and pods.
func (r *Runtime) leftoverObjects(deploymentID string) []render.Object {
	var out []render.Object
	for _, k := range []render.Kind{render.KindService, render.KindDisruptionBudget, render.KindNetworkPolicy, render.KindServiceAccount, render.KindClaim} {
		out = append(out, r.caches.List(k, access.ByDeployment, deploymentID)...)
	}
	return out
}

// The times of tidying, which is work that no event starts.
const (
	tidyEvery = 5 * time.Second
	// emptyFor is how long a namespace must be empty before it is removed, because the next version
	// of an app often comes right after the last one is gone.
	emptyFor = 10 * time.Second
)

// tidier records since when namespaces have been empty.
type tidier struct {
	mu    sync.Mutex
	empty map[string]time.Time
}

// tidyUp works until ctx ends. It removes empty namespaces, pods of lost nodes and ended pods, and
// sums up notices. It reads the caches, and makes a call only when there is something to do.
func (r *Runtime) tidyUp(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tidyEvery):
		}
		now := time.Now()
		for _, o := range r.caches.Every(render.KindNamespace) {
			if err := r.tidyNamespace(ctx, o.GetName(), now); err != nil && ctx.Err() == nil {
				r.cfg.Log.WarnContext(ctx, "cannot remove an empty namespace; will try again", "namespace", o.GetName(), "error", err)
			}
		}
		if err := r.forceLost(ctx, now); err != nil && ctx.Err() == nil {
			r.cfg.Log.WarnContext(ctx, "cannot remove pods of lost nodes; will try again", "error", err)
		}
		r.changedIf(r.notices.sumUp(now))
		if err := r.removeEnded(ctx, now); err != nil && ctx.Err() == nil {
			r.cfg.Log.WarnContext(ctx, "cannot remove pods that have ended; will try again", "error", err)
		}
	}
}

// idleNamespace reports whether a namespace that the agent created is empty according to the
// caches, and no workload is wanted in it.
func (r *Runtime) idleNamespace(name string) bool {
	o := r.caches.Get(render.NewRef(render.KindNamespace, "", name))
	if o == nil || o.GetDeletionTimestamp() != nil || o.GetAnnotations()[render.AnnotationCreatedBy] == "" || o.GetAnnotations()[keepNamespace] == "true" {
		return false
	}
	if len(r.wanted.workloadsIn(name)) > 0 {
		return false
	}
	for k := range r.caches.Ours {
		if k == render.KindNamespace {
			continue
		}
		for _, o := range r.caches.List(k, "namespace", name) {
			if o.GetLabels()[render.LabelWorkload] != "" || k == render.KindClaim || k == render.KindWorkload {
				return false
			}
		}
	}
	return !r.caches.HoldsPods(name)
}

// keepNamespace is the annotation of a namespace that stays when it is empty.
const keepNamespace = "windlass.run/keep"

func (r *Runtime) tidyNamespace(ctx context.Context, name string, now time.Time) error {
	if !r.idleNamespace(name) {
		r.tidier.mu.Lock()
		delete(r.tidier.empty, name)
		r.tidier.mu.Unlock()
		return nil
	}
	r.tidier.mu.Lock()
	since, known := r.tidier.empty[name]
	if !known {
		r.tidier.empty[name] = now
	}
	r.tidier.mu.Unlock()
	if !known || now.Sub(since) < emptyFor {
		return nil
	}
	unlock := r.locks.Exclusive("Namespace " + name)
	defer unlock()
	if !r.idleNamespace(name) {
		return nil
	}
	empty, err := r.api.NothingElse(ctx, name)
	if err != nil || !empty {
		r.tidier.mu.Lock()
		// Other clients use the namespace, or the check failed. Check again after tidyAgain.
		r.tidier.empty[name] = now.Add(tidyAgain)
		r.tidier.mu.Unlock()
		return err
	}
	at := render.NewRef(render.KindNamespace, "", name)
	uid := r.caches.Get(at).GetUID()
	err = r.api.Remove(ctx, at, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !access.IsNotFound(err) {
		return err
	}
	r.caches.Deleted(uid)
	return nil
}

// tidyAgain is how long a namespace that holds objects of other clients is left alone.
const tidyAgain = 10 * time.Minute
