package kubernetes

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
)

var _ runtime.Meter = (*Runtime)(nil)

const (
	// usageFor is how long the metrics of a namespace are used. The metrics API makes new metrics
	// every 15 s.
	usageFor = 10 * time.Second
	// absentFor is the time before the next call if the metrics API is absent, or failed for a namespace.
	absentFor = time.Minute
)

// usages caches the answers of the metrics API, by namespace.
type usages struct {
	mu     sync.Mutex
	lists  map[string]usageList
	absent time.Time // until then, the metrics API is not called
}

type usageList struct {
	until time.Time                // when the list is read again
	pods  map[string]runtime.Usage // by name; empty if the namespace could not be listed
	err   error                    // why the namespace could not be listed
}

// errNoMetrics is the error of Usage in a cluster without a metrics API.
var errNoMetrics = &runtime.NoUsageError{Reason: "the cluster has no metrics API (metrics.k8s.io): its operator has to install metrics-server"}

// Usage implements runtime.Meter with the cluster's metrics API. Without that API it returns errNoMetrics. If
// the API fails for a namespace, Usage returns the usage of pods in other namespaces with the error.
func (r *Runtime) Usage(ctx context.Context, instanceIDs []string) (map[string]runtime.Usage, error) {
	if err := r.awaitCaches(ctx); err != nil {
		return nil, err
	}
	r.usages.mu.Lock()
	defer r.usages.mu.Unlock()
	out := map[string]runtime.Usage{}
	if time.Now().Before(r.usages.absent) {
		return out, errNoMetrics
	}
	var errs []error
	failed := map[string]bool{} // by namespace
	for _, id := range instanceIDs {
		p, err := r.podOf(id)
		if err != nil {
			continue // the pod is gone
		}
		list, ok, err := r.usages.usageIn(ctx, r.api, p.Namespace)
		if !ok {
			return out, errNoMetrics
		}
		if err != nil && !failed[p.Namespace] {
			failed[p.Namespace] = true
			errs = append(errs, err)
		}
		if u, ok := list[p.Name]; ok {
			out[id] = u
		}
	}
	return out, errors.Join(errs...)
}

// usageIn returns the usage of the region's pods in a namespace, by name. ok is false if the cluster has no
// metrics API. The caller holds mu.
func (u *usages) usageIn(ctx context.Context, api *access.API, namespace string) (_ map[string]runtime.Usage, ok bool, err error) {
	now := time.Now()
	if list, ok := u.lists[namespace]; ok && now.Before(list.until) {
		return list.pods, true, list.err
	}
	found, ok, err := api.PodUsages(ctx, namespace)
	switch {
	case ctx.Err() != nil:
		return nil, true, err
	case err == nil && !ok:
		u.absent = now.Add(absentFor)
		return nil, false, nil
	}
	for name, list := range u.lists {
		if now.After(list.until.Add(absentFor)) {
			delete(u.lists, name)
		}
	}
	pods := make(map[string]runtime.Usage, len(found))
	for _, p := range found {
		pods[p.Name] = runtime.Usage{CPUMillicores: p.CPUMillicores, HasCPU: true, MemoryBytes: p.MemoryBytes}
	}
	if u.lists == nil {
		u.lists = map[string]usageList{}
	}
	list := usageList{until: now.Add(usageFor), pods: pods, err: err}
	if err != nil {
		list.until = now.Add(absentFor)
	}
	u.lists[namespace] = list
	return pods, true, err
}
