package reconcile

import (
	"fmt"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Deployments may have a workload one after the other, each going on with the instances
// of the one before. Their keys are worked on side by side, and what the region is told
// of them comes in any order; three rules keep the instances through all of it:
//
//   - of those that name a workload, one at a time is applied, and as it is by then:
//     what is slow cannot take it back from the one that came after it;
//   - none is applied while another is wanted, too: one of the two is old;
//   - none is removed before the runtime has taken the one that goes on, unless none goes on.
//     A deployment of which the runtime has nothing may go at any time.
//
// None of it is remembered over a restart. The one that goes on is then applied again,
// which changes nothing, and until it is, nothing is removed that the runtime has.

// codeAdopting says why a key waits for another of its workload.
const codeAdopting = "Adopting"

// hold has the workload to the key, until let. When another has it, the key is looked at
// again when that one lets it go.
func (r *Reconciler) hold(workload string, k inbox.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if next, busy := r.busy[workload]; busy {
		r.busy[workload] = append(next, k)
		return false
	}
	r.busy[workload] = nil
	return true
}

func (r *Reconciler) let(workload string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.add(r.busy[workload]...)
	delete(r.busy, workload)
}

// superseded is an item that is not the newest of its key any more.
const superseded = "a newer state of it has come"

// contested tells why the assignment must not be applied now.
func (r *Reconciler) contested(k inbox.Key, item *agentv1.Item) (why string) {
	r.await(k, item)
	defer func() { r.waited(k, item, why) }()
	s, ok := r.cfg.Inbox.Succession(item)
	if !ok {
		r.queue.add(k)
		return superseded
	}
	for _, rival := range s.Wanting {
		if s.Open || rival.Key > k.Name {
			return fmt.Sprintf("%s wants the same instances: what runs is left as it is until one of the two is not wanted", rival.Key)
		}
	}
	return ""
}

// adopting tells why the removal has to wait. A deployment that cannot be taken holds it
// up for as long as it is wanted: what runs serves, and stopping it would leave nothing.
func (r *Reconciler) adopting(k inbox.Key, item *agentv1.Item) (why string) {
	r.await(k, item)
	defer func() { r.waited(k, item, why) }()
	workload := item.GetDeployment().GetWorkloadKey()
	s, ok := r.cfg.Inbox.Succession(item)
	if !ok {
		r.queue.add(k)
		return superseded
	}
	r.mu.Lock()
	if r.taken(item) || r.nothing(k) {
		r.mu.Unlock()
		return ""
	}
	for _, successor := range s.Wanting {
		if !r.taken(successor) {
			why = fmt.Sprintf("its instances stay until %s was applied, which goes on with them", successor.Key)
			if h := (inbox.Key{Kind: successor.Kind, Name: successor.Key}); r.waiting[workload][h] {
				r.queue.add(h) // it waited for this one to go
			}
			break
		}
	}
	r.mu.Unlock()
	if why == "" && s.Open {
		why = "its instances stay until it is known who goes on with them"
	}
	return why
}

// await notes that the key must be looked at again when something of its workload changes. It
// comes before the look at what the key may have to wait for, so that no change between the two
// is missed. An item that names no workload does not wait for another.
func (r *Reconciler) await(k inbox.Key, item *agentv1.Item) {
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

// waited ends await when there is nothing to wait for.
func (r *Reconciler) waited(k inbox.Key, item *agentv1.Item, why string) {
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

// nothing reports whether the runtime has nothing of the deployment. Called with mu held.
func (r *Reconciler) nothing(k inbox.Key) bool {
	e := r.entries[k]
	return r.seenLook > 0 && (e == nil || r.seenLook >= e.touched) && !r.present[k.Name]
}

// taken reports whether the runtime took this generation. Called with mu held.
func (r *Reconciler) taken(item *agentv1.Item) bool {
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

// adopted has those looked at that wait for the item. Called with mu held.
func (r *Reconciler) adopted(item *agentv1.Item) {
	workload := item.GetDeployment().GetWorkloadKey()
	for k := range r.waiting[workload] {
		r.queue.add(k)
	}
	delete(r.waiting, workload)
}

// awaken has all those looked at that wait, or those only of which the runtime has
// nothing. Called with mu held.
func (r *Reconciler) awaken(all bool) {
	for _, keys := range r.waiting {
		for k := range keys {
			if all || r.nothing(k) {
				r.queue.add(k)
			}
		}
	}
}

// pend notes what the key waits for. What was taken before stays so.
func (r *Reconciler) pend(k inbox.Key, item *agentv1.Item, code, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken(item) {
		return
	}
	e := r.entry(k)
	e.next = nil
	r.set(e, &agentv1.AppliedState{
		Kind: k.Kind, Key: k.Name, Epoch: item.Epoch, Generation: item.Generation,
		Phase: agentv1.AppliedState_PHASE_PENDING, Code: code, Message: why,
	})
}

// touch notes that something of the key was applied, if in part.
func (r *Reconciler) touch(k inbox.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entry(k).touched = r.looks + 1
}
