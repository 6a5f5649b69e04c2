// Package reconcile makes the runtime run what the inbox holds.
//
// It is level-triggered: a key in the queue means "compare the states of this key", not "this
// happened to the key". Work on one key is serial, so an apply and a delete cannot swap. Keys do
// not wait for each other, so one stuck deployment delays no other.
//
//	inbox --changed keys--> queue --> worker --> runtime.Apply / Remove
//	runtime --changed--> observer --> observation --> report
//
// The result of a key is its AppliedState. It is pending while the key is tried. It is applied once
// the runtime has accepted the key, or, for a delete, once nothing of it is left. Otherwise, it is
// rejected with a code.
//
// A retryable rejection is tried again with full jitter. If the cause is the key's own, the delays
// grow. If a dependency of many keys is away, one key is tried for all of them (see outages). After
// a final rejection, the key waits for another generation.
//
// A key is reported as applied only together with an observation that began after the runtime
// accepted it. Otherwise, the counts in the same report could belong to the previous state. After a
// fork, both states can have the same generation, so the report would not tell which state the
// counts belong to.
package reconcile

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/pool"
	"github.com/windlass-run/windlass/pkg/telemetry"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Config of a Reconciler.
type Config struct {
	Inbox   *inbox.Inbox
	Runtime runtime.Runtime
	// Zero knows which deployments are at zero, and which the agent raised. Default: a Zero in memory
	// only.
	Zero *zero.Zero
	// Secrets returns the values of the deployment's secrets by secret name. An error that is a
	// *runtime.Rejection is reported with its code. Another error counts as a failure of this host.
	Secrets func(ctx context.Context, d *agentv1.Deployment, generation int64) (map[string]string, error)
	// ForgetSecrets drops the stored secrets of a deployment that is gone.
	ForgetSecrets func(deploymentID string) error
	// Gateways are the region's gateways. Nil: there are none.
	Gateways Gateways
	Features []string
	Log      *slog.Logger
	Tracer   trace.Tracer
	// Region is the region's name, for traces.
	Region func() string
	Rand   func() float64
	// Workers is how many keys are worked on at the same time. Default: 8.
	Workers int
	// Retry is the delay between attempts on a key that fails by itself. Default: 1 s to 60 s.
	Retry backoff.Policy
	// Outage is the delay between probes of a dependency that is away. Default: 1 s to 4 s. With
	// the default, two probes come within 10 s of the dependency's return, because the first one may
	// be a key that fails by itself.
	Outage backoff.Policy
	// Resync is how often every key is checked even if nothing changed. Default: 5 min.
	Resync time.Duration
}

// codeWoken says that the region runs more replicas than the generation has, because a request woke the
// deployment.
const codeWoken = "Woken"

// applyTimeout is the time limit of one attempt on one key.
const applyTimeout = 30 * time.Second

// Observations of the whole runtime are spaced out, so that one observation shows a burst of
// changes. An observation costs more in a larger region. The longer an observation took, the later
// the next one begins. So a region with thousands of instances, or a busy host, spends only a small
// part of a processor on observations. The longest spacing is well below a second, in which users
// expect to see a change.
const (
	observeSpacing    = 20 * time.Millisecond
	maxObserveSpacing = 200 * time.Millisecond
	observeShare      = 10
)

// Reconciler works on keys. It is safe for concurrent use.
type Reconciler struct {
	cfg   Config
	queue *queue
	look  chan struct{}

	mu       sync.Mutex
	outages  *outages
	entries  map[inbox.Key]*entry
	waiting  map[string]map[inbox.Key]bool // keys that wait for another key of their workload, by workload
	busy     map[string][]inbox.Key        // keys that wait for the lock of a workload, by workload
	gated    map[inbox.Key]bool            // keys that wait for gateways
	seen     runtime.Observation
	present  map[string]bool // deployments in seen
	looks    int64           // number of observations that have begun
	seenLook int64           // number of the look that returned seen
	changed  chan struct{}
}

// entry is the latest result of a key.
type entry struct {
	// state is nil until the first attempt ended, because a restarted agent must not withdraw the
	// reports of the previous process.
	state    *agentv1.AppliedState
	attempts int
	// next becomes the state with the first observation that began after the runtime accepted the
	// key. after is the lowest number that this observation can have. So an observation that is
	// reported with a state is never older than the state. For a delete, the observation must also
	// show that nothing is left.
	next  *agentv1.AppliedState
	after int64
	// touched is the number of an observation. This observation and all later ones begin after the
	// last apply of the key has ended.
	touched int64
	traced  [2]int64 // the (epoch, generation) whose apply has a span already
	// fell means that the runtime was asked to stop all instances because the deployment goes to
	// zero, and that noteSlept still waits for an observation that began later.
	fell bool
}

