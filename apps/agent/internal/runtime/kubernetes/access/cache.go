package access

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// The indexes of the informers.
const (
	ByWorkload   = "workload"   // namespace/workload's label value
	ByDeployment = "deployment" // the deployment's id
	ByApp        = "app"        // namespace/app's id
	// ByFamily is namespace/key, for the instances of a deployment with several roles.
	ByFamily = "family"
	// byGroup is namespace/key/group, for the same instances. Only pods have this index.
	byGroup = "group"
	// ByEnvironment is the environment's id. Only namespaces have this index.
	ByEnvironment = "environment"
	// byNode is the node's name. Only pods have this index.
	byNode = "node"
	// byUID is the pod's UID, which is part of an instance's id. Only pods have this index.
	byUID = "uid"
)

// Caches holds the objects that are watched. Secrets are not watched, because a client that may
// watch Secrets by a label may read all Secrets.
type Caches struct {
	Ours  map[render.Kind]cache.SharedIndexInformer
	Pods  cache.SharedIndexInformer
	Nodes cache.SharedIndexInformer
	// replicaSets has the ReplicaSets of workloads. Each counts the pods of one template.
	replicaSets cache.SharedIndexInformer

	mu sync.Mutex
	// written has the objects that we wrote and that the watches may not have reported yet.
	written map[render.Ref]written
	// ended has the objects whose deletion the server accepted.
	ended map[types.UID]bool
	// annotated has the pods whose annotations we wrote, by UID, while the watch has an older
	// version.
	annotated map[types.UID]annotatedPod
}

type annotatedPod struct {
	pod *corev1.Pod
	at  time.Time
}

type written struct {
	object render.Object
	at     time.Time
}

// unseenFor is how long an object that we wrote may be missing in a cache that has seen a later
// version. Until then, the object may be on its way from the watch to the cache. After that, it
// counts as deleted by another client.
const unseenFor = 5 * time.Second

func newCaches(c clients, again patience, region string) *Caches {
	ours := render.Ours(region).String()
	mine := func(o *metav1.ListOptions) { o.LabelSelector = ours }
	core, apps := c.CoreV1(), c.AppsV1()
	const all = metav1.NamespaceAll
	return &Caches{
		Ours: map[render.Kind]cache.SharedIndexInformer{
			render.KindNamespace:        newInformer(core.Namespaces(), again, &corev1.Namespace{}, mine, bareObject, ourIndexes),
			render.KindServiceAccount:   newInformer(core.ServiceAccounts(all), again, &corev1.ServiceAccount{}, mine, bareObject, ourIndexes),
			render.KindClaim:            newInformer(core.PersistentVolumeClaims(all), again, &corev1.PersistentVolumeClaim{}, mine, bareObject, ourIndexes),
			render.KindNetworkPolicy:    newInformer(c.NetworkingV1().NetworkPolicies(all), again, &networkingv1.NetworkPolicy{}, mine, bareObject, ourIndexes),
			render.KindWorkload:         newInformer(apps.Deployments(all), again, &appsv1.Deployment{}, mine, slimWorkload, ourIndexes),
			render.KindService:          newInformer(core.Services(all), again, &corev1.Service{}, mine, bareObject, ourIndexes),
			render.KindDisruptionBudget: newInformer(c.PolicyV1().PodDisruptionBudgets(all), again, &policyv1.PodDisruptionBudget{}, mine, bareObject, ourIndexes),
		},
		Pods: newInformer(core.Pods(all), again, &corev1.Pod{}, mine, slimPod, cache.Indexers{
			ByWorkload: ourIndexes[ByWorkload], cache.NamespaceIndex: ourIndexes[cache.NamespaceIndex], byUID: indexOf(indexUID), byNode: indexOf(indexNode),
			byGroup: indexOf(indexGroup),
		}),
		replicaSets: newInformer(apps.ReplicaSets(all), again, &appsv1.ReplicaSet{}, mine, slimReplicaSet, cache.Indexers{ByWorkload: ourIndexes[ByWorkload]}),
		Nodes:       newInformer(core.Nodes(), again, &corev1.Node{}, func(*metav1.ListOptions) {}, slimNode, nil),
		written:     map[render.Ref]written{},
		ended:       map[types.UID]bool{},
		annotated:   map[types.UID]annotatedPod{},
	}
}

func newInformer[L apiruntime.Object](client watched[L], again patience, example apiruntime.Object, tweak func(*metav1.ListOptions), transform cache.TransformFunc, indexers cache.Indexers) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(listWatch(client, again, tweak), example, 0, indexers)
	// SetTransform fails only if the informer was started before.
	_ = i.SetTransform(transform)
	return i
}

