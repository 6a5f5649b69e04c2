package plan

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// This file joins the two layers of a plan with pins. See package pins.

// splitLayers returns the input of each layer.
func (in Input) splitLayers() (below, of Input) {
	below, of = in, in
	below.Pins, below.Topology, below.Routes, below.RouteObserved, below.Deployments = nil, nil, nil, nil, nil
	of.Topology, of.Rollout, of.RolloutState = nil, nil, nil
	for _, t := range in.Topology {
		if pins.Of(in.Pins, t) != nil {
			of.Topology = append(of.Topology, t)
			continue
		}
		below.Topology = append(below.Topology, t)
	}
	for _, d := range in.Deployments {
		pinned := slices.ContainsFunc(in.Pins, func(p model.Pin) bool { return p.DeploymentID == d.ID })
		if !pinned || d.ID == in.App.LiveDeploymentID || d.Version == in.App.LatestVersion ||
			in.Rollout != nil && in.Rollout.DeploymentID == d.ID {
			below.Deployments = append(below.Deployments, d)
		}
	}
	hosted := newFacts(below, 0).hostedRegions()
	for _, r := range in.Routes {
		if !hosted[r.RegionID] {
			r.Hosts, r.Policy, r.Keys = nil, nil, nil
		}
		below.Routes = append(below.Routes, r)
		for _, o := range in.RouteObserved {
			if o.RegionID != r.RegionID {
				continue
			}
			if last := pins.ChangedBelow(in.Pins, r.RegionID); last != 0 && o.Generation >= last {
				o.Generation = max(o.Generation, r.Generation)
			}
			below.RouteObserved = append(below.RouteObserved, o)
		}
	}
	return below, of
}

// nextPinned decides for both layers.
func nextPinned(in Input, now int64) Output {
	if in.App.DeletingSince != 0 {
		// There is only one layer again, because no pin has a share any more, and all pinned rows are stopped.
		out := decideUnpinned(in, now)
		if out.App != nil && out.App.DeletedAt != 0 {
			for _, p := range in.Pins {
				out.Unpinned = append(out.Unpinned, p.DeploymentID)
			}
		}
		return out
	}
	below, of := in.splitLayers()
	below.otherLayer = of.Topology
	below.failedPins = in.failedPin(in.Pins)
	out := decideUnpinned(below, now)
	of.otherLayer = mergedRows(below.Topology, out.Topology)
	for _, r := range out.Routes {
		of.Routes = replaceRoute(of.Routes, r)
	}
	k := newPinned(of, in.RolloutState, now)
	for _, t := range out.Topology {
		k.touchRegion(t.RegionID)
	}
	for _, r := range out.Routes {
		k.touchRegion(r.RegionID)
		k.changedBelow[r.RegionID] = true
	}
	for i := range in.Pins {
		k.pins = append(k.pins, in.Pins[i].Clone())
		k.Look(&k.pins[i])
	}
	k.closeAtZero()
	if text := in.failedPin(k.pins); text != below.failedPins {
		// The text about failed pins affects no other decision of the layer below.
		below.failedPins = text
		out.App = decideUnpinned(below, now).App
	}
	k.joinLayers(in, below, &out)
	return out
}

func (in Input) failedPin(all []model.Pin) string {
	return pins.Failed(all, func(id string) string {
		for _, r := range in.Regions {
			if r.ID == id {
				return r.ShownName()
			}
		}
		return model.DeletedRegion
	})
}

func replaceRoute(routes []model.Route, r model.Route) []model.Route {
	routes = slices.Clone(routes)
	if i := slices.IndexFunc(routes, func(x model.Route) bool { return x.RegionID == r.RegionID }); i >= 0 {
		routes[i] = r
		return routes
	}
	return append(routes, r)
}

// pinned is the layer of the pins, and the planner of its rows.
type pinned struct {
	*planner
	*pins.Layer

	pins []model.Pin
	// rerouted has the regions whose routes this layer changes. changedBelow has the regions whose routes the layer below
	// has changed.
	rerouted, changedBelow map[string]bool
}

// newPinned returns the layer of the pinned rows. state is the app's rollout state, nil for none.
func newPinned(in Input, state *model.RolloutState, now int64) *pinned {
	k := &pinned{planner: newPlanner(in, now), rerouted: map[string]bool{}, changedBelow: map[string]bool{}}
	rows := pinRows{planner: k.planner, reroute: k.rerouteRegion}
	if state != nil {
		rows.policy = state.Policy
	}
	k.Layer = &pins.Layer{Rows: rows}
	return k
}

// rerouteRegion requests a new generation of the region's route. joinLayers makes the route.
func (k *pinned) rerouteRegion(region string) {
	k.rerouted[region] = true
	r := model.Route{WorkspaceID: k.app.WorkspaceID, AppID: k.app.ID, RegionID: region, Generation: k.routesWas[region].Generation, UpdatedAt: k.now}
	if !k.changedBelow[region] {
		r.Generation++
	}
	k.routes[region] = &r
}

// updateRoutes updates the routes of regions in which the layer below has no rows, if the policy, hosts or keys have
// changed, or the hosts must be removed.
func (k *pinned) updateRoutes(in Input, below, hosted map[string]bool, policy routing) {
	for _, r := range in.Routes {
		var hosts []string
		var wants *windlassv1.RoutingPolicy
		var keys []byte
		if hosted[r.RegionID] {
			hosts, wants, keys = in.Hosts, policy.policyIn(r.RegionID), in.Keys
		}
		same := slices.Equal(hosts, r.Hosts) && r.Routes(wants) && bytes.Equal(keys, r.Keys)
		if !below[r.RegionID] && !k.changedBelow[r.RegionID] && !same && k.isWritable(r.RegionID) {
			k.rerouteRegion(r.RegionID)
		}
	}
}

