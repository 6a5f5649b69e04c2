package storetest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const stopped = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED

func testTopology(t *testing.T, setup setup) {
	topology := func(w *fixture, apps ...string) []model.Topology {
		w.t.Helper()
		return read(w, func(tx store.Tx) ([]model.Topology, error) { return tx.ListTopology(apps) })
	}

	t.Run("a stale generation never wins", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		w.put(newTopology(d, region, 5))
		stale := newTopology(d, region, 4)
		stale.Replicas = 99
		fresh := newTopology(d, region, 1)
		fresh.DeploymentID = "dep_other"
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.PutTopology([]model.Topology{fresh, stale}) })
		require.Equal(t, []model.Topology{newTopology(d, region, 5)}, topology(w, app.ID))
		same := newTopology(d, region, 5)
		same.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
		w.put(same)
		require.Equal(t, []model.Topology{same}, topology(w, app.ID), "a status changes within a generation")
	})

	t.Run("a stale generation never wins against a row that was locked or put before", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(2), w.insertApp("chat"), w.insertApp("other")
		d, o := w.insertDeployment(app, 1), w.insertDeployment(other, 1)
		w.put(newTopology(d, ids[0], 5), newTopology(o, ids[0], 5))
		put := func(tx store.Tx, rows ...model.Topology) error { return tx.PutTopology(rows) }
		locked := func(rows ...model.Topology) func(store.Tx) error {
			return func(tx store.Tx) error {
				if _, err := tx.LockTopology(app.ID); err != nil {
					return err
				}
				if err := put(tx, newTopology(d, ids[0], 6), newTopology(d, ids[1], 2)); err != nil {
					return err
				}
				return put(tx, rows...)
			}
		}
		w.requireFails(model.ErrConflict, locked(newTopology(d, ids[0], 5)))
		w.requireFails(model.ErrConflict, locked(newTopology(d, ids[1], 1)))
		w.requireFails(model.ErrConflict, locked(newTopology(d, ids[0], 6), newTopology(o, ids[0], 4)))
		require.Equal(t, []model.Topology{newTopology(d, ids[0], 5)}, topology(w, app.ID))
		w.update(locked(newTopology(d, ids[0], 7), newTopology(d, ids[1], 2), newTopology(o, ids[0], 5)))
		require.Equal(t, []model.Topology{newTopology(d, ids[0], 7), newTopology(d, ids[1], 2)}, topology(w, app.ID))
	})

	t.Run("a stale generation never wins among concurrent writers", func(t *testing.T) {
		w := setup(t)
		ids, app := w.newRegions(2), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		w.put(newTopology(d, ids[0], 1), newTopology(d, ids[1], 1))
		const writers = 10
		for _, err := range w.runUpdates(writers, func(i int, tx store.Tx) error {
			row := func(region string) model.Topology {
				p := newTopology(d, region, int64(2+i))
				p.Replicas = int32(2 + i)
				return p
			}
			return tx.PutTopology([]model.Topology{row(ids[0]), row(ids[1])})
		}) {
			if err != nil {
				require.ErrorIs(t, err, model.ErrConflict)
			}
		}
		for _, r := range topology(w, app.ID) {
			require.EqualValues(t, 1+writers, r.Generation)
			require.EqualValues(t, r.Generation, r.Replicas, "a row is of one writer as a whole")
		}
	})

	t.Run("the highest generation is left, whatever the order of puts", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		rapid.Check(t, func(t *rapid.T) {
			d := w.newDeployment(app, 1)
			var top int64
			for _, g := range rapid.SliceOfN(rapid.Int64Range(1, 6), 1, 6).Draw(t, "generations") {
				err := w.s.Update(w.t.Context(), func(tx store.Tx) error { return tx.PutTopology([]model.Topology{newTopology(d, region, g)}) })
				if g < top {
					require.ErrorIs(t, err, model.ErrConflict)
					continue
				}
				require.NoError(t, err)
				top = g
			}
			rows := read(w, func(tx store.Tx) ([]model.Assignment, error) {
				return tx.GetAssignments(map[string][]string{region: {d.ID}})
			})
			require.Equal(t, top, rows[0].Generation)
		})
	})

	t.Run("rows are sorted by deployment and region", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(2), w.insertApp("chat"), w.insertApp("other")
		d1, d2, d3 := w.insertDeployment(app, 1), w.insertDeployment(app, 2), w.insertDeployment(other, 1)
		rows := []model.Topology{newTopology(d1, ids[0], 1), newTopology(d1, ids[1], 1), newTopology(d2, ids[0], 1), newTopology(d3, ids[1], 1)}
		w.put(rows[3], rows[2], rows[1], rows[0])
		require.Equal(t, rows, topology(w, app.ID, other.ID, app.ID))
		require.Equal(t, rows[:3], write(w, func(tx store.Tx) ([]model.Topology, error) { return tx.LockTopology(app.ID) }))
		require.Empty(t, topology(w))
		require.Empty(t, topology(w, "app_x"))
	})

	t.Run("lists for decisions leave out stopped rows", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(2), w.insertApp("chat"), w.insertApp("other")
		elsewhere := w.newApp("elsewhere")
		elsewhere.EnvironmentID = "env_2"
		w.update(func(tx store.Tx) error { return tx.InsertApp(elsewhere) })
		d1, d2, d3, d4 := w.insertDeployment(app, 1), w.insertDeployment(other, 1), w.insertDeployment(app, 2), w.insertDeployment(elsewhere, 1)
		gone := newTopology(d3, ids[0], 2)
		gone.Status = stopped
		w.put(newTopology(d1, ids[0], 1), newTopology(d2, ids[0], 1), newTopology(d1, ids[1], 1), gone, newTopology(d4, ids[0], 1))
		require.Equal(t, []model.Topology{newTopology(d1, ids[0], 1), newTopology(d1, ids[1], 1), newTopology(d2, ids[0], 1)},
			read(w, func(tx store.Tx) ([]model.Topology, error) { return tx.ListTopologyByEnvironment(w.env) }))
		require.Equal(t, 3, read(w, func(tx store.Tx) (int, error) { return tx.CountTopologyByRegion(ids[0]) }))
		counted := 0
		for _, c := range read(w, func(tx store.Tx) ([]model.TopologyCount, error) { return tx.CountTopology() }) {
			require.NotEqual(t, stopped, c.Status)
			if c.RegionID == ids[0] {
				counted += c.Rows
			}
		}
		require.Equal(t, 3, counted)
		require.Equal(t, []string{app.ID, other.ID, elsewhere.ID}, read(w, func(tx store.Tx) ([]string, error) { return tx.AppsInRegion(ids[0]) }))
		require.Equal(t, []string{app.ID}, read(w, func(tx store.Tx) ([]string, error) { return tx.AppsInRegion(ids[1]) }))
	})

	t.Run("assignments are deployments that are or were assigned to the regions", func(t *testing.T) {
		w := setup(t)
		ids, app, rolled := w.newRegions(2), w.insertApp("chat"), w.insertApp("rolled")
		d1, d2, d3, d4 := w.insertDeployment(app, 1), w.insertDeployment(app, 2), w.insertDeployment(app, 3), w.insertDeployment(rolled, 1)
		gone := newTopology(d2, ids[0], 2)
		gone.Status = stopped
		w.put(newTopology(d1, ids[0], 1), gone, newTopology(d3, ids[1], 1), newTopology(d4, ids[1], 1))
		rolled = read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, rolled.ID) })
		rolled.RolloutID = "rol_1"
		w.update(func(tx store.Tx) error { return tx.UpdateApp(rolled) })
		get := func(of map[string][]string) []model.Assignment {
			return read(w, func(tx store.Tx) ([]model.Assignment, error) { return tx.GetAssignments(of) })
		}
		settled := func(rows ...model.Topology) (out []model.Assignment) {
			for _, t := range rows {
				out = append(out, model.Assignment{Topology: t})
			}
			return out
		}
		require.Equal(t, settled(newTopology(d1, ids[0], 1), gone), get(map[string][]string{ids[0]: {d2.ID, d1.ID, d3.ID, "dep_x"}}))
		require.Equal(t, settled(gone, newTopology(d3, ids[1], 1)), get(map[string][]string{ids[0]: {d2.ID, d3.ID}, ids[1]: {d3.ID, d1.ID}, "reg_x": {d1.ID}}),
			"each region has its own keys")
		require.Equal(t, append(settled(newTopology(d3, ids[1], 1)), model.Assignment{Topology: newTopology(d4, ids[1], 1), UnderWay: true}),
			get(map[string][]string{ids[1]: {d3.ID, d4.ID}}), "one of the apps has a rollout in flight")
		require.Empty(t, get(map[string][]string{ids[0]: nil, ids[1]: {}}))
	})

	t.Run("only stopped rows past retention are deleted and up to the limit", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		var rows []model.Topology
		for v := range int32(5) {
			r := newTopology(w.insertDeployment(app, v+1), region, 1)
			r.UpdatedAt = now + int64(v)
			r.Status = stopped
			rows = append(rows, r)
		}
		rows[0].Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING
		w.put(rows...)
		forget := func(n int) int {
			return write(w, func(tx store.Tx) (int, error) { return tx.DeleteTopology(now+4, n) })
		}
		require.Equal(t, 2, forget(2))
		require.Equal(t, 1, forget(2))
		require.Equal(t, 0, forget(2))
		require.Equal(t, []model.Topology{rows[0], rows[4]}, topology(w, app.ID))
	})

	t.Run("a stopped row that is started again at the same moment is not forgotten", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		for g := range int64(10) {
			gone := newTopology(d, region, 2*g+1)
			gone.Status = stopped
			w.put(gone)
			for _, err := range w.runUpdates(2, func(i int, tx store.Tx) error {
				if i == 0 {
					_, err := tx.DeleteTopology(now+1, 10)
					return err
				}
				return tx.PutTopology([]model.Topology{newTopology(d, region, 2*g+2)})
			}) {
				// A row that was deleted between the read and the write may be a conflict.
				if err != nil {
					require.ErrorIs(t, err, model.ErrConflict)
				}
			}
			rows := topology(w, app.ID)
			require.Len(t, rows, 1)
			require.NotEqual(t, stopped, rows[0].Status)
		}
	})

	t.Run("routes are replaced whole and sorted by region", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(3), w.insertApp("chat"), w.insertApp("other")
		route := func(a model.App, region string, generation int64, hosts ...string) model.Route {
			return model.Route{WorkspaceID: w.ws, AppID: a.ID, RegionID: region, Hosts: hosts, Generation: generation, UpdatedAt: now}
		}
		rows := []model.Route{route(app, ids[2], 1, "a"), route(app, ids[0], 1, "a", "b"), route(app, ids[1], 1, "a"), route(other, ids[0], 1, "o")}
		w.update(func(tx store.Tx) error { return tx.PutRoutes(rows) })
		w.update(func(tx store.Tx) error { return tx.PutRoutes([]model.Route{route(app, ids[1], 2, "c", "d")}) })
		list := func(apps ...string) []model.Route {
			return read(w, func(tx store.Tx) ([]model.Route, error) { return tx.ListRoutes(apps) })
		}
		require.Equal(t, []model.Route{rows[1], route(app, ids[1], 2, "c", "d"), rows[0]}, list(app.ID))
		require.Len(t, list(app.ID, other.ID), 4)
		require.Empty(t, list())

		with := route(app, ids[1], 3, "c")
		with.Policy = []byte{1, 2}
		w.update(func(tx store.Tx) error { return tx.PutRoutes([]model.Route{with}) })
		require.Equal(t, []model.Route{rows[1], with, rows[0]}, list(app.ID))
		w.update(func(tx store.Tx) error { return tx.PutRoutes([]model.Route{route(app, ids[1], 4, "c")}) })
		require.Equal(t, []model.Route{rows[1], route(app, ids[1], 4, "c"), rows[0]}, list(app.ID), "a policy goes when the route has none")
	})
}

