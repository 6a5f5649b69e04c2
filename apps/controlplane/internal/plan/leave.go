package plan

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// touchRegion records that the output changes the region's feed.
func (p *planner) touchRegion(region string) { p.touched[region] = true }

// isWritable reports whether this output may still change the region's feed, and then counts the region. It is not called
// for the target's regions, because there are at most MaxRegions of them.
func (p *planner) isWritable(region string) bool {
	if p.touched[region] || len(p.touched) < MaxRegions {
		p.touched[region] = true
		return true
	}
	p.deferred = true
	return false
}

// wantedWeight returns the share of the region's traffic that the row should have.
func (f *facts) wantedWeight(t *model.Topology) int32 {
	if f.app.DeletingSince != 0 || !isRowActive(t) {
		return 0
	}
	if f.isStaged() || f.isLagging(t.RegionID) {
		if w, ok := f.shares[rowKey{t.DeploymentID, t.RegionID}]; ok {
			return w
		}
		return t.Weight
	}
	live := t.DeploymentID == f.app.LiveDeploymentID
	d := f.targetDeployment()
	switch {
	case d == nil || d.ID == f.app.LiveDeploymentID:
		return shareOf(live)
	case f.app.LiveDeploymentID == "":
		// No serving version must be kept, so each region moves as soon as it can.
		return shareOf(t.DeploymentID == d.ID)
	case d.Status != windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK:
		return shareOf(live)
	}
	if t.DeploymentID == d.ID {
		return fullWeight
	}
	// In regions to which the target does not go, the live version serves until it is no longer live.
	return shareOf(live && !f.isActive(d.ID, t.RegionID))
}

func shareOf(all bool) int32 {
	if all {
		return fullWeight
	}
	return 0
}

func (f *facts) isActive(deployment, region string) bool {
	return slices.ContainsFunc(f.rows, func(t *model.Topology) bool {
		return t.DeploymentID == deployment && t.RegionID == region && isRowActive(t)
	})
}

// setWeights sets the weights of rows, and updates the routes. However often it runs in one call, a route's
// generation grows once, and only if the route differs from the route before the call.
func (p *planner) setWeights() {
	targetRegions := map[string]bool{}
	if d := p.targetDeployment(); d != nil {
		for _, t := range p.activeRows(d.ID) {
			targetRegions[t.RegionID] = true
		}
	}
	byRegion := map[string][]*model.Topology{}
	for _, t := range p.rows {
		byRegion[t.RegionID] = append(byRegion[t.RegionID], t)
	}
	for region := range p.routes {
		if _, ok := byRegion[region]; !ok {
			byRegion[region] = nil
		}
	}
	for _, region := range sortedKeys(byRegion) {
		p.setRegionWeights(region, byRegion[region], targetRegions[region])
	}
}

func (p *planner) setRegionWeights(region string, rows []*model.Topology, must bool) {
	var hosts []string
	var policy *windlassv1.RoutingPolicy
	var keys []byte
	changed := false
	for _, t := range rows {
		w := p.wantedWeight(t)
		if hasHosts(p.facts, t, w) {
			hosts, policy, keys = p.in.Hosts, p.routingNow().policyIn(region), p.in.Keys
		}
		changed = changed || w != p.before[rowKey{t.DeploymentID, t.RegionID}].Weight
	}
	was, had := p.routesWas[region]
	changed = changed || !slices.Equal(hosts, was.Hosts) || !was.Routes(policy) || !bytes.Equal(keys, was.Keys)
	switch {
	case !changed:
		if had && p.routes[region] != nil {
			p.routes[region] = &was
		} else {
			delete(p.routes, region)
		}
	case must:
		p.touchRegion(region)
	case !p.isWritable(region):
		return
	}
	for _, t := range rows {
		t.Weight = p.wantedWeight(t)
	}
	if changed {
		p.routes[region] = &model.Route{
			WorkspaceID: p.app.WorkspaceID, AppID: p.app.ID, RegionID: region,
			Hosts: slices.Clone(hosts), Generation: was.Generation + 1, UpdatedAt: p.now,
			Policy: model.EncodeRouting(policy), Keys: bytes.Clone(keys),
		}
	}
}

func (f *facts) hasAcknowledged(region string) bool {
	r := f.routes[region]
	return r == nil || rollup.RouteAcknowledged(*r, f.routeObs[region], f.regions[region])
}

func hasOrphans(f *facts) bool {
	return slices.ContainsFunc(f.in.Deployments, func(d model.Deployment) bool { return f.isOrphan(f.deps[d.ID]) })
}

func (f *facts) isOrphan(d *model.Deployment) bool {
	return !f.isWanted(d.ID) && !model.Terminal(model.DeploymentMoves, d.Status) && f.app.DeletingSince == 0
}

// endOrphans ends deployments in flight that no rollout moves, because a newer deployment took their place.
func (p *planner) endOrphans() {
	for _, was := range p.in.Deployments {
		d := p.deps[was.ID]
		if !p.isOrphan(d) {
			continue
		}
		p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED)
		d.Reason, d.Message = ReasonSuperseded, "a newer deployment took its place"
		p.log("DeploymentSuperseded", "it belongs to no rollout any more", d, "")
	}
}

// hasLeaving reports whether rows are stopping, or may begin to stop now.
func hasLeaving(f *facts) bool {
	return slices.ContainsFunc(f.rows, func(t *model.Topology) bool {
		return t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING || isRowActive(t) && !f.isKept(t) && f.mayStop(t)
	})
}

