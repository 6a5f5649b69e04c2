package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// fieldManager owns the fields that we set.
const fieldManager = "windlass-agent"

// Runtime is runtime.Runtime on a Kubernetes cluster. Make it with New; Run must
// run for anything else to return.
type Runtime struct {
	cfg       Config
	render    render.Config
	client    clients
	resources map[kind]resource
	caches    *caches
	gate      *gate
	metrics   *metrics
	journal   *observe.Journal
	fleet     *observe.Fleet
	recorder  record.EventRecorder
	broadcast record.EventBroadcaster
	changes   chan struct{}
	synced    chan struct{}
	rights    *rights
	refused   *atomic.Pointer[error] // see patience
	locks     locks
	repairs   *repairs
	quota     *quota
	tidier    tidier
	notices   notices
	// released and patience are Drain's; nil: no gateway sends to instances.
	released func(instanceID string) bool
	patience time.Duration

	mu sync.Mutex
	// wanted is what each workload should be, since Apply said so.
	wanted map[ref]*want
	// pruned are Secrets that were removed and may still be listed.
	pruned map[ref]bool

	// look lets one Observe at a time use the memories.
	look     sync.Mutex
	memories map[string]*observe.Memory
	heard    news
}

// want is what a workload should be.
type want struct {
	assignment runtime.Assignment
	// secrets are all values that its pods were given since the agent started: those of an
	// older template go on with values from before.
	secrets *redact.Values
	// hash that the workload had when all of it was as wanted; empty before.
	hash string
	// drains: pods will be taken away, but not yet.
	drains bool
	// contested is what was last told about fields that others own.
	contested string
}

// New returns a runtime that has not asked the API server anything yet.
func New(cfg Config) (*Runtime, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	rc := render.Config{
		Region: cfg.Region, NamespacePrefix: cfg.NamespacePrefix, Pools: cfg.Pools, Policy: cfg.Policy,
		Gateway: cfg.Gateway, Monitoring: cfg.Monitoring, HealthImage: cfg.HealthImage, NameKey: cfg.NameKey, AgentVersion: cfg.AgentVersion,
	}
	if err := rc.Check(); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	m := newMetrics(cfg.Registerer)
	g := &gate{policy: cfg.Outage, random: cfg.Random}
	client, err := newClient(cfg, m.calls, g)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	refused := new(atomic.Pointer[error])
	r := &Runtime{
		cfg: cfg, client: client, gate: g, metrics: m,
		render:    rc,
		resources: resourcesOf(client),
		caches:    newCaches(client, patience{cfg.Outage, cfg.Random, refused}, cfg.Region),
		journal:   &observe.Journal{},
		fleet:     observe.NewFleet(fleetConfig(cfg.Pools)),
		broadcast: record.NewBroadcaster(),
		changes:   make(chan struct{}, 1),
		synced:    make(chan struct{}),
		rights:    newRights(),
		refused:   refused,
		quota:     newQuota(cfg.Pools),
		wanted:    map[ref]*want{}, pruned: map[ref]bool{},
		tidier:   tidier{empty: map[string]time.Time{}},
		memories: map[string]*observe.Memory{},
	}
	r.recorder = r.broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: fieldManager})
	r.repairs = newRepairs(cfg.Repair, cfg.Random)
	return r, r.handle()
}

