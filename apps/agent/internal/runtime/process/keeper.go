package process

import (
	"context"
	"iter"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	"github.com/windlass-run/windlass/pkg/ident"
)

// settleRounds is how many times one pass decides: create, then start, then look. Remaining work is
// done in the next pass.
const settleRounds = 5

// slotRetry is the delay before another try to delete the directory of a slot.
const slotRetry = 30 * time.Second

// workload has all instances of one workload key, and the keeper that works on them. Only the
// keeper's goroutine decides. Other goroutines record what happened, and poke the keeper.
type workload struct {
	rt    *Runtime
	key   string
	poked chan struct{}

	// blocked means that an instance waits for resources that others hold. unblock means that such
	// resources were given back since.
	blocked, unblock atomic.Bool
	view             atomic.Pointer[view]

	// assigned counts the assignments to the workload and away from it. The runtime's mu guards it.
	assigned int64

	// uncleared means that the workload is gone, and that directories of its slots are left.
	uncleared atomic.Bool

	// awaits means that an order to stop is held back until no gateway sends to its instance.
	awaits atomic.Bool

	mu        sync.Mutex
	instances map[string]*instance
	// gated means that stops wait for gateways: the workload is wanted, so other instances serve
	// meanwhile, and Drain was called.
	gated bool
	// roles has the roles of the newest assignment, if there are several.
	roles []runtime.RoleCount
	// secrets has all values that instances were given since the agent started. It is nil until the
	// agent gets values.
	secrets *redact.Values
	// slots names the directories of stable slots that exist. It is nil until they have been read.
	slots map[string]bool
	// before has the last instance of each slot, for its successor.
	before map[slotKey]record
}

// view is the result of a pass of the keeper. asOf is the value of workload.assigned for this pass.
type view struct {
	lists lists
	asOf  int64
}

// lists has a workload's instances in the form of Observe, by deployment. A list is never changed,
// so the same list means that nothing changed.
type lists map[string][]runtime.Instance

// instance is guarded by its workload's mu.
type instance struct {
	rec     record
	live    bool
	shim    proc
	child   proc
	busy    task
	blocked *block
	// waits says for which roles the first start of the instance waits. peers is the content of its
	// peers file.
	waits string
	peers string
	pulse *pulse
	// unwatch ends the goroutines of the present attempt.
	unwatch context.CancelFunc
	// gone means that the shim has ended. adopt means that an earlier agent started the shim, and
	// that the keeper has not handled it yet.
	gone, adopt bool
}

// task is what a goroutine does with an instance while the keeper leaves the instance alone.
type task string

const (
	idle       task = ""
	starting   task = "start"
	settling   task = "settle"
	forgetting task = "forget"
)

func newWorkload(rt *Runtime, key string) *workload {
	w := &workload{rt: rt, key: key, poked: make(chan struct{}, 1), instances: map[string]*instance{}, before: map[slotKey]record{}}
	w.view.Store(&view{})
	return w
}

func (w *workload) publishedLists() lists { return w.view.Load().lists }

// isBehind reports whether the published lists may be from before the last assignment, or under the
// deployment that had the workload before. The caller holds the runtime's mu.
func (w *workload) isBehind() bool { return w.view.Load().asOf < w.assigned }

// eachInstance iterates over all instances, each with the id of its deployment.
func (l lists) eachInstance() iter.Seq2[string, *runtime.Instance] {
	return func(yield func(string, *runtime.Instance) bool) {
		for id, list := range l {
			for n := range list {
				if !yield(id, &list[n]) {
					return
				}
			}
		}
	}
}

func (w *workload) wakeUp() {
	select {
	case w.poked <- struct{}{}:
	default:
	}
}

// keepRunning works until ctx ends, or until no deployment wants the workload and it has no
// instances left.
func (w *workload) keepRunning(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, empty := w.decideAndAct(ctx, time.Now())
		w.rt.collectDeployments(w)
		if empty && w.rt.retireWorkload(w) {
			return
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			w.unwatchAll()
			return
		case <-w.poked:
		case <-timer.C:
		}
	}
}

// decideAndAct decides and acts until there is nothing more to do now.
func (w *workload) decideAndAct(ctx context.Context, now time.Time) (next time.Time, empty bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return time.Time{}, false
	}
	want, d, asOf := w.rt.wantedOf(w)
	w.belongTo(d)
	w.learnSecrets(d)
	w.gated = !want.Gone && !want.Paused && w.rt.released != nil
	if d != nil {
		w.roles = d.roles
	}
	if w.unblock.Swap(false) {
		for _, in := range w.instances {
			in.blocked = nil
		}
	}
	for range settleRounds {
		for _, in := range w.instances {
			switch {
			case in.busy != idle:
			case in.adopt:
				w.takeUp(ctx, in)
			case in.gone:
				w.finishAttempt(ctx, in)
			}
		}
		if d == nil && w.hasStrays() {
			// No instance is ever stopped because a file is missing.
			break
		}
		p := decideWorkload(want, w.seenInstances(), now)
		next = p.Next
		for id, in := range w.instances {
			in.waits = p.Waits[id]
		}
		w.stopEntriesFirst(p.Actions)
		for _, a := range p.Actions {
			w.carryOut(ctx, a, d, now)
		}
		if len(p.Actions) == 0 {
			break
		}
		next = now.Add(time.Millisecond)
	}
	w.publish(want.Held, asOf)
	w.tellPeers()
	empty = want.Gone && len(w.instances) == 0
	if d == nil && w.hasStrays() {
		return next, empty
	}
	err := w.clearSlots(want)
	w.uncleared.Store(err != nil && want.Gone)
	if err != nil {
		w.rt.log.Error("the directory of a slot that is gone is left; will try again", "workload", w.key, "err", err)
		empty = false
		if again := now.Add(slotRetry); next.IsZero() || again.Before(next) {
			next = again
		}
	}
	return next, empty
}

