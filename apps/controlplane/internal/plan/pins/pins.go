// Package pins decides about pinned versions, which serve next to the version that rollouts move. A plan has two
// layers, and neither reads the rows of the other:
//
//	below   the rollout of the app as if it had no pins: the rows of pins
//	        are left out, and the weights of the other rows add up to the whole
//	pins    the pinned rows, region by region: this package
//
// A pin has a state in each of its regions:
//
//	starting -> serving          the version is ready: it gets its weight
//	starting, serving -> failed  the version is doomed or late: it loses its weight, then its replicas
//	any -> leaving               the pin is removed from the region: as for failed
//
// Both layers share the route: it has targets of both layers, and changes once for both. model.Shares scales the weights
// to shares when the route is read. So a region acknowledges both layers at once, and no version stops before its
// region has acknowledged a route without it. But a rollout does not wait for a pin's change of a route. For the layer
// below, the newest route counts as acknowledged once the region acknowledged the last route that this layer changed
// itself.
//
// The package is pure. It reads and changes rows through Rows, which the planner implements.
package pins

import (
	"cmp"
	"fmt"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	starting = windlassv1.PinRegion_STATE_STARTING
	serving  = windlassv1.PinRegion_STATE_SERVING
	failed   = windlassv1.PinRegion_STATE_FAILED
	leaving  = windlassv1.PinRegion_STATE_LEAVING
)

const (
	rowStarting = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING
	rowStarted  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	rowStopping = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
	rowStopped  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED
)

// Rows are the working copy of an app's rows in one decision.
type Rows interface {
	// Now returns the time of the decision, unix ms.
	Now() int64
	// Deployment returns the deployment with the id, nil if there is none.
	Deployment(id string) *model.Deployment
	// Version returns the name of a deployment's version for people, such as "v3".
	Version(deploymentID string) string
	// Row returns the row of a deployment in a region, nil for none.
	Row(deploymentID, region string) *model.Topology
	// Before returns the same row as it was before the decision.
	Before(deploymentID, region string) model.Topology
	Place(t *model.Topology) rollup.Place
	Observed(deploymentID, region string) model.Observed
	// Route returns the route of the region, nil for none.
	Route(region string) *model.Route
	// Acknowledged reports whether the region acknowledged its newest route.
	Acknowledged(region string) bool
	// Closed reports whether the app's workspace must not use the region any longer.
	Closed(region string) bool
	// Released reports whether the region no longer runs the workload that the row transferred.
	Released(t *model.Topology) bool
	// Changed returns when the row or the region's report of it last changed, unix ms.
	Changed(t *model.Topology) int64
	// Stale reports whether the region's last report is too old to fail a place at a deadline.
	Stale(pl rollup.Place) bool
	// Blocks reports whether a reason of instances keeps them from starting.
	Blocks(reason string) bool
	// StartLimit returns how long the deployment may take to become ready, ms. 0: no limit.
	StartLimit(spec *windlassv1.DeploymentSpec, pl rollup.Place) int64

	// Writable reports whether this decision may change anything in the region.
	Writable(region string) bool
	// Assign adds the row of a deployment in a region, or starts one that stopped.
	Assign(d *model.Deployment, region string, replicas int32)
	SetReplicas(t *model.Topology, n int32)
	// Confirm changes the status of a row from stopping to stopped, if its region has confirmed that.
	Confirm(t *model.Topology)
	// Reroute gives the region's route a new generation, at most one in this decision.
	Reroute(region string)
	// Log adds to the app's history.
	Log(what, why string, d *model.Deployment, region string)
	// Defer requests another step, which follows at once.
	Defer()
}

// Layer decides about pins.
type Layer struct {
	Rows

	// Since is the time of the newest fact about an unsettled pin, unix ms. 0: all pins are settled.
	Since int64
	// Due is the next deadline, unix ms. 0: none.
	Due int64
	// Late means that a deadline has passed, but its region must report before the pin fails.
	Late bool
}

// Look changes the pin and its rows as far as the facts allow.
func (l *Layer) Look(p *model.Pin) {
	d := l.Deployment(p.DeploymentID)
	var left []model.PinRegion
	for _, r := range p.Regions {
		if l.lookIn(p, d, &r) {
			left = append(left, r)
		}
	}
	p.Regions = left
}

// lookIn is Look in one region. It reports whether the region remains in the pin.
func (l *Layer) lookIn(p *model.Pin, d *model.Deployment, r *model.PinRegion) (has bool) {
	if d == nil && (r.State == starting || r.State == serving) {
		l.fail(p, &model.Deployment{ID: p.DeploymentID, Version: p.Version}, r, rollup.ReasonDeploymentLost, "its deployment does not exist")
	}
	if r.State == starting || r.State == serving {
		l.start(p, d, r)
	}
	if r.State != failed && r.State != leaving {
		return true
	}
	if !l.stop(p, d, r) {
		return true
	}
	switch {
	case r.Again && d != nil:
		*r = model.PinRegion{RegionID: r.RegionID, Replicas: r.Replicas, State: starting, Since: l.Now()}
		l.start(p, d, r)
		return true
	case r.State == failed:
		return true
	}
	l.Log("PinRegionRemoved", "the region runs nothing of it any more", &model.Deployment{ID: p.DeploymentID, Version: p.Version}, r.RegionID)
	return false
}

