package mysql

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

func routeFromRow(r gen.AppRoute) (model.Route, error) {
	m := model.Route{
		WorkspaceID: r.WorkspaceID, AppID: r.AppID, RegionID: r.Region, Generation: r.Generation, UpdatedAt: r.UpdatedAt,
		Policy: blobOrNil([]byte(r.Policy.String)), Keys: blobOrNil([]byte(r.AppKeys.String)),
	}
	return m, decodeJSON(r.Hosts, &m.Hosts)
}

func (t *tx) ListRoutes(appIDs []string) ([]model.Route, error) {
	rows, err := list(t, "list routes", "", routeFromRow)(inChunks(sortDistinct(appIDs), func(ids []string) ([]gen.AppRoute, error) {
		return t.q.ListRoutesOfApps(t.ctx, ids)
	}))
	slices.SortFunc(rows, func(a, b model.Route) int {
		return cmp.Or(cmp.Compare(a.RegionID, b.RegionID), cmp.Compare(a.AppID, b.AppID))
	})
	return rows, err
}

var (
	routeColumns = []string{"app_id", "region", "workspace_id", "hosts", "generation", "updated_at", "policy", "cross_region", "app_keys"}
	putRoutes    = insertInto("PutRoutes", "app_routes", routeColumns...).replacingColumns(routeColumns[2:]...)
)

func (t *tx) PutRoutes(rows []model.Route) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b model.Route) int {
		return cmp.Or(cmp.Compare(a.AppID, b.AppID), cmp.Compare(a.RegionID, b.RegionID))
	})
	hosts := make(map[*model.Route][]byte, len(rows))
	ptrs := make([]*model.Route, len(rows))
	for i := range rows {
		r := &rows[i]
		b, err := encodeJSON(r.Hosts)
		if err != nil {
			return t.queryError(err, "put route of app", r.AppID)
		}
		ptrs[i], hosts[r] = r, b
		t.touchApp(r.AppID)
	}
	return t.queryError(runBulk(t, t.db, putRoutes, ptrs, func(args []any, r *model.Route) []any {
		return append(args, r.AppID, r.RegionID, r.WorkspaceID, hosts[r], r.Generation, r.UpdatedAt, r.Policy, int32(r.CrossRegion()), r.Keys)
	}), "put routes", "")
}

func (t *tx) CrossRegion() ([]model.AppRegion, error) {
	return list(t, "find apps that cross regions", "", func(r gen.CrossRegionRow) (model.AppRegion, error) {
		at := model.Region{WorkspaceID: r.Owner, GatewayURL: r.GatewayUrl, ApprovedGatewayURL: r.ApprovedGatewayUrl}
		m := model.AppRegion{
			AppID: r.AppID, RegionID: r.Region, WorkspaceID: r.WorkspaceID, AppName: r.AppName,
			RegionName: r.Name, GatewayURL: r.GatewayUrl, Platform: r.Owner == "", GatewayApproved: at.GatewayApproved(), Ready: r.Ready > 0, AtZero: r.Replicas == 0,
		}
		return m, decodeJSON(r.Hosts, &m.Hosts)
	})(t.q.CrossRegion(t.ctx))
}