// New checks the config.
func New(cfg Config) (*Reconciler, error) {
	if cfg.Inbox == nil || cfg.Runtime == nil || cfg.Secrets == nil || cfg.ForgetSecrets == nil || cfg.Log == nil || cfg.Tracer == nil || cfg.Region == nil || cfg.Rand == nil {
		return nil, errors.New("reconcile: every field of Config without a default is required")
	}
	if cfg.Zero == nil {
		cfg.Zero = zero.New()
	}
	if cfg.Gateways == nil {
		cfg.Gateways = noGateways{}
	}
	if cfg.Workers == 0 {
		cfg.Workers = 8
	}
	if cfg.Retry == (backoff.Policy{}) {
		cfg.Retry = backoff.Policy{Min: time.Second, Max: time.Minute}
	}
	if cfg.Outage == (backoff.Policy{}) {
		cfg.Outage = backoff.Policy{Min: time.Second, Max: 4 * time.Second}
	}
	if cfg.Resync == 0 {
		cfg.Resync = 5 * time.Minute
	}
	r := &Reconciler{
		cfg:     cfg,
		queue:   newQueue(),
		look:    make(chan struct{}, 1),
		entries: map[inbox.Key]*entry{},
		waiting: map[string]map[inbox.Key]bool{},
		busy:    map[string][]inbox.Key{},
		gated:   map[inbox.Key]bool{},
		changed: make(chan struct{}, 1),
	}
	r.outages = newOutages(cfg.Outage, cfg.Rand, r.queue, &r.mu)
	return r, nil
}

// Enqueue puts the keys into the queue.
func (r *Reconciler) Enqueue(keys ...inbox.Key) { r.queue.add(keys...) }

// Changed is signalled, with a buffer of one, when Observation, Applied or
// Quarantined would return something new.
func (r *Reconciler) Changed() <-chan struct{} { return r.changed }

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	r.enqueueAll()
	var wg sync.WaitGroup
	wg.Go(func() { r.observeRuntime(ctx) })
	for range r.cfg.Workers {
		wg.Go(func() {
			for {
				k, ok := r.queue.next(ctx)
				if !ok {
					return
				}
				r.reconcileKey(ctx, k)
				r.queue.done(k)
			}
		})
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(r.cfg.Resync + time.Duration(r.cfg.Rand()*float64(r.cfg.Resync))):
			r.enqueueAll()
		}
	}
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outages.stopTimers()
	r.queue.stopTimers()
	return nil
}

func (r *Reconciler) enqueueAll() {
	var keys []inbox.Key
	for _, item := range r.cfg.Inbox.Items() {
		keys = append(keys, inbox.Key{Kind: item.Kind, Name: item.Key})
	}
	slices.SortFunc(keys, func(a, b inbox.Key) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	for _, k := range keys {
		r.queue.add(k)
	}
	r.lookAgain()
}

// reconcileKey compares the wanted state of a key with the observed state, and acts on the
// difference.
func (r *Reconciler) reconcileKey(ctx context.Context, k inbox.Key) {
	item, ok := r.cfg.Inbox.Get(k)
	if !ok {
		r.forgetKey(k)
		return
	}
	if workload := item.GetDeployment().GetWorkloadKey(); workload != "" && !inbox.IsDelete(item) {
		if !r.lockWorkload(workload, k) {
			return
		}
		defer r.unlockWorkload(workload)
		// While this item waited for the lock, another deployment may have been applied, and this
		// one may not be wanted any more.
		if item, ok = r.cfg.Inbox.Get(k); !ok {
			r.forgetKey(k)
			return
		}
	}
	if r.isRejected(k, item) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	switch {
	case item.GetRoutes() != nil && item.GetRoutes().AppId == k.Name:
		r.applyRoute(ctx, k, item)
	case inbox.IsDelete(item):
		r.routeFirst(ctx, item)
		r.removeItem(ctx, k, item)
	case item.GetDeployment().GetAction() == agentv1.DeploymentState_ACTION_APPLY && item.GetDeployment().GetDeployment().GetId() == k.Name:
		if why := r.whyContested(k, item); why != "" {
			r.markPending(k, item, codeAdopting, why)
			return
		}
		r.cfg.Gateways.Stay(k.Name)
		if r.fallsToZero(ctx, k, item) {
			return
		}
		err := r.applyItem(ctx, k, item)
		r.markTouched(k)
		r.settleKey(ctx, k, item, err)
	default:
		r.settleKey(ctx, k, item, &runtime.Rejection{Code: runtime.ReasonUnsupported, Message: "this agent does not understand the assignment: update the agent"})
	}
}

// isRejected reports whether this generation was rejected for good.
func (r *Reconciler) isRejected(k inbox.Key, item *agentv1.Item) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[k]
	return e != nil && e.state != nil && e.state.Epoch == item.Epoch && e.state.Generation == item.Generation &&
		e.state.Phase == agentv1.AppliedState_PHASE_REJECTED && !e.state.Retryable
}