// lookAgain records that the layer must look at the region again.
func (l *Layer) lookAgain(r *model.PinRegion, t *model.Topology) {
	l.Since = max(l.Since, r.Since)
	if t != nil {
		l.Since = max(l.Since, l.Changed(t), l.Observed(t.DeploymentID, t.RegionID).UpdatedAt)
	}
}

// start lets the region run the pin, and gives it its weight once it is ready.
func (l *Layer) start(p *model.Pin, d *model.Deployment, r *model.PinRegion) {
	t := l.Row(d.ID, r.RegionID)
	if t != nil && t.Status == rowStopping {
		l.Confirm(t) // the row was stopping before the version was pinned
		if t.Status == rowStopping {
			l.lookAgain(r, t)
			return
		}
	}
	if t == nil || t.Status == rowStopped {
		if t != nil && l.Before(d.ID, r.RegionID).Status != t.Status {
			l.Defer() // a decision changes the status of a row at most once
			return
		}
		if l.awaitsGrant(p, r) || !l.Writable(r.RegionID) {
			return
		}
		l.Assign(d, r.RegionID, r.Replicas)
		r.State, r.Since, r.Lost, r.Heard = starting, l.Now(), false, l.Observed(d.ID, r.RegionID).Guard
		l.Log("PinStarting", fmt.Sprintf("pinned at %d %%: it starts %s, and gets its share of the traffic when all are ready", p.Weight, plural.Count(r.Replicas, "replica")), d, r.RegionID)
		t = l.Row(d.ID, r.RegionID)
	}
	transferred := isActive(t) && t.Transferred
	if transferred && !l.Released(t) {
		l.lookAgain(r, t) // the region still has the workload that a rollout transferred
		return
	}
	if r.State == starting && t.Replicas == 0 && r.Replicas > 0 && l.awaitsGrant(p, r) {
		return // the version has no replicas that could serve
	}
	if transferred {
		r.Since, r.Lost, r.Heard = l.Now(), false, l.Observed(d.ID, r.RegionID).Guard
	}
	if t.Replicas != r.Replicas && (!l.Closed(r.RegionID) || r.Replicas < t.Replicas) && l.Writable(r.RegionID) {
		l.Log("ReplicasMoved", fmt.Sprintf("%s %d -> %d, as it is pinned", l.Version(d.ID), t.Replicas, r.Replicas), d, r.RegionID)
		l.SetReplicas(t, r.Replicas)
	}
	if r.State == serving {
		l.keepWeight(p, d, r, t)
		return
	}
	l.awaitReady(p, d, r, t)
}

// awaitsGrant reports whether the pin can start nothing in the region, because the region is closed. When the region
// opens again, the time limit for the start begins again.
func (l *Layer) awaitsGrant(p *model.Pin, r *model.PinRegion) bool {
	if l.Closed(r.RegionID) {
		r.Reason, r.Message = rollup.ReasonRegionClosed, "the workspace may no longer use the region"
		return true
	}
	if r.Reason == rollup.ReasonRegionClosed {
		r.Reason, r.Message = "", ""
		r.Since, r.Lost, r.Heard = l.Now(), false, l.Observed(p.DeploymentID, r.RegionID).Guard
	}
	return false
}

// awaitReady waits until a version that starts is ready, or fails it.
func (l *Layer) awaitReady(p *model.Pin, d *model.Deployment, r *model.PinRegion, t *model.Topology) {
	pl := l.Place(t)
	switch {
	case pl.Unreachable():
		r.Lost = true
		l.lookAgain(r, t)
		return
	case r.Lost:
		r.Lost, r.Since, r.Heard = false, l.Now(), pl.Observed.Guard
	}
	if pl.Ready() {
		if !l.routeRow(t, p.Weight) {
			return
		}
		t.Status = rowStarted
		r.State, r.Since, r.Heard, r.Reason, r.Message = serving, l.Now(), pl.Observed.Guard, "", ""
		l.Log("PinServing", fmt.Sprintf("%d of %d replicas ready: it gets %d %% of the traffic, as route generation %d",
			pl.Observed.ReadyReplicas, t.Replicas, p.Weight, l.Route(r.RegionID).Generation), d, r.RegionID)
		return
	}
	if l.isDoomed(p, d, r, pl) {
		return
	}
	l.lookAgain(r, t)
	due := Due(*r, l.StartLimit(d.Spec, pl))
	switch {
	case due == 0:
	case l.Now() < due:
		if l.Due == 0 || due < l.Due {
			l.Due = due
		}
	case l.Stale(pl):
		l.Late = true
	default:
		reason := rollup.ReasonDeadlineExceeded
		why, text := pl.Why()
		if l.Blocks(why) {
			reason = why
		}
		message := fmt.Sprintf("%d of %d replicas ready after %d s", pl.Observed.ReadyReplicas, t.Replicas, (l.Now()-r.Since)/1000)
		if why != "" {
			message += ": " + why
			if text != "" {
				message += ", " + text
			}
		}
		l.fail(p, d, r, reason, message)
	}
}