// hasStrays reports whether instances of the workload belong to a deployment without an assignment. The
// caller holds mu.
func (w *workload) hasStrays() bool {
	for _, in := range w.instances {
		if !w.rt.isKnown(in.rec.Deployment) {
			return true
		}
	}
	return false
}

// learnSecrets records the secrets that instances are given. Instances of an older template keep earlier
// values, so no value is ever forgotten. The caller holds mu.
func (w *workload) learnSecrets(d *deployment) {
	if d != nil && len(d.missingSecrets()) == 0 {
		w.secrets = w.secrets.With(slices.Collect(maps.Values(d.secrets))...)
	}
}

// belongTo gives the workload's instances to the deployment that has the workload now.
func (w *workload) belongTo(d *deployment) {
	if d == nil {
		return
	}
	for _, in := range w.instances {
		if in.rec.Deployment != d.spec.GetId() && in.busy != forgetting {
			in.rec.Deployment = d.spec.GetId()
			_ = w.saveRecord(in)
		}
	}
}

func (w *workload) seenInstances() []seen {
	out := make([]seen, 0, len(w.instances))
	for _, in := range w.instances {
		s := seen{record: in.rec, Live: in.live, Busy: in.busy != idle, Starting: in.busy == starting, Blocked: in.blocked}
		s.Passes, s.Fails, s.LastCheck = in.pulse.read()
		s.LastCheck = w.secrets.Blank(s.LastCheck) // the text may quote the instance's answer
		s.Released = !w.gated || in.rec.Stop == nil || w.isReleased(in)
		s.Waits = in.waits
		s.Unrouted = w.gated && w.isEntry(in.rec.Role) && w.rt.released(in.rec.ID)
		out = append(out, s)
	}
	return out
}

// publish makes Observe return the instances as they are after a pass. asOf is the value of
// workload.assigned for this pass. The caller holds mu.
func (w *workload) publish(held *block, asOf int64) {
	blocked, awaits := false, false
	before, now := w.view.Load(), lists{}
	changed := before.asOf != asOf
	all := w.seenInstances()
	slices.SortFunc(all, bySeat)
	for _, s := range all {
		blocked = blocked || s.Blocked != nil
		awaits = awaits || s.Stop != nil && !s.Stop.Await.IsZero()
		now[s.Deployment] = append(now[s.Deployment], s.describeInstance(held))
	}
	w.blocked.Store(blocked)
	w.awaits.Store(awaits)
	for id, list := range now {
		if reflect.DeepEqual(list, before.lists[id]) {
			now[id] = before.lists[id]
		} else {
			now[id], changed = slices.Clip(list), true
		}
	}
	if changed || len(now) != len(before.lists) {
		w.view.Store(&view{lists: now, asOf: asOf})
		w.rt.signalChange()
	}
}

// saveRecord writes the record, and logs a failure. After a failure, the next agent learns the same from
// the facts, or decides again.
func (w *workload) saveRecord(in *instance) error {
	err := writeJSON(w.rt.instanceDir(in.rec.ID), recordFile, in.rec, false)
	if err != nil {
		w.rt.log.Error("writing the record of an instance failed", "instance", in.rec.ID, "err", err)
	}
	return err
}

func (w *workload) carryOut(ctx context.Context, a action, d *deployment, now time.Time) {
	in := w.instances[a.ID]
	switch a.Kind {
	case doCreate:
		w.create(a.Slot, d)
	case doStart:
		w.start(ctx, in, d, now)
	case doStop, doRetire:
		w.stop(in, order{Reason: a.Reason, Message: a.Message, At: now, Final: a.Kind == doRetire})
	case doOrder:
		// The drain and the grace period of the instance begin with the order.
		o := *in.rec.Stop
		o.At, o.Await = now, time.Time{}
		in.rec.Stop = &o
		_ = w.saveRecord(in)
		w.signalStop(in)
	case doKill:
		w.killInstance(in, now)
	case doForget:
		w.eraseInstance(ctx, in)
	case doReady:
		w.markReady(in, now)
	case doUnready:
		in.rec = in.rec.withReady(false, now)
		w.rt.log.Warn("instance lost its health", "instance", in.rec.ID, "deployment", in.rec.Deployment, "check", w.secrets.Blank(in.pulse.lastFailure()))
		_ = w.saveRecord(in)
	}
}

