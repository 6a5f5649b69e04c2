package mysql

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model/override"
	"github.com/windlass-run/windlass/db/gen"
)

// DesiredItems costs the same few queries for one key and for all of many regions.
func (t *tx) DesiredItems(kind model.ChangeKind, keys map[string][]string) ([]model.DesiredItem, error) {
	var items []model.DesiredItem
	var err error
	switch w := wantedOf(keys); kind {
	case model.KindDeployment:
		items, err = t.desiredDeployments(w)
	case model.KindRoutes:
		items, err = t.desiredRoutes(w)
	default:
		return nil, fmt.Errorf("store: desired items: no kind %d", kind)
	}
	inOrder(items)
	return items, err
}

// inOrder sorts by region and key. What is read of one region mostly is in order, and
// comparing items by value would copy a kilobyte each time.
func inOrder(items []model.DesiredItem) {
	at := func(i, j int) int {
		a, b := &items[i], &items[j]
		return cmp.Or(cmp.Compare(a.RegionID, b.RegionID), cmp.Compare(a.Key, b.Key))
	}
	for i := 1; i < len(items); i++ {
		if at(i-1, i) > 0 {
			sort.Slice(items, func(i, j int) bool { return at(i, j) < 0 })
			return
		}
	}
}

// wanted are keys of regions, and regions of which all keys are.
type wanted struct {
	whole   []string
	regions []string
	keys    map[string][]string
	pairs   map[pair]bool
}

// pair is a key in a region.
type pair struct{ region, key string }

func wantedOf(keys map[string][]string) wanted {
	w := wanted{keys: keys, pairs: map[pair]bool{}}
	for _, region := range slices.Sorted(maps.Keys(keys)) {
		switch list := keys[region]; {
		case list == nil:
			w.whole = append(w.whole, region)
		case len(list) > 0:
			w.regions = append(w.regions, region)
			for _, key := range list {
				w.pairs[pair{region, key}] = true
			}
		}
	}
	return w
}

// together is how many regions are asked for in one query. It looks for each key in each
// of them: what regions want is mostly the same, and where it is not, this bounds the
// looks that find nothing, or what nobody asked for.
const together = 16

// rowsOf reads what is wanted of a table whose primary key is (key, region).
func rowsOf[R any](w wanted, at func(R) pair, whole func(region string) ([]R, error), of func(keys, regions []string) ([]R, error)) ([]R, error) {
	var rows []R
	for regions := range slices.Chunk(w.regions, together) {
		var keys []string
		for _, region := range regions {
			keys = append(keys, w.keys[region]...)
		}
		for part := range slices.Chunk(distinct(keys), inChunk/together) {
			some, err := of(part, regions)
			if err != nil {
				return nil, err
			}
			rows = append(rows, some...)
		}
	}
	rows = slices.DeleteFunc(rows, func(r R) bool { return !w.pairs[at(r)] })
	for _, region := range w.whole {
		all, err := whole(region)
		if err != nil {
			return nil, err
		}
		rows = append(rows, all...)
	}
	return rows, nil
}

func (t *tx) topologyOf(w wanted) ([]model.Topology, error) {
	return list(t, "read topology", "", topology)(rowsOf(w,
		func(r gen.DeploymentTopology) pair { return pair{r.Region, r.DeploymentID} },
		func(region string) ([]gen.DeploymentTopology, error) {
			return t.primary.TopologyOfRegion(t.ctx, region)
		},
		func(ids, regions []string) ([]gen.DeploymentTopology, error) {
			return t.primary.GetTopology(t.ctx, gen.GetTopologyParams{DeploymentIds: ids, Regions: regions})
		}))
}

