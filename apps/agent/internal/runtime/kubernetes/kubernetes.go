package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Runtime implements runtime.Runtime on a Kubernetes cluster. Create it with New. The other methods
// block until Run has filled the caches.
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
	// restarts counts how often all ranks of an instance of several hosts were restarted.
	restarts *replacement.History
	quota    *quota
	gangs    *gangs
	tidier   tidier
	notices  notices
	usages   usages
	// released and patience are the arguments of Drain. Nil means that no gateway sends to instances.
	released func(instanceID string) bool
	patience func(instanceID string) time.Duration

	wanted *wanted

	// look guards memories, because only one Observe at a time may use them.
	look     sync.Mutex
	memories map[string]*observe.Memory
	joins    joins
	heard    news
}

// New returns a runtime. It makes no call to the API server.
func New(cfg Config) (*Runtime, error) {
	if err := cfg.checkValues(); err != nil {
		return nil, err
	}
	rc := render.Config{
		Region: cfg.Region, NamespacePrefix: cfg.NamespacePrefix, Pools: cfg.Pools, Policy: cfg.Policy, Topology: cfg.Topology,
		Gateway: cfg.Gateway, Monitoring: cfg.Monitoring, HealthImage: cfg.HealthImage, NameKey: cfg.NameKey, AgentVersion: cfg.AgentVersion,
		LoaderImage: cfg.LoaderImage, ModelAllow: cfg.ModelAllow, ModelsMount: cfg.ModelsMount,
	}
	if err := rc.Check(); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	g := newGangs()
	m := newMetrics(cfg.Registerer, g)
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
		fleet:     observe.NewFleet(fleetConfig(cfg.Pools, cfg.Topology)),
		broadcast: record.NewBroadcaster(),
		changes:   make(chan struct{}, 1),
		synced:    make(chan struct{}),
		quota:     newQuota(cfg.Pools),
		gangs:     g,
		wanted:    newWanted(),
		tidier:    tidier{empty: map[string]time.Time{}},
		memories:  map[string]*observe.Memory{},
	}
	r.recorder = r.broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: access.FieldManager})
	r.repairs = newRepairs(cfg.Repair)
	r.restarts = replacement.NewHistory(cfg.Repair)
	return r, r.handle()
}

// handle registers the handlers of changes in the caches.
func (r *Runtime) handle() error {
	return r.caches.Handle(access.Handlers{
		Object:     r.queueOwners,
		Gone:       func(k render.Kind, last render.Object) { r.queueOwners(k, nil, last) },
		Pod:        r.podMoved,
		ReplicaSet: r.replicasCounted,
		Node:       r.nodeMoved,
	})
}

// podMoved handles a pod of the region that is new, has changed or is gone.
func (r *Runtime) podMoved(old, now *corev1.Pod) {
	switch {
	case now == nil:
		r.fleet.RemovePod(old.UID)
		r.journal.Forget(old.UID)
		r.heardOf(old)
		r.repairs.add(render.WorkloadOf(old))
		r.lookAtFamily(old)
		r.roomMoved()
		r.signalChange()
	case old == nil:
		r.podChanged(now)
		r.lookAtFamily(now)
		if w := render.WorkloadOf(now); r.wanted.hasDrains(w) {
			r.repairs.add(w)
		}
	default:
		r.heardOf(old)
		r.podChanged(now)
		if replacement.DrainMoved(old, now) {
			r.repairs.add(render.WorkloadOf(now))
			r.lookAtFamily(now)
		} else if runsOf(old) != runsOf(now) || old.Spec.NodeName != now.Spec.NodeName {
			r.lookAtFamily(now)
		}
		if observe.Holds(old) != observe.Holds(now) {
			r.roomMoved()
		}
	}
}

// lookAtFamily queues a deployment with several roles for a look at all its instances, if the
// object belongs to one.
func (r *Runtime) lookAtFamily(o render.Object) {
	if at, ok := render.RolesOf(o); ok {
		r.repairs.add(at)
	}
}

// queueOwners queues the workloads that an object of the agent belongs to for a look.
func (r *Runtime) queueOwners(k render.Kind, before, o render.Object) {
	// Kinds with a status have a generation, which counts changes of the spec only.
	if before != nil && o.GetGeneration() > 0 && before.GetGeneration() == o.GetGeneration() && replacement.SameMeta(before, o) {
		// Only the status changed, so nothing needs a repair.
		if k == render.KindWorkload {
			r.signalChange()
			r.workloadChanged(o)
			r.lookAtFamily(o)
		}
		return
	}
	if k == render.KindWorkload || k == render.KindDisruptionBudget {
		r.lookAtFamily(o)
	}
	switch k {
	case render.KindNamespace:
		for _, w := range r.caches.List(render.KindWorkload, cache.NamespaceIndex, o.GetName()) {
			r.repairs.add(render.NewRef(render.KindWorkload, w.GetNamespace(), w.GetName()))
		}
		r.repairs.add(r.wanted.workloadsIn(o.GetName())...)
	default:
		r.repairs.add(r.ownersOf(o)...)
	}
	r.signalChange()
}

