package reconcile

import (
	"context"
	"errors"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// codeDraining is why a removal waits: requests to the deployment have not ended, or gateways may still send some.
const codeDraining = "Draining"

// routeFirst sends the app's routes to gateways before a deployment of the app is removed. A region
// that was out of reach receives the new routes and the removal at once, and keys are worked on in
// parallel. Without this call, gateways would send requests to instances that are being removed,
// until the key of the routes has its turn.
func (r *Reconciler) routeFirst(ctx context.Context, item *agentv1.Item) {
	app := item.GetDeployment().GetDeployment().GetAppId()
	held, ok := r.cfg.Inbox.Get(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Name: app})
	if ok && held.GetRoutes().GetAppId() == app {
		r.serveRoutes(ctx, held)
	}
}

func (r *Reconciler) removeItem(ctx context.Context, k inbox.Key, item *agentv1.Item) {
	if why := r.whyAdopting(k, item); why != "" {
		r.markPending(k, item, codeAdopting, why)
		r.lookAgain()
		return
	}
	if r.awaitsGateways(k, item) {
		return
	}
	if err := errors.Join(r.cfg.Runtime.Remove(ctx, k.Name), r.cfg.ForgetSecrets(k.Name)); err != nil {
		r.settleKey(ctx, k, item, err)
		return
	}
	r.noteTried(ctx, k, "")
	r.mu.Lock()
	r.enqueueAdopters(item)
	e := r.entryOf(k)
	done := e.state.GetDeleted() && e.state.Epoch == item.Epoch && e.state.Generation == item.Generation
	if !done {
		e.attempts = 0
		r.setState(e, &agentv1.AppliedState{
			Kind: k.Kind, Key: k.Name, Epoch: item.Epoch, Generation: item.Generation,
			Phase: agentv1.AppliedState_PHASE_PENDING, Code: codeDraining, Message: "instances are being stopped",
		})
		e.next, e.after = &agentv1.AppliedState{
			Kind: k.Kind, Key: k.Name, Epoch: item.Epoch, Generation: item.Generation,
			Phase: agentv1.AppliedState_PHASE_APPLIED, Deleted: true,
		}, r.looks+1
	}
	r.mu.Unlock()
	r.lookAgain()
}
