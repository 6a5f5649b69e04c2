package memory

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

func (t *tx) ListObserved(appIDs []string) ([]model.Observed, error) {
	of := setOf(appIDs)
	rows := observedTable.overlayIn(t).list(func(o model.Observed) bool { return of[o.AppID] })
	slices.SortFunc(rows, func(a, b model.Observed) int { return byPlace(observedTable.key(a), observedTable.key(b)) })
	return rows, nil
}

func (t *tx) GetObserved(deployments map[string][]string) ([]model.Observed, error) {
	var rows []model.Observed
	for _, at := range pairsOf(deployments) {
		if o, ok := observedTable.overlayIn(t).get(at); ok {
			rows = append(rows, o)
		}
	}
	return rows, nil
}

func (t *tx) PutObserved(rows []model.Observed) error {
	for _, o := range rows {
		stored, ok, err := observedTable.overlayIn(t).lock(observedTable.key(o))
		if err != nil {
			return err
		}
		if ok && o.Guard <= stored.Guard {
			continue
		}
		t.touchApp(o.AppID)
		if err := observedTable.overlayIn(t).put(o); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) ListRouteObserved(appIDs []string) ([]model.RouteObserved, error) {
	of := setOf(appIDs)
	rows := routeObservedTable.overlayIn(t).list(func(o model.RouteObserved) bool { return of[o.AppID] })
	slices.SortFunc(rows, func(a, b model.RouteObserved) int {
		return byPlace(routeObservedTable.key(a), routeObservedTable.key(b))
	})
	return rows, nil
}

func (t *tx) PutRouteObserved(rows []model.RouteObserved) error {
	for _, o := range rows {
		stored, ok, err := routeObservedTable.overlayIn(t).lock(routeObservedTable.key(o))
		if err != nil {
			return err
		}
		if ok && o.Guard <= stored.Guard {
			continue
		}
		t.touchApp(o.AppID)
		if err := routeObservedTable.overlayIn(t).put(o); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) ResetObserved(regionID string, before model.Guard, now int64) ([]string, error) {
	rows, err := observedTable.overlayIn(t).lockList(func(o model.Observed) bool { return o.RegionID == regionID && o.Guard < before })
	if err != nil {
		return nil, err
	}
	var apps []string
	for _, o := range rows {
		o.Phase, o.Deleted = int32(agentv1.AppliedState_PHASE_PENDING), false
		o.Pending, o.Running, o.Ready, o.Draining, o.Fail = 0, 0, 0, 0, 0
		o.ReadyReplicas, o.Doomed, o.RoleCounts = 0, 0, ""
		o.UpdatedAt = now
		if err := observedTable.overlayIn(t).put(o); err != nil {
			return nil, err
		}
		t.touchApp(o.AppID)
		apps = append(apps, o.AppID)
	}
	return sortDistinct(apps), nil
}