var ourIndexes = cache.Indexers{
	ByWorkload:           indexOf(func(o metav1.Object) string { return Namespaced(o, render.LabelWorkload) }),
	ByDeployment:         indexOf(func(o metav1.Object) string { return o.GetLabels()[render.LabelDeployment] }),
	ByApp:                indexOf(func(o metav1.Object) string { return Namespaced(o, render.LabelApp) }),
	ByFamily:             indexOf(func(o metav1.Object) string { return Namespaced(o, render.LabelUnitOf) }),
	cache.NamespaceIndex: indexOf(func(o metav1.Object) string { return o.GetNamespace() }),
}

// Namespaced returns NAMESPACE/VALUE, from the object's namespace and the value of the label. It
// returns "" if the object does not have the label.
func Namespaced(o metav1.Object, label string) string {
	v := o.GetLabels()[label]
	if v == "" {
		return ""
	}
	return o.GetNamespace() + "/" + v
}

func indexOf(value func(metav1.Object) string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		o, ok := obj.(metav1.Object)
		if !ok {
			return nil, nil
		}
		if v := value(o); v != "" {
			return []string{v}, nil
		}
		return nil, nil
	}
}

func (c *Caches) allInformers() []cache.SharedIndexInformer {
	out := []cache.SharedIndexInformer{c.Pods, c.Nodes, c.replicaSets}
	for _, i := range c.Ours {
		out = append(out, i)
	}
	return out
}

// Run watches until ctx ends.
func (c *Caches) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, i := range c.allInformers() {
		wg.Go(func() { i.RunWithContext(ctx) })
	}
	wg.Wait()
}

// Synced reports whether each cache has listed all of its objects once.
func (c *Caches) Synced() bool {
	for _, i := range c.allInformers() {
		if !i.HasSynced() {
			return false
		}
	}
	return true
}

// Get returns the newest known version of one of our objects, or nil if there is none. Callers must
// not change it.
func (c *Caches) Get(r render.Ref) render.Object {
	seen, _ := c.Cached(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.written[r]
	if !ok {
		return c.markDeleted(seen)
	}
	if c.isOvertaken(r, w, seen) {
		delete(c.written, r)
		return c.markDeleted(seen)
	}
	return c.markDeleted(w.object)
}

// Cached returns the object as the watch last reported it.
func (c *Caches) Cached(r render.Ref) (render.Object, bool) {
	informer := c.Ours[r.Kind]
	if informer == nil {
		return nil, false
	}
	key := r.Name
	if r.Namespace != "" {
		key = r.Namespace + "/" + r.Name
	}
	obj, ok, err := informer.GetIndexer().GetByKey(key)
	if err != nil || !ok {
		return nil, false
	}
	o, ok := obj.(render.Object)
	return o, ok
}

// isOvertaken reports whether the cache is at least as new as our write w.
func (c *Caches) isOvertaken(r render.Ref, w written, seen render.Object) bool {
	if seen != nil {
		return !isNewer(w.object.GetResourceVersion(), seen.GetResourceVersion())
	}
	informer := c.Ours[r.Kind]
	return informer != nil && !isNewer(w.object.GetResourceVersion(), informer.LastSyncResourceVersion()) && time.Since(w.at) > unseenFor
}

// isNewer reports whether version a is newer than b. Versions of one resource compare
// as numbers.
func isNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// markDeleted gives an object whose deletion the server accepted a deletion timestamp.
func (c *Caches) markDeleted(o render.Object) render.Object {
	if o == nil || o.GetDeletionTimestamp() != nil || !c.ended[o.GetUID()] {
		return o
	}
	marked := o.DeepCopyObject().(render.Object)
	now := metav1.Now()
	marked.SetDeletionTimestamp(&now)
	return marked
}

// storeWritten stores the object that the server returned for a write.
func (c *Caches) storeWritten(k render.Kind, o render.Object) {
	if c.Ours[k] == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[render.NewRef(k, o.GetNamespace(), o.GetName())] = written{object: o, at: time.Now()}
}

// Deleted records that the server accepted the deletion of an object.
func (c *Caches) Deleted(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[uid] = true
}

// forgetObject removes the records about an object, after the watch has reported that the object is gone.
func (c *Caches) forgetObject(k render.Kind, gone render.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ended, gone.GetUID())
	r := render.NewRef(k, gone.GetNamespace(), gone.GetName())
	if w, ok := c.written[r]; ok && w.object.GetUID() == gone.GetUID() {
		delete(c.written, r)
	}
}