// desiredDeployments: topology, then what its rows point to, then quarantine for
// keys that have no topology.
func (t *tx) desiredDeployments(w wanted) ([]model.DesiredItem, error) {
	placed, err := t.topologyOf(w)
	if err != nil {
		return nil, err
	}
	items := make([]model.DesiredItem, 0, len(placed))
	known := make(map[pair]bool, len(placed))
	for _, p := range placed {
		known[pair{p.RegionID, p.DeploymentID}] = true
		item := model.DesiredItem{RegionID: p.RegionID, Kind: model.KindDeployment, Key: p.DeploymentID, Generation: p.Generation, Topology: p}
		if !p.Told() {
			item = p.Tombstone()
		}
		items = append(items, item)
	}
	if items, err = t.fillDeployments(items, w); err != nil {
		return nil, err
	}
	released, err := t.released(w, known)
	return append(items, released...), err
}

// fillDeployments adds deployment, app, names and secret versions to items that run. A
// row that points to nothing is left out: it must not hold up its region.
func (t *tx) fillDeployments(items []model.DesiredItem, w wanted) ([]model.DesiredItem, error) {
	deploymentOf, appOf := map[string]*model.Deployment{}, map[string]model.AppNames{}
	for _, region := range w.whole {
		if err := t.runningIn(region, deploymentOf, appOf); err != nil {
			return nil, err
		}
	}
	var deployments, apps []string
	for i := range items {
		if it := &items[i]; !it.Delete && !slices.Contains(w.whole, it.RegionID) {
			deployments, apps = append(deployments, it.Key), append(apps, it.Topology.AppID)
		}
	}
	if err := t.namedBy(deployments, apps, deploymentOf, appOf); err != nil {
		return nil, err
	}
	whole := items[:0]
	for i := range items {
		it := &items[i]
		if !it.Delete {
			d := deploymentOf[it.Key]
			app, has := appOf[it.Topology.AppID]
			if d == nil || !has {
				continue
			}
			it.Deployment, it.App = *d, app
		}
		whole = append(whole, *it)
	}
	return whole, t.fillSecrets(whole)
}

// runningIn reads the deployments that the region is to run, and their apps.
func (t *tx) runningIn(region string, deployments map[string]*model.Deployment, apps map[string]model.AppNames) error {
	rows, err := t.primary.RunningInRegion(t.ctx, region)
	if err != nil {
		return t.err(err, "read deployments of region", region)
	}
	for _, r := range rows {
		d, err := deployment(r.Deployment)
		if err != nil {
			return wrap(err, "read deployments of region", region)
		}
		deployments[d.ID] = &d
		apps[d.AppID] = model.AppNames{
			Name: r.App, ProjectID: r.ProjectID, EnvironmentID: r.EnvironmentID,
			ProjectName: r.Project, EnvironmentName: r.Environment,
		}
	}
	return nil
}

// namedBy reads deployments and apps by their ids.
func (t *tx) namedBy(deploymentIDs, appIDs []string, deployments map[string]*model.Deployment, apps map[string]model.AppNames) error {
	found, err := list(t, "read deployments", "", deployment)(inChunks(distinct(deploymentIDs), func(ids []string) ([]gen.Deployment, error) {
		return t.primary.GetDeployments(t.ctx, ids)
	}))
	if err != nil {
		return err
	}
	for i := range found {
		deployments[found[i].ID] = &found[i]
	}
	rows, err := inChunks(distinct(appIDs), func(ids []string) ([]gen.NamesOfAppsRow, error) {
		return t.primary.NamesOfApps(t.ctx, ids)
	})
	if err != nil {
		return t.err(err, "read apps", "")
	}
	for _, r := range rows {
		apps[r.ID] = model.AppNames{
			Name: r.Name, ProjectID: r.ProjectID, EnvironmentID: r.EnvironmentID,
			ProjectName: r.Project, EnvironmentName: r.Environment,
		}
	}
	return nil
}

type secretKey struct{ environment, name string }

