package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodes"
	"github.com/windlass-run/windlass/pkg/backoff"
)

const (
	// Widths of the job queues. Writes and starts call the API server, which shares a small machine with other
	// processes. Checks over a socket mostly wait.
	writesAtOnce = 16
	startsAtOnce = 32
	checksAtOnce = 512

	// configRetry is the delay between starts of a container with a missing secret or config map.
	configRetry = 2 * time.Second
	// firstCheck is the delay of the first check, after which small programs listen.
	firstCheck = 200 * time.Millisecond
	// addressRetry is the delay between attempts to get an address when none is free.
	addressRetry = 2 * time.Second
	// idle is the longest sleep of the loop.
	idle = time.Hour
)

// loop owns the pods. Only its goroutine uses its fields, except where a field's comment says otherwise.
type loop struct {
	cfg       Config
	log       *slog.Logger
	client    kubernetes.Interface
	spawner   *workload.Spawner
	values    *values
	checker   *checker
	recorders *recorders
	tuning    *lifecycle.Tuning
	retry     backoff.Policy

	inbox   chan func(now time.Time) // any goroutine, through post
	stopped chan struct{}

	pods      map[types.UID]*pod
	names     map[types.NamespacedName]*pod
	lost      map[string]bool // by node
	addresses *addresses
	wakes     wakes

	writes, starts, checks jobQueue

	live liveRuns
}

// pod is one pod and its runs.
type pod struct {
	// object is the newest known version, from the watch or the answer to a write.
	object  *corev1.Pod
	machine *lifecycle.Machine
	addr    netip.Addr
	// foreign is whether the pod had ended before this node agent saw it. Then the agent does not write its
	// status.
	foreign bool

	runs map[string]*podRun // by container; only runs that have not ended
	logs map[string]*podLogs

	lost bool
	held []func(now time.Time)
	gone bool

	writing  bool
	failures int
	// writeAfter and askAddress are times of the next try, or zero without one. A past time would wake the
	// loop for ever.
	writeAfter time.Time
	askAddress time.Time
	preempt    bool
	removed    bool

	wakeAt    time.Time
	wakeIndex int
}

type podRun struct {
	ref lifecycle.Ref
	run *workload.Run // nil until it is started
	// ended is set if the run's end came before its start was known.
	ended *lifecycle.Exit
}

type podLogs struct{ current, previous *workload.Log }

func newLoop(cfg Config, client kubernetes.Interface, spawner *workload.Spawner) *loop {
	return &loop{
		cfg: cfg, log: cfg.Log, client: client, spawner: spawner,
		values:    newValues(client),
		checker:   newChecker(spawner),
		recorders: newRecorders(client),
		tuning:    &lifecycle.Tuning{Restart: cfg.RestartBackoff, Pull: cfg.PullBackoff, ConfigRetry: configRetry, FirstCheck: firstCheck},
		inbox:     make(chan func(time.Time), 1024),
		stopped:   make(chan struct{}),
		pods:      map[types.UID]*pod{},
		names:     map[types.NamespacedName]*pod{},
		lost:      map[string]bool{},
		addresses: newAddresses(cfg.CIDR),
		writes:    jobQueue{width: writesAtOnce},
		starts:    jobQueue{width: startsAtOnce},
		checks:    jobQueue{width: checksAtOnce},
	}
}

// post makes the loop call f. It waits for room in the inbox, and drops f if the loop has ended. The loop
// itself must not call it.
func (l *loop) post(f func(now time.Time)) {
	select {
	case l.inbox <- f:
	case <-l.stopped:
	}
}

// followInformers puts the changes that the informers see into the inbox.
func (l *loop) followInformers(ctx context.Context, pods, nodeInformer cache.SharedIndexInformer) error {
	post := func(f func(now time.Time)) {
		select {
		case l.inbox <- f:
		case <-ctx.Done():
		}
	}
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			post(func(now time.Time) { l.podSeen(obj.(*corev1.Pod), now) })
		},
		UpdateFunc: func(before, obj any) {
			old, pod := before.(*corev1.Pod), obj.(*corev1.Pod)
			post(func(now time.Time) {
				if old.UID != pod.UID {
					l.podGone(old.UID)
				}
				l.podSeen(pod, now)
			})
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				post(func(time.Time) { l.podGone(pod.UID) })
			}
		},
	})
	see := func(obj any) { post(func(time.Time) { l.nodeChanged(obj.(*corev1.Node)) }) }
	// The deletion of a lost node does not bring it back: its pods stay as they are until Kubernetes deletes
	// them.
	_, errNodes := nodeInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
	})
	return errors.Join(err, errNodes)
}

// run serves the inbox and the wake-ups until ctx ends.
func (l *loop) run(ctx context.Context) {
	defer close(l.stopped)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-l.inbox:
			f(time.Now())
		case <-timer.C:
		}
		now := time.Now()
		for p := l.wakes.popDue(now); p != nil; p = l.wakes.popDue(now) {
			l.wakePod(p, now)
		}
		sleep := idle
		if len(l.wakes) > 0 {
			sleep = max(l.wakes[0].wakeAt.Sub(now), 0)
		}
		timer.Reset(sleep)
	}
}