// joinLayers adds the decisions about pins to the decisions of the layer below.
func (k *pinned) joinLayers(in, below Input, out *Output) {
	after := below.factsAfter(out)
	policy, has := after.routingNow(), after.hostedRegions()
	hosted := maps.Clone(has)
	for _, t := range k.planner.rows {
		hosted[t.RegionID] = hosted[t.RegionID] || !isShut(k.facts, t) && (t.Weight > 0 || pins.HasHosts(k.pins, t))
	}
	k.updateRoutes(in, has, hosted, policy)
	out.Topology = append(out.Topology, k.rowsToWrite()...)
	slices.SortFunc(out.Topology, func(a, b model.Topology) int {
		return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
	})
	for _, region := range sortedKeys(k.rerouted) {
		out.Routes = slices.DeleteFunc(out.Routes, func(r model.Route) bool { return r.RegionID == region })
		out.Routes = append(out.Routes, *k.routes[region])
	}
	slices.SortFunc(out.Routes, func(a, b model.Route) int { return cmp.Compare(a.RegionID, b.RegionID) })
	for i := range out.Routes {
		r := &out.Routes[i]
		if r.Hosts, r.Policy, r.Keys = nil, nil, nil; hosted[r.RegionID] {
			r.Hosts, r.Policy, r.Keys = slices.Clone(in.Hosts), model.EncodeRouting(policy.policyIn(r.RegionID)), bytes.Clone(in.Keys)
		}
	}
	for _, r := range out.Routes {
		last := int64(0)
		if !k.changedBelow[r.RegionID] {
			last = cmp.Or(pins.ChangedBelow(in.Pins, r.RegionID), r.Generation-1)
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
			k.log("PinRemoved", "nothing of the pinned version is left", &model.Deployment{ID: p.DeploymentID, Version: p.Version}, "")
		case !p.Equal(in.Pins[i]):
			p.UpdatedAt = k.now
			out.Pins = append(out.Pins, p)
		}
	}
	out.History = append(out.History, k.history...)
	out.Next = soonerOf(out.Next, k.nextLook())
}

// nextLook returns when the pins must be decided about again, unix ms. 0: after the next report.
func (k *pinned) nextLook() int64 {
	switch {
	case k.deferred:
		return k.now
	case k.Since == 0 && !k.Late && len(k.rerouted) == 0:
		return 0
	}
	poll := float64(min(max(k.now-k.Since, minPoll), maxPoll))
	if k.Late || len(k.rerouted) > 0 {
		poll = minPoll
	}
	return soonerOf(k.now+int64(poll*(0.75+0.5*k.in.Jitter)), k.Due)
}

func mergedRows(rows, changed []model.Topology) []model.Topology {
	rows = slices.Clone(rows)
	for _, t := range changed {
		if i := slices.IndexFunc(rows, func(x model.Topology) bool { return x.DeploymentID == t.DeploymentID && x.RegionID == t.RegionID }); i >= 0 {
			rows[i] = t
		} else {
			rows = append(rows, t)
		}
	}
	return rows
}

// soonerOf returns the sooner of two times. 0 means never.
func soonerOf(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// PinDeadline returns the time by which a pinned version that starts in a region must be ready, unix ms. 0: no limit.
// policy is the app's policy, nil for none.
func PinDeadline(policy *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec, r model.PinRegion, pl rollup.Place) int64 {
	if r.State != windlassv1.PinRegion_STATE_STARTING || !Active(pl.Row) || pl.Unreachable() {
		return 0
	}
	return pins.Due(r, pinLimit(policy, spec, pl))
}

// pinLimit returns how long a pinned version may take to become ready, ms; 0 for no limit.
func pinLimit(policy *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec, pl rollup.Place) int64 {
	limit := ProgressDeadline(policy, spec)
	if limit > 0 && pl.LacksCapacity() {
		limit += capacityLimit(policy)
	}
	return limit
}

// MayPin returns why the version cannot be pinned now, nil if it can. It cannot be pinned if a rollout or a lagging
// region still has it in a region. rows are the app's rows that belong to no pin.
func MayPin(c *model.Progress, app model.App, d model.Deployment, rows []model.Topology) *Refusal {
	if c != nil {
		for _, b := range c.Lagging {
			if b.DeploymentID == d.ID {
				return &Refusal{
					fmt.Sprintf("a region that was out of reach runs v%d until it has caught up", d.Version),
					"Pin it when that is done: `windlass rollout status` shows it.",
				}
			}
		}
	}
	for _, t := range rows {
		if t.DeploymentID != d.ID || t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED || app.RolloutID == "" && t.Weight == 0 {
			continue
		}
		return &Refusal{
			fmt.Sprintf("v%d is still being replaced by a rollout", d.Version),
			"Pin it when the rollout is over, or abort the rollout first.",
		}
	}
	return nil
}

// TakeRetained ends the retention of a version, because it is pinned from now on.
func TakeRetained(c *model.Progress, d *model.Deployment, now int64) {
	c.RetainedID, c.RetainedUntil = "", 0
	d.Status, d.EndedAt = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, now
	d.Reason, d.Message = ReasonSuperseded, "another version is live, and this one is pinned"
}