// List returns the newest known versions of our objects of a kind for which the index has this
// value.
func (c *Caches) List(k render.Kind, index, value string) []render.Object {
	informer := c.Ours[k]
	found, err := informer.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil
	}
	return c.overlayWrites(k, found, func(o render.Object) bool {
		values, err := informer.GetIndexer().GetIndexers()[index](o)
		return err == nil && len(values) == 1 && values[0] == value
	})
}

// WorkloadsOf returns the newest known versions of the workloads of an app.
func (c *Caches) WorkloadsOf(namespace, app string) []render.Object {
	return c.List(render.KindWorkload, ByApp, namespace+"/"+app)
}

// Every returns the newest known versions of all our objects of a kind.
func (c *Caches) Every(k render.Kind) []render.Object {
	return c.overlayWrites(k, c.Ours[k].GetIndexer().List(), func(render.Object) bool { return true })
}

// overlayWrites takes the objects that an index found and replaces each by its newest known version. It
// adds newer objects that the index lacks. It returns the objects for which ok returns true.
func (c *Caches) overlayWrites(k render.Kind, found []any, ok func(render.Object) bool) []render.Object {
	out := make([]render.Object, 0, len(found))
	done := map[render.Ref]bool{}
	for _, f := range found {
		o, isObject := f.(render.Object)
		if !isObject {
			continue
		}
		r := render.NewRef(k, o.GetNamespace(), o.GetName())
		done[r] = true
		// One of our later writes may have removed the object from the index.
		if o = c.Get(r); o != nil && ok(o) {
			out = append(out, o)
		}
	}
	c.mu.Lock()
	var more []render.Ref
	for r := range c.written {
		if r.Kind == k && !done[r] {
			more = append(more, r)
		}
	}
	c.mu.Unlock()
	for _, r := range more {
		if o := c.Get(r); o != nil && ok(o) {
			out = append(out, o)
		}
	}
	return out
}

// Handlers are called for the events of the watches. old is nil for a new object. now is nil for an
// object that is gone.
type Handlers struct {
	// Object is called for our objects, except pods. Gone is called when one of these objects is
	// gone.
	Object func(k render.Kind, old, now render.Object)
	Gone   func(k render.Kind, last render.Object)
	Pod    func(old, now *corev1.Pod)
	// ReplicaSet is called for the ReplicaSets of workloads.
	ReplicaSet func(old, now *appsv1.ReplicaSet)
	Node       func(old, now *corev1.Node)
}

// Handle registers the handlers for all events.
func (c *Caches) Handle(h Handlers) error {
	for k, i := range c.Ours {
		if _, err := i.AddEventHandler(handlerOf(func(old, now render.Object) {
			if now == nil {
				c.forgetObject(k, old)
				h.Gone(k, old)
				return
			}
			h.Object(k, old, now)
		})); err != nil {
			return fmt.Errorf("watch %s: %w", k, err)
		}
	}
	if _, err := c.Pods.AddEventHandler(handlerOf(h.Pod)); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if _, err := c.replicaSets.AddEventHandler(handlerOf(h.ReplicaSet)); err != nil {
		return fmt.Errorf("watch replica sets: %w", err)
	}
	if _, err := c.Nodes.AddEventHandler(handlerOf(h.Node)); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	return nil
}

// handlerOf calls handle with the object before and after each event. The zero value means that there
// is no such object.
func handlerOf[T any](handle func(old, now T)) cache.ResourceEventHandlerFuncs {
	var none T
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if now, ok := obj.(T); ok {
				handle(none, now)
			}
		},
		UpdateFunc: func(was, obj any) {
			old, _ := was.(T)
			if now, ok := obj.(T); ok {
				handle(old, now)
			}
		},
		DeleteFunc: func(obj any) {
			// The watch may have missed the deletion.
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if last, ok := obj.(T); ok {
				handle(last, none)
			}
		},
	}
}

// PodsOf returns the pods of a workload, by its label.
func (c *Caches) PodsOf(namespace, workload string) []*corev1.Pod {
	return c.newestPods(podsIn(c.Pods.GetIndexer().ByIndex(ByWorkload, namespace+"/"+workload)))
}

// newestPods replaces pods whose annotations we wrote by the server's answer, until the watch has
// reported it. So a decision knows which pods an earlier decision marked. It changes the slice.
func (c *Caches) newestPods(pods []*corev1.Pod) []*corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, seen := range pods {
		own, ok := c.annotated[seen.UID]
		switch {
		case !ok:
		case isNewer(own.pod.ResourceVersion, seen.ResourceVersion):
			pods[n] = own.pod
		default:
			delete(c.annotated, seen.UID)
		}
	}
	return pods
}

