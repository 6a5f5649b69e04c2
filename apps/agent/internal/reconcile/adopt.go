package reconcile

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Several deployments may have the same workload, one after the other. Each of them takes over the
// instances of the previous one. Their keys are worked on in parallel, and their states arrive in
// any order. Three rules keep the instances:
//
//   - Deployments that name the same workload are applied one at a time. Each is applied in the
//     state that it has when its turn comes. So a slow apply cannot take the workload back from a
//     later deployment.
//   - A deployment is not applied while another one is also wanted, because one of the two is old.
//   - A deployment is not removed before the runtime has applied its successor, unless it has no
//     successor. A deployment of which the runtime has nothing may be removed at any time.
//
// None of this is stored for a restart. After a restart, the successor is applied again, which
// changes nothing. Until then, the runtime keeps the instances of the workload.

// codeAdopting is why a deployment waits: another deployment takes over its instances, or is applied to them first.
const codeAdopting = "Adopting"

// lockWorkload locks the workload for the key until unlockWorkload. If another key holds the lock,
// it returns false, and unlockWorkload puts this key into the queue again.
func (r *Reconciler) lockWorkload(workload string, k inbox.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if next, busy := r.busy[workload]; busy {
		r.busy[workload] = append(next, k)
		return false
	}
	r.busy[workload] = nil
	return true
}

func (r *Reconciler) unlockWorkload(workload string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.add(r.busy[workload]...)
	delete(r.busy, workload)
}

// superseded is the reason when an item is no longer the newest of its key.
const superseded = "a newer state of the deployment has come"

// whyContested returns why the assignment must not be applied now, or "" if it may be applied.
func (r *Reconciler) whyContested(k inbox.Key, item *agentv1.Item) (why string) {
	r.awaitWorkload(k, item)
	defer func() { r.endWait(k, item, why) }()
	s, ok := r.cfg.Inbox.Succession(item)
	if !ok {
		r.queue.add(k)
		return superseded
	}
	for _, rival := range s.Wanting {
		if s.Open || rival.Key > k.Name {
			return fmt.Sprintf("%s should have the same instances: running instances stay as they are until one of the two deployments is deleted", rival.Key)
		}
	}
	return ""
}

// whyAdopting returns why the removal must wait, or "" if it need not wait. A successor that the
// runtime cannot apply delays the removal for as long as the successor is wanted, because without
// the present instances none would serve.
func (r *Reconciler) whyAdopting(k inbox.Key, item *agentv1.Item) (why string) {
	r.awaitWorkload(k, item)
	defer func() { r.endWait(k, item, why) }()
	workload := item.GetDeployment().GetWorkloadKey()
	s, ok := r.cfg.Inbox.Succession(item)
	if !ok {
		r.queue.add(k)
		return superseded
	}
	r.mu.Lock()
	if r.isTaken(item) || r.hasNothing(k) {
		r.mu.Unlock()
		return ""
	}
	for _, successor := range s.Wanting {
		if !r.isTaken(successor) {
			why = fmt.Sprintf("its instances stay until %s is applied, which takes them over", successor.Key)
			if h := (inbox.Key{Kind: successor.Kind, Name: successor.Key}); r.waiting[workload][h] {
				r.queue.add(h) // the successor waited for this removal
			}
			break
		}
	}
	r.mu.Unlock()
	if why == "" && s.Open {
		why = "its instances stay until it is known which deployment takes them over"
	}
	return why
}

// awaitWorkload records that the key must be checked again when its workload changes. It must be
// called before the check, so that no change in between is missed. An item that names no workload
// never waits.
func (r *Reconciler) awaitWorkload(k inbox.Key, item *agentv1.Item) {
	workload := item.GetDeployment().GetWorkloadKey()
	if workload == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[workload] == nil {
		r.waiting[workload] = map[inbox.Key]bool{}
	}
	r.waiting[workload][k] = true
}

// endWait undoes awaitWorkload if why is empty, because the key then waits for nothing. Otherwise,
// it asks for a snapshot.
func (r *Reconciler) endWait(k inbox.Key, item *agentv1.Item, why string) {
	if why != "" {
		r.cfg.Inbox.Ask(k)
		return
	}
	workload := item.GetDeployment().GetWorkloadKey()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting[workload], k)
	if len(r.waiting[workload]) == 0 {
		delete(r.waiting, workload)
	}
}

// hasNothing reports whether the runtime has nothing of the deployment. The caller holds mu.
func (r *Reconciler) hasNothing(k inbox.Key) bool {
	e := r.entries[k]
	return r.seenLook > 0 && (e == nil || r.seenLook >= e.touched) && !r.present[k.Name]
}

// isTaken reports whether the runtime has applied this generation. The caller holds mu.
func (r *Reconciler) isTaken(item *agentv1.Item) bool {
	e := r.entries[inbox.Key{Kind: item.Kind, Name: item.Key}]
	if e == nil {
		return false
	}
	for _, s := range []*agentv1.AppliedState{e.next, e.state} {
		if s.GetPhase() == agentv1.AppliedState_PHASE_APPLIED && s.GetEpoch() == item.Epoch && s.GetGeneration() == item.Generation {
			return true
		}
	}
	return false
}

// enqueueAdopters enqueues the keys that wait for the item's workload. The caller holds mu.
func (r *Reconciler) enqueueAdopters(item *agentv1.Item) {
	workload := item.GetDeployment().GetWorkloadKey()
	for k := range r.waiting[workload] {
		r.queue.add(k)
	}
	delete(r.waiting, workload)
}

// enqueueWaiting enqueues keys that wait for a workload. If all is false, it enqueues only keys
// without instances in the runtime. The caller holds mu.
func (r *Reconciler) enqueueWaiting(all bool) {
	for _, keys := range r.waiting {
		for k := range keys {
			if all || r.hasNothing(k) {
				r.queue.add(k)
			}
		}
	}
}

// markPending records what the key waits for, unless the runtime has applied the item already.
func (r *Reconciler) markPending(k inbox.Key, item *agentv1.Item, code, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isTaken(item) {
		return
	}
	e := r.entryOf(k)
	e.next = nil
	r.setState(e, &agentv1.AppliedState{
		Kind: k.Kind, Key: k.Name, Epoch: item.Epoch, Generation: item.Generation,
		Phase: agentv1.AppliedState_PHASE_PENDING, Code: code, Message: why,
	})
}

// markTouched records that the key was applied, at least in part.
func (r *Reconciler) markTouched(k inbox.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entryOf(k).touched = r.looks + 1
}
