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

// table is the newest state of each app. It is pure, and not safe for concurrent use.
type table struct {
	// assignment returns the desired state of a deployment in this region; nil: there is none.
	assignment func(deploymentID string) *agentv1.DeploymentState
	// phase returns how far a deployment is from zero, and startTime how long a start of the app takes.
	phase     func(deploymentID string) zero.Phase
	startTime func(appID string) time.Duration
	// mayHold: every gateway can hold requests of apps at zero. Otherwise no app goes to zero.
	mayHold bool
	// stopping has, by deployment that goes to zero, the instances that the reconciler may stop. They get no new
	// requests, even if an older look says that they are ready. Slept removes them.
	stopping map[string]map[string]bool
	// shown has the phases by which the states of apps were computed, except Awake. See turn.
	shown map[string]zero.Phase
	apps  map[string]*app
	// workloads are those that have instances, by the workload key that targets name.
	workloads map[string]*workload
	// looks counts the calls of see.
	looks int64
	// users has, by workload key, the apps whose state includes the workload's instances.
	users map[string]map[string]bool
	// previewed has, by deployment with a preview, its app.
	previewed map[string]string
	// leaving are deployments that are about to be removed.
	leaving map[string]bool
	// opened counts, by instance, the apps that send it new requests. closed has, by instance and
	// app, the change since which the app sends it no new requests any more.
	opened map[string]int
	closed map[string]map[string]int64
	// removed are apps without a route.
	removed map[string]bool
	// change is the number of the newest change.
	change int64
}

// workload has the observed lists of the deployments that have, or had, the workload.
type workload struct {
	lists []runtime.ObservedDeployment
	// look is the number of the last look that found a list of it, and found how many it found.
	look  int64
	found int
}

// app has a route or a preview. An app that lost both stays until every gateway serves that.
type app struct {
	routes *agentv1.Routes
	// told is the state that gateways are sent. It is replaced, never changed in place.
	told *gatewayv1.AppRoutes
	// routed is the change with which the present route came.
	routed int64
	// previews by deployment. keys are the workloads whose instances the state includes.
	previews map[string]preview
	keys     []string
}

// preview has the host of a single deployment, and the workload key of its instances.
type preview struct{ host, key string }

func newApp(id string) *app {
	return &app{told: &gatewayv1.AppRoutes{AppId: id}, previews: map[string]preview{}}
}

// isScaled reports whether gateways count the app's load. The app may be nil.
func (a *app) isScaled() bool { return a != nil && a.told.CountLoad }

func (a *app) gone() bool { return len(a.told.Hosts) == 0 && len(a.told.Previews) == 0 }

func newTable(assignment func(string) *agentv1.DeploymentState) *table {
	return &table{
		assignment: assignment, phase: func(string) zero.Phase { return zero.Awake }, startTime: func(string) time.Duration { return 0 },
		stopping: map[string]map[string]bool{}, shown: map[string]zero.Phase{},
		apps: map[string]*app{}, workloads: map[string]*workload{},
		users: map[string]map[string]bool{}, previewed: map[string]string{}, leaving: map[string]bool{},
		opened: map[string]int{}, closed: map[string]map[string]int64{}, removed: map[string]bool{},
	}
}

// route takes an app's route and returns the apps that changed. A route of a lower (epoch,
// generation) than the present one changes nothing.
func (t *table) route(r *agentv1.Routes, epoch, generation int64) []string {
	a := t.apps[r.AppId]
	if a == nil {
		if !routes(r) {
			return nil
		}
		a = newApp(r.AppId)
		t.apps[r.AppId] = a
	} else if epoch < a.told.Epoch || epoch == a.told.Epoch && generation < a.told.Generation {
		return nil
	}
	a.routes = r
	t.index(a)
	fresh := epoch != a.told.Epoch || generation != a.told.Generation
	if !t.renew(a, epoch, generation) {
		return nil
	}
	if fresh {
		a.routed = a.told.Change
	}
	return []string{r.AppId}
}

