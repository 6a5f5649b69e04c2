package reconcile

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Observation returns the last observation of the runtime. ok is false before the first one.
func (r *Reconciler) Observation() (seen runtime.Observation, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen, r.seenLook > 0
}

// Announce signals Changed. It must be called when a value has changed that the reconciler's
// methods return.
func (r *Reconciler) Announce() { r.signalChange() }

// Applied returns the result of every key that the inbox holds and that was tried. The states are
// shared, so callers must not change them. An Observation that is read afterwards is not older than
// these states.
func (r *Reconciler) Applied() []*agentv1.AppliedState {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*agentv1.AppliedState, 0, len(r.entries))
	for _, e := range r.entries {
		if e.state != nil {
			out = append(out, e.state)
		}
	}
	return out
}

// HeldSince returns the number of the frame that brought the deployment into the inbox, or 0 if the
// inbox held it before the start. It does not matter whether the inbox holds it to run it or to
// remove it. ok is false if the inbox does not hold it.
func (r *Reconciler) HeldSince(deploymentID string) (frame int64, ok bool) {
	return r.cfg.Inbox.HeldSince(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: deploymentID})
}

// Quarantined returns the observed workloads that are not in the inbox. ok is false until the inbox
// has held a whole snapshot and the runtime was observed, because before that, absence proves
// nothing.
func (r *Reconciler) Quarantined() (_ []*agentv1.QuarantinedKey, ok bool) {
	seen, ok := r.Observation()
	if !ok || !r.cfg.Inbox.Synced() {
		return nil, false
	}
	var out []*agentv1.QuarantinedKey
	for _, d := range seen.Deployments {
		if _, ok := r.cfg.Inbox.Get(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: d.DeploymentID}); ok {
			continue
		}
		out = append(out, &agentv1.QuarantinedKey{Key: d.DeploymentID, Generation: d.Generation, Instances: int32(len(d.Instances))})
	}
	slices.SortFunc(out, func(a, b *agentv1.QuarantinedKey) int { return cmp.Compare(a.Key, b.Key) })
	return out, true
}
