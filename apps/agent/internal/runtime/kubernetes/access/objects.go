package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Apply applies one object. It does not change an object that is not ours. live is the object as it
// was last seen. It is nil if there is no object, and for a Secret, because Secrets are not
// watched. With dry, the server returns the result and changes nothing.
func (a *API) Apply(ctx context.Context, at render.Ref, config any, live render.Object, dry bool) (render.Object, error) {
	if live != nil && live.GetDeletionTimestamp() != nil {
		return nil, BeingRemoved(at)
	}
	if live == nil && at.Kind != render.KindSecret {
		if err := a.mayMake(ctx, at); err != nil {
			return nil, err
		}
	}
	if live != nil {
		// With the UID, the server refuses the change if a later object has the same name.
		uid := live.GetUID()
		render.MetaOf(config).UID = &uid
	}
	opts := metav1.ApplyOptions{FieldManager: FieldManager, Force: true}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	var out render.Object
	err := a.Call(ctx, "apply "+at.String(), func(ctx context.Context) (err error) {
		out, err = a.Resources[at.Kind].Apply(ctx, at.Namespace, config, opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !dry {
		a.Caches.storeWritten(at.Kind, slimObject(out))
	}
	return out, nil
}

// Get reads an object. If the object does not exist, IsNotFound reports true for the error.
func (a *API) Get(ctx context.Context, at render.Ref) (o render.Object, err error) {
	err = a.Call(ctx, "get "+at.String(), func(ctx context.Context) (err error) {
		o, err = a.Resources[at.Kind].Get(ctx, at.Namespace, at.Name)
		return foundError(err)
	})
	return o, err
}

// Remove deletes an object. If the object does not exist, IsNotFound reports true for the error.
func (a *API) Remove(ctx context.Context, at render.Ref, opts metav1.DeleteOptions) error {
	return a.Call(ctx, "delete "+at.String(), func(ctx context.Context) error {
		return foundError(a.Resources[at.Kind].Remove(ctx, at.Namespace, at.Name, opts))
	})
}

// RemoveOrphans deletes the objects in a namespace with the labels of a deployment, except its
// workload and its claim. With adopted, it keeps the ReplicaSets, because they belong to another
// deployment now.
func (a *API) RemoveOrphans(ctx context.Context, namespace, deploymentID string, adopted bool) error {
	foreground := metav1.DeletePropagationForeground
	opts := metav1.DeleteOptions{PropagationPolicy: &foreground}
	list := metav1.ListOptions{}
	for _, of := range []labels.Set{render.OfWorkload(a.cfg.Region, deploymentID), render.OfUnits(a.cfg.Region, deploymentID)} {
		if adopted {
			break
		}
		list.LabelSelector = of.String()
		err := a.Call(ctx, "delete replica sets of "+deploymentID, func(ctx context.Context) error {
			return a.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, opts, list)
		})
		if err != nil {
			return err
		}
	}
	list.LabelSelector = render.OfDeployment(a.cfg.Region, deploymentID).String()
	for _, k := range []render.Kind{render.KindService, render.KindDisruptionBudget, render.KindNetworkPolicy, render.KindSecret, render.KindServiceAccount} {
		err := a.Call(ctx, fmt.Sprintf("delete each %s of %s", k, deploymentID), func(ctx context.Context) error {
			return a.Resources[k].RemoveAll(ctx, namespace, opts, list)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mayMake returns an error if an object that is not ours has this name, because an apply would take
// it over.
func (a *API) mayMake(ctx context.Context, at render.Ref) error {
	there, err := a.Get(ctx, at)
	switch {
	case IsNotFound(err):
		return nil
	case err != nil:
		return err
	case !a.isOurs(there):
		return &runtime.Rejection{
			Code: runtime.ReasonConflict, Retryable: true,
			Message: fmt.Sprintf("%s exists and does not belong to Windlass (it lacks the labels %s=%s and %s=%s): remove it, or add these labels to let Windlass manage it",
				at, render.LabelManagedBy, render.ManagedBy, render.LabelRegion, a.cfg.Region),
		}
	case there.GetDeletionTimestamp() != nil:
		return BeingRemoved(at)
	}
	return nil
}

// isOurs reports whether an object is ours. An object without the region's label is also ours if the
// agent has applied it before. In that case, another client has removed its labels.
func (a *API) isOurs(o metav1.Object) bool {
	l := o.GetLabels()
	if region, ok := l[render.LabelRegion]; ok {
		return region == a.cfg.Region
	}
	return slices.ContainsFunc(o.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == FieldManager && f.Operation == metav1.ManagedFieldsOperationApply
	})
}

// slimObject returns a copy of an object with only the fields that the caches keep.
func slimObject(o render.Object) render.Object {
	o = o.DeepCopyObject().(render.Object)
	if d, ok := o.(*appsv1.Deployment); ok {
		_, _ = slimWorkload(d)
		return d
	}
	o.SetManagedFields(nil)
	return o
}

// DeletePod deletes a pod with the given grace period, or with the pod's own if grace is nil. If
// the pod is gone, IsNotFound reports true for the error.
func (a *API) DeletePod(ctx context.Context, p *corev1.Pod, grace *int64) error {
	uid := p.UID
	return a.Call(ctx, fmt.Sprintf("delete pod %s/%s", p.Namespace, p.Name), func(ctx context.Context) error {
		return foundError(a.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &uid},
		}))
	})
}

// Annotate changes annotations of a pod, if the pod still exists.
func (a *API) Annotate(ctx context.Context, p *corev1.Pod, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "annotations": annotations}})
	if err != nil {
		return err
	}
	err = a.Call(ctx, "annotate pod "+p.Namespace+"/"+p.Name, func(ctx context.Context) error {
		now, err := a.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		if err == nil {
			a.Caches.annotatedAs(now)
		}
		return foundError(err)
	})
	rej, ok := errors.AsType[*runtime.Rejection](err)
	if IsNotFound(err) || ok && rej.Code == runtime.ReasonConflict {
		return nil // the pod is gone, or another pod has its name
	}
	return err
}
