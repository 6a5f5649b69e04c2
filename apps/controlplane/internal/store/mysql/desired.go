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
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// DesiredItems runs the same few queries for one key as for many keys of many regions.
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

// EachDesired runs one query for a page, and another if specs name secrets. A third query reads the region's routes,
// once for the region. Their targets and pins are in the rows of deployments.
func (t *tx) EachDesired(regionID string, size int, page func([]model.DesiredItem) error) error {
	targets, err := t.eachDeployment(regionID, size, page)
	if err != nil {
		return err
	}
	return t.eachRoute(regionID, size, targets, page)
}

// eachDeployment passes all deployments to page, and returns the targets of routes by app.
func (t *tx) eachDeployment(regionID string, size int, page func([]model.DesiredItem) error) (map[string][]model.RouteTarget, error) {
	approved, err := t.primary.ApprovedQuarantine(t.ctx, []string{regionID})
	if err != nil {
		return nil, t.queryError(err, "read quarantine of region", regionID)
	}
	targets, placed := map[string][]model.RouteTarget{}, map[string]bool{}
	for after, more := "", true; more; {
		rows, err := t.primary.DesiredOfRegion(t.ctx, gen.DesiredOfRegionParams{Region: regionID, After: after, Limit: limitOrAll(size)})
		if err != nil {
			return nil, t.queryError(err, "read deployments of region", regionID)
		}
		items := make([]model.DesiredItem, 0, len(rows))
		for i := range rows {
			r := &rows[i]
			after = r.DeploymentID
			if r.Weight > 0 && windlassv1.TopologyStatus(r.Status) != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				targets[r.AppID] = append(targets[r.AppID], model.RouteTarget{
					DeploymentID: r.DeploymentID, Weight: r.Weight, Workload: r.Workload, Pinned: r.Pinned,
				})
			}
			if len(approved) > 0 {
				placed[r.DeploymentID] = true
			}
			item, ok, err := specs(nil).itemFromRow(r) // each deployment has one row in the region
			if err != nil {
				return nil, wrapError(err, "read deployments of region", regionID)
			}
			if ok {
				items = append(items, item)
			}
		}
		if err := t.fillSecrets(items); err != nil {
			return nil, err
		}
		if more = len(rows) == size; !more {
			for _, q := range approved {
				if !placed[q.WorkloadKey] { // a key with a topology row has its state from that row
					items = append(items, releasedItem(q))
				}
			}
		}
		if err := handOut(items, page); err != nil {
			return nil, err
		}
	}
	return targets, nil
}

// handOut passes the items to page, unless there are none.
func handOut(items []model.DesiredItem, page func([]model.DesiredItem) error) error {
	if len(items) == 0 {
		return nil
	}
	return page(items)
}

// specs are decoded deployments by id. A deployment that runs in several regions is in several rows, but is
// decoded once.
type specs map[string]*model.Deployment

// itemFromRow returns the desired item of one row. ok is false for a row that should run but has no deployment, so
// that it does not block its region.
func (s specs) itemFromRow(r *gen.DesiredOfRegionRow) (model.DesiredItem, bool, error) {
	row := model.Topology{
		WorkspaceID: r.WorkspaceID, AppID: r.AppID, DeploymentID: r.DeploymentID, RegionID: r.Region,
		Replicas: r.Replicas, Weight: r.Weight, Generation: r.Generation, Status: windlassv1.TopologyStatus(r.Status),
		Reason: r.Reason, Traceparent: r.Traceparent, Workload: r.Workload, WorkloadVersion: r.WorkloadVersion, Transferred: r.HandedOver,
		MaxUnavailable: r.MaxUnavailable, Roles: r.PoolRoles, Moving: r.Moving,
	}
	switch {
	case !row.Assigned():
		return row.Tombstone(), true, nil
	case !r.Version.Valid || !r.App.Valid:
		return model.DesiredItem{}, false, nil
	}
	d := s[r.DeploymentID]
	if d == nil {
		read, err := deploymentFromRow(gen.Deployment{
			ID: r.DeploymentID, WorkspaceID: r.WorkspaceID, AppID: r.AppID, Version: r.Version.Int32,
			Spec: []byte(r.Spec.String), SpecHash: []byte(r.SpecHash.String), MadeAs: []byte(r.MadeAs.String),
			RolesMade: []byte(r.RolesMade.String), ResolvedImage: r.ResolvedImage.String,
		})
		if err != nil {
			return model.DesiredItem{}, false, err
		}
		if d = &read; s != nil {
			s[r.DeploymentID] = d
		}
	}
	policy, err := scalingPolicy(r.Scaling)
	if err != nil {
		return model.DesiredItem{}, false, fmt.Errorf("decode scaling of app %q: %w", r.AppID, err)
	}
	var alone model.AloneFacts
	if policy != nil {
		alone = model.AloneFacts{
			Instances: r.MaxInstances, GPUs: r.MaxGpus, Closed: r.RegionOwner == "" && !r.Granted,
			Ceiling: model.Ceiling{Usage: model.Usage{Instances: r.HasInstances, GPUs: r.HasGpus}, CountedAt: r.CountedAt},
		}
		if alone.Holds, err = model.DecodeHolds(r.Holds); err != nil {
			return model.DesiredItem{}, false, fmt.Errorf("decode holds of app %q: %w", r.AppID, err)
		}
	}
	return model.DesiredItem{
		RegionID: r.Region, Kind: model.KindDeployment, Key: r.DeploymentID, Generation: r.Generation, Topology: row, Deployment: *d, Scaling: policy, Alone: alone,
		App: model.AppNames{
			Name: r.App.String, ProjectID: r.ProjectID.String, EnvironmentID: r.EnvironmentID.String,
			ProjectName: r.Project, EnvironmentName: r.Environment,
		},
	}, true, nil
}

