package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A pin keeps a version live beside the one that rollouts move. Two layers decide, and
// neither looks into the other:
//
//	below   the rollout of the app as if it had no pins: their rows
//	        are left out, and the weights of the other rows add up to the whole
//	pins    of the pinned rows, region by region
//
//	pinned   starting -> serving          ready: it gets its weight
//	         starting, serving -> failed  doomed, or late: its weight goes, then its replicas
//	         any -> leaving               it is no longer wanted there, and then the same
//
// What joins them is the route: its targets are of both, and it grows once. Only who reads the
// route sets the weights in relation, by model.Shares. So a region's acknowledgement is of
// both, too, and no version stops before its region has acknowledged a route without it. But
// what pins change of a route is nothing that a rollout would wait for: to the layer below
// the newest is acknowledged with the last one that it changed itself.

const (
	pinStarting = windlassv1.PinRegion_STATE_STARTING
	pinServing  = windlassv1.PinRegion_STATE_SERVING
	pinFailed   = windlassv1.PinRegion_STATE_FAILED
	pinLeaving  = windlassv1.PinRegion_STATE_LEAVING
)

// apart returns what each layer sees.
func (in Input) apart() (below, pins Input) {
	below, pins = in, in
	below.Pins, below.Topology, below.Routes, below.RouteObserved, below.Deployments = nil, nil, nil, nil, nil
	pins.Topology, pins.Rollout, pins.RolloutState = nil, nil, nil
	for _, t := range in.Topology {
		if pinOf(in.Pins, t) != nil {
			pins.Topology = append(pins.Topology, t)
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
	hosted := newPlanner(below, 0).hosted()
	for _, r := range in.Routes {
		if !hosted[r.RegionID] {
			r.Hosts, r.Policy, r.Keys = nil, nil, nil
		}
		below.Routes = append(below.Routes, r)
		for _, o := range in.RouteObserved {
			if o.RegionID != r.RegionID {
				continue
			}
			if last := changedBelow(in.Pins, r.RegionID); last != 0 && o.Generation >= last {
				o.Generation = max(o.Generation, r.Generation)
			}
			below.RouteObserved = append(below.RouteObserved, o)
		}
	}
	return below, pins
}

// pinOf finds the pin whose the row is, nil for none.
func pinOf(pins []model.Pin, t model.Topology) *model.Pin {
	for i := range pins {
		if pins[i].DeploymentID == t.DeploymentID && pins[i].In(t.RegionID) != nil {
			return &pins[i]
		}
	}
	return nil
}

// changedBelow is the generation with which the layer below changed the region's route last,
// 0 for the newest.
func changedBelow(pins []model.Pin, region string) (generation int64) {
	for _, p := range pins {
		if r := p.In(region); r != nil {
			generation = max(generation, r.Below)
		}
	}
	return generation
}

// nextPinned decides about both layers.
func nextPinned(in Input, now int64) Output {
	if in.App.DeletingSince != 0 {
		// One layer again: no pin has a share any more, and all is stopped.
		out := decide(in, now)
		if out.App != nil && out.App.DeletedAt != 0 {
			for _, p := range in.Pins {
				out.Unpinned = append(out.Unpinned, p.DeploymentID)
			}
		}
		return out
	}
	below, of := in.apart()
	below.beside = of.Topology
	below.failedPins = in.failed(in.Pins)
	out := decide(below, now)
	of.beside = mergedRows(below.Topology, out.Topology)
	for _, r := range out.Routes {
		of.Routes = replaceRoute(of.Routes, r)
	}
	k := &pinner{planner: newPlanner(of, now), routed: map[string]bool{}, grown: map[string]bool{}}
	if in.RolloutState != nil {
		k.policy = in.RolloutState.Policy
	}
	for _, t := range out.Topology {
		k.touch(t.RegionID)
	}
	for _, r := range out.Routes {
		k.touch(r.RegionID)
		k.grown[r.RegionID] = true
	}
	for i := range in.Pins {
		k.pins = append(k.pins, in.Pins[i].Clone())
		k.look(&k.pins[i])
	}
	if text := in.failed(k.pins); text != below.failedPins {
		// It decides nothing else below.
		below.failedPins = text
		out.App = decide(below, now).App
	}
	k.join(in, below, &out)
	return out
}

func (in Input) failed(pins []model.Pin) string {
	return FailedPins(pins, func(id string) string {
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

// pinner is a working copy of the pins and their rows.
type pinner struct {
	*planner
	pins   []model.Pin
	policy *windlassv1.RolloutPolicy
	// routed are the regions in which a weight of theirs changes.
	routed map[string]bool
	// grown are those whose routes the layer below has changed.
	grown map[string]bool
	// since is the newest fact about a pin that is not settled; 0: all are. due is the next deadline.
	since, due int64
}

// look takes the pin as far as the facts allow.
func (k *pinner) look(p *model.Pin) {
	d := k.deps[p.DeploymentID]
	var left []model.PinRegion
	for _, r := range p.Regions {
		if k.lookIn(p, d, &r) {
			left = append(left, r)
		}
	}
	p.Regions = left
}

// lookIn is look in one region. It reports whether the pin still has the region.
func (k *pinner) lookIn(p *model.Pin, d *model.Deployment, r *model.PinRegion) (has bool) {
	if d == nil && (r.State == pinStarting || r.State == pinServing) {
		k.failPin(p, &model.Deployment{ID: p.DeploymentID, Version: p.Version}, r, ReasonDeploymentLost, "its deployment does not exist")
	}
	if r.State == pinStarting || r.State == pinServing {
		k.startPin(p, d, r)
	}
	if r.State != pinFailed && r.State != pinLeaving {
		return true
	}
	if !k.stopPin(p, d, r) {
		return true
	}
	switch {
	case r.Again && d != nil:
		*r = model.PinRegion{RegionID: r.RegionID, Replicas: r.Replicas, State: pinStarting, Since: k.now}
		k.startPin(p, d, r)
		return true
	case r.State == pinFailed:
		return true
	}
	k.log("PinRegionRemoved", "nothing is left of it there", &model.Deployment{ID: p.DeploymentID, Version: p.Version}, r.RegionID)
	return false
}

// unsettled notes that the region is looked at again.
func (k *pinner) unsettled(r *model.PinRegion, t *model.Topology) {
	k.since = max(k.since, r.Since)
	if t != nil {
		k.since = max(k.since, k.changed(t), k.observed[rowKey{t.DeploymentID, t.RegionID}].UpdatedAt)
	}
}

// startPin has the region run the pin, and gives it its weight once it is ready.
func (k *pinner) startPin(p *model.Pin, d *model.Deployment, r *model.PinRegion) {
	t := k.rowIn(d.ID, r.RegionID)
	if t != nil && t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
		k.confirm(t) // of a time before it was pinned
		if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
			k.unsettled(r, t)
			return
		}
	}
	if t == nil || t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
		if t != nil && k.before[rowKey{d.ID, r.RegionID}].Status != t.Status {
			k.deferred = true // one step of the table at a time
			return
		}
		if k.in.Closed[r.RegionID] {
			r.Reason, r.Message = ReasonRegionClosed, "the workspace may use the region no longer"
			return
		}
		if !k.room(r.RegionID) {
			return
		}
		k.assign(d, r.RegionID, r.Replicas)
		r.State, r.Since, r.Lost, r.Heard = pinStarting, k.now, false, k.observed[rowKey{d.ID, r.RegionID}].Guard
		k.log("PinStarting", fmt.Sprintf("pinned at %d %%: %d replicas start, and get it once they are ready", p.Weight, r.Replicas), d, r.RegionID)
		t = k.rowIn(d.ID, r.RegionID)
	}
	if active(t) && t.Transferred {
		if !k.main().side(t).Known {
			k.unsettled(r, t) // the region has yet to let go of what a rollout gave to another
			return
		}
		r.Since, r.Lost, r.Heard = k.now, false, k.observed[rowKey{d.ID, r.RegionID}].Guard
	}
	if t.Replicas != r.Replicas && (!k.in.Closed[r.RegionID] || r.Replicas < t.Replicas) && k.room(r.RegionID) {
		k.log("ReplicasMoved", fmt.Sprintf("%s %d -> %d, as it is pinned", k.versionOf(d.ID), t.Replicas, r.Replicas), d, r.RegionID)
		k.tellReplicas(t, r.Replicas)
	}
	if r.State == pinServing {
		k.keepPin(p, d, r, t)
		return
	}
	k.awaitPin(p, d, r, t)
}

// awaitPin waits for one that starts to be ready.
func (k *pinner) awaitPin(p *model.Pin, d *model.Deployment, r *model.PinRegion, t *model.Topology) {
	pl := k.place(t)
	switch {
	case pl.Unreachable():
		r.Lost = true
		k.unsettled(r, t)
		return
	case r.Lost:
		r.Lost, r.Since, r.Heard = false, k.now, pl.Observed.Guard
	}
	if pl.Ready() {
		if !k.route(t, p.Weight) {
			return
		}
		t.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
		r.State, r.Since, r.Heard, r.Reason, r.Message = pinServing, k.now, pl.Observed.Guard, "", ""
		k.log("PinServing", fmt.Sprintf("%d of %d replicas ready: it gets %d %% of the traffic, as route generation %d",
			pl.Observed.ReadyReplicas, t.Replicas, p.Weight, k.routes[r.RegionID].Generation), d, r.RegionID)
		return
	}
	if k.doomedPin(p, d, r, pl) {
		return
	}
	k.unsettled(r, t)
	due := pinDue(k.policy, d.Spec, *r, pl)
	switch {
	case due == 0:
	case k.now < due:
		if k.due == 0 || due < k.due {
			k.due = due
		}
	case pl.Resyncing() || k.now-pl.Region.LastReportAt > freshFor:
		k.stale = true
	default:
		reason := rollup.ReasonDeadlineExceeded
		why, text := pl.Why()
		if slices.Contains(keepFromStarting, why) {
			reason = why
		}
		message := fmt.Sprintf("%d of %d replicas ready after %d s", pl.Observed.ReadyReplicas, t.Replicas, (k.now-r.Since)/1000)
		if why != "" {
			message += ": " + why
			if text != "" {
				message += ", " + text
			}
		}
		k.failPin(p, d, r, reason, message)
	}
}

// PinDeadline is when the place of a pin that starts has to be ready, 0 for no time. policy
// is the app's, nil for none.
func PinDeadline(policy *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec, r model.PinRegion, pl rollup.Place) int64 {
	if r.State != pinStarting || !Active(pl.Row) || pl.Unreachable() {
		return 0
	}
	return pinDue(policy, spec, r, pl)
}

func pinDue(policy *windlassv1.RolloutPolicy, spec *windlassv1.DeploymentSpec, r model.PinRegion, pl rollup.Place) int64 {
	limit := ProgressDeadline(policy, spec)
	if limit == 0 {
		return 0
	}
	if pl.LacksRoom() {
		limit += roomLimit(policy)
	}
	return r.Since + limit
}

// keepPin has what serves keep its weight, or another one if that was asked for. A region
// that is out of reach keeps what it has.
func (k *pinner) keepPin(p *model.Pin, d *model.Deployment, r *model.PinRegion, t *model.Topology) {
	was := t.Weight
	if k.route(t, p.Weight) && was != p.Weight {
		k.log("PinServing", fmt.Sprintf("%d %% of the traffic instead of %d %%, as route generation %d",
			p.Weight, was, k.routes[r.RegionID].Generation), d, r.RegionID)
	}
	pl := k.place(t)
	if pl.Unreachable() || k.doomedPin(p, d, r, pl) {
		return
	}
	if !k.acknowledged(r.RegionID) {
		k.since = max(k.since, k.routes[r.RegionID].UpdatedAt)
	}
}

func (k *pinner) doomedPin(p *model.Pin, d *model.Deployment, r *model.PinRegion, pl rollup.Place) bool {
	reason, message, doomed := pl.Doomed()
	if !doomed || pl.Observed.Guard <= r.Heard {
		return false // what was said before it was tried again is of the try before
	}
	k.failPin(p, d, r, cmp.Or(reason, ReasonInstancesFailed),
		fmt.Sprintf("%d of %d replicas ready: %s", pl.Observed.ReadyReplicas, pl.Row.Replicas, cmp.Or(message, "no detail was reported")))
	return true
}

func (k *pinner) failPin(p *model.Pin, d *model.Deployment, r *model.PinRegion, reason, message string) {
	what := fmt.Sprintf("it gets nothing of its %d %% of the traffic", p.Weight)
	if r.State == pinServing {
		what = fmt.Sprintf("its %d %% of the traffic go to the others", p.Weight)
	}
	r.State, r.Since, r.Lost, r.Reason, r.Message = pinFailed, k.now, false, reason, message
	k.log("PinFailed", fmt.Sprintf("%s: %s; %s, and its replicas are stopped: pin it again to try again, or unpin it", reason, message, what), d, r.RegionID)
}

// stopPin takes the weight and then the replicas of one that is not to run in the region, and
// reports whether nothing is left.
func (k *pinner) stopPin(p *model.Pin, d *model.Deployment, r *model.PinRegion) (gone bool) {
	t := k.rowIn(p.DeploymentID, r.RegionID)
	if t == nil || t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
		return true
	}
	was := t.Weight
	if !k.route(t, 0) {
		return false
	}
	if was > 0 && r.State == pinLeaving {
		k.log("PinLeaving", fmt.Sprintf("its %d %% of the traffic go to the others, as route generation %d", was, k.routes[r.RegionID].Generation), d, r.RegionID)
	}
	if active(t) && k.acknowledged(r.RegionID) && k.room(r.RegionID) {
		t.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
		t.Generation++
		why := "it is pinned there no longer"
		if r.State == pinFailed {
			why = r.Reason + ": " + r.Message
		}
		k.log("RegionsStopping", why+"; nothing is routed to it in "+k.place(t).Name(), d, r.RegionID)
	}
	if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
		k.confirm(t)
	}
	if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
		return true
	}
	k.unsettled(r, t)
	return false
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

// sooner of two times, 0 for never.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// nextLook returns when to look at the pins again, 0 for the next report.
func (k *pinner) nextLook() int64 {
	switch {
	case k.deferred:
		return k.now
	case k.since == 0 && !k.stale && len(k.routed) == 0:
		return 0
	}
	poll := float64(min(max(k.now-k.since, minPoll), maxPoll))
	if k.stale || len(k.routed) > 0 {
		poll = minPoll
	}
	return sooner(k.now+int64(poll*(0.75+0.5*k.in.Jitter)), k.due)
}
