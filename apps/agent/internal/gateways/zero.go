package gateways

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// How an app goes to zero and starts again:
//
//	assignment without replicas   gateways hold requests, and the instances get no new requests
//	every gateway serves this     the instances stop
//	Wake                          instances start; gateways continue to hold requests
//	an instance is ready          gateways send the held requests to it
//
// The state of an app is computed from the assignment, the marks of package zero and the observed instances.
// So it does not depend on whether a wake or an assignment without replicas came first.

// featureHold is announced by gateways that can hold requests; see gatewayv1.WatchRequest.
const featureHold = "hold"

// holdRequests completes an app's state: instances of deployments at zero get no new requests, and
// requests are held while every deployment with a weight is at zero or starting.
func (t *table) holdRequests(out *gatewayv1.AppRoutes) {
	weighted, held := 0, 0
	for _, target := range out.Targets {
		phase := t.phase(target.DeploymentId)
		if t.shown[target.DeploymentId] = phase; phase == zero.Awake {
			delete(t.shown, target.DeploymentId)
		}
		for in := range instancesIn(target) {
			if t.stopping[target.DeploymentId][in.InstanceId] {
				in.State, in.WasReady = gatewayv1.Instance_STATE_DRAINING, nil
			}
		}
		ready := slices.ContainsFunc(target.Instances, func(in *gatewayv1.Instance) bool { return in.State == gatewayv1.Instance_STATE_READY })
		asleep := phase == zero.Asleep && (t.mayHold || !ready)
		if asleep {
			for in := range instancesIn(target) {
				in.State, in.WasReady = gatewayv1.Instance_STATE_DRAINING, nil
			}
		}
		if target.Weight > 0 {
			weighted++
			if asleep || !ready && (phase == zero.Waking || t.isUnloaded(target)) {
				held++
			}
		}
	}
	if weighted > 0 && held == weighted && len(out.Hosts) > 0 {
		out.Held = true
		if took := t.startTime(out.AppId); took > 0 {
			out.StartTime = durationpb.New(took)
		}
	}
}

// isUnloaded reports whether the runtime loads a model on request that no server has now.
func (t *table) isUnloaded(target *gatewayv1.Target) bool {
	return slices.ContainsFunc(t.listsOf(target.WorkloadKey), func(d runtime.ObservedDeployment) bool {
		return d.DeploymentID == target.DeploymentId && slices.ContainsFunc(d.Instances, func(in runtime.Instance) bool {
			return in.Reason == runtime.ReasonUnloaded && in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY
		})
	})
}

// renewIfPhaseChanged renews the states of the apps that send to a deployment, if its phase has changed. It
// returns the apps that changed.
func (t *table) renewIfPhaseChanged(deploymentID string) []string {
	if t.phase(deploymentID) == t.shown[deploymentID] {
		return nil
	}
	return t.renewUsersOf(deploymentID)
}

// renewUsersOf renews the states of the apps that send to a deployment's workload. It returns the apps that
// changed.
func (t *table) renewUsersOf(deploymentID string) []string {
	return t.renewAll(t.users[cmp.Or(t.assignment(deploymentID).GetWorkloadKey(), deploymentID)])
}

// whyNotHold returns why requests of apps at zero would not be held, or "" if all would be. A
// gateway that is away and has not connected to this agent process is a reason, because it may
// still send requests.
func (h *hub) whyNotHold() (why string) {
	holding := 0
	for _, id := range slices.Sorted(maps.Keys(h.gateways)) {
		g := h.gateways[id]
		switch {
		case h.feeds[id] == g && g.stream != 0:
			return fmt.Sprintf("the clients of %s cannot hold requests of an app at zero: the app keeps its instances while such clients are connected", id)
		case !g.verified:
		case g.holdsRequests && g.stream != 0 && !g.leaving:
			holding++
		case g.leaving, g.holdsRequests:
		case g.stream == 0:
			return fmt.Sprintf("waits for gateway %s, which is away", id)
		default:
			return fmt.Sprintf("gateway %s does not hold requests of an app at zero: update it", id)
		}
	}
	if holding == 0 {
		return "no gateway is connected that can hold requests of an app at zero, and wake it"
	}
	return ""
}

