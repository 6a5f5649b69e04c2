package memory

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	starting = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING
	started  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
	stopping = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
	stopped  = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED
)

func (t *tx) LockTopology(appIDs ...string) ([]model.Topology, error) {
	of := setOf(appIDs)
	rows, err := topologyTable.overlayIn(t).lockList(func(r model.Topology) bool { return of[r.AppID] })
	return inPlaces(rows), err
}

func (t *tx) ListTopology(appIDs []string) ([]model.Topology, error) {
	of := setOf(appIDs)
	return t.placedRows(func(r model.Topology) bool { return of[r.AppID] }), nil
}

// placedRows lists rows sorted by (deployment, region).
func (t *tx) placedRows(match func(model.Topology) bool) []model.Topology {
	return inPlaces(topologyTable.overlayIn(t).list(match))
}

func inPlaces(rows []model.Topology) []model.Topology {
	slices.SortFunc(rows, func(a, b model.Topology) int { return byPlace(topologyTable.key(a), topologyTable.key(b)) })
	return rows
}

func (t *tx) ListTopologyByEnvironment(environmentID string) ([]model.Topology, error) {
	of := map[string]bool{}
	for _, a := range appTable.overlayIn(t).list(func(a model.App) bool { return a.EnvironmentID == environmentID }) {
		of[a.ID] = true
	}
	rows := t.placedRows(func(r model.Topology) bool { return of[r.AppID] && r.Status != stopped })
	slices.SortStableFunc(rows, func(a, b model.Topology) int { return cmp.Compare(a.AppID, b.AppID) })
	return rows, nil
}

func (t *tx) CountTopologyByRegion(regionID string) (int, error) {
	return len(topologyTable.overlayIn(t).list(func(r model.Topology) bool { return r.RegionID == regionID && r.Status != stopped })), nil
}

func (t *tx) CountTopology() ([]model.TopologyCount, error) {
	var counts []model.TopologyCount
	at := map[model.TopologyCount]int{}
	for _, r := range topologyTable.overlayIn(t).list(func(r model.Topology) bool { return r.Status != stopped }) {
		key := model.TopologyCount{RegionID: r.RegionID, Status: r.Status}
		i, ok := at[key]
		if !ok {
			i = len(counts)
			at[key] = i
			counts = append(counts, key)
		}
		counts[i].Rows++
	}
	return counts, nil
}

func (t *tx) CountActiveRollouts() (model.ActiveRolloutCount, error) {
	var count model.ActiveRolloutCount
	for _, a := range appTable.overlayIn(t).list(func(a model.App) bool { return a.RolloutID != "" && a.DeletedAt == 0 }) {
		r, ok := rolloutTable.overlayIn(t).get(a.RolloutID)
		if !ok {
			continue
		}
		if count.Rollouts == 0 || r.CreatedAt < count.OldestAt {
			count.OldestAt = r.CreatedAt
		}
		count.Rollouts++
	}
	return count, nil
}

func (t *tx) PutTopology(rows []model.Topology) error {
	seen := map[pair]bool{}
	for _, r := range rows {
		key := topologyTable.key(r)
		if seen[key] {
			return fmt.Errorf("store: put topology %q in %q twice in one call", r.DeploymentID, r.RegionID)
		}
		seen[key] = true
		stored, ok, err := topologyTable.overlayIn(t).lock(key)
		if err != nil {
			return err
		}
		if ok && stored.Generation > r.Generation {
			return conflictError(fmt.Sprintf("topology at generation %d, stored is %d, of", r.Generation, stored.Generation), key)
		}
		t.touchApp(r.AppID)
		if err := topologyTable.overlayIn(t).put(r); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) DeleteTopology(stoppedBefore int64, limit int) (int, error) {
	rows, err := topologyTable.overlayIn(t).lockList(func(r model.Topology) bool { return r.Status == stopped && r.UpdatedAt < stoppedBefore })
	if err != nil {
		return 0, err
	}
	slices.SortFunc(rows, func(a, b model.Topology) int { return cmp.Compare(a.UpdatedAt, b.UpdatedAt) })
	rows = firstRows(rows, limit)
	for _, r := range rows {
		if err := topologyTable.overlayIn(t).delete(topologyTable.key(r)); err != nil {
			return 0, err
		}
		if err := observedTable.overlayIn(t).delete(topologyTable.key(r)); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) AppsInRegion(regionID string) ([]string, error) {
	var ids []string
	for _, r := range topologyTable.overlayIn(t).list(func(r model.Topology) bool { return r.RegionID == regionID && r.Status != stopped }) {
		ids = append(ids, r.AppID)
	}
	return sortDistinct(ids), nil
}

func (t *tx) GetAssignments(deployments map[string][]string) ([]model.Assignment, error) {
	var rows []model.Assignment
	for _, at := range pairsOf(deployments) {
		if r, ok := topologyTable.overlayIn(t).get(at); ok {
			app, _ := appTable.overlayIn(t).get(r.AppID)
			rows = append(rows, model.Assignment{Topology: r, UnderWay: app.RolloutID != ""})
		}
	}
	return rows, nil
}

func (t *tx) ListRoutes(appIDs []string) ([]model.Route, error) {
	of := setOf(appIDs)
	rows := routeTable.overlayIn(t).list(func(r model.Route) bool { return of[r.AppID] })
	slices.SortFunc(rows, func(a, b model.Route) int {
		return cmp.Or(cmp.Compare(a.RegionID, b.RegionID), cmp.Compare(a.AppID, b.AppID))
	})
	return rows, nil
}

func (t *tx) CrossRegion() ([]model.AppRegion, error) {
	var out []model.AppRegion
	for _, route := range routeTable.overlayIn(t).list(func(r model.Route) bool {
		return r.CrossRegion() > windlassv1.RoutingPolicy_CROSS_REGION_OFF
	}) {
		at, ok := regionTable.overlayIn(t).get(route.RegionID)
		if !ok {
			continue
		}
		app, ok := appTable.overlayIn(t).get(route.AppID)
		if !ok {
			continue
		}
		here := model.AppRegion{
			AppID: route.AppID, RegionID: at.ID, WorkspaceID: route.WorkspaceID, AppName: app.Name, Hosts: slices.Clone(route.Hosts),
			RegionName: at.Name, GatewayURL: at.GatewayURL, Platform: at.WorkspaceID == "", GatewayApproved: at.GatewayApproved(),
		}
		served := topologyTable.overlayIn(t).list(func(r model.Topology) bool {
			return r.AppID == route.AppID && r.RegionID == at.ID && r.Weight > 0 && (r.Status == starting || r.Status == started)
		})
		here.AtZero = len(served) > 0
		for _, r := range served {
			here.AtZero = here.AtZero && r.Replicas == 0
			seen, ok := observedTable.overlayIn(t).get(pair{r.DeploymentID, r.RegionID})
			here.Ready = here.Ready || ok && !seen.Deleted && seen.Ready > 0
		}
		out = append(out, here)
	}
	slices.SortFunc(out, func(a, b model.AppRegion) int {
		return cmp.Or(cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.RegionID, b.RegionID))
	})
	return out, nil
}

func (t *tx) PutRoutes(rows []model.Route) error {
	for _, r := range rows {
		t.touchApp(r.AppID)
		if err := routeTable.overlayIn(t).put(r); err != nil {
			return err
		}
	}
	return nil
}
