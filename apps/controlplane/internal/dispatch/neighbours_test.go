package dispatch_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/dispatch"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// An agent gets the regions to which an app may hand its requests over: all of them at the beginning of a stream, and
// then changes. It gets no other apps.
func TestNeighbours_AreOtherRegionsInWhichTheAppIsReady(t *testing.T) {
	h := setup(t, time.Minute, func(c *dispatch.Config) { c.Neighbours = 5 * time.Millisecond })
	// serve lets both regions serve app_1, with ready instances in reg_2.
	serve := func(cross windlassv1.RoutingPolicy_CrossRegion, ready int32) {
		h.update(func(tx store.Tx) error {
			for _, id := range []string{region, "reg_2"} {
				if err := tx.PutTopology([]model.Topology{{
					WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_1", RegionID: id, Generation: 1, Weight: 100, Status: starting,
				}}); err != nil {
					return err
				}
				if err := tx.PutRoutes([]model.Route{{
					WorkspaceID: "ws_1", AppID: "app_1", RegionID: id, Generation: 1, Policy: model.EncodeRouting(&windlassv1.RoutingPolicy{CrossRegion: cross}),
				}}); err != nil {
					return err
				}
			}
			return tx.PutObserved([]model.Observed{{WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_1", RegionID: "reg_2", Guard: model.NewGuard(1, time.Now().UnixNano()), Ready: ready}})
		})
	}
	h.update(func(tx store.Tx) error {
		if err := tx.InsertRegion(model.Region{ID: "reg_2", WorkspaceID: "ws_1", Name: "eu-west-1", ResourceVersion: 1}); err != nil {
			return err
		}
		_, _, err := tx.StartSession("reg_2", "session-2", 1000, model.Region{GatewayURL: "https://eu.example.com"})
		return err
	})
	h.deploy("dep_1", 1, starting)
	serve(windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER, 1)

	var has *neighbours.Picture
	until := func(w *watcher, regions ...string) {
		t.Helper()
		for {
			n := w.step().GetNeighbours()
			if n == nil {
				continue
			}
			has = has.With(n)
			require.Equal(t, "us-east-1", n.Region)
			var got []string
			for _, r := range has.Apps["app_1"].GetRegions() {
				got = append(got, r.Region+" "+r.GatewayUrl)
			}
			if len(got) == len(regions) {
				require.Equal(t, regions, got)
				return
			}
		}
	}
	w := newWatcher(t, "session-1")
	cancel := w.connect(h)
	until(w, "eu-west-1 https://eu.example.com")
	serve(windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER, 0)
	until(w)
	serve(windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER, 2)
	until(w, "eu-west-1 https://eu.example.com")
	cancel()

	has = nil
	w = newWatcher(t, "session-1")
	cancel = w.connect(h)
	until(w, "eu-west-1 https://eu.example.com")

	// An app whose requests may no longer cross regions is removed, even if it is the last such app.
	gone := func(w *watcher) {
		t.Helper()
		for len(has.Apps) > 0 {
			if n := w.step().GetNeighbours(); n != nil {
				has = has.With(n)
			}
		}
	}
	was := has
	serve(windlassv1.RoutingPolicy_CROSS_REGION_OFF, 2)
	gone(w)
	cancel()

	// An agent that was disconnected meanwhile also gets the removal.
	has = was
	w = newWatcher(t, "session-1")
	cancel = w.connect(h)
	defer cancel()
	gone(w)
}

// A region of the workspace in which the app does not run gets the app's hosts and ready regions, so that it can hand
// over requests. A region of another workspace gets nothing.
func TestNeighbours_HaveAppsThatDoNotRunInTheRegion(t *testing.T) {
	h := setup(t, time.Minute, func(c *dispatch.Config) { c.Neighbours = 5 * time.Millisecond })
	h.update(func(tx store.Tx) error {
		if err := errors.Join(
			tx.InsertWorkspace(model.Workspace{ID: "ws_2", Name: "w2", ResourceVersion: 1}),
			tx.InsertRegion(model.Region{ID: "reg_2", WorkspaceID: "ws_1", Name: "eu-west-1", ResourceVersion: 1}),
			tx.InsertRegion(model.Region{ID: "reg_3", WorkspaceID: "ws_2", Name: "eu-west-1", ResourceVersion: 1}),
			tx.InsertApp(model.App{ID: "app_2", WorkspaceID: "ws_2", EnvironmentID: "env_2", Name: "b", ResourceVersion: 1}),
		); err != nil {
			return err
		}
		for _, at := range [][3]string{{"ws_1", "app_1", "reg_2"}, {"ws_2", "app_2", "reg_3"}} {
			if _, _, err := tx.StartSession(at[2], "session-"+at[2], 1000, model.Region{GatewayURL: "https://" + at[2] + ".example.com"}); err != nil {
				return err
			}
			row := model.Topology{WorkspaceID: at[0], AppID: at[1], DeploymentID: "dep_" + at[1], RegionID: at[2], Generation: 1, Weight: 100, Status: starting}
			route := model.Route{
				WorkspaceID: at[0], AppID: at[1], RegionID: at[2], Generation: 1, Hosts: []string{at[1] + ".test"},
				Policy: model.EncodeRouting(&windlassv1.RoutingPolicy{CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER}),
			}
			if err := errors.Join(tx.PutTopology([]model.Topology{row}), tx.PutRoutes([]model.Route{route}), tx.PutObserved([]model.Observed{{
				WorkspaceID: at[0], AppID: at[1], DeploymentID: row.DeploymentID, RegionID: at[2], Guard: model.NewGuard(1, time.Now().UnixNano()), Ready: 1,
			}})); err != nil {
				return err
			}
		}
		return nil
	})
	w := newWatcher(t, "session-1")
	disconnect := w.connect(h)
	defer disconnect()
	var n *gatewayv1.Neighbours
	for n == nil {
		n = w.step().GetNeighbours()
	}
	require.Equal(t, "us-east-1", n.Region)
	require.Len(t, n.Apps, 1)
	app := n.Apps[0]
	require.Equal(t, []any{"app_1", "a", []string{"app_1.test"}}, []any{app.AppId, app.AppName, app.Hosts})
	require.Len(t, app.Regions, 1)
	require.Equal(t, "eu-west-1 https://reg_2.example.com", app.Regions[0].Region+" "+app.Regions[0].GatewayUrl)
}