// fillSecrets tells the versions of the secrets: those that specs name, and else the newest.
func (t *tx) fillSecrets(items []model.DesiredItem) error {
	var environments, names []string
	for i := range items {
		it := &items[i]
		for _, ref := range override.In(it.Deployment.Spec, it.RegionID).GetSecrets() {
			if ref.GetVersion() == 0 {
				environments = append(environments, it.App.EnvironmentID)
				names = append(names, ref.GetSecret())
			}
		}
	}
	latest := map[secretKey]int32{}
	if len(names) > 0 {
		rows, err := t.primary.LatestSecretVersions(t.ctx, gen.LatestSecretVersionsParams{
			EnvironmentIds: distinct(environments), Names: distinct(names),
		})
		if err != nil {
			return t.err(err, "read secret versions", "")
		}
		for _, r := range rows {
			latest[secretKey{r.EnvironmentID, r.Name}] = r.Version
		}
	}
	for i := range items {
		it := &items[i]
		for _, ref := range override.In(it.Deployment.Spec, it.RegionID).GetSecrets() {
			version := ref.GetVersion()
			if version == 0 {
				version = latest[secretKey{it.App.EnvironmentID, ref.GetSecret()}]
			}
			if version == 0 {
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

// released returns tombstones for approved keys of the regions' quarantine. A key with
// a topology row has a desired state already.
func (t *tx) released(w wanted, known map[pair]bool) ([]model.DesiredItem, error) {
	if len(w.whole) == 0 && len(known) == len(w.pairs) {
		return nil, nil
	}
	regions := slices.Concat(w.whole, w.regions)
	rows, err := t.primary.ApprovedQuarantine(t.ctx, regions)
	if err != nil {
		return nil, t.err(err, "read quarantine of region", regions[0])
	}
	var items []model.DesiredItem
	for _, r := range rows {
		at := pair{r.Region, r.WorkloadKey}
		if known[at] || !w.pairs[at] && !slices.Contains(w.whole, r.Region) {
			continue
		}
		items = append(items, model.DesiredItem{
			RegionID: r.Region, Kind: model.KindDeployment, Key: r.WorkloadKey, Generation: r.Generation + 1, Delete: true,
			Deployment: model.Deployment{ID: r.WorkloadKey},
		})
	}
	return items, nil
}

func (t *tx) desiredRoutes(w wanted) ([]model.DesiredItem, error) {
	rows, err := rowsOf(w,
		func(r gen.AppRoute) pair { return pair{r.Region, r.AppID} },
		func(region string) ([]gen.AppRoute, error) { return t.primary.RoutesOfRegion(t.ctx, region) },
		func(ids, regions []string) ([]gen.AppRoute, error) {
			return t.primary.GetRoutes(t.ctx, gen.GetRoutesParams{AppIds: ids, Regions: regions})
		})
	if err != nil {
		return nil, t.err(err, "read routes", "")
	}
	targets, err := rowsOf(w,
		func(r gen.TargetsOfAppsRow) pair { return pair{r.Region, r.AppID} },
		func(region string) ([]gen.TargetsOfAppsRow, error) {
			rows, err := t.primary.TargetsOfRegion(t.ctx, region)
			all := make([]gen.TargetsOfAppsRow, len(rows))
			for i, r := range rows {
				all[i] = gen.TargetsOfAppsRow(r)
			}
			return all, err
		},
		func(ids, regions []string) ([]gen.TargetsOfAppsRow, error) {
			return t.primary.TargetsOfApps(t.ctx, gen.TargetsOfAppsParams{AppIds: ids, Regions: regions})
		})
	if err != nil {
		return nil, t.err(err, "read targets of routes", "")
	}
	targetsOf := map[pair][]model.RouteTarget{}
	for _, r := range targets {
		at := pair{r.Region, r.AppID}
		targetsOf[at] = append(targetsOf[at], model.RouteTarget{DeploymentID: r.DeploymentID, Weight: r.Weight, Workload: r.Workload, Pinned: r.Pins > 0})
	}
	return list(t, "read routes", "", func(r gen.AppRoute) (model.DesiredItem, error) {
		m, err := route(r)
		return model.DesiredItem{
			RegionID: m.RegionID, Kind: model.KindRoutes, Key: m.AppID, Generation: m.Generation, Route: m,
			Targets: targetsOf[pair{m.RegionID, m.AppID}],
		}, err
	})(rows, nil)
}
