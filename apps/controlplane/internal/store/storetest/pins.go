package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testPins(t *testing.T, setup setup) {
	pins := func(w *fixture, appIDs ...string) []model.Pin {
		w.t.Helper()
		return read(w, func(tx store.Tx) ([]model.Pin, error) { return tx.ListPins(appIDs) })
	}
	put := func(w *fixture, p model.Pin) {
		w.t.Helper()
		w.update(func(tx store.Tx) error { return tx.PutPin(p) })
	}
	pin := func(w *fixture, app model.App, version int32) model.Pin {
		return model.Pin{
			WorkspaceID: w.ws, AppID: app.ID, DeploymentID: w.insertDeployment(app, version).ID, Version: version, Weight: 10,
			By: "ada", Why: "to compare in Zürich", CreatedAt: now, UpdatedAt: now + 1, ResourceVersion: now + 2,
			Regions: []model.PinRegion{
				{RegionID: "reg_1", Replicas: 2, State: windlassv1.PinRegion_STATE_SERVING, Since: now},
				{RegionID: "reg_2", Replicas: 1, State: windlassv1.PinRegion_STATE_FAILED, Since: now, Lost: true, Again: true, Below: 7, Reason: "CrashLoop", Message: "exit code 1"},
			},
		}
	}

	t.Run("an app's pins are what was put last, by version", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		require.Empty(t, pins(w, app.ID))
		second, first, elsewhere := pin(w, app, 2), pin(w, app, 1), pin(w, other, 1)
		for _, p := range []model.Pin{second, first, elsewhere} {
			put(w, p)
		}
		require.Equal(t, []model.Pin{first, second}, pins(w, app.ID, "app_none"))
		first.Weight, first.Removing, first.Regions = 30, true, nil
		put(w, first)
		require.Equal(t, []model.Pin{first, second}, pins(w, app.ID))
		require.Len(t, pins(w, app.ID, other.ID), 3)

		w.update(func(tx store.Tx) error { return tx.DeletePin(app.ID, first.DeploymentID) })
		w.update(func(tx store.Tx) error { return tx.DeletePin(app.ID, first.DeploymentID) })
		require.Equal(t, []model.Pin{second}, pins(w, app.ID))
		require.Equal(t, []model.Pin{elsewhere}, pins(w, other.ID))
	})

	t.Run("a reader may change the rows that it read", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		p := pin(w, app, 1)
		put(w, p.Clone())
		pins(w, app.ID)[0].Regions[0].Replicas = 9
		require.Equal(t, []model.Pin{p}, pins(w, app.ID))
	})

	t.Run("a route's targets tell which of them are pinned", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		p := pin(w, app, 1)
		live, pinned := newTopology(w.insertDeployment(app, 2), region, 1), newTopology(model.Deployment{ID: p.DeploymentID, AppID: app.ID, WorkspaceID: w.ws}, region, 1)
		live.Weight, pinned.Weight = 100, 10
		live.Status, pinned.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
		w.put(live, pinned)
		put(w, p)
		w.update(func(tx store.Tx) error {
			return tx.PutRoutes([]model.Route{{WorkspaceID: w.ws, AppID: app.ID, RegionID: region, Hosts: []string{"chat.example"}, Generation: 1, UpdatedAt: now}})
		})
		want := map[string]model.RouteTarget{
			live.DeploymentID:   {DeploymentID: live.DeploymentID, Weight: 100},
			pinned.DeploymentID: {DeploymentID: pinned.DeploymentID, Weight: 10, Pinned: true},
		}
		for _, keys := range [][]string{nil, {app.ID}} {
			found := read(w, func(tx store.Tx) ([]model.DesiredItem, error) {
				if keys == nil {
					return allDesired(w.t, tx, region, model.KindRoutes)
				}
				return tx.DesiredItems(model.KindRoutes, map[string][]string{region: keys})
			})
			require.Len(t, found, 1)
			require.Len(t, found[0].Targets, 2)
			for _, target := range found[0].Targets {
				require.Equal(t, want[target.DeploymentID], target)
			}
		}
	})

	t.Run("a version that is pinned is kept, and a forgotten app's pins are not", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		p := pin(w, app, 1)
		w.update(func(tx store.Tx) error {
			return tx.UpdateDeployment(model.Deployment{ID: p.DeploymentID, WorkspaceID: w.ws, AppID: app.ID, Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED})
		})
		put(w, p)
		app.LatestVersion = 9
		trim := func() int {
			return write(w, func(tx store.Tx) (int, error) { return tx.TrimVersions(app, 1, 9) })
		}
		require.Zero(t, trim())
		w.update(func(tx store.Tx) error { return tx.DeletePin(app.ID, p.DeploymentID) })
		require.Equal(t, 1, trim())

		put(w, p)
		app.DeletedAt = now
		w.update(func(tx store.Tx) error { return tx.UpdateApp(app) })
		require.Equal(t, 1, write(w, func(tx store.Tx) (int, error) { return tx.DeleteApps(now+1, 9) }))
		require.Empty(t, pins(w, app.ID))
	})
}
