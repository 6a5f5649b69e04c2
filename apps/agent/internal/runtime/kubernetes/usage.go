package kubernetes

import (
	"context"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
)

var _ runtime.Meter = (*Runtime)(nil)

const (
	// usageFor is how long the metrics of a namespace are used. The metrics API makes new ones every 15 s.
	usageFor = 10 * time.Second
	// absentFor is how long a metrics API that is absent, or refuses, is not asked again.
	absentFor = time.Minute
)

// usages has what the metrics API said last, by namespace.
type usages struct {
	mu     sync.Mutex
	lists  map[string]usageList
	absent time.Time // until when the metrics API is not asked
}

type usageList struct {
	until time.Time
	pods  map[string]runtime.Usage // by name
}

// Usage implements runtime.Meter by the cluster's metrics API. Without it, nothing is known.
func (r *Runtime) Usage(ctx context.Context, instanceIDs []string) (map[string]runtime.Usage, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	r.usages.mu.Lock()
	defer r.usages.mu.Unlock()
	out := map[string]runtime.Usage{}
	if time.Now().Before(r.usages.absent) {
		return out, nil
	}
	for _, id := range instanceIDs {
		p, err := r.pod(id)
		if err != nil {
			continue // it is gone
		}
		list, ok, err := r.usages.in(ctx, r.api, p.Namespace)
		if err != nil {
			return nil, err
		}
		if !ok {
			return out, nil
		}
		if u, ok := list[p.Name]; ok {
			out[id] = u
		}
	}
	return out, nil
}

// in returns the usage of the region's pods in a namespace, by name. Called with mu held.
func (u *usages) in(ctx context.Context, api *access.API, namespace string) (_ map[string]runtime.Usage, ok bool, err error) {
	now := time.Now()
	if list, ok := u.lists[namespace]; ok && now.Before(list.until) {
		return list.pods, true, nil
	}
	found, ok, err := api.PodUsages(ctx, namespace)
	if err != nil || !ok {
		u.absent = now.Add(absentFor)
		return nil, false, err
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
	u.lists[namespace] = usageList{until: now.Add(usageFor), pods: pods}
	return pods, true, nil
}