func (t *tx) eachRoute(regionID string, size int, targets map[string][]model.RouteTarget, page func([]model.DesiredItem) error) error {
	for after, more := "", true; more; {
		rows, err := t.primary.RoutesOfRegion(t.ctx, gen.RoutesOfRegionParams{Region: regionID, After: after, Limit: limitOrAll(size)})
		if err != nil {
			return t.queryError(err, "read routes of region", regionID)
		}
		items := make([]model.DesiredItem, len(rows))
		for i, r := range rows {
			after = r.AppID
			if items[i], err = routeItem(r, targets[r.AppID]); err != nil {
				return wrapError(err, "read routes of region", regionID)
			}
		}
		more = len(rows) == size
		if err := handOut(items, page); err != nil {
			return err
		}
	}
	return nil
}

func routeItem(r gen.AppRoute, targets []model.RouteTarget) (model.DesiredItem, error) {
	m, err := routeFromRow(r)
	return model.DesiredItem{
		RegionID: m.RegionID, Kind: model.KindRoutes, Key: m.AppID, Generation: m.Generation, Route: m, Targets: targets,
	}, err
}

// releasedItem returns the tombstone of an approved key in quarantine.
func releasedItem(r gen.RegionQuarantine) model.DesiredItem {
	return model.DesiredItem{
		RegionID: r.Region, Kind: model.KindDeployment, Key: r.WorkloadKey, Generation: r.Generation + 1, Delete: true,
		Deployment: model.Deployment{ID: r.WorkloadKey},
	}
}

// inOrder sorts the items by region and key.
func inOrder(items []model.DesiredItem) {
	sort.Slice(items, func(i, j int) bool { // by index, because an item is large
		a, b := &items[i], &items[j]
		return cmp.Or(cmp.Compare(a.RegionID, b.RegionID), cmp.Compare(a.Key, b.Key)) < 0
	})
}

// wanted are keys by region.
type wanted struct {
	regions []string
	keys    map[string][]string
	pairs   map[pair]bool
}

// pair is a key in a region.
type pair struct{ region, key string }

func wantedOf(keys map[string][]string) wanted {
	w := wanted{keys: keys, pairs: map[pair]bool{}}
	for _, region := range slices.Sorted(maps.Keys(keys)) {
		if len(keys[region]) == 0 {
			continue
		}
		w.regions = append(w.regions, region)
		for _, key := range keys[region] {
			w.pairs[pair{region, key}] = true
		}
	}
	return w
}

// together is the number of regions that one query reads. The query looks for each key in each region, and most regions
// want the same keys. The limit bounds the lookups that find no row, or a row that was not requested.
const together = 16