// handle has the caches tell of what happens.
func (r *Runtime) handle() error {
	for k, i := range r.caches.ours {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { r.touched(k, nil, obj) },
			UpdateFunc: func(old, now any) {
				r.touched(k, old, now)
			},
			DeleteFunc: func(obj any) {
				if o := last[object](obj); o != nil {
					r.caches.saw(k, o)
					r.touched(k, nil, o)
				}
			},
		}); err != nil {
			return fmt.Errorf("watch %s: %w", k, err)
		}
	}
	if _, err := r.caches.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			p := obj.(*corev1.Pod)
			r.podChanged(p)
			if w := workloadOf(p); r.drains(w) {
				r.repairs.add(w)
			}
		},
		UpdateFunc: func(old, now any) {
			before, p := old.(*corev1.Pod), now.(*corev1.Pod)
			r.heardOf(before)
			r.podChanged(p)
			if drainMoved(before, p) {
				r.repairs.add(workloadOf(p))
			}
		},
		DeleteFunc: func(obj any) {
			if p := last[*corev1.Pod](obj); p != nil {
				r.fleet.RemovePod(p.UID)
				r.journal.Forget(p.UID)
				r.heardOf(p)
				r.repairs.add(workloadOf(p))
				r.signal()
			}
		},
	}); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if _, err := r.caches.replicaSets.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { r.counted(nil, obj.(*appsv1.ReplicaSet)) },
		UpdateFunc: func(old, now any) {
			r.counted(old.(*appsv1.ReplicaSet), now.(*appsv1.ReplicaSet))
		},
		DeleteFunc: func(any) { r.signal() },
	}); err != nil {
		return fmt.Errorf("watch replica sets: %w", err)
	}
	if _, err := r.caches.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { r.nodeChanged(nil, obj.(*corev1.Node)) },
		UpdateFunc: func(old, now any) {
			r.nodeChanged(old.(*corev1.Node), now.(*corev1.Node))
		},
		DeleteFunc: func(obj any) {
			if n := last[*corev1.Node](obj); n != nil {
				r.fleet.RemoveNode(n.Name)
				r.heardOfNode(n.Name)
				r.signal()
			}
		},
	}); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	return nil
}

// last is the object that a deletion is about, also when the watch missed it.
func last[T any](obj any) T {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	o, _ := obj.(T)
	return o
}

// touched looks at the workload that an object of ours belongs to.
func (r *Runtime) touched(k kind, old, now any) {
	o, ok := now.(object)
	if !ok {
		return
	}
	// Kinds with a status have a generation, which is of the spec alone.
	if before, ok := old.(object); ok && o.GetGeneration() > 0 && before.GetGeneration() == o.GetGeneration() && sameMeta(before, o) {
		// The status moved, which says nothing about what is wanted.
		if k == kindWorkload {
			r.signal()
			r.finished(o)
		}
		return
	}
	switch k {
	case kindNamespace:
		for _, w := range r.caches.list(kindWorkload, cache.NamespaceIndex, o.GetName()) {
			r.repairs.add(ref{kindWorkload, w.GetNamespace(), w.GetName()})
		}
		r.repairs.add(r.wantedIn(o.GetName())...)
	default:
		r.repairs.add(r.ownersOf(o)...)
	}
	r.signal()
}

// podChanged takes in what a pod of ours tells.
func (r *Runtime) podChanged(p *corev1.Pod) {
	r.fleet.SetPod(p)
	r.heardOf(p)
	if lacksSecret(p) {
		r.repairs.suspect(workloadOf(p))
	}
	r.signal()
}

// counted takes in what a ReplicaSet tells: whether its workload has settled, and whether a
// workload that waits for its ReplicaSets has them as they should be.
func (r *Runtime) counted(old, now *appsv1.ReplicaSet) {
	if old == nil || replicaSetSettles(old, now) {
		r.signal()
	}
	w := ref{kindWorkload, now.Namespace, now.Labels[render.LabelInstance]}
	if r.drains(w) && (old == nil || replicaSetMoved(old, now)) {
		r.repairs.add(w)
	}
}

// nodeChanged takes in what a node tells. Its heartbeats are no news.
func (r *Runtime) nodeChanged(old, now *corev1.Node) {
	changed := r.fleet.SetNode(now)
	r.heardOfNode(now.Name)
	if changed || old == nil || answers(old) != answers(now) || len(old.Spec.Taints) != len(now.Spec.Taints) {
		r.signal()
	}
}

