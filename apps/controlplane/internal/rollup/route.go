package rollup

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	routePending      = windlassv1.RouteState_ROUTE_STATE_PENDING
	routeProvisioning = windlassv1.RouteState_ROUTE_STATE_PROVISIONING
	routeRunning      = windlassv1.RouteState_ROUTE_STATE_RUNNING
	routeTerminating  = windlassv1.RouteState_ROUTE_STATE_TERMINATING
	routeTerminated   = windlassv1.RouteState_ROUTE_STATE_TERMINATED
)

// RoutePlace is an app's routes in one region.
type RoutePlace struct {
	Route    model.Route
	Observed model.RouteObserved
	Region   model.Region
}

// State returns the state of one of the app's hosts in the region. wanted is true if the app should have the host.
// PENDING means that the region does not have the host and need not do anything for it.
func (p RoutePlace) State(host string, wanted bool) (state windlassv1.RouteState, why string) {
	has := slices.Contains(p.Route.Hosts, host)
	done := RouteAcknowledged(p.Route, p.Observed, p.Region)
	switch {
	case has && wanted && done:
		return routeRunning, ""
	case has && wanted:
		return routeProvisioning, p.waitsText("serve")
	case has:
		return routeTerminating, "the change has not been sent to the region yet"
	case wanted && len(p.Route.Hosts) > 0:
		return routeProvisioning, "the change has not been sent to the region yet"
	case !done:
		return routeTerminating, p.waitsText("remove the host")
	}
	return routePending, ""
}

func (p RoutePlace) waitsText(what string) string {
	switch {
	case p.Region.Status == windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE:
		return "the region is out of reach"
	case p.Observed.Phase == phaseRejected:
		return fmt.Sprintf("the region does not %s: %s", what, p.Observed.Message)
	}
	return fmt.Sprintf("the region has not confirmed the change yet: it reported generation %d of %d", p.Observed.Generation, p.Route.Generation)
}

// PreviewState returns the state of a version's own host in one of its regions.
func PreviewState(p Place) windlassv1.RouteState {
	switch p.Row.Status {
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING:
		return routeProvisioning
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED:
		return routeRunning
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING:
		return routeTerminating
	case windlassv1.TopologyStatus_TOPOLOGY_STATUS_UNSPECIFIED, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED:
	}
	return routeTerminated
}

// RouteState returns the state of a host over all regions, see model.RouteMoves. ends is true if the app is
// being deleted, or was deleted.
func RouteState(regions []*windlassv1.RegionRoute, ends bool) (windlassv1.RouteState, string) {
	n := map[windlassv1.RouteState]int{}
	for _, r := range regions {
		n[r.State]++
	}
	serve := n[routeRunning] + n[routeProvisioning]
	switch {
	case serve > 0 && n[routeProvisioning] > 0:
		return routeProvisioning, fmt.Sprintf("%d of %d regions serve the newest route", n[routeRunning], serve)
	case serve > 0:
		return routeRunning, ""
	case n[routeTerminating] > 0:
		return routeTerminating, plural.Count(n[routeTerminating], "region") + " must still remove the host"
	case ends || n[routeTerminated] > 0:
		return routeTerminated, ""
	}
	return routePending, "no region serves the host yet"
}
