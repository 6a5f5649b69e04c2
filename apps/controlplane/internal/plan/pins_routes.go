package plan

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// route gives the row its weight, and its region a route that says so: one for all that changes
// there in this call. It reports whether there was capacity for that.
func (k *pinner) route(t *model.Topology, weight int32) bool {
	if t.Weight == weight {
		return true
	}
	if !k.room(t.RegionID) {
		return false
	}
	t.Weight = weight
	k.grow(t.RegionID)
	return true
}

// grow has the region's route be told anew. What it says join fills in.
func (k *pinner) grow(region string) {
	k.routed[region] = true
	r := model.Route{WorkspaceID: k.app.WorkspaceID, AppID: k.app.ID, RegionID: region, Generation: k.routesWas[region].Generation, UpdatedAt: k.now}
	if !k.grown[region] {
		r.Generation++
	}
	k.routes[region] = &r
}

// retell updates the routes of regions in which the layer below has nothing, where the policy,
// the hosts or the keys change or the hosts are taken away.
func (k *pinner) retell(in Input, below, hosted map[string]bool, policy routing) {
	for _, r := range in.Routes {
		var hosts []string
		var wants *windlassv1.RoutingPolicy
		var keys []byte
		if hosted[r.RegionID] {
			hosts, wants, keys = in.Hosts, policy.in(r.RegionID), in.Keys
		}
		same := slices.Equal(hosts, r.Hosts) && r.Routes(wants) && bytes.Equal(keys, r.Keys)
		if !below[r.RegionID] && !k.grown[r.RegionID] && !same && k.room(r.RegionID) {
			k.grow(r.RegionID)
		}
	}
}

// keepsHosts is as for the layer below: a pin that is on its way, or serves, keeps them.
func (k *pinner) keepsHosts(t *model.Topology) bool {
	for i := range k.pins {
		if r := k.pins[i].In(t.RegionID); r != nil && k.pins[i].DeploymentID == t.DeploymentID {
			return active(t) && (r.State == pinStarting || r.State == pinServing)
		}
	}
	return false
}

// join adds what is decided about the pins to what is decided below.
func (k *pinner) join(in, below Input, out *Output) {
	after := below.plannerAfter(out)
	policy, has := after.routing(), after.hosted()
	hosted := maps.Clone(has)
	for _, t := range k.rows {
		hosted[t.RegionID] = hosted[t.RegionID] || t.Weight > 0 || k.keepsHosts(t)
	}
	k.retell(in, has, hosted, policy)
	for _, t := range k.rows {
		if was, ok := k.before[rowKey{t.DeploymentID, t.RegionID}]; !ok || *t != was {
			t.UpdatedAt = k.now
			out.Topology = append(out.Topology, *t)
		}
	}
	slices.SortFunc(out.Topology, func(a, b model.Topology) int {
		return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
	})
	for _, region := range sortedKeys(k.routed) {
		out.Routes = slices.DeleteFunc(out.Routes, func(r model.Route) bool { return r.RegionID == region })
		out.Routes = append(out.Routes, *k.routes[region])
	}
	slices.SortFunc(out.Routes, func(a, b model.Route) int { return cmp.Compare(a.RegionID, b.RegionID) })
	for i := range out.Routes {
		r := &out.Routes[i]
		if r.Hosts, r.Policy, r.Keys = nil, nil, nil; hosted[r.RegionID] {
			r.Hosts, r.Policy, r.Keys = slices.Clone(in.Hosts), model.EncodeRouting(policy.in(r.RegionID)), bytes.Clone(in.Keys)
		}
	}
	for _, r := range out.Routes {
		last := int64(0)
		if !k.grown[r.RegionID] {
			last = cmp.Or(changedBelow(in.Pins, r.RegionID), r.Generation-1)
		}
		for i := range k.pins {
			if at := k.pins[i].In(r.RegionID); at != nil {
				at.Below = last
			}
		}
	}
	for i, p := range k.pins {
		switch {
		case len(p.Regions) == 0:
			out.Unpinned = append(out.Unpinned, p.DeploymentID)
			k.log("PinRemoved", "nothing is left of it beside the live version", &model.Deployment{ID: p.DeploymentID, Version: p.Version}, "")
		case !p.Equal(in.Pins[i]):
			p.UpdatedAt = k.now
			out.Pins = append(out.Pins, p)
		}
	}
	out.History = append(out.History, k.history...)
	out.Next = sooner(out.Next, k.nextLook())
}