// renewAsleep renews the states of apps at zero if it has changed whether gateways hold all
// requests. The caller holds mu.
func (g *Gateways) renewAsleep() {
	may := g.hub.whyNotHold() == ""
	if g.hub.mayHold == may {
		return
	}
	g.hub.mayHold = may
	dirty := map[string]bool{}
	for id, a := range g.hub.apps {
		if slices.ContainsFunc(a.state.Targets, func(t *gatewayv1.Target) bool { return g.hub.phase(t.DeploymentId) == zero.Asleep }) {
			dirty[id] = true
		}
	}
	g.hub.markDirty(g.hub.renewAll(dirty))
}

// Sleep ends new requests to a deployment that goes to zero. It returns why the instances must not
// stop yet, and the longest time until the next call. why is "" if the instances may stop. seen is
// the observation of the runtime, or nil if there is none yet.
func (g *Gateways) Sleep(deploymentID string, seen *runtime.Observation) (why string, remaining time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if seen == nil {
		return "waits for the first observation of the runtime", Patience
	}
	at := slices.IndexFunc(seen.Deployments, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == deploymentID })
	if at < 0 || len(seen.Deployments[at].Instances) == 0 {
		delete(g.sleepingSince, deploymentID)
		return "", 0
	}
	if why = g.hub.whyNotHold(); why != "" {
		delete(g.sleepingSince, deploymentID)
		return why, Patience
	}
	g.hub.markDirty(g.hub.renewIfPhaseChanged(deploymentID))
	now := time.Now()
	if _, ok := g.sleepingSince[deploymentID]; !ok {
		g.sleepingSince[deploymentID] = now
	}
	remaining = g.sleepingSince[deploymentID].Add(Patience).Sub(now)
	stopping := map[string]bool{}
	for n := range seen.Deployments[at].Instances {
		id := seen.Deployments[at].Instances[n].ID
		if remaining > 0 && !g.hub.isReleased(id) {
			return fmt.Sprintf("waits until the gateways hold new requests and have finished the requests to instance %s, %s at most", id, Patience), remaining
		}
		stopping[id] = true
	}
	g.hub.stopping[deploymentID] = stopping
	return "", 0
}

// Slept ends the time in which the instances of Sleep get no new requests. The runtime must have
// been asked to stop the instances before the observation seen began. If seen shows an instance as
// ready, because the deployment was woken meanwhile, the instance gets requests again.
func (g *Gateways) Slept(deploymentID string, seen runtime.Observation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.hub.stopping, deploymentID)
	g.noteReady(seen.Deployments)
	g.hub.markDirty(g.hub.renewUsersOf(deploymentID))
}

// Rise undoes Sleep, because the deployment has replicas or was woken.
func (g *Gateways) Rise(deploymentID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sleepingSince, deploymentID)
	g.hub.markDirty(g.hub.renewIfPhaseChanged(deploymentID))
}

// noteReady records which woken deployments are ready. The caller holds mu.
func (g *Gateways) noteReady(seen []runtime.ObservedDeployment) {
	starting := g.cfg.Zero.Starting()
	if len(starting) == 0 {
		return
	}
	now := time.Now()
	for _, d := range seen {
		if !slices.Contains(starting, d.DeploymentID) {
			continue
		}
		serves := func(in *runtime.Instance) bool {
			return in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY && in.Address != "" && !g.hub.stopping[d.DeploymentID][in.ID]
		}
		ready := len(d.CompleteGroups(serves)) > 0
		if len(d.Roles) == 0 {
			ready = slices.ContainsFunc(d.Instances, func(in runtime.Instance) bool { return serves(&in) })
		}
		state := g.assignmentOf(d.DeploymentID)
		if n, _ := g.cfg.Zero.Replicas(d.DeploymentID, state); ready && n > 0 {
			g.cfg.Zero.Ready(d.DeploymentID, state.GetDeployment().GetAppId(), now)
			signalOn(g.wake) // Run writes the file
		}
	}
}