func (r *Reconciler) applyItem(ctx context.Context, k inbox.Key, item *agentv1.Item) (err error) {
	state := item.GetDeployment()
	ctx, end := r.startSpan(ctx, k, item)
	defer func() { end(err) }()
	for _, feature := range state.RequiredFeatures {
		if !slices.Contains(r.cfg.Features, feature) {
			return &runtime.Rejection{Code: runtime.ReasonUnsupported, Message: fmt.Sprintf("the deployment needs feature %q, which this agent does not have: update the agent", feature)}
		}
	}
	d := state.Deployment
	variables, pull, err := r.secretVariables(ctx, d, item.Generation)
	if err != nil {
		return err
	}
	r.cfg.Zero.Note(k.Name, state, time.Now())
	r.cfg.Zero.Answer(k.Name, item.Epoch, item.Generation)
	if err := r.cfg.Zero.Keep(); err != nil {
		return err
	}
	n, _ := r.cfg.Zero.Replicas(k.Name, state)
	if n = max(n, r.cfg.Zero.Raised(k.Name, item.Epoch, item.Generation)); n != d.Replicas {
		d = proto.CloneOf(d)
		d.Replicas = n
	}
	return r.cfg.Runtime.Apply(ctx, runtime.Assignment{
		Deployment:      d,
		WorkloadKey:     state.WorkloadKey,
		WorkloadVersion: int(state.WorkloadVersion),
		Epoch:           item.Epoch,
		Generation:      item.Generation,
		Secrets:         variables,
		PullSecrets:     pull,
		TemplateHash:    hex.EncodeToString(d.TemplateHash),
		RoleTemplates:   roleTemplates(d),
	})
}

func roleTemplates(d *agentv1.Deployment) map[string]string {
	if len(d.RoleTemplates) == 0 {
		return nil
	}
	out := make(map[string]string, len(d.RoleTemplates))
	for _, t := range d.RoleTemplates {
		out[t.Role] = hex.EncodeToString(t.TemplateHash)
	}
	return out
}

// secretVariables returns the values of the deployment's secrets. variables has the values of
// environment variables, by variable name. pull has the values for pulling the image, by secret
// name.
func (r *Reconciler) secretVariables(ctx context.Context, d *agentv1.Deployment, generation int64) (variables, pull map[string]string, _ error) {
	if len(d.GetSpec().GetSecrets()) == 0 {
		return nil, nil, nil
	}
	values, err := r.cfg.Secrets(ctx, d, generation)
	if err != nil {
		return nil, nil, err
	}
	variables, pull = map[string]string{}, map[string]string{}
	for _, ref := range d.Spec.Secrets {
		value, ok := values[ref.Secret]
		if !ok {
			return nil, nil, &runtime.Rejection{Code: runtime.ReasonSecretUnavailable, Message: fmt.Sprintf("secret %q has no value", ref.Secret), Retryable: true}
		}
		if ref.ImagePull {
			pull[ref.Secret] = value
		} else {
			variables[ref.EnvName] = value
		}
	}
	return variables, pull, nil
}

