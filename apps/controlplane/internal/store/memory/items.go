package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
)

func (t *tx) DesiredItems(kind model.ChangeKind, keys map[string][]string) ([]model.DesiredItem, error) {
	if kind != model.KindDeployment && kind != model.KindRoutes {
		return nil, fmt.Errorf("store: desired items: no kind %d", kind)
	}
	var items []model.DesiredItem
	for _, region := range slices.Sorted(maps.Keys(keys)) {
		if len(keys[region]) == 0 {
			continue
		}
		switch kind {
		case model.KindDeployment:
			more, err := t.desiredDeployments(region, keys[region])
			if err != nil {
				return nil, err
			}
			items = append(items, more...)
		case model.KindRoutes:
			items = append(items, t.desiredRoutes(region, keys[region])...)
		}
	}
	return items, nil
}

func (t *tx) EachDesired(regionID string, size int, page func([]model.DesiredItem) error) error {
	deployments, err := t.desiredDeployments(regionID, nil)
	if err != nil {
		return err
	}
	// Keys in quarantine come after deployments with a topology row.
	placed := func(it model.DesiredItem) bool { return it.Deployment.AppID != "" }
	quarantined := slices.DeleteFunc(slices.Clone(deployments), placed)
	deployments = slices.DeleteFunc(deployments, func(it model.DesiredItem) bool { return !placed(it) })
	for _, items := range [][]model.DesiredItem{deployments, quarantined, t.desiredRoutes(regionID, nil)} {
		for some := range slices.Chunk(items, size) {
			if err := page(some); err != nil {
				return err
			}
		}
	}
	return nil
}

// desiredDeployments returns the items of the keys, or all items if keys is nil.
func (t *tx) desiredDeployments(regionID string, keys []string) ([]model.DesiredItem, error) {
	var items []model.DesiredItem
	assigned := map[string]bool{}
	for _, row := range t.assignedRows(regionID, keys) {
		item, err := t.desiredDeployment(row)
		if err != nil {
			return nil, err
		}
		assigned[item.Key] = true
		items = append(items, item)
	}
	wanted := setOf(keys)
	for _, q := range t.quarantinedIn(regionID) {
		if q.ApprovedAt == 0 || assigned[q.Key] || (keys != nil && !wanted[q.Key]) {
			continue
		}
		items = append(items, model.DesiredItem{
			RegionID: regionID, Kind: model.KindDeployment, Key: q.Key, Generation: q.Generation + 1, Delete: true,
			Deployment: model.Deployment{ID: q.Key},
		})
	}
	slices.SortFunc(items, func(a, b model.DesiredItem) int { return cmp.Compare(a.Key, b.Key) })
	return items, nil
}

// assignedRows returns the topology rows of the keys in the region, or all of its rows if keys is nil.
func (t *tx) assignedRows(regionID string, keys []string) []model.Topology {
	if keys == nil {
		return topologyTable.overlayIn(t).list(func(r model.Topology) bool { return r.RegionID == regionID })
	}
	var rows []model.Topology
	for _, key := range sortDistinct(keys) {
		if r, ok := topologyTable.overlayIn(t).get(pairOf(key, regionID)); ok {
			rows = append(rows, r)
		}
	}
	return rows
}

func (t *tx) aloneFacts(row model.Topology, s model.Scaling) model.AloneFacts {
	out := model.AloneFacts{Holds: slices.Clone(s.Holds), Instances: model.Inherit, GPUs: model.Inherit}
	if a, ok := limitsTable.overlayIn(t).get(row.WorkspaceID); ok {
		out.Instances, out.GPUs = a.Own.Instances, a.Own.GPUs
	}
	if bucket, ok := startsTable.overlayIn(t).get(row.WorkspaceID); ok {
		has := bucket.ceiling
		out.Ceiling = model.Ceiling{Usage: model.Usage{Instances: has.Instances, GPUs: has.GPUs}, CountedAt: has.CountedAt}
	}
	region, ok := regionTable.overlayIn(t).get(row.RegionID)
	_, granted := grantTable.overlayIn(t).get(pair{row.RegionID, row.WorkspaceID})
	out.Closed = (!ok || region.WorkspaceID == "") && !granted
	return out
}

func (t *tx) desiredDeployment(row model.Topology) (model.DesiredItem, error) {
	if !row.Assigned() {
		return row.Tombstone(), nil
	}
	item := model.DesiredItem{
		RegionID: row.RegionID, Kind: model.KindDeployment, Key: row.DeploymentID, Generation: row.Generation, Topology: row,
	}
	var ok bool
	if item.Deployment, ok = deploymentTable.overlayIn(t).get(row.DeploymentID); !ok {
		return item, fmt.Errorf("store: topology in region %q names deployment %q, which does not exist", row.RegionID, row.DeploymentID)
	}
	app, ok := appTable.overlayIn(t).get(row.AppID)
	if !ok {
		return item, fmt.Errorf("store: topology in region %q names app %q, which does not exist", row.RegionID, row.AppID)
	}
	item.App = model.AppNames{Name: app.Name, ProjectID: app.ProjectID, EnvironmentID: app.EnvironmentID}
	if e, ok := environmentTable.overlayIn(t).get(item.App.EnvironmentID); ok {
		if p, ok := projectTable.overlayIn(t).get(e.ProjectID); ok {
			item.App.ProjectName, item.App.EnvironmentName = p.Name, e.Name
		}
	}
	if s, ok := scalingTable.overlayIn(t).get(row.AppID); ok && s.Policy != nil {
		item.Scaling, item.Alone = s.Policy, t.aloneFacts(row, s)
	}
	for _, ref := range override.In(item.Deployment.Spec, row.RegionID).GetSecrets() {
		version := ref.GetVersion()
		if version == 0 {
			s, ok := secretTable.overlayIn(t).get(pair{item.App.EnvironmentID, ref.GetSecret()})
			if !ok {
				continue // deleted: the agent reports it
			}
			version = s.version
		}
		if item.SecretVersions == nil {
			item.SecretVersions = map[string]int32{}
		}
		item.SecretVersions[ref.GetSecret()] = version
	}
	return item, nil
}

func (t *tx) desiredRoutes(regionID string, keys []string) []model.DesiredItem {
	var routes []model.Route
	if keys == nil {
		routes = routeTable.overlayIn(t).list(func(r model.Route) bool { return r.RegionID == regionID })
	} else {
		for _, key := range sortDistinct(keys) {
			if r, ok := routeTable.overlayIn(t).get(pairOf(key, regionID)); ok {
				routes = append(routes, r)
			}
		}
	}
	var apps []string
	for _, r := range routes {
		apps = append(apps, r.AppID)
	}
	of, targets := setOf(apps), map[string][]model.RouteTarget{}
	for _, row := range t.placedRows(func(r model.Topology) bool {
		return r.RegionID == regionID && of[r.AppID] && r.Weight > 0 && r.Status != stopped
	}) {
		_, pinned := pinTable.overlayIn(t).get(pair{row.AppID, row.DeploymentID})
		targets[row.AppID] = append(targets[row.AppID], model.RouteTarget{DeploymentID: row.DeploymentID, Weight: row.Weight, Workload: row.Workload, Pinned: pinned})
	}
	var items []model.DesiredItem
	for _, r := range routes {
		items = append(items, model.DesiredItem{
			RegionID: regionID, Kind: model.KindRoutes, Key: r.AppID, Generation: r.Generation, Route: r, Targets: targets[r.AppID],
		})
	}
	slices.SortFunc(items, func(a, b model.DesiredItem) int { return cmp.Compare(a.Key, b.Key) })
	return items
}
