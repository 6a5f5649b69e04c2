package access

import (
	"context"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// Warnings and Neighbours store no objects, because a whole cluster has many more events and pods
// than the region.

// watched is the part of a typed client that lists and watches.
type watched[L apiruntime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

func listWatch[L apiruntime.Object](client watched[L], again patience, tweak func(*metav1.ListOptions)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
			tweak(&o)
			return askServer(ctx, again, func() (L, error) { return client.List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			tweak(&o)
			return askServer(ctx, again, func() (watch.Interface, error) { return client.Watch(ctx, o) })
		},
	}
}

// patience repeats calls that the API server could not answer. The client library must not see
// these failures, because it would wait up to a minute between its own retries.
type patience struct {
	policy backoff.Policy
	random func() float64
	// refused is the error of the last list or watch for which the agent lacked a permission. The
	// client library retries without limit, and reports the error only in its own log.
	refused *atomic.Pointer[error]
}

func askServer[T any](ctx context.Context, p patience, call func() (T, error)) (T, error) {
	for attempt := 0; ; attempt++ {
		v, err := call()
		if p.refused != nil && apierrors.IsForbidden(err) {
			p.refused.Store(&err)
		}
		if err == nil || isAnswer(err) || ctx.Err() != nil || backoff.Sleep(ctx, p.policy.Delay(attempt, p.random)) != nil {
			return v, err
		}
	}
}

// Warnings passes the Warning events of pods to Take.
type Warnings struct {
	Take   func(*corev1.Event)
	synced atomic.Bool
}

// IsSynced reports whether all events were read once.
func (w *Warnings) IsSynced() bool { return w.synced.Load() }

// Add implements cache.ReflectorStore.
func (w *Warnings) Add(obj any) error {
	if e, ok := obj.(*corev1.Event); ok {
		w.Take(e)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (w *Warnings) Update(obj any) error { return w.Add(obj) }

// Delete implements cache.ReflectorStore. It does nothing, because an expired event has still
// happened.
func (w *Warnings) Delete(any) error { return nil }

// Replace implements cache.ReflectorStore.
func (w *Warnings) Replace(all []any, _ string) error {
	for _, obj := range all {
		if err := w.Add(obj); err != nil {
			return err
		}
	}
	w.synced.Store(true)
	return nil
}

// Resync implements cache.ReflectorStore.
func (w *Warnings) Resync() error { return nil }

// Neighbours passes the pods of the cluster that are not ours to Set and Remove, which add up the
// resources of these pods. It stores only their UIDs.
type Neighbours struct {
	Set    func(*corev1.Pod)
	Remove func(types.UID)
	synced atomic.Bool

	mu    sync.Mutex
	known map[types.UID]bool
}

// IsSynced reports whether all pods that are not ours were read once.
func (n *Neighbours) IsSynced() bool { return n.synced.Load() }

// Add implements cache.ReflectorStore.
func (n *Neighbours) Add(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[types.UID]bool{}
	}
	n.known[p.UID] = true
	n.Set(p)
	return nil
}

// Update implements cache.ReflectorStore.
func (n *Neighbours) Update(obj any) error { return n.Add(obj) }

// Delete implements cache.ReflectorStore.
func (n *Neighbours) Delete(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, p.UID)
	n.Remove(p.UID)
	return nil
}

// Replace implements cache.ReflectorStore.
func (n *Neighbours) Replace(all []any, _ string) error {
	now := map[types.UID]bool{}
	for _, obj := range all {
		if p, ok := obj.(*corev1.Pod); ok {
			now[p.UID] = true
			n.Set(p)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid := range n.known {
		if !now[uid] {
			n.Remove(uid)
		}
	}
	n.known = now
	n.synced.Store(true)
	return nil
}

// Resync implements cache.ReflectorStore.
func (n *Neighbours) Resync() error { return nil }
