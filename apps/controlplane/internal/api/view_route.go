package api

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// routeFacts are the rows from which views of routes are made, with the facts of their apps.
type routeFacts struct {
	facts
	places  map[string][]rollup.RoutePlace // by app, by the name of the region
	domains map[string][]model.Domain      // by app, by name
	keys    map[string][]model.AppKey      // by app
}

// routeFacts reads the facts of routes. With ended, it includes ended versions.
func (a routeService) routeFacts(tx Tx, apps []model.App, ended bool) (f routeFacts, err error) {
	f = routeFacts{places: map[string][]rollup.RoutePlace{}, domains: map[string][]model.Domain{}, keys: map[string][]model.AppKey{}}
	if f.facts, err = a.loadFacts(tx, apps, nil); err != nil {
		return f, err
	}
	ids := make([]string, 0, len(apps))
	leaving := map[string]bool{}
	for _, app := range apps {
		ids = append(ids, app.ID)
		for _, t := range f.rows[app.ID] {
			if _, known := f.deployments[t.DeploymentID]; !known && (ended || t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED) {
				leaving[t.DeploymentID] = true
			}
		}
	}
	versions, err := tx.GetDeployments(keysOf(leaving))
	if err != nil {
		return f, fmt.Errorf("read deployments: %w", err)
	}
	for _, d := range versions {
		f.deployments[d.ID] = d
	}
	domains, err := tx.DomainsOfApps(ids)
	if err != nil {
		return f, fmt.Errorf("list domains: %w", err)
	}
	for _, d := range domains {
		f.domains[d.AppID] = append(f.domains[d.AppID], d)
	}
	made, err := tx.KeysOfApps(ids)
	if err != nil {
		return f, fmt.Errorf("list app keys: %w", err)
	}
	for _, k := range made {
		f.keys[k.AppID] = append(f.keys[k.AppID], k)
	}
	rows, err := tx.ListRoutes(ids)
	if err != nil {
		return f, fmt.Errorf("list routes: %w", err)
	}
	observed, err := tx.ListRouteObserved(ids)
	if err != nil {
		return f, fmt.Errorf("read applied routes of regions: %w", err)
	}
	said := map[[2]string]model.RouteObserved{}
	for _, o := range observed {
		said[[2]string{o.AppID, o.RegionID}] = o
	}
	more := map[string]bool{}
	for _, r := range rows {
		if _, known := f.regions[r.RegionID]; !known {
			more[r.RegionID] = true
		}
	}
	regions, err := tx.GetRegions(keysOf(more))
	if err != nil {
		return f, fmt.Errorf("read regions: %w", err)
	}
	for _, r := range regions {
		f.regions[r.ID] = r
	}
	for _, r := range rows {
		f.places[r.AppID] = append(f.places[r.AppID], rollup.RoutePlace{
			Route: r, Observed: said[[2]string{r.AppID, r.RegionID}], Region: f.regions[r.RegionID],
		})
	}
	for _, places := range f.places {
		slices.SortFunc(places, func(a, b rollup.RoutePlace) int { return cmp.Compare(f.regionName(a), f.regionName(b)) })
	}
	return f, nil
}

func (f routeFacts) regionName(p rollup.RoutePlace) string { return p.Region.ShownName() }

// pathOf returns the app's path: project/environment/name.
func (f facts) pathOf(app model.App) string {
	return f.projects[app.ProjectID].Name + "/" + f.environments[app.EnvironmentID].Name + "/" + app.Name
}

// routesOf returns the routes of one app: the stable host, domains by name, previews from the newest to the oldest.
// With ended, it includes routes that no region serves any more.
func (f routeFacts) routesOf(app model.App, ended bool) []*windlassv1.Route {
	stable := model.Host(app, f.domain)
	out := []*windlassv1.Route{f.weightedRoute(app, windlassv1.Route_KIND_STABLE, stable, app.DeletingSince == 0)}
	named := map[string]bool{stable: true}
	for _, d := range f.domains[app.ID] {
		named[d.Name] = true
		r := f.weightedRoute(app, windlassv1.Route_KIND_DOMAIN, d.Name, app.DeletingSince == 0 && d.VerifiedAt != 0)
		if d.VerifiedAt == 0 {
			r.State, r.Message = windlassv1.RouteState_ROUTE_STATE_PENDING, "the domain is not verified yet"
		}
		out = append(out, r)
	}
	// Regions may still serve other hosts: removed domains, and the app's host below an earlier --domain.
	for _, p := range f.places[app.ID] {
		for _, host := range p.Route.Hosts {
			if !named[host] {
				named[host] = true
				out = append(out, f.weightedRoute(app, windlassv1.Route_KIND_DOMAIN, host, false))
			}
		}
	}
	return append(out, f.previewRoutes(app, ended)...)
}

