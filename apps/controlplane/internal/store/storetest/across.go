package storetest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testCrossRegion(t *testing.T, setup setup) {
	t.Run("all regions that route an app whose requests cross regions, whether or not anything serves there", func(t *testing.T) {
		w := setup(t)
		ids, app, off, silent := w.newRegions(4), w.insertApp("chat"), w.insertApp("off"), w.insertApp("silent")
		ids[1] = ids[0] + "-own"
		w.update(func(tx store.Tx) error {
			return tx.InsertRegion(model.Region{ID: ids[1], WorkspaceID: w.ws, Name: "own", ResourceVersion: 1})
		})
		policy := func(c windlassv1.RoutingPolicy_CrossRegion) []byte {
			return model.EncodeRouting(&windlassv1.RoutingPolicy{CrossRegion: c})
		}
		row := func(d model.Deployment, region string, weight int32, status windlassv1.TopologyStatus) model.Topology {
			r := newTopology(d, region, 1)
			r.Weight, r.Status = weight, status
			return r
		}
		const starting, started = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
		asleep := func(r model.Topology) model.Topology {
			r.Replicas = 0
			return r
		}
		d1, d2, d3, d4 := w.insertDeployment(app, 1), w.insertDeployment(app, 2), w.insertDeployment(off, 1), w.insertDeployment(silent, 1)
		w.put(row(d1, ids[0], 80, started), row(d2, ids[0], 20, starting), asleep(row(d1, ids[1], 100, started)),
			row(d1, ids[2], 0, started), row(d2, ids[3], 100, stopped), row(d3, ids[0], 100, started), row(d4, ids[0], 100, started))
		var routes []model.Route
		for _, region := range ids {
			routes = append(routes, model.Route{
				WorkspaceID: w.ws, AppID: app.ID, RegionID: region, Generation: 1, UpdatedAt: now, Hosts: []string{"chat.test", "chat.example.com"},
				Policy: policy(windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER),
			})
		}
		routes = append(routes,
			model.Route{WorkspaceID: w.ws, AppID: off.ID, RegionID: ids[0], Generation: 1, UpdatedAt: now, Policy: policy(windlassv1.RoutingPolicy_CROSS_REGION_OFF)},
			model.Route{WorkspaceID: w.ws, AppID: silent.ID, RegionID: ids[0], Generation: 1, UpdatedAt: now})
		ready := func(d model.Deployment, region string, n int32, deleted bool) model.Observed {
			o := newReport(d, region, 7)
			o.Ready, o.Deleted = n, deleted
			return o
		}
		w.update(func(tx store.Tx) error {
			if _, _, err := tx.StartSession(ids[1], "s1", 1000, model.Region{GatewayURL: "https://gw.example.com"}); err != nil {
				return err
			}
			if err := tx.PutObserved([]model.Observed{ready(d1, ids[0], 0, false), ready(d2, ids[0], 2, false), ready(d1, ids[1], 3, true)}); err != nil {
				return err
			}
			return tx.PutRoutes(routes)
		})
		got := func() []model.AppRegion {
			return read(w, func(tx store.Tx) ([]model.AppRegion, error) { return tx.CrossRegion() })
		}
		want := []model.AppRegion{
			{AppID: app.ID, RegionID: ids[0], RegionName: "region-00", Platform: true, Ready: true},
			{AppID: app.ID, RegionID: ids[1], RegionName: "own", GatewayURL: "https://gw.example.com", AtZero: true},
			{AppID: app.ID, RegionID: ids[2], RegionName: "region-02", Platform: true},
			{AppID: app.ID, RegionID: ids[3], RegionName: "region-03", Platform: true},
		}
		for i := range want {
			want[i].WorkspaceID, want[i].AppName, want[i].Hosts = w.ws, "chat", []string{"chat.test", "chat.example.com"}
		}
		require.Equal(t, want, got())

		// An approval is of one address. Other changes of the region keep it.
		set := func(change func(*model.Region)) {
			w.update(func(tx store.Tx) error {
				r, err := tx.LockRegion(ids[1])
				if err != nil {
					return err
				}
				change(&r)
				return tx.UpdateRegion(r)
			})
		}
		set(func(r *model.Region) { r.ApprovedGatewayURL = "https://gw.example.com" })
		set(func(r *model.Region) { r.Message = "busy" })
		want[1].GatewayApproved = true
		require.Equal(t, want, got())
		set(func(r *model.Region) { r.ApprovedGatewayURL = "https://gw.example.org" })
		want[1].GatewayApproved = false
		require.Equal(t, want, got())

		// The policy goes with the route.
		routes[0].Policy, routes[4].Policy = nil, policy(windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER)
		w.update(func(tx store.Tx) error { return tx.PutRoutes(routes) })
		want = []model.AppRegion{want[1], want[2], want[3], {AppID: off.ID, RegionID: ids[0], RegionName: "region-00", Platform: true, WorkspaceID: w.ws, AppName: "off"}}
		require.Equal(t, want, got())
	})

	t.Run("a workspace has its own regions and granted regions", func(t *testing.T) {
		w := setup(t)
		region := func(id, workspace, name string) model.Region {
			return model.Region{ID: id, WorkspaceID: workspace, Name: name, ResourceVersion: 1}
		}
		w.update(func(tx store.Tx) error {
			for _, r := range []model.Region{region("reg_ours", w.ws, "ours"), region("reg_shared", "", "shared"), region("reg_alone", "", "alone"), region("reg_theirs", "ws_other", "theirs")} {
				if err := tx.InsertRegion(r); err != nil {
					return err
				}
			}
			return errors.Join(tx.GrantRegion("reg_shared", w.ws, now), tx.GrantRegion("reg_shared", "ws_other", now), tx.GrantRegion("reg_alone", "ws_third", now))
		})
		of := func(workspaces ...string) []model.WorkspaceRegion {
			return read(w, func(tx store.Tx) ([]model.WorkspaceRegion, error) { return tx.RegionsOf(workspaces) })
		}
		ours := []model.WorkspaceRegion{{WorkspaceID: w.ws, RegionID: "reg_ours", RegionName: "ours"}, {WorkspaceID: w.ws, RegionID: "reg_shared", RegionName: "shared", Platform: true}}
		theirs := []model.WorkspaceRegion{{WorkspaceID: "ws_other", RegionID: "reg_shared", RegionName: "shared", Platform: true}, {WorkspaceID: "ws_other", RegionID: "reg_theirs", RegionName: "theirs"}}
		require.Equal(t, ours, of(w.ws))
		require.ElementsMatch(t, append(ours, theirs...), of("ws_other", w.ws, "ws_none"))
		require.Empty(t, of())
	})
}
