package kubernetes

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// Observe tells what the caches hold. It calls nothing.
func (r *Runtime) Observe(ctx context.Context) (runtime.Observation, error) {
	if err := r.ready(ctx); err != nil {
		return runtime.Observation{}, err
	}
	r.look.Lock()
	defer r.look.Unlock()
	seen := map[string]*runtime.ObservedDeployment{}
	alive := map[string]bool{}
	at := func(id string) *runtime.ObservedDeployment {
		d := seen[id]
		if d == nil {
			d = &runtime.ObservedDeployment{DeploymentID: id}
			seen[id] = d
		}
		return d
	}
	now := time.Now()

	pods := map[string][]*corev1.Pod{}
	for _, o := range r.caches.pods.GetIndexer().List() {
		if p, ok := o.(*corev1.Pod); ok {
			key := namespaced(p, render.LabelWorkload)
			pods[key] = append(pods[key], p)
		}
	}
	memories := make(map[string]*observe.Memory, len(r.memories))
	look := func(key, template string, w *appsv1.Deployment) []runtime.Instance {
		m := r.memories[key]
		if m == nil {
			m = &observe.Memory{}
		}
		memories[key] = m
		of := pods[key]
		delete(pods, key)
		return m.Instances(observe.Input{
			Now: now, TemplateHash: template, Pods: of, Workload: w, Nodes: r.caches.node, Journal: r.journal,
		})
	}
	for _, o := range r.caches.every(kindWorkload) {
		w, ok := o.(*appsv1.Deployment)
		id := o.GetLabels()[render.LabelDeployment]
		if !ok || id == "" {
			continue
		}
		d := at(id)
		if w.DeletionTimestamp == nil {
			alive[id] = true
		}
		if n, err := strconv.ParseInt(w.Annotations[render.AnnotationGeneration], 10, 64); err == nil && n >= d.Generation {
			d.Generation, d.TemplateHash = n, w.Annotations[render.AnnotationTemplateHash]
		}
		d.Instances = append(d.Instances, look(namespaced(w, render.LabelWorkload), w.Annotations[render.AnnotationTemplateHash], w)...)
	}
	// Pods that outlive their workload are told of under the name that it was made
	// for: the deployment's, unless another had adopted it.
	for key, of := range pods {
		d := at(of[0].Labels[render.LabelWorkload])
		d.Instances = append(d.Instances, look(key, "", nil)...)
	}
	// What is collected after the workload is the last of a deployment.
	for _, k := range []kind{kindService, kindDisruptionBudget, kindNetworkPolicy, kindServiceAccount} {
		for _, id := range r.caches.ours[k].GetIndexer().ListIndexFuncValues(byDeployment) {
			at(id)
		}
	}
	r.memories = memories
	out := runtime.Observation{Capacity: r.fleet.Capacity(), Notices: r.notices.newest(), Deployments: make([]runtime.ObservedDeployment, 0, len(seen))}
	for id, d := range seen {
		d.Removing = !alive[id] && !r.wants(id)
		out.Deployments = append(out.Deployments, *d)
	}
	slices.SortFunc(out.Deployments, func(a, b runtime.ObservedDeployment) int { return cmp.Compare(a.DeploymentID, b.DeploymentID) })
	return out, nil
}

// wants tells whether the deployment is to be there.
func (r *Runtime) wants(deploymentID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.wanted {
		if w.assignment.Deployment.GetId() == deploymentID {
			return true
		}
	}
	return false
}
