package mysql

import (
	"cmp"
	"fmt"
	"slices"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

// DesiredItems costs the same few queries for one key and for all of a region.
func (t *tx) DesiredItems(regionID string, kind model.ChangeKind, keys []string) ([]model.DesiredItem, error) {
	if keys != nil && len(keys) == 0 {
		return nil, nil
	}
	switch kind {
	case model.KindDeployment:
		return t.desiredDeployments(regionID, keys)
	case model.KindRoutes:
		return t.desiredRoutes(regionID, keys)
	}
	return nil, fmt.Errorf("store: desired items of region %q: no kind %d", regionID, kind)
}

// desiredDeployments: topology, then what its rows point to, then quarantine for
// keys that have no topology.
func (t *tx) desiredDeployments(regionID string, keys []string) ([]model.DesiredItem, error) {
	placed, err := t.placed(regionID, keys)
	if err != nil {
		return nil, err
	}
	items := make([]model.DesiredItem, 0, len(placed))
	known := make(map[string]bool, len(placed))
	var run, apps []string
	for _, p := range placed {
		known[p.DeploymentID] = true
		item := model.DesiredItem{Kind: model.KindDeployment, Key: p.DeploymentID, Generation: p.Generation}
		if p.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING ||
			p.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			item.Delete = true
			item.Deployment = model.Deployment{ID: p.DeploymentID, WorkspaceID: p.WorkspaceID, AppID: p.AppID}
		} else {
			item.Topology = p
			run, apps = append(run, p.DeploymentID), append(apps, p.AppID)
		}
		items = append(items, item)
	}
	if items, err = t.fillDeployments(items, run, apps); err != nil {
		return nil, err
	}
	released, err := t.released(regionID, keys, known)
	if err != nil {
		return nil, err
	}
	items = append(items, released...)
	slices.SortFunc(items, func(a, b model.DesiredItem) int { return cmp.Compare(a.Key, b.Key) })
	return items, nil
}

func (t *tx) placed(regionID string, keys []string) ([]model.Topology, error) {
	conv := list(t, "read topology of region", regionID, topology)
	if keys == nil {
		return conv(t.primary.TopologyOfRegion(t.ctx, regionID))
	}
	return conv(t.topologyOf(regionID, keys))
}

// fillDeployments adds deployment, app, names and secret versions to items that run. A
// row that points to nothing is left out: it must not hold up its region.
func (t *tx) fillDeployments(items []model.DesiredItem, deploymentIDs, appIDs []string) ([]model.DesiredItem, error) {
	if len(deploymentIDs) == 0 {
		return items, nil
	}
	deployments, err := list(t, "read deployments", "", deployment)(inChunks(distinct(deploymentIDs), func(ids []string) ([]gen.Deployment, error) {
		return t.primary.GetDeployments(t.ctx, ids)
	}))
	if err != nil {
		return nil, err
	}
	apps, err := list(t, "read apps", "", app)(inChunks(distinct(appIDs), func(ids []string) ([]gen.App, error) {
		return t.primary.GetApps(t.ctx, ids)
	}))
	if err != nil {
		return nil, err
	}
	deploymentOf := make(map[string]model.Deployment, len(deployments))
	for _, d := range deployments {
		deploymentOf[d.ID] = d
	}
	appOf := make(map[string]model.App, len(apps))
	for _, a := range apps {
		appOf[a.ID] = a
	}
	whole := items[:0]
	for i := range items {
		it := &items[i]
		if !it.Delete {
			var hasDeployment, hasApp bool
			it.Deployment, hasDeployment = deploymentOf[it.Key]
			it.App, hasApp = appOf[it.Topology.AppID]
			if !hasDeployment || !hasApp {
				continue
			}
		}
		whole = append(whole, *it)
	}
	if err := t.fillNames(whole); err != nil {
		return nil, err
	}
	return whole, t.fillSecrets(whole)
}

// fillNames names the environments that the items belong to, and their projects.
func (t *tx) fillNames(items []model.DesiredItem) error {
	var ids []string
	for i := range items {
		if !items[i].Delete {
			ids = append(ids, items[i].App.EnvironmentID)
		}
	}
	rows, err := inChunks(distinct(ids), func(ids []string) ([]gen.NamesOfEnvironmentsRow, error) {
		return t.primary.NamesOfEnvironments(t.ctx, ids)
	})
	if err != nil {
		return t.err(err, "read names of environments", "")
	}
	names := make(map[string]gen.NamesOfEnvironmentsRow, len(rows))
	for _, r := range rows {
		names[r.ID] = r
	}
	for i := range items {
		if it := &items[i]; !it.Delete {
			it.ProjectName, it.EnvironmentName = names[it.App.EnvironmentID].Project, names[it.App.EnvironmentID].Environment
		}
	}
	return nil
}