// see takes what runs and returns the apps that changed. The cost grows with the deployments,
// and with the instances of those that changed.
func (t *table) see(seen []runtime.ObservedDeployment) []string {
	t.looks++
	dirty := map[string]bool{}
	for _, d := range seen {
		key := cmp.Or(t.assignment(d.DeploymentID).GetWorkloadKey(), d.DeploymentID)
		w := t.workloads[key]
		if w == nil {
			w = &workload{}
			t.workloads[key] = w
		}
		if w.look != t.looks {
			w.look, w.found = t.looks, 0
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
		if w.look != t.looks {
			maps.Copy(dirty, t.users[key])
			delete(t.workloads, key)
		} else if w.found < len(w.lists) {
			maps.Copy(dirty, t.users[key])
			w.lists = slices.Delete(w.lists, w.found, len(w.lists))
		}
	}
	return t.renewAll(dirty)
}

// runs returns the observed lists of a workload.
func (t *table) runs(key string) []runtime.ObservedDeployment {
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

// leave shows all instances of a deployment as draining until stay is called, whatever the
// runtime reports. It returns the apps that changed.
func (t *table) leave(deploymentID string) []string {
	t.leaving[deploymentID] = true
	return t.renewAll(t.usersOf(deploymentID))
}

func (t *table) stay(deploymentID string) []string {
	if !t.leaving[deploymentID] {
		return nil
	}
	delete(t.leaving, deploymentID)
	return t.renewAll(t.usersOf(deploymentID))
}

func (t *table) usersOf(deploymentID string) map[string]bool {
	dirty := map[string]bool{}
	for key, w := range t.workloads {
		if slices.ContainsFunc(w.lists, func(d runtime.ObservedDeployment) bool { return d.DeploymentID == deploymentID }) {
			maps.Copy(dirty, t.users[key])
		}
	}
	return dirty
}

// forget drops an app whose removal every gateway serves.
func (t *table) forget(appID string) {
	delete(t.apps, appID)
	delete(t.removed, appID)
}

func (t *table) renewAll(apps map[string]bool) []string {
	var changed []string
	for id := range apps {
		if a := t.apps[id]; t.renew(a, a.told.Epoch, a.told.Generation) {
			changed = append(changed, id)
		}
	}
	slices.Sort(changed)
	return changed
}

// renew computes the app's state anew and reports whether it changed.
func (t *table) renew(a *app, epoch, generation int64) bool {
	next := t.describe(a, epoch, generation)
	next.Change = a.told.Change
	if a.told.Change > 0 && proto.Equal(next, a.told) {
		return false
	}
	t.change++
	next.Change = t.change
	t.settle(next.AppId, openIn(a.told), openIn(next))
	if a.told = next; a.gone() {
		t.removed[next.AppId] = true
	} else {
		delete(t.removed, next.AppId)
	}
	return true
}

// settle records which instances an app has opened and closed with the newest change.
func (t *table) settle(appID string, was, is map[string]bool) {
	for id := range is {
		if !was[id] {
			t.opened[id]++
		}
		t.past(id, appID)
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

// past forgets that the app had closed the instance.
func (t *table) past(instanceID, appID string) {
	delete(t.closed[instanceID], appID)
	if len(t.closed[instanceID]) == 0 {
		delete(t.closed, instanceID)
	}
}

// openIn returns the instances that a gateway with this state may send new requests to.
func openIn(r *gatewayv1.AppRoutes) map[string]bool {
	out := map[string]bool{}
	for _, target := range r.GetTargets() {
		for _, in := range target.Instances {
			if in.State != gatewayv1.Instance_STATE_DRAINING {
				out[in.InstanceId] = true
			}
		}
	}
	return out
}

func (t *table) describe(a *app, epoch, generation int64) *gatewayv1.AppRoutes {
	out := &gatewayv1.AppRoutes{AppId: a.told.AppId, Epoch: epoch, Generation: generation}
	routed := map[string]bool{}
	if routes(a.routes) {
		out.Hosts, out.Policy, out.ApiKeys = a.routes.Hosts, policyOf(a.routes.Policy), apiKeysOf(a.routes.Keys)
		for _, target := range a.routes.Targets {
			routed[target.DeploymentId] = true
			out.Targets = append(out.Targets, t.target(target.DeploymentId, cmp.Or(target.WorkloadKey, target.DeploymentId), target.Weight))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(a.previews)) {
		if !routed[id] {
			target := t.target(id, a.previews[id].key, 0)
			target.Instances = slices.DeleteFunc(target.Instances, func(in *gatewayv1.Instance) bool { return !t.isOf(in.InstanceId, id, a.previews[id].key) })
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
		out.CountLoad = out.CountLoad || t.assignment(target.DeploymentId).GetDeployment().GetScaling() != nil
		out.AppName = cmp.Or(out.AppName, t.assignment(target.DeploymentId).GetDeployment().GetAppName())
		if spec := t.assignment(target.DeploymentId).GetDeployment().GetSpec(); spec.GetModel() != nil || spec.GetModels() != nil {
			out.ClosedPaths = closedPaths
		}
	}
	if len(out.Hosts) > 0 {
		out.AppName = cmp.Or(out.AppName, a.told.AppName) // without targets nothing says it
	}
	t.holdRequests(out)
	return out
}

func (t *table) target(deploymentID, key string, weight int32) *gatewayv1.Target {
	d := t.assignment(deploymentID).GetDeployment()
	return &gatewayv1.Target{
		DeploymentId: deploymentID, Version: d.GetVersion(), Weight: weight,
		WorkloadKey: key, Instances: t.instances(deploymentID, key), HealthCheck: checkOf(d.GetSpec()),
	}
}

// isOf reports whether an instance is of the deployment's own version. An instance that the
// deployment took over and must still replace is of the version before.
func (t *table) isOf(instanceID, deploymentID, key string) bool {
	for _, d := range t.runs(key) {
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

// hold takes the desired state of a deployment, nil for none, and returns the apps that changed.
// Only a deployment that should run has a preview.
func (t *table) hold(deploymentID string, state *agentv1.DeploymentState) []string {
	dirty := map[string]bool{}
	t.preview(deploymentID, state, dirty)
	if d := state.GetDeployment(); t.apps[d.GetAppId()] != nil && t.apps[d.GetAppId()].isScaled() != (d.GetScaling() != nil) {
		dirty[d.AppId] = true
	}
	return t.renewPreviews(dirty)
}

// load is hold and route for many items: it computes each app's state once.
func (t *table) load(items []*agentv1.Item) []string {
	dirty := map[string]bool{}
	for _, item := range items {
		if item.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT {
			t.preview(item.Key, item.GetDeployment(), dirty)
		}
	}
	var changed []string
	for _, item := range items {
		r := item.GetRoutes()
		if r == nil || r.AppId != item.Key {
			continue
		}
		if renewed := t.route(r, item.Epoch, item.Generation); len(renewed) > 0 {
			delete(dirty, r.AppId)
			changed = append(changed, r.AppId)
		}
	}
	return append(changed, t.renewPreviews(dirty)...)
}

func (t *table) renewPreviews(dirty map[string]bool) []string {
	for id := range dirty {
		t.index(t.apps[id])
	}
	return t.renewAll(dirty)
}

// preview records the preview in the desired state of a deployment. It adds to dirty the apps
// whose state must be computed anew.
func (t *table) preview(deploymentID string, state *agentv1.DeploymentState, dirty map[string]bool) {
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

// index records which workloads the app's state includes.
func (t *table) index(a *app) {
	id := a.told.AppId
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

// instances returns those of a deployment's workload that can be reached, ordered by id. With several roles, these
// are instances of the entry role. They get new requests only while their group is complete.
func (t *table) instances(deploymentID, key string) []*gatewayv1.Instance {
	var out []*gatewayv1.Instance
	for _, d := range t.runs(key) {
		complete := d.CompleteGroups(func(*runtime.Instance) bool { return true })
		for n := range d.Instances {
			in := &d.Instances[n]
			state := stateOf(in)
			if state == gatewayv1.Instance_STATE_UNSPECIFIED || !d.IsEntry(in.Role) {
				continue
			}
			starts := state == gatewayv1.Instance_STATE_NOT_READY && in.Reason != runtime.ReasonHealthCheckFailed
			if t.leaving[d.DeploymentID] || len(d.Roles) > 0 && !complete[in.Group] && !starts {
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

// stateOf returns the state for gateways; unspecified: gateways must not see the instance.
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

// readyIn reports whether a gateway with this state may send to the instance as a ready one.
func readyIn(r *gatewayv1.AppRoutes, instanceID string) bool {
	for _, target := range r.GetTargets() {
		at, ok := slices.BinarySearchFunc(target.Instances, instanceID, func(in *gatewayv1.Instance, id string) int { return cmp.Compare(in.InstanceId, id) })
		if ok && target.Instances[at].State == gatewayv1.Instance_STATE_READY {
			return true
		}
	}
	return false
}

// routes reports whether r is a route, and not the message that the app has none. A route without
// targets has hosts that nothing serves now: gateways must know them.
func routes(r *agentv1.Routes) bool { return len(r.GetHosts()) > 0 }

// keysOf returns the workloads that a route names.
func keysOf(r *agentv1.Routes) []string {
	if !routes(r) {
		return nil
	}
	var out []string
	for _, target := range r.Targets {
		out = append(out, cmp.Or(target.WorkloadKey, target.DeploymentId))
	}
	return out
}