// stopUnwanted stops rows that are not wanted, and records which rows have stopped.
func (p *planner) stopUnwanted() {
	stopping := map[string][]string{}
	for _, t := range p.rows {
		if isRowActive(t) && !p.isKept(t) && p.mayStop(t) && p.isWritable(t.RegionID) {
			t.Status, t.Reason = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING, ""
			t.Generation++
			stopping[t.DeploymentID] = append(stopping[t.DeploymentID], p.placeOf(t).Name())
		}
	}
	for _, id := range sortedKeys(stopping) {
		d := p.deps[id]
		why := "it is no longer wanted"
		switch {
		case p.app.DeletingSince != 0:
			why = "the app is being deleted"
		case d != nil && d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED:
			why = cmp.Or(d.Message, "a newer deployment took its place")
		case d != nil && d.Message != "":
			why = d.Reason + ": " + d.Message
		}
		p.log("RegionsStopping", fmt.Sprintf("%s; nothing is routed to it in %s", why, strings.Join(stopping[id], ", ")), d, "")
	}
	for _, t := range p.rows {
		if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING {
			p.confirmStopped(t)
		}
	}
}

func (f *facts) isWanted(deployment string) bool {
	if f.app.DeletingSince != 0 {
		return false
	}
	d := f.targetDeployment()
	return deployment == f.app.LiveDeploymentID || (d != nil && d.ID == deployment) || f.isRetained(deployment)
}

// mayStop reports whether nothing is routed to the row. A deletion does not wait for the
// acknowledgement of an unreachable region: there is no successor to protect, and the region
// applies routes before deletes when it returns.
func (f *facts) mayStop(t *model.Topology) bool {
	switch {
	case t.Weight != 0:
		return false
	case (f.isStaged() || f.isLagging(t.RegionID)) && t.Replicas > 0:
		return false // the region plan reduces its replicas while replicas of other versions start
	case f.app.DeletingSince != 0 && f.placeOf(t).Unreachable():
		return true
	}
	return f.hasAcknowledged(t.RegionID)
}

// confirmStopped records whether a stopping row has stopped, and the reason if it has not.
func (p *planner) confirmStopped(t *model.Topology) {
	pl, d := p.placeOf(t), p.deps[t.DeploymentID]
	switch {
	case pl.Gone():
		t.Status, t.Reason = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, ""
		p.log("RegionStopped", fmt.Sprintf("the region confirmed generation %d: no instance is left", t.Generation), d, t.RegionID)
	case p.app.DeletingSince != 0 && p.app.AbandonUnreachable && pl.Unreachable():
		t.Status, t.Reason = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, ReasonAbandoned
		p.log("RegionAbandoned", fmt.Sprintf("the region is unreachable and was abandoned; it had %s at its last report",
			plural.Count(pl.Observed.Instances(), "instance")), d, t.RegionID)
	case pl.Unreachable() && t.Reason == "":
		t.Reason = rollup.ReasonRegionUnreachable
		p.log("RegionUnreachable", "it stays in status stopping until the region returns and confirms the stop", d, t.RegionID)
	case !pl.Unreachable():
		t.Reason = ""
	}
}

// logWeights adds to the history where traffic goes, with the cause.
func (p *planner) logWeights() {
	moved := map[string][]string{}
	var bare []string
	for _, region := range sortedKeys(p.routes) {
		if p.routes[region].Generation == p.routesWas[region].Generation {
			continue
		}
		to := ""
		for _, t := range trafficOf(p.facts, region) {
			to = t.DeploymentID
		}
		n := p.regionName(region)
		if to == "" && len(p.routes[region].Hosts) > 0 {
			bare = append(bare, n)
			continue
		}
		moved[to] = append(moved[to], n)
	}
	if len(bare) > 0 {
		p.log("NoTraffic", "in "+strings.Join(bare, ", ")+" "+noTraffic, nil, "")
	}
	for _, id := range sortedKeys(moved) {
		d, regions := p.deps[id], strings.Join(moved[id], ", ")
		switch {
		case d == nil:
			p.log("RoutesRemoved", "nothing should serve in "+regions, nil, "")
		case p.app.LiveDeploymentID == "":
			p.log("WeightsGiven", fmt.Sprintf("nothing is live yet: all traffic of %s goes to v%d as its replicas become ready", regions, d.Version), d, "")
		case id != p.app.LiveDeploymentID:
			p.log("WeightsMoved", fmt.Sprintf("every region has its replicas ready: all traffic of %s goes to v%d", regions, d.Version), d, "")
		default:
			p.log("WeightsRestored", fmt.Sprintf("v%d is live: all traffic of %s goes to it", d.Version, regions), d, "")
		}
	}
}

// finishDeletion deletes the app when its rows have stopped in all regions.
func (p *planner) finishDeletion() {
	for _, t := range p.rows {
		if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			return
		}
	}
	for _, was := range p.in.Deployments {
		if d := p.deps[was.ID]; !model.Terminal(model.DeploymentMoves, d.Status) {
			p.moveTo(d, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED)
			d.Reason, d.Message = ReasonAppDeleted, "the app was deleted"
		}
	}
	p.app.DeletedAt = p.now
	p.app.LiveDeploymentID = ""
	p.log("AppDeleted", fmt.Sprintf("all %d regional assignments have stopped", len(p.rows)), nil, "")
}