type secretKey struct{ environment, name string }

func (t *tx) fillSecrets(items []model.DesiredItem) error {
	var environments, names []string
	for i := range items {
		it := &items[i]
		for _, ref := range it.Deployment.Spec.GetSecrets() {
			environments = append(environments, it.App.EnvironmentID)
			names = append(names, ref.GetSecret())
		}
	}
	if len(names) == 0 {
		return nil
	}
	rows, err := t.primary.LatestSecretVersions(t.ctx, gen.LatestSecretVersionsParams{
		EnvironmentIds: distinct(environments), Names: distinct(names),
	})
	if err != nil {
		return t.err(err, "read secret versions", "")
	}
	latest := make(map[secretKey]int32, len(rows))
	for _, r := range rows {
		latest[secretKey{r.EnvironmentID, r.Name}] = r.Version
	}
	for i := range items {
		it := &items[i]
		for _, ref := range it.Deployment.Spec.GetSecrets() {
			version, ok := latest[secretKey{it.App.EnvironmentID, ref.GetSecret()}]
			if !ok {
				continue // deleted: the agent says SecretUnavailable
			}
			if it.SecretVersions == nil {
				it.SecretVersions = map[string]int32{}
			}
			it.SecretVersions[ref.GetSecret()] = version
		}
	}
	return nil
}

// released returns tombstones for approved keys of the region's quarantine. A
// key with a topology row has a desired state already.
func (t *tx) released(regionID string, keys []string, known map[string]bool) ([]model.DesiredItem, error) {
	rows, err := t.primary.ApprovedQuarantine(t.ctx, regionID)
	if err != nil {
		return nil, t.err(err, "read quarantine of region", regionID)
	}
	asked := make(map[string]bool, len(keys))
	for _, k := range keys {
		asked[k] = true
	}
	var items []model.DesiredItem
	for _, r := range rows {
		if known[r.WorkloadKey] || keys != nil && !asked[r.WorkloadKey] {
			continue
		}
		items = append(items, model.DesiredItem{
			Kind: model.KindDeployment, Key: r.WorkloadKey, Generation: r.Generation + 1, Delete: true,
			Deployment: model.Deployment{ID: r.WorkloadKey},
		})
	}
	return items, nil
}

func (t *tx) desiredRoutes(regionID string, keys []string) ([]model.DesiredItem, error) {
	var rows []gen.AppRoute
	var targets []gen.TargetsOfAppsRow
	var err error
	if keys == nil {
		if rows, err = t.primary.RoutesOfRegion(t.ctx, regionID); err == nil {
			targets, err = t.allTargets(regionID)
		}
	} else {
		rows, err = inChunks(distinct(keys), func(ids []string) ([]gen.AppRoute, error) {
			return t.primary.RoutesOfRegionByKey(t.ctx, gen.RoutesOfRegionByKeyParams{Region: regionID, AppIds: ids})
		})
		if err == nil {
			targets, err = inChunks(distinct(keys), func(ids []string) ([]gen.TargetsOfAppsRow, error) {
				return t.primary.TargetsOfApps(t.ctx, gen.TargetsOfAppsParams{Region: regionID, AppIds: ids})
			})
		}
	}
	if err != nil {
		return nil, t.err(err, "read routes of region", regionID)
	}
	targetsOf := map[string][]model.RouteTarget{}
	for _, r := range targets {
		targetsOf[r.AppID] = append(targetsOf[r.AppID], model.RouteTarget{DeploymentID: r.DeploymentID, Weight: r.Weight})
	}
	return list(t, "read routes of region", regionID, func(r gen.AppRoute) (model.DesiredItem, error) {
		m, err := route(r)
		return model.DesiredItem{
			Kind: model.KindRoutes, Key: m.AppID, Generation: m.Generation, Route: m, Targets: targetsOf[m.AppID],
		}, err
	})(rows, nil)
}

func (t *tx) allTargets(regionID string) ([]gen.TargetsOfAppsRow, error) {
	rows, err := t.primary.TargetsOfRegion(t.ctx, regionID)
	all := make([]gen.TargetsOfAppsRow, len(rows))
	for i, r := range rows {
		all[i] = gen.TargetsOfAppsRow(r)
	}
	return all, err
}
