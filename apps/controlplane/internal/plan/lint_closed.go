package plan

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
)

// lintClosed checks that no request can wake a row at zero in a closed region: no generation of such a row lets requests
// wake it, gateways there have hosts of the app only for other rows, and replicas that a request woke are not kept.
func lintClosed(in Input, out Output) (findings []string) {
	if len(in.Closed) == 0 || in.App.DeletingSince != 0 {
		return nil
	}
	for _, h := range out.History {
		if h.What == "Woken" && in.Closed[h.RegionID] {
			findings = append(findings, h.RegionID+": is closed, and replicas that a request woke there are kept")
		}
	}
	changed := map[string]bool{}
	for _, t := range out.Topology {
		changed[t.RegionID] = true
	}
	for _, r := range out.Routes {
		changed[r.RegionID] = true
	}
	if len(changed) >= MaxRegions {
		return findings // the next step stops the remaining replicas
	}
	zero, more := map[string]bool{}, map[string]bool{}
	for _, t := range mergedRows(in.Topology, out.Topology) {
		i := slices.IndexFunc(in.Deployments, func(d model.Deployment) bool { return d.ID == t.DeploymentID })
		if !in.Closed[t.RegionID] || !isRowActive(&t) || i < 0 {
			continue
		}
		spec := override.In(in.Deployments[i].Spec, t.RegionID)
		if !t.AtZero(spec) {
			more[t.RegionID] = true
			continue
		}
		zero[t.RegionID] = true
		if t.Weight > 0 && t.Assigned() && t.WakeTo(spec) > 0 {
			findings = append(findings, fmt.Sprintf("%s: is closed, and a request may wake %s", t.RegionID, t.DeploymentID))
		}
	}
	routes := slices.Clone(in.Routes)
	for _, r := range out.Routes {
		routes = replaceRoute(routes, r)
	}
	for _, r := range routes {
		if zero[r.RegionID] && !more[r.RegionID] && len(r.Hosts) > 0 {
			findings = append(findings, r.RegionID+": is closed, and gateways hold requests of an app at zero there")
		}
	}
	return findings
}
