package gateways

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/zero"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// table has the newest state of each app. It is pure, and not safe for concurrent use.
type table struct {
	// assignment returns the desired state of a deployment in this region, or nil if there is none.
	assignment func(deploymentID string) *agentv1.DeploymentState
	// phase returns how far a deployment is from zero. startTime returns how long a start of the
	// app takes.
	phase     func(deploymentID string) zero.Phase
	startTime func(appID string) time.Duration
	// mayHold means that every gateway can hold requests of apps at zero. Otherwise no app goes to
	// zero.
	mayHold bool
	// stopping has, by deployment that goes to zero, the instances that the reconciler may stop.
	// They get no new requests, even if an older observation shows them as ready. Slept removes the
	// entry.
	stopping map[string]map[string]bool
	// shown has, by deployment, the phase with which the apps' states were computed, except Awake.
	shown map[string]zero.Phase
	apps  map[string]*app
	// workloads are the observed workloads, by the workload key that targets name.
	workloads map[string]*workload
	// observations counts the calls of setObserved.
	observations int64
	// users has, by workload key, the apps whose state includes the workload's instances.
	users map[string]map[string]bool
	// previewed has, by deployment with a preview, its app.
	previewed map[string]string
	// leaving has the deployments that will be removed. Their instances are shown as draining.
	leaving map[string]bool
	// opened counts, by instance, the apps whose state allows new requests to it. closed has, by
	// instance and app, the change since which the app's state does not allow new requests to the
	// instance.
	opened map[string]int
	closed map[string]map[string]int64
	// removed has the apps without a route and without previews.
	removed map[string]bool
	// versions has, by key of a workload with several roles, the versions that were seen in it; see
	// versionsOf. versionsNew means that a version is new.
	versions    map[string][]seenVersion
	versionsNew bool
	// change is the number of the newest change.
	change int64
}

// workload has the observed lists of the deployments that use the workload, or used it.
type workload struct {
	lists []runtime.ObservedDeployment
	// observation is the number of the last observation that shows the workload. found is the
	// number of its lists in that observation.
	observation int64
	found       int
}

// app is an app with a route or a preview. An app that lost both stays until every gateway serves
// its removal.
type app struct {
	routes *agentv1.Routes
	// state is the state that is sent to gateways. It is always replaced, and never changed in
	// place.
	state *gatewayv1.AppRoutes
	// routeChange is the change with which the present route came.
	routeChange int64
	// previews has the previews by deployment. keys has the workloads whose instances are part of
	// the state.
	previews map[string]preview
	keys     []string
}

// preview is the route to a single deployment: its host, and the workload key of its instances.
type preview struct{ host, key string }

func newApp(id string) *app {
	return &app{state: &gatewayv1.AppRoutes{AppId: id}, previews: map[string]preview{}}
}

// isCounted reports whether gateways count the app's load. The app may be nil.
func (a *app) isCounted() bool { return a != nil && a.state.CountLoad }

func (a *app) isGone() bool { return len(a.state.Hosts) == 0 && len(a.state.Previews) == 0 }

func newTable(assignment func(string) *agentv1.DeploymentState) *table {
	return &table{
		assignment: assignment, phase: func(string) zero.Phase { return zero.Awake }, startTime: func(string) time.Duration { return 0 },
		stopping: map[string]map[string]bool{}, shown: map[string]zero.Phase{},
		apps: map[string]*app{}, workloads: map[string]*workload{},
		users: map[string]map[string]bool{}, previewed: map[string]string{}, leaving: map[string]bool{},
		opened: map[string]int{}, closed: map[string]map[string]int64{}, removed: map[string]bool{},
		versions: map[string][]seenVersion{},
	}
}