func (w *workload) create(at slotKey, d *deployment) {
	rec := record{
		ID: ident.New("ins"), Deployment: d.spec.GetId(), Workload: w.key,
		Role: at.Role, Group: at.Group, Slot: at.Slot, Template: d.templateOf(at.Role),
		Health: healthOf(d.spec.GetSpec().GetHealthCheck()),
		Grace:  graceOf(d.spec.GetSpec()),
		Drain:  drainOf(d.spec.GetSpec()),
	}
	in := &instance{rec: rec.successorOf(w.before[at])}
	if err := os.Mkdir(w.rt.instanceDir(rec.ID), 0o700); err != nil {
		w.rt.log.Error("making the directory of an instance failed", "instance", rec.ID, "err", err)
	}
	_ = w.saveRecord(in)
	w.instances[rec.ID] = in
}

func (w *workload) stop(in *instance, o order) {
	if in.rec.Ready {
		// Gateways may still send to a ready instance. They do not send to an instance that was
		// never ready. An instance that is not ready any more gets requests only as a last resort,
		// if few instances are better. Its stop does not wait for those requests.
		o.Drain = in.rec.Drain
		if w.gated && !w.isReleased(in) {
			patience := w.rt.patience(in.rec.ID)
			if w.leavesPool(in) {
				patience = min(patience, peersPause)
			}
			o.Await = o.At.Add(patience)
			w.awaits.Store(true) // before the next pass, so that no release is missed
		}
	}
	if in.rec.Stop == nil || !in.rec.Stop.Final {
		if in.rec.Stop != nil {
			// The instance is stopping already. The new order only says that it must not start
			// again, so its drain and its grace period continue.
			o.At, o.Drain, o.Await = in.rec.Stop.At, in.rec.Stop.Drain, in.rec.Stop.Await
		}
		in.rec.Stop = &o
	}
	// The record is saved before the shim gets the signal, so that the end counts as requested.
	_ = w.saveRecord(in)
	w.rt.log.Info("stopping instance", "instance", in.rec.ID, "deployment", in.rec.Deployment, "reason", o.Reason, "why", o.Message)
	if in.rec.Stop.Await.IsZero() {
		w.signalStop(in)
	}
}

func (w *workload) signalStop(in *instance) {
	if err := in.shim.sendSignal(syscall.SIGTERM); err != nil && in.shim.isAlive() {
		w.rt.log.Error("signalling a shim failed", "instance", in.rec.ID, "err", err)
	}
}

// killInstance kills an instance that its shim did not end in time. It kills the process group first. If
// the shim itself hangs, it kills the shim, and so the child.
func (w *workload) killInstance(in *instance, now time.Time) {
	w.rt.log.Warn("killing an instance that outlived its grace period", "instance", in.rec.ID)
	if in.child.isAlive() {
		_ = syscall.Kill(-in.child.PID, syscall.SIGKILL)
	}
	if now.After(in.rec.Stop.deadlineOf(in.rec.Grace).Add(2 * killMargin)) {
		_ = in.shim.sendSignal(syscall.SIGKILL)
	}
}

// markReady records that an instance is ready, unless another process answers on its port.
func (w *workload) markReady(in *instance, now time.Time) {
	if in.rec.ReadyAt.IsZero() {
		if who := strangerAt(in.rec, in.shim, in.child); who != "" {
			w.stop(in, order{Reason: runtime.ReasonPortInUse, Message: "another process answers on its port: " + who, At: now})
			return
		}
		in.rec = in.rec.withReady(true, now)
		w.rt.metrics.countReady(in.rec)
	} else {
		in.rec = in.rec.withReady(true, now)
	}
	w.rt.log.Info("instance is ready", "instance", in.rec.ID, "deployment", in.rec.Deployment, "after", now.Sub(in.rec.StartedAt).Round(time.Millisecond))
	_ = w.saveRecord(in)
}

// restartInstance restarts an instance on request. It reports whether the workload has this instance.
func (w *workload) restartInstance(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.instances[id]
	if in == nil {
		return false
	}
	switch {
	case in.live && in.rec.Stop == nil:
		w.stop(in, order{Reason: runtime.ReasonStopped, Message: "a restart was requested", At: time.Now()})
		w.wakeUp() // so that the next pass checks the deadline
	case !in.live && in.rec.hasEnded():
		end := *in.rec.End
		end.Free = true
		in.rec.End = &end
		_ = w.saveRecord(in)
	}
	return true
}

func (w *workload) longestGrace() (d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, in := range w.instances {
		d = max(d, in.rec.Drain+in.rec.Grace)
	}
	return d
}

func (w *workload) anyLive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, in := range w.instances {
		if in.live || in.busy != idle {
			return true
		}
	}
	return false
}

func (w *workload) unwatchAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, in := range w.instances {
		if in.unwatch != nil {
			in.unwatch()
		}
	}
}
