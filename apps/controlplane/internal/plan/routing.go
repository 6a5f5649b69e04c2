package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// routing determines the routing policy of the app. This is the policy of its live version, even while a new version has
// a share of the requests. Before any version is live, it is the policy of the first version. If the policy changed with
// the weights, it would apply to part of the old version's requests. If it changed at the start of a rollout, a
// rollback would lead to an untested combination.
//
// If a new version takes over a region's instances, the old version has nothing left in the region, and the versions
// differ mainly in their policy. So the region uses the new policy, from the first step that gives the new version
// any traffic.
type routing struct {
	live, target *model.Deployment
	progress     *model.Progress
	rows         []*model.Topology
}

// policyIn returns the policy in the region.
func (r routing) policyIn(region string) *windlassv1.RoutingPolicy {
	d := r.live
	if d == nil || r.triesPolicy(region) {
		d = r.target
	}
	if d == nil {
		return nil
	}
	return d.Spec.GetRouting()
}

// triesPolicy reports whether the whole region belongs to the new version, so that the region uses its policy.
func (r routing) triesPolicy(region string) bool {
	if r.progress == nil || r.target == nil || r.progress.Back || !r.target.MadeAlike(r.live) {
		return false
	}
	_, st := progressIn(r.progress, region)
	if st == nil || !leadsTarget(*st) {
		return false
	}
	if all := stepsOf(r.progress.Policy); st.Step < len(all) && all[st.Step].Whole && all[st.Step].Weight == 0 {
		return false // the new version has no traffic yet
	}
	i := slices.IndexFunc(r.rows, func(t *model.Topology) bool { return t.DeploymentID == r.target.ID && t.RegionID == region })
	if i >= 0 && r.rows[i].Weight != fullWeight {
		return false // no replica of the version serves; a pinned version does not count
	}
	took := false
	for _, o := range r.rows {
		switch {
		case i < 0 || o.RegionID != region || o == r.rows[i]:
		case isRowActive(o) && o.Replicas > 0:
			return false // an earlier rollout left the move of this row unfinished
		default:
			took = took || hasOf(r.rows[i], o)
		}
	}
	return took
}

// routingNow returns the current routing.
func (f *facts) routingNow() routing {
	r := routing{live: f.liveDeployment(), rows: f.rows}
	if f.rollout != nil {
		r.target = f.deps[f.rollout.DeploymentID]
	}
	if f.isStaged() {
		r.progress = f.progress
	}
	return r
}

// routedAs reports whether the region has no route, or its route has the current policy.
func (f *facts) routedAs(region string) bool {
	r := f.routes[region]
	return r == nil || len(r.Hosts) == 0 || r.Routes(f.routingNow().policyIn(region))
}

// factsAfter returns the facts once out is written.
func (in Input) factsAfter(out *Output) *facts {
	after := in
	if out.App != nil {
		after.App = *out.App
	}
	if out.Rollout != nil {
		after.Rollout = out.Rollout
	}
	if out.RolloutState != nil {
		after.RolloutState = out.RolloutState
	}
	after.Deployments = slices.Clone(in.Deployments)
	for _, d := range out.Deployments {
		if i := slices.IndexFunc(after.Deployments, func(was model.Deployment) bool { return was.ID == d.ID }); i >= 0 {
			after.Deployments[i] = d
		}
	}
	after.Topology = mergedRows(in.Topology, out.Topology)
	return newFacts(after, 0)
}

// noTraffic is the reason why a route has hosts and no target.
const noTraffic = "no version has traffic: the hosts stay, and requests wait in the queue, go to another region, or get 503"

// keepsHosts reports whether the region keeps the app's hosts for the row, even if the row has no
// weight. While no version serves, a gateway that knows the hosts can queue requests, send them to
// another region, or answer 503. For unknown hosts, it answers 404.
//
// A region that the app leaves keeps no hosts. A version that is only retained keeps no hosts either, nor does a row
// at zero in a closed region, because gateways would hold its requests.
func (f *facts) keepsHosts(t *model.Topology) bool {
	if f.app.DeletingSince != 0 || !isRowActive(t) || isShut(f, t) {
		return false
	}
	d := f.targetDeployment()
	switch {
	case d != nil && t.DeploymentID == d.ID:
		return true
	case f.isLagging(t.RegionID) && f.progress.LaggingIn(t.RegionID).DeploymentID == t.DeploymentID:
		return true
	case t.DeploymentID != f.app.LiveDeploymentID:
		return false
	case !f.isStaged() || f.progress.Back || f.progress.Sizes == nil:
		return true
	}
	_, goes := f.progress.Sizes[t.RegionID]
	return goes
}

// hasHosts reports whether the region has the app's hosts because of the row, if the row has the weight.
func hasHosts(f *facts, t *model.Topology, weight int32) bool {
	return weight > 0 && !isShut(f, t) || f.keepsHosts(t)
}

// hostedRegions returns the regions whose routes have the app's hosts.
func (f *facts) hostedRegions() map[string]bool {
	out := map[string]bool{}
	for _, t := range f.rows {
		out[t.RegionID] = out[t.RegionID] || hasHosts(f, t, t.Weight)
	}
	return out
}

// trafficOf returns the region's rows to which its route sends requests.
func trafficOf(f *facts, region string) (rows []*model.Topology) {
	if len(f.routes[region].Hosts) == 0 {
		return nil
	}
	for _, t := range f.rows {
		if t.RegionID == region && t.Weight > 0 {
			rows = append(rows, t)
		}
	}
	return rows
}
