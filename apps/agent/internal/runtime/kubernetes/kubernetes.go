package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/observe"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/replacement"
)

// Runtime is runtime.Runtime on a Kubernetes cluster. Make it with New; Run must
// run for anything else to return.
type Runtime struct {
	cfg       Config
	render    render.Config
	api       *access.API
	caches    *access.Caches // of api
	metrics   *metrics
	journal   *observe.Journal
	fleet     *observe.Fleet
	recorder  record.EventRecorder
	broadcast record.EventBroadcaster
	changes   chan struct{}
	synced    chan struct{}
	locks     access.Locks
	repairs   *repairs
	quota     *quota
	tidier    tidier
	notices   notices
	usages    usages
	// released and patience are Drain's; nil: no gateway sends to instances.
	released func(instanceID string) bool
	patience time.Duration

	wanted *wanted

	// look lets one Observe at a time use the memories.
	look     sync.Mutex
	memories map[string]*observe.Memory
	heard    news
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
	api, err := access.New(access.Config{
		Client: cfg.Client, Region: cfg.Region, AgentVersion: cfg.AgentVersion, CallTimeout: cfg.CallTimeout,
		Outage: cfg.Outage, Reopen: cfg.Reopen, Log: cfg.Log, Registerer: cfg.Registerer, Random: cfg.Random,
	})
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		cfg: cfg, api: api, caches: api.Caches, metrics: m,
		render:    rc,
		journal:   &observe.Journal{},
		fleet:     observe.NewFleet(fleetConfig(cfg.Pools)),
		broadcast: record.NewBroadcaster(),
		changes:   make(chan struct{}, 1),
		synced:    make(chan struct{}),
		quota:     newQuota(cfg.Pools),
		wanted:    newWanted(),
		tidier:    tidier{empty: map[string]time.Time{}},
		memories:  map[string]*observe.Memory{},
	}
	r.recorder = r.broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: access.FieldManager})
	r.repairs = newRepairs(cfg.Repair)
	return r, r.handle()
}

// handle has the caches tell of what happens.
func (r *Runtime) handle() error {
	return r.caches.Handle(access.Handlers{
		Object:     r.touched,
		Gone:       func(k render.Kind, last render.Object) { r.touched(k, nil, last) },
		Pod:        r.podMoved,
		ReplicaSet: r.counted,
		Node:       r.nodeMoved,
	})
}

// podMoved takes in that a pod of ours is new, has changed or is gone.
func (r *Runtime) podMoved(old, now *corev1.Pod) {
	switch {
	case now == nil:
		r.fleet.RemovePod(old.UID)
		r.journal.Forget(old.UID)
		r.heardOf(old)
		r.repairs.add(render.WorkloadOf(old))
		r.signal()
	case old == nil:
		r.podChanged(now)
		if w := render.WorkloadOf(now); r.wanted.drains(w) {
			r.repairs.add(w)
		}
	default:
		r.heardOf(old)
		r.podChanged(now)
		if replacement.DrainMoved(old, now) {
			r.repairs.add(render.WorkloadOf(now))
		}
	}
}

// touched looks at the workload that an object of ours belongs to.
func (r *Runtime) touched(k render.Kind, before, o render.Object) {
	// Kinds with a status have a generation, which is of the spec alone.
	if before != nil && o.GetGeneration() > 0 && before.GetGeneration() == o.GetGeneration() && replacement.SameMeta(before, o) {
		// The status moved, which says nothing about what is wanted.
		if k == render.KindWorkload {
			r.signal()
			r.finished(o)
		}
		return
	}
	switch k {
	case render.KindNamespace:
		for _, w := range r.caches.List(render.KindWorkload, cache.NamespaceIndex, o.GetName()) {
			r.repairs.add(render.NewRef(render.KindWorkload, w.GetNamespace(), w.GetName()))
		}
		r.repairs.add(r.wanted.in(o.GetName())...)
	default:
		r.repairs.add(r.ownersOf(o)...)
	}
	r.signal()
}

// podChanged takes in what a pod of ours tells.
func (r *Runtime) podChanged(p *corev1.Pod) {
	r.fleet.SetPod(p)
	r.heardOf(p)
	if replacement.LacksSecret(p) {
		w := render.WorkloadOf(p)
		r.repairs.Suspect(w)
		r.repairs.add(w)
	}
	r.signal()
}

// counted takes in what a ReplicaSet tells: whether its workload has settled, and whether a
// workload that waits for its ReplicaSets has them as they should be.
func (r *Runtime) counted(old, now *appsv1.ReplicaSet) {
	if now == nil {
		r.signal()
		return
	}
	if old == nil || replacement.ReplicaSetSettles(old, now) {
		r.signal()
	}
	w := render.NewRef(render.KindWorkload, now.Namespace, now.Labels[render.LabelInstance])
	if r.wanted.drains(w) && (old == nil || replacement.ReplicaSetMoved(old, now)) {
		r.repairs.add(w)
	}
}

// nodeMoved takes in that a node is new, has changed or is gone.
func (r *Runtime) nodeMoved(old, now *corev1.Node) {
	if now == nil {
		r.fleet.RemoveNode(old.Name)
		r.heardOfNode(old.Name)
		r.signal()
		return
	}
	r.nodeChanged(old, now)
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
		r.heard.add(access.Namespaced(p, render.LabelWorkload))
	}
}

func (r *Runtime) heardOfNode(name string) {
	r.heardOf(r.caches.PodsOn(name)...)
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
	if _, ours := r.caches.Cached(render.NewRef(render.KindNamespace, "", e.Namespace)); !ours {
		return
	}
	if r.journal.Add(e) {
		r.heardOf(r.caches.PodsOfUID(e.InvolvedObject.UID)...)
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
	defer r.broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.api.CoreV1().Events("")}).Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	// Namespaces before events, which are of no use until one knows which are ours.
	wg.Go(func() { r.caches.Run(ctx) })
	others := &access.Neighbours{
		Set:    func(p *corev1.Pod) { r.changedIf(r.fleet.SetPod(p)) },
		Remove: func(uid types.UID) { r.changedIf(r.fleet.RemovePod(uid)) },
	}
	notes := &access.Warnings{Take: r.warned}
	if !await(ctx, r.caches.Synced) {
		return nil
	}
	wg.Go(func() { r.api.ReadWarnings(ctx, notes) })
	wg.Go(func() { r.api.ReadNeighbours(ctx, others) })
	if !await(ctx, func() bool { return notes.IsSynced() && others.IsSynced() }) {
		return nil
	}
	r.api.EnterAll(ctx)
	wg.Go(func() { r.api.KeepRights(ctx) })
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

func await(ctx context.Context, done func() bool) bool {
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
		if refused := r.api.Refused(); refused != nil {
			return fmt.Errorf("the agent lacks a permission, apply the agent-rbac.yaml of its release: %w", refused)
		}
		return errors.Join(errors.New("the API server has not told yet what there is"), ctx.Err())
	}
}