// heardOf has the next look tell of the pods anew.
func (r *Runtime) heardOf(pods ...*corev1.Pod) {
	for _, p := range pods {
		r.heard.add(namespaced(p, render.LabelWorkload))
	}
}

func (r *Runtime) heardOfNode(name string) {
	r.heardOf(podsIn(r.caches.pods.GetIndexer().ByIndex(byNode, name))...)
}

func answers(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// warned takes in a Warning event of a pod, if the pod is in a namespace of ours.
func (r *Runtime) warned(e *corev1.Event) {
	if _, ours := r.caches.cached(ref{kindNamespace, "", e.Namespace}); !ours {
		return
	}
	if r.journal.Add(e) {
		r.heardOf(podsIn(r.caches.pods.GetIndexer().ByIndex(byUID, string(e.InvolvedObject.UID)))...)
		r.signal()
	}
}

// Changes is signalled, with a buffer of one, after anything that Observe would
// tell changed.
func (r *Runtime) Changes() <-chan struct{} { return r.changes }

func (r *Runtime) signal() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// Run watches, repairs and tidies until ctx ends. What runs in the cluster keeps
// running.
func (r *Runtime) Run(ctx context.Context) error {
	defer r.broadcast.Shutdown()
	defer r.broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.client.CoreV1().Events("")}).Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	// Namespaces before events, which are of no use until one knows which are ours.
	wg.Go(func() { r.caches.run(ctx) })
	others := &neighbours{
		set:    func(p *corev1.Pod) { r.changedIf(r.fleet.SetPod(p)) },
		remove: func(uid types.UID) { r.changedIf(r.fleet.RemovePod(uid)) },
	}
	notes := &warnings{take: r.warned}
	if !r.await(ctx, r.caches.synced) {
		return nil
	}
	core, again := r.client.CoreV1(), patience{r.cfg.Outage, r.cfg.Random, r.refused}
	wg.Go(func() {
		cache.NewReflectorWithOptions(listWatch(core.Events(metav1.NamespaceAll), again, func(o *metav1.ListOptions) {
			o.FieldSelector = "involvedObject.kind=Pod,type=Warning"
		}), &corev1.Event{}, notes, cache.ReflectorOptions{Name: "warnings"}).RunWithContext(ctx)
	})
	wg.Go(func() {
		cache.NewReflectorWithOptions(listWatch(core.Pods(metav1.NamespaceAll), again, func(o *metav1.ListOptions) {
			o.LabelSelector = render.LabelRegion + "!=" + r.cfg.Region
			o.FieldSelector = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
		}), &corev1.Pod{}, others, cache.ReflectorOptions{Name: "neighbours"}).RunWithContext(ctx)
	})
	if !r.await(ctx, func() bool { return notes.synced.Load() && others.synced.Load() }) {
		return nil
	}
	r.enterAll(ctx)
	wg.Go(func() { r.keepRights(ctx) })
	close(r.synced)
	r.signal()
	for range repairWorkers {
		wg.Go(func() { r.repair(ctx) })
	}
	wg.Go(func() { r.tidy(ctx) })
	return nil
}

func (r *Runtime) changedIf(changed bool) {
	if changed {
		r.signal()
	}
}

// syncPoll is how often a cache that fills is looked at; it has no better way to
// tell.
const syncPoll = 20 * time.Millisecond

func (r *Runtime) await(ctx context.Context, done func() bool) bool {
	for !done() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(syncPoll):
		}
	}
	return true
}

// ready waits until the caches have held the whole truth once.
func (r *Runtime) ready(ctx context.Context) error {
	select {
	case <-r.synced:
		return nil
	case <-ctx.Done():
		if refused := r.refused.Load(); refused != nil {
			return fmt.Errorf("the agent lacks a permission, apply the agent-rbac.yaml of its release: %w", *refused)
		}
		return errors.Join(errors.New("the API server has not told yet what there is"), ctx.Err())
	}
}