// setRoute sets an app's route and returns the apps that changed. It ignores a route with a lower
// (epoch, generation) than the present one.
func (t *table) setRoute(r *agentv1.Routes, epoch, generation int64) []string {
	a := t.apps[r.AppId]
	if a == nil {
		if !isRoute(r) {
			return nil
		}
		a = newApp(r.AppId)
		t.apps[r.AppId] = a
	} else if epoch < a.state.Epoch || epoch == a.state.Epoch && generation < a.state.Generation {
		return nil
	}
	a.routes = r
	t.indexWorkloads(a)
	fresh := epoch != a.state.Epoch || generation != a.state.Generation
	if !t.renewApp(a, epoch, generation) {
		return nil
	}
	if fresh {
		a.routeChange = a.state.Change
	}
	return []string{r.AppId}
}

// setObserved sets the observed instances and returns the apps that changed. The cost grows with
// the number of deployments, and with the number of instances of the changed deployments.
func (t *table) setObserved(seen []runtime.ObservedDeployment) []string {
	t.observations++
	dirty := map[string]bool{}
	for _, d := range seen {
		key := cmp.Or(t.assignment(d.DeploymentID).GetWorkloadKey(), d.DeploymentID)
		w := t.workloads[key]
		if w == nil {
			w = &workload{}
			t.workloads[key] = w
		}
		if w.observation != t.observations {
			w.observation, w.found = t.observations, 0
		}
		if w.found == len(w.lists) {
			w.lists = append(w.lists, runtime.ObservedDeployment{})
		}
		if !sameLists(w.lists[w.found], d) {
			maps.Copy(dirty, t.users[key])
		}
		w.lists[w.found] = d
		w.found++
	}
	for key, w := range t.workloads {
		if w.observation != t.observations {
			maps.Copy(dirty, t.users[key])
			delete(t.workloads, key)
		} else if w.found < len(w.lists) {
			maps.Copy(dirty, t.users[key])
			w.lists = slices.Delete(w.lists, w.found, len(w.lists))
		}
	}
	t.forgetVersions()
	return t.renewAll(dirty)
}

// listsOf returns the observed lists of a workload.
func (t *table) listsOf(key string) []runtime.ObservedDeployment {
	if w := t.workloads[key]; w != nil {
		return w.lists
	}
	return nil
}

// sameLists reports whether two observations of a deployment share one list. If they do not,
// the instances may still be equal: renew compares them.
func sameLists(a, b runtime.ObservedDeployment) bool {
	return a.DeploymentID == b.DeploymentID && len(a.Instances) == len(b.Instances) &&
		(len(a.Instances) == 0 || &a.Instances[0] == &b.Instances[0])
}

// startDraining shows all instances of a deployment as draining, whatever state the runtime
// reports, until stopDraining is called. It returns the apps that changed.
func (t *table) startDraining(deploymentID string) []string {
	t.leaving[deploymentID] = true
	return t.renewAll(t.usersOf(deploymentID))
}

func (t *table) stopDraining(deploymentID string) []string {
	if !t.leaving[deploymentID] {
		return nil
	}
	delete(t.leaving, deploymentID)
	return t.renewAll(t.usersOf(deploymentID))
}

// usersOf returns the apps whose state includes instances of the deployment.
func (t *table) usersOf(deploymentID string) map[string]bool {
	dirty := map[string]bool{}
	for key, w := range t.workloads {
		if slices.ContainsFunc(w.lists, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == deploymentID }) {
			maps.Copy(dirty, t.users[key])
		}
	}
	return dirty
}

// dropApp drops an app. Call it only once every gateway serves the app's removal.
func (t *table) dropApp(appID string) {
	delete(t.apps, appID)
	delete(t.removed, appID)
}

// renewAll calls renew for the apps, and returns the apps that changed.
func (t *table) renewAll(apps map[string]bool) []string {
	var changed []string
	for id := range apps {
		if a := t.apps[id]; t.renewApp(a, a.state.Epoch, a.state.Generation) {
			changed = append(changed, id)
		}
	}
	slices.Sort(changed)
	return changed
}

// renewApp computes the app's state again and reports whether it changed.
func (t *table) renewApp(a *app, epoch, generation int64) bool {
	next := t.newState(a, epoch, generation)
	next.Change = a.state.Change
	if a.state.Change > 0 && proto.Equal(next, a.state) {
		return false
	}
	t.change++
	next.Change = t.change
	t.recordOpened(next.AppId, openIn(a.state), openIn(next))
	if a.state = next; a.isGone() {
		t.removed[next.AppId] = true
	} else {
		delete(t.removed, next.AppId)
	}
	return true
}

