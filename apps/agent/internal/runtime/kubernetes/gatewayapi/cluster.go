package gatewayapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// kind is a kind of object, such as Service.
type kind struct{ resource schema.GroupVersionResource }

var (
	serviceKind = kind{schema.GroupVersionResource{Version: "v1", Resource: "services"}}
	sliceKind   = kind{schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}}
	routeKind   = kind{schema.GroupVersionResource{Group: gwv1.GroupName, Version: "v1", Resource: "httproutes"}}
	// kinds has the kinds in the order in which they are written.
	kinds = []kind{serviceKind, sliceKind, routeKind}
)

type key struct {
	kind
	name string
}

// version identifies a version of an object that was written. generation is 0 for kinds without
// generations.
type version struct {
	hash       string
	generation int64
	resource   string
}

// encode returns the objects in the form in which they are written. Each has a hash of its content.
func encode(o objects) (map[kind]map[string]*unstructured.Unstructured, error) {
	out := map[kind]map[string]*unstructured.Unstructured{serviceKind: {}, sliceKind: {}, routeKind: {}}
	add := func(k kind, name string, typed any) error {
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(typed)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", k.resource.Resource, name, err)
		}
		u := &unstructured.Unstructured{Object: content}
		// Other clients set these fields.
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		data, err := json.Marshal(u.Object)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", k.resource.Resource, name, err)
		}
		sum := sha256.Sum256(data)
		u.SetAnnotations(map[string]string{annotationHash: hex.EncodeToString(sum[:8])})
		out[k][name] = u
		return nil
	}
	var errs []error
	for name, s := range o.services {
		errs = append(errs, add(serviceKind, name, s))
	}
	for name, s := range o.slices {
		errs = append(errs, add(sliceKind, name, s))
	}
	for name, r := range o.routes {
		errs = append(errs, add(routeKind, name, r))
	}
	return out, errors.Join(errs...)
}

// cached caches the follower's objects in the cluster.
type cached struct {
	stores map[kind]cache.SharedIndexInformer
	// changed is signalled, with a buffer of one.
	changed   chan struct{}
	namespace string

	mu sync.Mutex
	// gone has the objects whose deletion was seen since they were written.
	gone map[key]bool
}

func newCached(client dynamic.Interface, namespace, region string) *cached {
	ours := labels.Set{labelManagedBy: managedBy, labelRegion: region}.AsSelector().String()
	c := &cached{
		stores: map[kind]cache.SharedIndexInformer{}, changed: make(chan struct{}, 1), namespace: namespace, gone: map[key]bool{},
	}
	for _, k := range kinds {
		c.stores[k] = newInformer(client.Resource(k.resource).Namespace(namespace), ours)
	}
	return c
}

// newInformer caches the objects of a resource that have these labels. It does the same as client-go's
// dynamicinformer, which would add the informers of all API groups to the program.
func newInformer(client dynamic.ResourceInterface, labels string) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
			o.LabelSelector = labels
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = labels
			return client.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// seenWithin is the time limit for the first list of all objects.
const seenWithin = time.Minute

// run watches until stop is called. It returns once all objects were listed.
func (c *cached) run(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	seen, end := context.WithTimeout(ctx, seenWithin)
	defer end()
	var running sync.WaitGroup
	stop = func() {
		cancel()
		running.Wait()
	}
	for _, k := range kinds {
		poke := func(any) {
			select {
			case c.changed <- struct{}{}:
			default:
			}
		}
		if _, err := c.stores[k].AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: poke, UpdateFunc: func(_, now any) { poke(now) },
			DeleteFunc: func(last any) {
				if name, err := cache.DeletionHandlingObjectToName(last); err == nil {
					c.mu.Lock()
					c.gone[key{k, name.Name}] = true
					c.mu.Unlock()
				}
				poke(last)
			},
		}); err != nil {
			stop()
			return nil, err
		}
	}
	for _, store := range c.stores {
		running.Go(func() { store.RunWithContext(ctx) })
	}
	for _, k := range kinds {
		if !cache.WaitForCacheSync(seen.Done(), c.stores[k].HasSynced) {
			stop()
			return nil, fmt.Errorf("list and watch %s: %w", k.resource.Resource, context.Cause(seen))
		}
	}
	return stop, nil
}

// get returns the object with the name, or nil.
func (c *cached) get(k kind, name string) *unstructured.Unstructured {
	found, ok, err := c.stores[k].GetStore().GetByKey(c.namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	return found.(*unstructured.Unstructured)
}

// isGone reports whether the deletion of an object was seen since it was written.
func (c *cached) isGone(k kind, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone[key{k, name}]
}

func (c *cached) findObject(k kind, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.gone, key{k, name})
}

// isNewer reports whether resource version a is later than b, or cannot be compared with b.
func isNewer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX != nil || errY != nil || x > y
}

func (c *cached) allObjects(k kind) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, o := range c.stores[k].GetStore().List() {
		out = append(out, o.(*unstructured.Unstructured))
	}
	return out
}

// write writes the objects of a kind that differ from the wanted ones.
func (f *Follower) write(ctx context.Context, k kind, want map[string]*unstructured.Unstructured) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		u := want[name]
		if f.isWritten(k, name, u) {
			continue
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		got, err := f.client.Resource(k.resource).Namespace(f.cfg.Namespace).Apply(call, name, u, metav1.ApplyOptions{FieldManager: f.cfg.FieldManager, Force: true})
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("write %s %s: %w", k.resource.Resource, name, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		f.cache.findObject(k, name)
		f.written[key{k, name}] = version{hash: u.GetAnnotations()[annotationHash], generation: got.GetGeneration(), resource: got.GetResourceVersion()}
	}
	return errors.Join(errs...)
}

// isWritten reports whether the object is as wanted, according to the cache. A later change by
// another client shows in the generation, or in the resource version if the kind has no generation.
func (f *Follower) isWritten(k kind, name string, u *unstructured.Unstructured) bool {
	was, ok := f.written[key{k, name}]
	if !ok || was.hash != u.GetAnnotations()[annotationHash] {
		return false
	}
	live := f.cache.get(k, name)
	switch {
	case live == nil:
		// The cache has not seen the object yet, or another client removed it.
		return !f.cache.isGone(k, name)
	case live.GetResourceVersion() == was.resource:
		return true
	case was.generation > 0:
		return live.GetGeneration() <= was.generation && live.GetAnnotations()[annotationHash] == was.hash
	}
	return !isNewer(live.GetResourceVersion(), was.resource)
}

// remove deletes the objects of a kind that are not wanted. It keeps objects of apps in waiting.
func (f *Follower) remove(ctx context.Context, k kind, want map[string]*unstructured.Unstructured, waiting map[string]bool) error {
	var errs []error
	for _, live := range f.cache.allObjects(k) {
		name := live.GetName()
		if want[name] != nil || live.GetDeletionTimestamp() != nil || waiting[live.GetLabels()[labelApp]] {
			continue
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		uid := live.GetUID()
		err := f.client.Resource(k.resource).Namespace(f.cfg.Namespace).Delete(call, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("remove %s %s: %w", k.resource.Resource, name, err))
		}
		delete(f.written, key{k, name})
	}
	return errors.Join(errs...)
}