// weightedRoute returns the route from a host to the versions that serve, by their weights.
func (f routeFacts) weightedRoute(app model.App, kind windlassv1.Route_Kind, host string, wanted bool) *windlassv1.Route {
	out := &windlassv1.Route{Host: host, Kind: kind, AppId: app.ID, App: f.pathOf(app)}
	for _, p := range f.places[app.ID] {
		state, why := p.State(host, wanted)
		if state == windlassv1.RouteState_ROUTE_STATE_PENDING {
			continue
		}
		if state == windlassv1.RouteState_ROUTE_STATE_RUNNING && !bytes.Equal(p.Route.Keys, model.EncodeKeys(f.keys[app.ID])) {
			state, why = windlassv1.RouteState_ROUTE_STATE_PROVISIONING, "the app's keys have not been sent to the region yet"
		}
		policy, err := p.Route.Routing()
		if err != nil { // a later release wrote the targets: the host is shown without them
			why = cmp.Or(why, err.Error())
		}
		out.Regions = append(out.Regions, &windlassv1.RegionRoute{
			Region: f.regionName(p), State: state, Message: why, Policy: policy,
			Generation: p.Route.Generation, AcknowledgedGeneration: p.Observed.Generation,
			Targets: f.sharesOf(app, p.Route.RegionID),
		})
	}
	out.State, out.Message = rollup.RouteState(out.Regions, app.DeletingSince != 0)
	return out
}

// sharesOf returns the share of the app's requests in the region that each version gets, by version.
func (f routeFacts) sharesOf(app model.App, region string) []*windlassv1.RouteShare {
	var targets []model.RouteTarget
	for _, t := range f.rows[app.ID] {
		if t.RegionID == region && t.Weight > 0 {
			targets = append(targets, model.RouteTarget{DeploymentID: t.DeploymentID, Weight: t.Weight, Pinned: f.isPinned(t)})
		}
	}
	targets = slices.DeleteFunc(model.Shares(targets), func(t model.RouteTarget) bool { return t.Weight <= 0 })
	slices.SortFunc(targets, func(a, b model.RouteTarget) int {
		return cmp.Compare(f.deployments[a.DeploymentID].Version, f.deployments[b.DeploymentID].Version)
	})
	var out []*windlassv1.RouteShare
	for i, percent := range percentsOf(targets) {
		id := targets[i].DeploymentID
		out = append(out, &windlassv1.RouteShare{DeploymentId: id, Version: f.deployments[id].Version, Percent: percent})
	}
	return out
}

// percentsOf returns the targets' weights in percent, which add up to 100. Weights are rounded down, and the rest goes
// to the targets with the largest remainders.
func percentsOf(targets []model.RouteTarget) []int32 {
	var sum int64
	for _, t := range targets {
		sum += int64(t.Weight)
	}
	out, lost, left := make([]int32, len(targets)), make([]int64, len(targets)), int32(100)
	order := make([]int, len(targets))
	for i, t := range targets {
		out[i], lost[i], order[i] = int32(100*int64(t.Weight)/sum), 100*int64(t.Weight)%sum, i
		left -= out[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lost[b], lost[a]) })
	for _, i := range order[:min(len(order), int(left))] {
		out[i]++
	}
	return out
}

// previewRoutes returns the hosts of versions that run or are being removed, from the newest to the oldest. With ended, it
// includes hosts of ended versions.
func (f routeFacts) previewRoutes(app model.App, ended bool) []*windlassv1.Route {
	var out []*windlassv1.Route
	seen := map[string]bool{}
	for _, t := range f.rows[app.ID] {
		d, known := f.deployments[t.DeploymentID]
		if seen[t.DeploymentID] || !known {
			continue
		}
		seen[t.DeploymentID] = true
		r := &windlassv1.Route{
			Host: model.PreviewHost(app.ID, app.Name, d.Version, f.domain), Kind: windlassv1.Route_KIND_PREVIEW,
			AppId: app.ID, App: f.pathOf(app), DeploymentId: d.ID, Version: d.Version,
		}
		for _, p := range f.facts.placesOf(app.ID, d.ID, func(t model.Topology) bool { return !t.Transferred }) {
			one := &windlassv1.RegionRoute{Region: p.Name(), State: rollup.PreviewState(p)}
			switch {
			case one.State != windlassv1.RouteState_ROUTE_STATE_TERMINATED:
				one.Targets = []*windlassv1.RouteShare{{DeploymentId: d.ID, Version: d.Version, Percent: 100}}
			case !ended:
				continue
			}
			r.Regions = append(r.Regions, one)
		}
		if len(r.Regions) == 0 {
			continue
		}
		r.State, r.Message = rollup.RouteState(r.Regions, app.DeletingSince != 0)
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *windlassv1.Route) int { return cmp.Compare(b.Version, a.Version) })
	return out
}

func domainProto(f facts, app model.App, d model.Domain) *windlassv1.Domain {
	return &windlassv1.Domain{
		Name: d.Name, AppId: d.AppID, App: f.pathOf(app), Verified: d.VerifiedAt != 0,
		TxtName: model.DomainRecord(d.Name), TxtValue: d.Token,
		CreatedBy: d.CreatedBy, CreatedAt: d.CreatedAt, VerifiedAt: d.VerifiedAt,
		MissingSince: d.MissingSince, LapsedAt: d.LapsedAt,
	}
}