// forgetStopped drops the entries of sleepingSince and stopping for deployments that do not run any more. The
// caller holds mu.
func (g *Gateways) forgetStopped(seen []runtime.ObservedDeployment) {
	if len(g.sleepingSince)+len(g.hub.stopping) == 0 {
		return
	}
	there := map[string]bool{}
	for _, d := range seen {
		there[d.DeploymentID] = true
	}
	maps.DeleteFunc(g.sleepingSince, func(id string, _ time.Time) bool { return !there[id] })
	maps.DeleteFunc(g.hub.stopping, func(id string, _ map[string]bool) bool { return !there[id] })
}

// OnWake sets the function that Wake calls with the deployments that it woke. It is called without
// locks held. Call OnWake before Run.
func (g *Gateways) OnWake(f func(deploymentIDs []string)) { g.woken = f }

// OnRequests sets the functions for models that are loaded on request. Wake calls requested with the
// deployments for which requests wait. Report calls used with the number of requests that a
// deployment got since the last call. Both are called without locks held. Call OnRequests before Run.
func (g *Gateways) OnRequests(requested func(deploymentIDs []string), used func(deploymentID string, requests uint64)) {
	g.requested, g.used = requested, used
}

// HoldsRequests reports whether gateways hold all requests for apps that are at zero.
func (g *Gateways) HoldsRequests() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hub.whyNotHold() == ""
}

// IsBusy reports whether requests to a deployment are in flight, or wait at a gateway, for an app whose
// load gateways count.
func (g *Gateways) IsBusy(deploymentID string) bool {
	appID := g.assignmentOf(deploymentID).GetDeployment().GetAppId()
	g.mu.Lock()
	defer g.mu.Unlock()
	asked, ok := g.demand.Look(appID, time.Now())
	return ok && asked.Queued+asked.InFlight[deploymentID] > 0
}

// Wake implements RouteService.
func (g *Gateways) Wake(ctx context.Context, req *gatewayv1.WakeRequest) (*gatewayv1.WakeResponse, error) {
	caller := callerOf(ctx)
	if err := caller.addName(&req.GatewayId); err != nil {
		return nil, err
	}
	if !caller.Verified {
		return nil, rpc.Error(connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "gateway_id",
			"a gateway that is not authenticated must not start instances: start the agent without --listen-insecure")
	}
	item, ok := g.cfg.Inbox.Get(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Name: req.AppId})
	if !ok || !isRoute(item.GetRoutes()) {
		return nil, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "app_id", "this region does not route the app")
	}
	now := time.Now()
	var wanted, woken []string
	for _, target := range item.GetRoutes().Targets {
		if target.Weight == 0 {
			continue
		}
		wanted = append(wanted, target.DeploymentId)
		if g.cfg.Zero.Wake(target.DeploymentId, g.assignmentOf(target.DeploymentId), now) {
			woken = append(woken, target.DeploymentId)
		}
	}
	g.requested(wanted)
	if len(woken) > 0 {
		g.mu.Lock()
		for _, id := range woken {
			g.hub.markDirty(g.hub.renewIfPhaseChanged(id)) // instances that have not stopped yet get requests again
		}
		g.mu.Unlock()
		// The reconciler starts instances while the file is written. If the agent is killed before
		// it answers, the gateway calls the next agent process.
		g.woken(woken)
		g.cfg.Log.InfoContext(ctx, "a request woke an app at zero", "app_id", req.AppId, "deployments", woken, "gateway", req.GatewayId)
	}
	if err := g.cfg.Zero.Keep(); err != nil {
		g.cfg.Log.ErrorContext(ctx, "cannot store that a request woke an app: the app may stop when the agent restarts", "app_id", req.AppId, "error", err)
		return nil, rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the agent cannot store that the app was woken: call again")
	}
	res := &gatewayv1.WakeResponse{}
	if took := g.cfg.Zero.StartTime(req.AppId); took > 0 {
		res.ReadyIn = durationpb.New(took)
	}
	return res, nil
}