// rowsOf reads the wanted rows of a table whose primary key is (key, region).
func rowsOf[R any](w wanted, at func(R) pair, of func(keys, regions []string) ([]R, error)) ([]R, error) {
	var rows []R
	for regions := range slices.Chunk(w.regions, together) {
		var keys []string
		for _, region := range regions {
			keys = append(keys, w.keys[region]...)
		}
		for part := range slices.Chunk(sortDistinct(keys), inChunk/together) {
			some, err := of(part, regions)
			if err != nil {
				return nil, err
			}
			rows = append(rows, some...)
		}
	}
	return slices.DeleteFunc(rows, func(r R) bool { return !w.pairs[at(r)] }), nil
}

// desiredDeployments returns items of topology rows, and tombstones of approved keys without a row.
func (t *tx) desiredDeployments(w wanted) ([]model.DesiredItem, error) {
	rows, err := rowsOf(w,
		func(r gen.DesiredOfKeysRow) pair { return pair{r.Region, r.DeploymentID} },
		func(ids, regions []string) ([]gen.DesiredOfKeysRow, error) {
			return t.primary.DesiredOfKeys(t.ctx, gen.DesiredOfKeysParams{DeploymentIds: ids, Regions: regions})
		})
	if err != nil {
		return nil, t.queryError(err, "read deployments", "")
	}
	items := make([]model.DesiredItem, 0, len(rows))
	known := make(map[pair]bool, len(rows))
	specs := specs{}
	for i := range rows {
		known[pair{rows[i].Region, rows[i].DeploymentID}] = true
		item, ok, err := specs.itemFromRow((*gen.DesiredOfRegionRow)(&rows[i]))
		if err != nil {
			return nil, wrapError(err, "read deployments", "")
		}
		if ok {
			items = append(items, item)
		}
	}
	if err := t.fillSecrets(items); err != nil {
		return nil, err
	}
	released, err := t.releasedItems(w, known)
	return append(items, released...), err
}

type secretKey struct{ environment, name string }

// fillSecrets sets the versions of secrets: the version in the spec, or else the newest version.
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
			EnvironmentIds: sortDistinct(environments), Names: sortDistinct(names),
		})
		if err != nil {
			return t.queryError(err, "read secret versions", "")
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
				continue // deleted: the agent reports SecretUnavailable
			}
			if it.SecretVersions == nil {
				it.SecretVersions = map[string]int32{}
			}
			it.SecretVersions[ref.GetSecret()] = version
		}
	}
	return nil
}

// releasedItems returns tombstones for approved keys of the regions' quarantine. A key with a topology row already
// has a desired state.
func (t *tx) releasedItems(w wanted, known map[pair]bool) ([]model.DesiredItem, error) {
	if len(known) == len(w.pairs) {
		return nil, nil
	}
	rows, err := t.primary.ApprovedQuarantine(t.ctx, w.regions)
	if err != nil {
		return nil, t.queryError(err, "read quarantine of region", w.regions[0])
	}
	var items []model.DesiredItem
	for _, r := range rows {
		at := pair{r.Region, r.WorkloadKey}
		if !known[at] && w.pairs[at] {
			items = append(items, releasedItem(r))
		}
	}
	return items, nil
}

func (t *tx) desiredRoutes(w wanted) ([]model.DesiredItem, error) {
	rows, err := rowsOf(w,
		func(r gen.AppRoute) pair { return pair{r.Region, r.AppID} },
		func(ids, regions []string) ([]gen.AppRoute, error) {
			return t.primary.GetRoutes(t.ctx, gen.GetRoutesParams{AppIds: ids, Regions: regions})
		})
	if err != nil {
		return nil, t.queryError(err, "read routes", "")
	}
	targets, err := rowsOf(w,
		func(r gen.TargetsOfAppsRow) pair { return pair{r.Region, r.AppID} },
		func(ids, regions []string) ([]gen.TargetsOfAppsRow, error) {
			return t.primary.TargetsOfApps(t.ctx, gen.TargetsOfAppsParams{AppIds: ids, Regions: regions})
		})
	if err != nil {
		return nil, t.queryError(err, "read targets of routes", "")
	}
	targetsOf := map[pair][]model.RouteTarget{}
	for _, r := range targets {
		at := pair{r.Region, r.AppID}
		targetsOf[at] = append(targetsOf[at], model.RouteTarget{DeploymentID: r.DeploymentID, Weight: r.Weight, Workload: r.Workload, Pinned: r.Pins > 0})
	}
	return list(t, "read routes", "", func(r gen.AppRoute) (model.DesiredItem, error) {
		return routeItem(r, targetsOf[pair{r.Region, r.AppID}])
	})(rows, nil)
}