// annotatedAs stores the pod that the server returned for new annotations, with the same fields as
// the watch's pods. It forgets pods that no longer exist.
func (c *Caches) annotatedAs(p *corev1.Pod) {
	if obj, err := slimPod(p); err != nil || obj != any(p) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, old := range c.annotated {
		if time.Since(old.at) > unseenFor && len(c.PodsOfUID(uid)) == 0 {
			delete(c.annotated, uid)
		}
	}
	c.annotated[p.UID] = annotatedPod{pod: p, at: time.Now()}
}

// EveryPod returns all our pods.
func (c *Caches) EveryPod() []*corev1.Pod {
	return podsIn(c.Pods.GetIndexer().List(), nil)
}

// PodsOn returns our pods on a node.
func (c *Caches) PodsOn(node string) []*corev1.Pod {
	return podsIn(c.Pods.GetIndexer().ByIndex(byNode, node))
}

// PodsOfUID returns the pod with this UID, or none.
func (c *Caches) PodsOfUID(uid types.UID) []*corev1.Pod {
	return podsIn(c.Pods.GetIndexer().ByIndex(byUID, string(uid)))
}

// HoldsPods reports whether a namespace may have any of our pods.
func (c *Caches) HoldsPods(namespace string) bool {
	found, err := c.Pods.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	return err != nil || len(found) > 0
}

// PodsOfGroup returns the pods of a group of a deployment with several roles.
func (c *Caches) PodsOfGroup(namespace, key string, group int) []*corev1.Pod {
	return c.newestPods(podsIn(c.Pods.GetIndexer().ByIndex(byGroup, namespace+"/"+key+"/"+strconv.Itoa(group))))
}

func indexGroup(o metav1.Object) string {
	family := Namespaced(o, render.LabelUnitOf)
	if family == "" {
		return ""
	}
	return family + "/" + o.GetLabels()[render.LabelGroup]
}

// PodKeys returns the workloads that have pods, by namespace and label.
func (c *Caches) PodKeys() []string {
	return c.Pods.GetIndexer().ListIndexFuncValues(ByWorkload)
}

// ReplicaSetKeys returns the workloads that have ReplicaSets, by namespace and label.
func (c *Caches) ReplicaSetKeys() []string {
	return c.replicaSets.GetIndexer().ListIndexFuncValues(ByWorkload)
}

// Deployments returns the ids of the deployments that have objects of a kind.
func (c *Caches) Deployments(k render.Kind) []string {
	return c.Ours[k].GetIndexer().ListIndexFuncValues(ByDeployment)
}

// EveryReplicaSet returns all ReplicaSets of our workloads.
func (c *Caches) EveryReplicaSet() (out []*appsv1.ReplicaSet) {
	for _, f := range c.replicaSets.GetIndexer().List() {
		if s, ok := f.(*appsv1.ReplicaSet); ok {
			out = append(out, s)
		}
	}
	return out
}

// ReplicaSetsOf returns the ReplicaSets that a workload controls.
func (c *Caches) ReplicaSetsOf(w *appsv1.Deployment) (out []*appsv1.ReplicaSet) {
	found, err := c.replicaSets.GetIndexer().ByIndex(ByWorkload, Namespaced(w, render.LabelWorkload))
	if err != nil {
		return nil
	}
	for _, f := range found {
		if s, ok := f.(*appsv1.ReplicaSet); ok && metav1.IsControlledBy(s, w) {
			out = append(out, s)
		}
	}
	return out
}

func podsIn(found []any, err error) []*corev1.Pod {
	if err != nil {
		return nil
	}
	out := make([]*corev1.Pod, 0, len(found))
	for _, f := range found {
		if p, ok := f.(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}

// EveryNode returns all nodes of the cluster. Callers must not change them.
func (c *Caches) EveryNode() (out []*corev1.Node) {
	for _, obj := range c.Nodes.GetIndexer().List() {
		if n, ok := obj.(*corev1.Node); ok {
			out = append(out, n)
		}
	}
	return out
}

// Node returns the node with this name, or nil if there is none.
func (c *Caches) Node(name string) *corev1.Node {
	obj, ok, err := c.Nodes.GetIndexer().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	n, _ := obj.(*corev1.Node)
	return n
}

func indexNode(o metav1.Object) string {
	if p, ok := o.(*corev1.Pod); ok {
		return p.Spec.NodeName
	}
	return ""
}

// indexUID indexes pods by UID.
func indexUID(o metav1.Object) string { return string(o.GetUID()) }