// recordOpened updates opened and closed after a change of an app. was is the result of openIn
// before the change, and is the result after it.
func (t *table) recordOpened(appID string, was, is map[string]bool) {
	for id := range is {
		if !was[id] {
			t.opened[id]++
		}
		t.forgetClosed(id, appID)
	}
	for id := range was {
		if is[id] {
			continue
		}
		if t.opened[id]--; t.opened[id] == 0 {
			delete(t.opened, id)
		}
		if t.closed[id] == nil {
			t.closed[id] = map[string]int64{}
		}
		t.closed[id][appID] = t.change
	}
}

// forgetClosed removes the app's entry for the instance from closed.
func (t *table) forgetClosed(instanceID, appID string) {
	delete(t.closed[instanceID], appID)
	if len(t.closed[instanceID]) == 0 {
		delete(t.closed, instanceID)
	}
}

// openIn returns the instances that a gateway with this state may send new requests to.
func openIn(r *gatewayv1.AppRoutes) map[string]bool {
	out := map[string]bool{}
	for _, target := range r.GetTargets() {
		for in := range instancesIn(target) {
			if in.State != gatewayv1.Instance_STATE_DRAINING {
				out[in.InstanceId] = true
			}
		}
	}
	return out
}

// newState computes the app's state from its route, its previews and the observed instances.
func (t *table) newState(a *app, epoch, generation int64) *gatewayv1.AppRoutes {
	out := &gatewayv1.AppRoutes{AppId: a.state.AppId, Epoch: epoch, Generation: generation}
	routed := map[string]bool{}
	if isRoute(a.routes) {
		out.Hosts, out.Policy, out.ApiKeys = a.routes.Hosts, policyOf(a.routes.Policy), apiKeysOf(a.routes.Keys)
		for _, target := range a.routes.Targets {
			routed[target.DeploymentId] = true
			out.Targets = append(out.Targets, t.newTarget(target.DeploymentId, cmp.Or(target.WorkloadKey, target.DeploymentId), target.Weight))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(a.previews)) {
		if !routed[id] {
			target := t.newTarget(id, a.previews[id].key, 0)
			other := func(in *gatewayv1.Instance) bool { return !t.isOwnVersion(in.InstanceId, id, a.previews[id].key) }
			target.Instances, target.Prefill = slices.DeleteFunc(target.Instances, other), slices.DeleteFunc(target.Prefill, other)
			out.Targets = append(out.Targets, target)
		}
		out.Previews = append(out.Previews, &gatewayv1.Preview{
			Host: a.previews[id].host, DeploymentId: id,
			// The app's policy and keys may not be known here. Then a preview that requires a key
			// lets no request in.
			RequireApiKey: t.assignment(id).GetDeployment().GetSpec().GetRouting().GetRequireApiKey(),
		})
	}
	for _, target := range out.Targets {
		out.CountLoad = out.CountLoad || countsLoad(t.assignment(target.DeploymentId).GetDeployment())
		out.AppName = cmp.Or(out.AppName, t.assignment(target.DeploymentId).GetDeployment().GetAppName())
		if hasModels(t.assignment(target.DeploymentId).GetDeployment().GetSpec()) {
			out.ClosedPaths = closedPaths
		}
	}
	if len(out.Hosts) > 0 {
		out.AppName = cmp.Or(out.AppName, a.state.AppName) // a route without targets does not have the name
	}
	t.holdRequests(out)
	return out
}

// countsLoad reports whether gateways count a deployment's load: the app is scaled, or the agent must
// know which models were used last.
func countsLoad(d *agentv1.Deployment) bool {
	return d.GetScaling() != nil || runtime.IsOnRequest(d.GetSpec())
}

// hasModels reports whether instances are servers of models, or replicas of a model.
func hasModels(spec *windlassv1.DeploymentSpec) bool {
	return spec.GetModel() != nil || spec.GetModels() != nil
}

func (t *table) newTarget(deploymentID, key string, weight int32) *gatewayv1.Target {
	d := t.assignment(deploymentID).GetDeployment()
	p := t.pairsIn(deploymentID, key)
	target := &gatewayv1.Target{
		DeploymentId: deploymentID, Version: d.GetVersion(), Weight: weight, WorkloadKey: key, HealthCheck: checkOf(d.GetSpec()),
		Instances: t.reachableInstances(deploymentID, key, p.answers, func(in *runtime.Instance) bool { return p.whole[madeAs(in)] }),
	}
	t.addPairs(target, p)
	return target
}

// isOwnVersion reports whether an instance has the deployment's version. An instance that the
// deployment took over and must still replace has an earlier version.
func (t *table) isOwnVersion(instanceID, deploymentID, key string) bool {
	for _, d := range t.listsOf(key) {
		if d.DeploymentID != deploymentID {
			continue
		}
		for n := range d.Instances {
			if in := &d.Instances[n]; in.ID == instanceID {
				return d.IsCurrent(in)
			}
		}
	}
	return false
}

// setDeployment updates the apps after a deployment's desired state has changed. state is nil if
// the deployment has none any more. It returns the apps that changed. Only a deployment that should
// run has a preview.
func (t *table) setDeployment(deploymentID string, state *agentv1.DeploymentState) []string {
	dirty := map[string]bool{}
	t.setPreview(deploymentID, state, dirty)
	d := state.GetDeployment()
	a := t.apps[d.GetAppId()]
	// The route may have come before the deployment.
	mustPair := a != nil && slices.ContainsFunc(a.state.Targets, func(target *gatewayv1.Target) bool {
		return target.DeploymentId == deploymentID && !proto.Equal(target.Pairing, pairingOf(d.GetSpec()))
	})
	mustClose := a != nil && len(a.state.ClosedPaths) == 0 && hasModels(d.GetSpec())
	if mustClose || mustPair || a != nil && a.isCounted() != countsLoad(d) {
		dirty[d.AppId] = true
	}
	return t.renewPreviews(dirty)
}

// setItems is setDeployment and setRoute for many items. It computes each app's state once.
func (t *table) setItems(items []*agentv1.Item) []string {
	dirty := map[string]bool{}
	for _, item := range items {
		if item.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT {
			t.setPreview(item.Key, item.GetDeployment(), dirty)
		}
	}
	var changed []string
	for _, item := range items {
		r := item.GetRoutes()
		if r == nil || r.AppId != item.Key {
			continue
		}
		if renewed := t.setRoute(r, item.Epoch, item.Generation); len(renewed) > 0 {
			delete(dirty, r.AppId)
			changed = append(changed, r.AppId)
		}
	}
	return append(changed, t.renewPreviews(dirty)...)
}

func (t *table) renewPreviews(dirty map[string]bool) []string {
	for id := range dirty {
		t.indexWorkloads(t.apps[id])
	}
	return t.renewAll(dirty)
}

// setPreview records the preview in the desired state of a deployment. It adds to dirty the apps
// whose state must be computed again.
func (t *table) setPreview(deploymentID string, state *agentv1.DeploymentState, dirty map[string]bool) {
	if id, ok := t.previewed[deploymentID]; ok {
		delete(t.apps[id].previews, deploymentID)
		delete(t.previewed, deploymentID)
		dirty[id] = true
	}
	d := state.GetDeployment()
	if host := d.GetPreviewHost(); host != "" && d.GetAppId() != "" && state.GetAction() == agentv1.DeploymentState_ACTION_APPLY {
		a := t.apps[d.AppId]
		if a == nil {
			a = newApp(d.AppId)
			t.apps[d.AppId] = a
		}
		a.previews[deploymentID] = preview{host: host, key: cmp.Or(state.GetWorkloadKey(), deploymentID)}
		t.previewed[deploymentID] = d.AppId
		dirty[d.AppId] = true
	}
}

// indexWorkloads records in users which workloads the app's state includes.
func (t *table) indexWorkloads(a *app) {
	id := a.state.AppId
	for _, key := range a.keys {
		delete(t.users[key], id)
		if len(t.users[key]) == 0 {
			delete(t.users, key)
		}
	}
	a.keys = keysOf(a.routes)
	for _, p := range a.previews {
		a.keys = append(a.keys, p.key)
	}
	for _, key := range a.keys {
		if t.users[key] == nil {
			t.users[key] = map[string]bool{}
		}
		t.users[key][id] = true
	}
}

// reachableInstances returns the instances of a deployment's workload that have an address, ordered
// by id, that leads selects. If the deployment has several roles, they get new requests only while
// their group is complete, except those that serve without the other roles.
func (t *table) reachableInstances(deploymentID, key string, leads func(*runtime.ObservedDeployment, *runtime.Instance) bool, without func(*runtime.Instance) bool) []*gatewayv1.Instance {
	var out []*gatewayv1.Instance
	for _, d := range t.listsOf(key) {
		complete := d.CompleteGroups(func(*runtime.Instance) bool { return true })
		for n := range d.Instances {
			in := &d.Instances[n]
			state := stateOf(in)
			if state == gatewayv1.Instance_STATE_UNSPECIFIED || !leads(&d, in) {
				continue
			}
			starts := state == gatewayv1.Instance_STATE_NOT_READY && in.Reason != runtime.ReasonHealthCheckFailed
			if t.leaving[d.DeploymentID] || len(d.Roles) > 0 && !complete[in.Group] && !starts && !without(in) {
				state = gatewayv1.Instance_STATE_DRAINING
			}
			one := &gatewayv1.Instance{InstanceId: in.ID, Address: in.Address, State: state}
			one.OtherVersion = d.DeploymentID != deploymentID || !d.IsCurrent(in)
			if state == gatewayv1.Instance_STATE_NOT_READY {
				one.WasReady = new(in.Reason == runtime.ReasonHealthCheckFailed)
			}
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b *gatewayv1.Instance) int { return cmp.Compare(a.InstanceId, b.InstanceId) })
	return out
}

// never is a condition that no instance meets.
func never(*runtime.Instance) bool { return false }

// stateOf returns the state for gateways. UNSPECIFIED: gateways must not see the instance.
func stateOf(in *runtime.Instance) gatewayv1.Instance_State {
	if in.Address == "" {
		return gatewayv1.Instance_STATE_UNSPECIFIED
	}
	switch in.Status {
	case windlassv1.InstanceStatus_INSTANCE_STATUS_READY:
		return gatewayv1.Instance_STATE_READY
	case windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING:
		return gatewayv1.Instance_STATE_NOT_READY
	case windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:
		return gatewayv1.Instance_STATE_DRAINING
	default:
		return gatewayv1.Instance_STATE_UNSPECIFIED
	}
}

// readyIn reports whether the state lists the instance as ready.
func readyIn(r *gatewayv1.AppRoutes, instanceID string) bool {
	for _, target := range r.GetTargets() {
		for _, list := range [][]*gatewayv1.Instance{target.Instances, target.Prefill} {
			at, ok := slices.BinarySearchFunc(list, instanceID, func(in *gatewayv1.Instance, id string) int { return cmp.Compare(in.InstanceId, id) })
			if ok && list[at].State == gatewayv1.Instance_STATE_READY {
				return true
			}
		}
	}
	return false
}

// isRoute reports whether r is a route, and not the message that the app has none. r may be a route
// without targets, because gateways must know its hosts to answer requests for them.
func isRoute(r *agentv1.Routes) bool { return len(r.GetHosts()) > 0 }

// keysOf returns the workloads that a route names.
func keysOf(r *agentv1.Routes) []string {
	if !isRoute(r) {
		return nil
	}
	var out []string
	for _, target := range r.Targets {
		out = append(out, cmp.Or(target.WorkloadKey, target.DeploymentId))
	}
	return out
}