// Due returns the time at which a starting place must be ready, unix ms. limit is in ms. 0: no limit.
func Due(r model.PinRegion, limit int64) int64 {
	if limit == 0 {
		return 0
	}
	return r.Since + limit
}

// keepWeight gives a serving version the weight of its pin. An unreachable region keeps its last weight.
func (l *Layer) keepWeight(p *model.Pin, d *model.Deployment, r *model.PinRegion, t *model.Topology) {
	was := t.Weight
	if l.routeRow(t, p.Weight) && was != p.Weight {
		l.Log("PinServing", fmt.Sprintf("%d %% of the traffic instead of %d %%, as route generation %d",
			p.Weight, was, l.Route(r.RegionID).Generation), d, r.RegionID)
	}
	pl := l.Place(t)
	if pl.Unreachable() || l.isDoomed(p, d, r, pl) {
		return
	}
	if !l.Acknowledged(r.RegionID) {
		l.Since = max(l.Since, l.Route(r.RegionID).UpdatedAt)
	}
}

// isDoomed reports whether instances of this try fail for good. Then it fails the pin.
func (l *Layer) isDoomed(p *model.Pin, d *model.Deployment, r *model.PinRegion, pl rollup.Place) bool {
	reason, message, doomed := pl.Doomed()
	if !doomed || pl.Observed.Guard <= r.Heard {
		return false // the report is about the earlier try
	}
	l.fail(p, d, r, cmp.Or(reason, rollup.ReasonInstancesFailed),
		fmt.Sprintf("%d of %d replicas ready: %s", pl.Observed.ReadyReplicas, pl.Row.Replicas, cmp.Or(message, "no detail was reported")))
	return true
}

func (l *Layer) fail(p *model.Pin, d *model.Deployment, r *model.PinRegion, reason, message string) {
	what := fmt.Sprintf("it gets nothing of its %d %% of the traffic", p.Weight)
	if r.State == serving {
		what = fmt.Sprintf("its %d %% of the traffic go to other versions", p.Weight)
	}
	r.State, r.Since, r.Lost, r.Reason, r.Message = failed, l.Now(), false, reason, message
	l.Log("PinFailed", fmt.Sprintf("%s: %s; %s, and its replicas are stopped: pin it again to try again, or unpin it", reason, message, what), d, r.RegionID)
}

// stop removes the weight and then the replicas of a version that must not run in the region. It reports whether the
// region runs nothing of the version any more.
func (l *Layer) stop(p *model.Pin, d *model.Deployment, r *model.PinRegion) (gone bool) {
	t := l.Row(p.DeploymentID, r.RegionID)
	if t == nil || t.Status == rowStopped {
		return true
	}
	was := t.Weight
	if !l.routeRow(t, 0) {
		return false
	}
	if was > 0 && r.State == leaving {
		l.Log("PinLeaving", fmt.Sprintf("its %d %% of the traffic go to other versions, as route generation %d", was, l.Route(r.RegionID).Generation), d, r.RegionID)
	}
	if isActive(t) && l.Acknowledged(r.RegionID) && l.Writable(r.RegionID) {
		t.Status = rowStopping
		t.Generation++
		why := "it is no longer pinned there"
		if r.State == failed {
			why = r.Reason + ": " + r.Message
		}
		l.Log("RegionsStopping", why+"; nothing is routed to it in "+l.Place(t).Name(), d, r.RegionID)
	}
	if t.Status == rowStopping {
		l.Confirm(t)
	}
	if t.Status == rowStopped {
		return true
	}
	l.lookAgain(r, t)
	return false
}

// routeRow gives the row its weight, and its region a new route. It reports whether it was allowed to change the region.
func (l *Layer) routeRow(t *model.Topology, weight int32) bool {
	if t.Weight == weight {
		return true
	}
	if !l.Writable(t.RegionID) {
		return false
	}
	t.Weight = weight
	l.Reroute(t.RegionID)
	return true
}

// isActive reports whether the row is not stopping or stopped.
func isActive(t *model.Topology) bool {
	return t.Status == rowStarting || t.Status == rowStarted
}
