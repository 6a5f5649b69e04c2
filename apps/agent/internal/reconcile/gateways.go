package reconcile

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Gateways are the region's gateways. Reconciler.Proceed must be called when their answers may have
// changed.
type Gateways interface {
	// Route sends an app's route to the gateways. See sends the observed instances.
	Route(routes *agentv1.Routes, epoch, generation int64)
	See(seen runtime.Observation)
	// Routed returns why gateways do not serve an app's route yet, or "" if they do.
	Routed(appID string, epoch, generation int64) (why string)
	// Leave ends new requests to a deployment that will be removed. Stay undoes Leave. Leave
	// returns why the deployment must not be removed yet, or "" if it may be removed. left is the
	// longest time to wait. seen is the observation of the runtime, or nil if there is none yet.
	Leave(deploymentID string, seen *runtime.Observation) (why string, left time.Duration)
	Stay(deploymentID string)
	// Sleep ends new requests to a deployment that goes to zero. Rise undoes Sleep. Sleep returns
	// why the instances must not stop yet, or "" if they may stop. left is the longest time until
	// the next call.
	Sleep(deploymentID string, seen *runtime.Observation) (why string, left time.Duration)
	Rise(deploymentID string)
	// Slept is called after Sleep has returned "", with the first observation that began after the
	// runtime was asked to stop the instances.
	Slept(deploymentID string, seen runtime.Observation)
}

// codeGateways is why an app waits: gateways of the region have not confirmed its route.
const codeGateways = "AwaitingGateways"

// Proceed enqueues the keys that wait for gateways.
func (r *Reconciler) Proceed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.gated {
		r.queue.add(k)
	}
}

// awaitGateways records that the key must be checked again when the gateways' answer changes. It
// must be called before the gateways are asked.
func (r *Reconciler) awaitGateways(k inbox.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gated[k] = true
}

func (r *Reconciler) endGatewayWait(k inbox.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.gated, k)
}

// serveRoutes gives an app's routes to the gateways. The inbox must have stored them before.
func (r *Reconciler) serveRoutes(ctx context.Context, item *agentv1.Item) {
	routes := item.GetRoutes()
	r.cfg.Gateways.Route(routes, item.Epoch, item.Generation)
	if !r.cfg.Log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	weights := map[string]int32{}
	for _, target := range routes.GetTargets() {
		weights[target.DeploymentId] = target.Weight
	}
	r.cfg.Log.DebugContext(ctx, "serving routes", "app", routes.GetAppId(), "epoch", item.Epoch, "generation", item.Generation, "weights", weights)
}

func (r *Reconciler) applyRoute(ctx context.Context, k inbox.Key, item *agentv1.Item) {
	r.serveRoutes(ctx, item)
	r.awaitGateways(k)
	if why := r.cfg.Gateways.Routed(k.Name, item.Epoch, item.Generation); why != "" {
		r.noteTried(ctx, k, "")
		r.markPending(k, item, codeGateways, why)
		return
	}
	r.endGatewayWait(k)
	r.settleKey(ctx, k, item, nil)
}

// awaitsGateways reports whether the removal must wait, because gateways may still send to the
// deployment. If so, the key is checked again later. A deployment whose instances another
// deployment takes over does not wait.
func (r *Reconciler) awaitsGateways(k inbox.Key, item *agentv1.Item) bool {
	if s, ok := r.cfg.Inbox.Succession(item); !ok || len(s.Wanting) > 0 {
		return false
	}
	r.awaitGateways(k)
	var seen *runtime.Observation
	if o, ok := r.Observation(); ok {
		seen = &o
	}
	why, left := r.cfg.Gateways.Leave(k.Name, seen)
	if why == "" {
		r.endGatewayWait(k)
		return false
	}
	r.markPending(k, item, codeDraining, why)
	r.queue.addAfter(k, left)
	return true
}

// fallsToZero reports whether the deployment is going to zero and its instances must not stop yet.
// If so, it enqueues the key again.
func (r *Reconciler) fallsToZero(ctx context.Context, k inbox.Key, item *agentv1.Item) bool {
	if r.cfg.Zero.Phase(k.Name, item.GetDeployment()) != zero.Asleep {
		r.cfg.Gateways.Rise(k.Name)
		return false
	}
	r.awaitGateways(k)
	var seen *runtime.Observation
	if o, ok := r.Observation(); ok {
		seen = &o
	}
	why, left := r.cfg.Gateways.Sleep(k.Name, seen)
	if why == "" {
		r.endGatewayWait(k)
		r.mu.Lock()
		defer r.mu.Unlock()
		e := r.entryOf(k)
		e.fell, e.touched = true, math.MaxInt64 // markTouched lowers it once the assignment is applied
		return false
	}
	r.noteTried(ctx, k, "")
	r.markPending(k, item, codeGateways, why)
	r.queue.addAfter(k, left)
	return true
}

// noteSlept calls Slept for the deployments whose instances the runtime was asked to stop before
// this look began.
func (r *Reconciler) noteSlept(seen runtime.Observation, look int64) {
	r.mu.Lock()
	var ids []string
	for k, e := range r.entries {
		if e.fell && look >= e.touched {
			e.fell = false
			ids = append(ids, k.Name)
		}
	}
	r.mu.Unlock()
	for _, id := range ids {
		r.cfg.Gateways.Slept(id, seen)
	}
}

// noGateways is for regions whose requests do not pass gateways of the agent. Every route counts as
// served, and no removal waits.
type noGateways struct{}

func (noGateways) Route(*agentv1.Routes, int64, int64)                        {}
func (noGateways) See(runtime.Observation)                                    {}
func (noGateways) Routed(string, int64, int64) string                         { return "" }
func (noGateways) Leave(string, *runtime.Observation) (string, time.Duration) { return "", 0 }
func (noGateways) Stay(string)                                                {}
func (noGateways) Sleep(string, *runtime.Observation) (string, time.Duration) { return "", 0 }
func (noGateways) Rise(string)                                                {}
func (noGateways) Slept(string, runtime.Observation)                          {}