// podChanged records the state of a pod of the region.
func (r *Runtime) podChanged(p *corev1.Pod) {
	r.fleet.SetPod(p)
	r.heardOf(p)
	if replacement.LacksSecret(p) {
		w := render.WorkloadOf(p)
		r.repairs.Suspect(w)
		r.repairs.add(w)
	}
	r.signalChange()
}

// replicasCounted handles a change of a ReplicaSet. It signals a change if the workload may have settled.
// It queues a workload that drains for a look.
func (r *Runtime) replicasCounted(old, now *appsv1.ReplicaSet) {
	if now == nil {
		r.signalChange()
		return
	}
	if old == nil || replacement.ReplicaSetSettles(old, now) {
		r.signalChange()
		r.lookAtFamily(now)
	}
	w := render.NewRef(render.KindWorkload, now.Namespace, now.Labels[render.LabelInstance])
	if r.wanted.hasDrains(w) && (old == nil || replacement.ReplicaSetMoved(old, now)) {
		r.repairs.add(w)
	}
}

// nodeMoved handles a node that is new, has changed or is gone.
func (r *Runtime) nodeMoved(old, now *corev1.Node) {
	if now == nil {
		r.fleet.RemoveNode(old.Name)
		r.heardOfNode(old.Name)
		r.signalChange()
		return
	}
	r.nodeChanged(old, now)
}

// nodeChanged records the state of a node. Heartbeats alone signal no change.
func (r *Runtime) nodeChanged(old, now *corev1.Node) {
	changed := r.fleet.SetNode(now)
	r.heardOfNode(now.Name)
	if changed || old == nil || isAnswering(old) != isAnswering(now) || len(old.Spec.Taints) != len(now.Spec.Taints) || !maps.Equal(old.Labels, now.Labels) {
		r.signalChange()
		r.roomMoved()
	}
}

// heardOf makes the next Observe examine these pods again.
func (r *Runtime) heardOf(pods ...*corev1.Pod) {
	for _, p := range pods {
		r.heard.add(access.Namespaced(p, render.LabelWorkload))
	}
}

func (r *Runtime) heardOfNode(name string) {
	r.heardOf(r.caches.PodsOn(name)...)
}

func isAnswering(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// recordWarning records a Warning event of a pod, if the pod is in a namespace of the region.
func (r *Runtime) recordWarning(e *corev1.Event) {
	if _, ours := r.caches.Cached(render.NewRef(render.KindNamespace, "", e.Namespace)); !ours {
		return
	}
	if r.journal.Add(e) {
		r.heardOf(r.caches.PodsOfUID(e.InvolvedObject.UID)...)
		r.signalChange()
	}
}

// Changes returns a channel with a buffer of one. It is signalled after a change in the result of
// Observe.
func (r *Runtime) Changes() <-chan struct{} { return r.changes }

func (r *Runtime) signalChange() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// Run watches, repairs and tidies until ctx ends. Workloads in the cluster keep running afterwards.
func (r *Runtime) Run(ctx context.Context) error {
	defer r.broadcast.Shutdown()
	defer r.broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.api.CoreV1().Events("")}).Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	// Namespaces are read before events, because warned must know the namespaces of the region.
	wg.Go(func() { r.caches.Run(ctx) })
	others := &access.Neighbours{
		Set: func(p *corev1.Pod) { r.changedIf(r.fleet.SetPod(p)) },
		Remove: func(uid types.UID) {
			r.changedIf(r.fleet.RemovePod(uid))
			r.roomMoved()
		},
	}
	notes := &access.Warnings{Take: r.recordWarning}
	if !awaitDone(ctx, r.caches.Synced) {
		return nil
	}
	wg.Go(func() { r.api.ReadWarnings(ctx, notes) })
	wg.Go(func() { r.api.ReadNeighbours(ctx, others) })
	if !awaitDone(ctx, func() bool { return notes.IsSynced() && others.IsSynced() }) {
		return nil
	}
	r.api.EnterAll(ctx)
	wg.Go(func() { r.api.KeepRights(ctx) })
	close(r.synced)
	r.signalChange()
	for range repairWorkers {
		wg.Go(func() { r.repairWorkloads(ctx) })
	}
	wg.Go(func() { r.tidyUp(ctx) })
	return nil
}

func (r *Runtime) changedIf(changed bool) {
	if changed {
		r.signalChange()
	}
}

// syncPoll is the interval of checks whether a cache is filled, because caches do not signal it.
const syncPoll = 20 * time.Millisecond

func awaitDone(ctx context.Context, done func() bool) bool {
	for !done() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(syncPoll):
		}
	}
	return true
}

// awaitCaches waits until the caches have been filled once.
func (r *Runtime) awaitCaches(ctx context.Context) error {
	select {
	case <-r.synced:
		return nil
	case <-ctx.Done():
		if refused := r.api.Refused(); refused != nil {
			return fmt.Errorf("the agent lacks a permission, apply the agent-rbac.yaml of its release: %w", refused)
		}
		return errors.Join(errors.New("the first lists from the API server are not complete yet"), ctx.Err())
	}
}