func testObserved(t *testing.T, setup setup) {
	t.Run("a stale guard never wins", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d, d2 := w.insertDeployment(app, 1), w.insertDeployment(app, 2)
		put := func(rows ...model.Observed) {
			w.update(func(tx store.Tx) error { return tx.PutObserved(rows) })
		}
		put(newReport(d, region, 5))
		changed := newReport(d, region, 5)
		changed.Message = "the same guard again"
		put(changed, newReport(d2, region, 1))
		put(newReport(d, region, 4))
		require.Equal(t, []model.Observed{newReport(d, region, 5), newReport(d2, region, 1)},
			read(w, func(tx store.Tx) ([]model.Observed, error) { return tx.ListObserved([]string{app.ID}) }),
			"a stale row loses silently, and alone")
		put(newReport(d, region, 6))
		require.Equal(t, []model.Observed{newReport(d, region, 6)},
			read(w, func(tx store.Tx) ([]model.Observed, error) {
				return tx.GetObserved(map[string][]string{region: {d.ID, "dep_x", d.ID}})
			}))
	})

	t.Run("a later session's first report beats an earlier session's last", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		for _, g := range []model.Guard{model.NewGuard(1, 1<<40-1), model.NewGuard(2, 1), model.NewGuard(1, 1<<40-1)} {
			w.update(func(tx store.Tx) error { return tx.PutObserved([]model.Observed{newReport(d, region, g)}) })
		}
		rows := read(w, func(tx store.Tx) ([]model.Observed, error) {
			return tx.GetObserved(map[string][]string{region: {d.ID}})
		})
		require.Equal(t, model.NewGuard(2, 1), rows[0].Guard)
	})

	t.Run("a stale guard never wins among concurrent batches in any order", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		var ds []model.Deployment
		for v := range int32(4) {
			ds = append(ds, w.insertDeployment(app, v+1))
		}
		const writers, each = 6, 5
		for _, err := range runTogether(writers, func(i int) error {
			for n := range each {
				guard := model.Guard(1 + (i+n*writers+7*i)%(writers*each)) // some order, different for each
				err := w.s.Update(t.Context(), func(tx store.Tx) error {
					var observed []model.Observed
					var instances []model.Instance
					for _, d := range ds {
						observed = append(observed, newReport(d, region, guard))
						instances = append(instances, newInstance(d, region, "ins_"+d.ID, guard))
					}
					if i%2 == 1 {
						slices.Reverse(observed)
						slices.Reverse(instances)
					}
					if err := tx.PutObserved(observed); err != nil {
						return err
					}
					if err := tx.PutRouteObserved([]model.RouteObserved{newAck(app, region, guard)}); err != nil {
						return err
					}
					return tx.PutInstances(instances)
				})
				if err != nil {
					return err
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
		var top model.Guard
		for i := range writers {
			for n := range each {
				top = max(top, model.Guard(1+(i+n*writers+7*i)%(writers*each)))
			}
		}
		for _, d := range ds {
			require.Equal(t, []model.Observed{newReport(d, region, top)},
				read(w, func(tx store.Tx) ([]model.Observed, error) {
					return tx.GetObserved(map[string][]string{region: {d.ID}})
				}))
			require.Equal(t, newInstance(d, region, "ins_"+d.ID, top),
				read(w, func(tx store.Tx) (model.Instance, error) { return tx.GetInstance(w.ws, "ins_"+d.ID) }))
		}
		require.Equal(t, []model.RouteObserved{newAck(app, region, top)},
			read(w, func(tx store.Tx) ([]model.RouteObserved, error) { return tx.ListRouteObserved([]string{app.ID}) }))
	})

	t.Run("reordered batches end with the report of each key's highest guard", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		rapid.Check(t, func(t *rapid.T) {
			ds := []model.Deployment{w.newDeployment(app, 1), w.newDeployment(app, 2), w.newDeployment(app, 3)}
			suffix := ident.New("x")
			top := map[string]model.Guard{}
			for range rapid.IntRange(1, 5).Draw(t, "batches") {
				guard := model.Guard(rapid.IntRange(1, 8).Draw(t, "guard"))
				var observed []model.Observed
				var instances []model.Instance
				for i, d := range ds {
					if rapid.Bool().Draw(t, "in it") {
						observed = append(observed, newReport(d, region, guard))
						instances = append(instances, newInstance(d, region, ds[i].ID+suffix[:8], guard))
						top[d.ID] = max(top[d.ID], guard)
					}
				}
				require.NoError(t, w.s.Update(w.t.Context(), func(tx store.Tx) error {
					if err := tx.PutObserved(observed); err != nil {
						return err
					}
					return tx.PutInstances(instances)
				}))
			}
			var want []model.Observed
			for _, d := range ds {
				if g := top[d.ID]; g > 0 {
					want = append(want, newReport(d, region, g))
					require.Equal(t, g, read(w, func(tx store.Tx) (model.Instance, error) {
						return tx.GetInstance(w.ws, d.ID+suffix[:8])
					}).Guard)
				}
			}
			got := read(w, func(tx store.Tx) ([]model.Observed, error) {
				return tx.GetObserved(map[string][]string{region: {ds[0].ID, ds[1].ID, ds[2].ID}})
			})
			require.ElementsMatch(t, want, got)
		})
	})

	t.Run("acknowledged routes are guarded and listed by app", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(2), w.insertApp("chat"), w.insertApp("other")
		put := func(rows ...model.RouteObserved) {
			w.update(func(tx store.Tx) error { return tx.PutRouteObserved(rows) })
		}
		put(newAck(app, ids[1], 5), newAck(app, ids[0], 5), newAck(other, ids[0], 5))
		put(newAck(app, ids[1], 4), newAck(app, ids[0], 6))
		require.ElementsMatch(t, []model.RouteObserved{newAck(app, ids[0], 6), newAck(app, ids[1], 5)},
			read(w, func(tx store.Tx) ([]model.RouteObserved, error) { return tx.ListRouteObserved([]string{app.ID}) }))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.RouteObserved, error) { return tx.ListRouteObserved(nil) }))
	})

	t.Run("deployments that a complete inventory did not name are unknown again", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(2), w.insertApp("chat"), w.insertApp("other")
		old, fresh, elsewhere := w.insertDeployment(app, 1), w.insertDeployment(other, 1), w.insertDeployment(other, 2)
		confirmed := newReport(old, ids[0], 9)
		confirmed.Deleted = true
		w.update(func(tx store.Tx) error {
			return tx.PutObserved([]model.Observed{confirmed, newReport(fresh, ids[0], 10), newReport(elsewhere, ids[1], 1)})
		})
		require.Equal(t, []string{app.ID}, write(w, func(tx store.Tx) ([]string, error) { return tx.ResetObserved(ids[0], 10, now+5) }))
		got := read(w, func(tx store.Tx) ([]model.Observed, error) {
			return tx.GetObserved(map[string][]string{ids[0]: {old.ID}})
		})[0]
		require.Zero(t, got.Instances()+got.ReadyReplicas+got.Doomed)
		require.Empty(t, got.RoleCounts)
		require.EqualValues(t, 1, got.Phase, "pending")
		require.False(t, got.Deleted)
		require.Equal(t, now+5, got.UpdatedAt)
		require.Equal(t, []model.Observed{newReport(fresh, ids[0], 10), newReport(elsewhere, ids[1], 1)},
			read(w, func(tx store.Tx) ([]model.Observed, error) { return tx.ListObserved([]string{other.ID}) }))
		// The next report is above the guard that was kept.
		w.update(func(tx store.Tx) error { return tx.PutObserved([]model.Observed{newReport(old, ids[0], 11)}) })
		require.Equal(t, []model.Observed{newReport(old, ids[0], 11)},
			read(w, func(tx store.Tx) ([]model.Observed, error) {
				return tx.GetObserved(map[string][]string{ids[0]: {old.ID}})
			}))
	})
}