// podSeen handles a version of a pod from the API.
func (l *loop) podSeen(object *corev1.Pod, now time.Time) {
	p := l.pods[object.UID]
	if p == nil {
		phase := object.Status.Phase
		p = &pod{
			object: object, machine: lifecycle.New(l.tuning, object, now), wakeIndex: -1,
			foreign: phase == corev1.PodFailed || phase == corev1.PodSucceeded,
			runs:    map[string]*podRun{}, logs: map[string]*podLogs{},
			lost: l.lost[object.Spec.NodeName],
		}
		l.pods[object.UID] = p
		l.names[nameOf(object)] = p
	} else if !l.isNewer(object, p.object) {
		return
	}
	p.object = object
	if p.lost || p.gone {
		return
	}
	p.machine.Observe(now, object)
	l.advancePod(p, now)
}

// podGone kills the runs of a pod whose object is gone. Its address is released when the last run has ended.
func (l *loop) podGone(uid types.UID) {
	p := l.pods[uid]
	if p == nil || p.gone {
		return
	}
	p.gone, p.held = true, nil
	l.wakes.setTime(p, time.Time{})
	for _, r := range p.runs {
		if r.run != nil {
			r.run.Kill()
		}
	}
	l.forgetPod(p)
}

func (l *loop) forgetPod(p *pod) {
	if !p.gone || len(p.runs) > 0 {
		return
	}
	delete(l.pods, p.object.UID)
	if l.names[nameOf(p.object)] == p {
		delete(l.names, nameOf(p.object))
	}
	if p.addr.IsValid() {
		l.addresses.release(p.addr, p.object.UID)
	}
}

// nodeChanged handles a node that is lost or back.
func (l *loop) nodeChanged(n *corev1.Node) {
	lost := n.Annotations[nodes.AnnotationLost] == "true"
	if lost == l.lost[n.Name] {
		return
	}
	l.lost[n.Name] = lost
	l.log.Info("node changed", "node", n.Name, "lost", lost)
	now := time.Now()
	for _, p := range l.pods {
		if p.object.Spec.NodeName != n.Name || p.gone {
			continue
		}
		p.lost = lost
		for _, r := range p.runs {
			if r.run != nil {
				r.run.Freeze(lost)
			}
		}
		if lost {
			l.wakes.setTime(p, time.Time{})
			continue
		}
		held := p.held
		p.held = nil
		for _, f := range held {
			f(now)
		}
		p.machine.Observe(now, p.object)
		l.advancePod(p, now)
	}
}

// feedMachine passes an input to the pod's machine. It drops the input if the pod is gone. If the pod's node
// is lost, it holds the input until the node is back.
func (l *loop) feedMachine(p *pod, now time.Time, f func(now time.Time)) {
	switch {
	case p.gone:
	case p.lost:
		p.held = append(p.held, f)
	default:
		f(now)
		l.advancePod(p, now)
	}
}

// reserveAddress reserves the address in a pod's status for the pod.
func (l *loop) reserveAddress(object *corev1.Pod) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(object.Status.PodIP)
	if err != nil || object.Spec.HostNetwork || !l.addresses.reserveFor(addr, object.UID) {
		return netip.Addr{}, false
	}
	return addr, true
}

// assignAddress gives a pod its address once.
func (l *loop) assignAddress(p *pod, now time.Time) {
	if now.Before(p.askAddress) {
		return
	}
	p.askAddress = time.Time{}
	if p.addr.IsValid() || p.foreign || p.object.DeletionTimestamp != nil {
		return
	}
	node := netip.MustParseAddr(l.cfg.NodeAddress)
	addr, ok := l.reserveAddress(p.object)
	switch {
	case p.object.Spec.HostNetwork:
		addr = node
	case !ok:
		var err error
		if addr, err = l.addresses.takeFree(p.object.UID); err != nil {
			p.askAddress = now.Add(addressRetry)
			l.recorders.recordEvent(p.object, lifecycle.Record{
				Type: corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: "Failed to create pod sandbox: " + err.Error(),
			})
			return
		}
	}
	p.addr, p.askAddress = addr, time.Time{}
	p.machine.SetAddress(now, node.String(), addr.String())
}

// wakePod advances a pod whose wake-up time has come. It calls syncPod only if an action may have changed the
// status, or a write or an address must be tried again.
func (l *loop) wakePod(p *pod, now time.Time) {
	retries := !p.writeAfter.IsZero() || !p.askAddress.IsZero()
	if l.takeActions(p, now) || retries {
		l.syncPod(p, now)
	}
	l.scheduleWake(p)
}

// advancePod does all that is due for a pod.
func (l *loop) advancePod(p *pod, now time.Time) {
	l.takeActions(p, now)
	l.syncPod(p, now)
	l.scheduleWake(p)
}

// takeActions carries out the machine's actions, and reports whether the status may have changed.
func (l *loop) takeActions(p *pod, now time.Time) (changed bool) {
	l.assignAddress(p, now)
	for _, action := range p.machine.Advance(now) {
		if _, check := action.(lifecycle.Check); !check {
			changed = true
		}
		l.carryOut(p, action)
	}
	return changed
}

func (l *loop) scheduleWake(p *pod) {
	next := p.machine.NextWake()
	for _, at := range []time.Time{p.writeAfter, p.askAddress} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	l.wakes.setTime(p, next)
}

func nameOf(object *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
}

// liveRuns has every run that has not ended, including runs that no pod refers to yet.
type liveRuns struct {
	mu      sync.Mutex
	runs    map[*workload.Run]struct{}
	closing bool
	empty   chan struct{}
}