// startSpan joins the trace of the control plane's decision, once per generation.
func (r *Reconciler) startSpan(ctx context.Context, k inbox.Key, item *agentv1.Item) (context.Context, func(error)) {
	r.mu.Lock()
	e := r.entryOf(k)
	mark := [2]int64{item.Epoch, item.Generation}
	first := e.traced != mark
	e.traced = mark
	r.mu.Unlock()
	parent := item.GetDeployment().GetTraceparent()
	if !first || parent == "" {
		return ctx, func(error) {}
	}
	ctx, span := r.cfg.Tracer.Start(telemetry.Extract(ctx, parent), "deployment.apply."+r.cfg.Region(),
		trace.WithAttributes(attribute.String("windlass.deployment", item.Key), attribute.Int64("windlass.generation", item.Generation)))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// settleKey records the result of a key, and when to try again.
func (r *Reconciler) settleKey(ctx context.Context, k inbox.Key, item *agentv1.Item, err error) {
	state := &agentv1.AppliedState{Kind: k.Kind, Key: k.Name, Epoch: item.Epoch, Generation: item.Generation}
	var rejection *runtime.Rejection
	switch {
	case err == nil:
		state.Phase = agentv1.AppliedState_PHASE_APPLIED
		state.Deleted = item.Kind == agentv1.ItemKind_ITEM_KIND_ROUTES && len(item.GetRoutes().GetHosts()) == 0
		if n, woken := r.cfg.Zero.Replicas(k.Name, item.GetDeployment()); woken {
			state.Code, state.Message = codeWoken, "a request woke the deployment: the region runs "+pool.SizeText(runtime.IsPooled(item.GetDeployment().GetDeployment().GetSpec()), n)
		}
	case errors.As(err, &rejection):
		state.Phase = agentv1.AppliedState_PHASE_REJECTED
		state.Code, state.Message, state.Retryable = rejection.Code, rejection.Message, rejection.Retryable
	case errors.Is(ctx.Err(), context.Canceled):
		return // the agent is stopping
	default:
		state.Phase = agentv1.AppliedState_PHASE_PENDING
		state.Code, state.Message, state.Retryable = "Retrying", err.Error(), true
		r.cfg.Log.WarnContext(ctx, "cannot apply; will try again", "key", k.Name, "generation", item.Generation, "error", err)
	}
	away := missingDependency(err)
	r.noteTried(ctx, k, away)
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entryOf(k)
	if err == nil {
		defer r.enqueueAdopters(item)
	}
	if e.state.GetEpoch() != item.Epoch || e.state.GetGeneration() != item.Generation {
		e.attempts = 0
	}
	switch {
	case away != "":
		e.attempts = 0
	case state.Retryable:
		r.queue.addAfter(k, r.cfg.Retry.Delay(e.attempts, r.cfg.Rand))
		e.attempts++
	case state.Phase == agentv1.AppliedState_PHASE_APPLIED && k.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT:
		e.attempts = 0
		if !proto.Equal(e.state, state) {
			e.next, e.after = state, r.looks+1
			r.lookAgain()
			return
		}
	default:
		e.attempts = 0
	}
	e.next = nil
	r.setState(e, state)
}

func (r *Reconciler) entryOf(k inbox.Key) *entry {
	e := r.entries[k]
	if e == nil {
		e = &entry{}
		r.entries[k] = e
	}
	return e
}

func (r *Reconciler) setState(e *entry, state *agentv1.AppliedState) {
	if e.state == nil || !proto.Equal(e.state, state) {
		e.state = state
		r.signalChange()
	}
}

func (r *Reconciler) forgetKey(k inbox.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outages.forgetKey(k)
	delete(r.gated, k)
	if _, ok := r.entries[k]; ok {
		delete(r.entries, k)
		r.signalChange()
	}
	for _, keys := range r.waiting {
		delete(keys, k)
	}
	r.enqueueWaiting(true)
	r.lookAgain()
}

func (r *Reconciler) signalChange() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *Reconciler) lookAgain() {
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// observeRuntime observes the runtime whenever it changed, and finds workloads that are gone.
func (r *Reconciler) observeRuntime(ctx context.Context) {
	failures := 0
	for {
		r.mu.Lock()
		r.looks++
		look := r.looks
		r.mu.Unlock()
		begin := time.Now()
		bounded, cancel := context.WithTimeout(ctx, applyTimeout)
		seen, err := r.cfg.Runtime.Observe(bounded)
		cancel()
		var wait time.Duration
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			wait = r.cfg.Outage.Delay(failures, r.cfg.Rand)
			failures++
			r.lookAgain()
			r.cfg.Log.WarnContext(ctx, "cannot observe the runtime; will look again", "error", err, "retry_in", wait)
		} else {
			failures = 0
			// Gateways come first. A caller that sees a key as applied may rely on the gateways'
			// knowledge of the observed instances.
			r.cfg.Gateways.See(seen)
			r.noteSlept(seen, look)
			r.noteSeen(seen, look)
			wait = backoff.Rest(time.Since(begin), observeShare, observeSpacing, maxObserveSpacing)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		select {
		case <-ctx.Done():
			return
		case <-r.cfg.Runtime.Changes():
		case <-r.look:
		}
	}
}

func (r *Reconciler) noteSeen(seen runtime.Observation, look int64) {
	present := map[string]bool{}
	for _, d := range seen.Deployments {
		present[d.DeploymentID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seenLook == 0 {
		for k := range r.gated {
			r.queue.add(k) // the instances were not known yet
		}
	}
	r.seen, r.seenLook, r.present = seen, look, present
	r.enqueueWaiting(false)
	for k, e := range r.entries {
		if e.next != nil && look >= e.after && (!e.next.Deleted || !present[k.Name]) {
			e.state, e.next = e.next, nil
		}
	}
	r.signalChange()
}
