package storetest

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testDesired(t *testing.T, setup setup) {
	items := func(w *fixture, region string, kind model.ChangeKind, keys ...string) []model.DesiredItem {
		w.t.Helper()
		return read(w, func(tx store.Tx) ([]model.DesiredItem, error) {
			if len(keys) == 0 {
				return allDesired(w.t, tx, region, kind)
			}
			return tx.DesiredItems(kind, map[string][]string{region: keys})
		})
	}

	t.Run("a deployment comes with everything that agents are sent", func(t *testing.T) {
		w := setup(t)
		ids, app := w.newRegions(2), w.insertApp("chat")
		d := w.insertDeployment(app, 1, "token", "gone", "other")
		row := newTopology(d, ids[0], 3)
		row.Reason = "RegionClosed"
		w.put(row)
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("token", 1)))
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("token", 2)))
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("unused", 1)))
			s := w.newSecret("other", 1)
			s.EnvironmentID = "env_2"
			return tx.InsertSecretVersion(s)
		})
		want := model.DesiredItem{
			RegionID: ids[0], Kind: model.KindDeployment, Key: d.ID, Generation: 3, Topology: row, Deployment: d,
			App: model.AppNames{
				Name: app.Name, ProjectID: app.ProjectID, EnvironmentID: app.EnvironmentID,
				ProjectName: "default", EnvironmentName: "production",
			},
			SecretVersions: map[string]int32{"token": 2},
		}
		requireSame(t, []model.DesiredItem{want}, items(w, ids[0], model.KindDeployment, d.ID, "dep_x", d.ID))
		requireSame(t, []model.DesiredItem{want}, items(w, ids[0], model.KindDeployment))
		require.Empty(t, items(w, ids[1], model.KindDeployment))
		require.Empty(t, items(w, ids[1], model.KindDeployment, d.ID))
		require.Empty(t, items(w, ids[0], model.KindRoutes))
	})

	t.Run("a secret has the version that the spec names", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.newDeployment(app, 1, "token", "loose")
		d.Spec.Secrets[0].Version = 1
		w.update(func(tx store.Tx) error {
			for version := range int32(2) {
				require.NoError(t, tx.InsertSecretVersion(w.newSecret("token", version+1)))
				require.NoError(t, tx.InsertSecretVersion(w.newSecret("loose", version+1)))
			}
			return tx.InsertDeployment(d)
		})
		w.put(newTopology(d, region, 1))
		got := items(w, region, model.KindDeployment)
		require.Len(t, got, 1)
		require.Equal(t, map[string]int32{"token": 1, "loose": 2}, got[0].SecretVersions)
	})

	t.Run("without keys there are no items", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		w.put(newTopology(d, region, 1))
		w.update(func(tx store.Tx) error {
			return tx.PutRoutes([]model.Route{{WorkspaceID: w.ws, AppID: app.ID, RegionID: region, Hosts: []string{"a"}, Generation: 1}})
		})
		for _, kind := range []model.ChangeKind{model.KindDeployment, model.KindRoutes} {
			require.Empty(t, read(w, func(tx store.Tx) ([]model.DesiredItem, error) {
				return tx.DesiredItems(kind, map[string][]string{region: {}, "reg_x": nil})
			}))
			require.Len(t, items(w, region, kind), 1)
		}
		require.Error(t, w.s.View(t.Context(), func(tx store.Tx) error {
			_, err := tx.DesiredItems(99, map[string][]string{region: {d.ID}})
			return err
		}))
	})

	t.Run("one query reads many regions, each with its own keys", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(44), w.insertApp("chat"), w.insertApp("other")
		d, e := w.insertDeployment(app, 1), w.insertDeployment(other, 1)
		many, all := map[string][]string{}, ids[4:]
		for _, region := range all {
			w.put(newTopology(d, region, 7), newTopology(e, region, 8))
			many[region] = []string{d.ID}
		}
		many[all[39]] = []string{e.ID}
		w.put(newTopology(d, ids[0], 1), newTopology(d, ids[1], 2), newTopology(d, ids[2], 3), newTopology(e, ids[0], 4), newTopology(e, ids[1], 5), newTopology(e, ids[2], 6))
		w.update(func(tx store.Tx) error {
			if err := tx.SetQuarantine(ids[3], []model.Quarantined{{RegionID: ids[3], Key: "dep_left", Since: now}}); err != nil {
				return err
			}
			_, err := tx.ApproveQuarantine(ids[3], []string{"dep_left"}, now)
			if err != nil {
				return err
			}
			var routes []model.Route
			for _, region := range ids[:3] {
				routes = append(routes, model.Route{WorkspaceID: w.ws, AppID: app.ID, RegionID: region, Hosts: []string{"a"}, Generation: 1})
			}
			return tx.PutRoutes(routes)
		})
		type sent struct {
			region, key string
			generation  int64
		}
		tell := func(kind model.ChangeKind, keys map[string][]string) (all []sent) {
			for _, it := range read(w, func(tx store.Tx) ([]model.DesiredItem, error) { return tx.DesiredItems(kind, keys) }) {
				all = append(all, sent{it.RegionID, it.Key, it.Generation})
			}
			return all
		}
		want := []sent{{ids[0], d.ID, 1}, {ids[1], e.ID, 5}, {ids[2], d.ID, 3}, {ids[2], e.ID, 6}, {ids[3], "dep_left", 1}}
		slices.SortFunc(want, func(a, b sent) int { return cmp.Or(cmp.Compare(a.region, b.region), cmp.Compare(a.key, b.key)) })
		require.Equal(t, want, tell(model.KindDeployment, map[string][]string{
			ids[0]: {d.ID}, ids[1]: {e.ID}, ids[2]: {e.ID, d.ID}, ids[3]: {"dep_left", d.ID},
		}))
		got := tell(model.KindDeployment, many)
		require.Len(t, got, 40)
		for _, g := range got {
			require.Equal(t, many[g.region][0], g.key)
		}
		require.Equal(t, []sent{{ids[1], app.ID, 1}}, tell(model.KindRoutes, map[string][]string{ids[0]: {other.ID}, ids[1]: {app.ID, other.ID}}))
	})

	t.Run("stopping, stopped and transferred rows are tombstones", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		leaving, gone, lent, successor := w.insertDeployment(app, 1), w.insertDeployment(app, 2), w.insertDeployment(app, 3), w.insertDeployment(app, 4)
		r1, r2, r3, r4 := newTopology(leaving, region, 4), newTopology(gone, region, 5), newTopology(lent, region, 6), newTopology(successor, region, 1)
		r3.Transferred, r3.Replicas = true, 0
		r4.Workload, r4.WorkloadVersion, r4.MaxUnavailable = lent.ID, 3, 2
		r4.Roles, r4.Moving = "decode=2,prefill=8", "decode,prefill"
		r1.Status, r2.Status = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING, stopped
		r1.Workload, r1.WorkloadVersion = "dep_0", 6
		w.put(r1, r2, r3, r4)
		tombstone := func(d model.Deployment, generation int64) model.DesiredItem {
			return model.DesiredItem{
				RegionID: region, Kind: model.KindDeployment, Key: d.ID, Generation: generation, Delete: true,
				Deployment: model.Deployment{ID: d.ID, WorkspaceID: w.ws, AppID: app.ID},
			}
		}
		taken := tombstone(leaving, 4)
		taken.Topology = model.Topology{Workload: "dep_0", WorkloadVersion: 6}
		handed := tombstone(lent, 6)
		handed.Topology = model.Topology{Transferred: true}
		got := items(w, region, model.KindDeployment)
		var sent []model.DesiredItem
		for _, item := range got {
			if item.Delete {
				sent = append(sent, item)
				continue
			}
			require.Equal(t, successor.ID, item.Key)
			requireSame(t, model.DesiredItem{Topology: r4}, model.DesiredItem{Topology: item.Topology})
		}
		require.Len(t, got, 4)
		require.ElementsMatch(t, []model.DesiredItem{taken, tombstone(gone, 5), handed}, sent)
	})

	t.Run("routes name the weighted deployments that are not stopped", func(t *testing.T) {
		w := setup(t)
		ids, app, other := w.newRegions(2), w.insertApp("chat"), w.insertApp("other")
		weighted := func(d model.Deployment, region string, weight int32, status windlassv1.TopologyStatus) model.Topology {
			r := newTopology(d, region, 1)
			r.Weight, r.Status = weight, status
			return r
		}
		named := func(workload string, r model.Topology) model.Topology {
			r.Workload, r.WorkloadVersion = workload, 1
			return r
		}
		const started = windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED
		d1, d2, d3, d4 := w.insertDeployment(app, 1), w.insertDeployment(app, 2), w.insertDeployment(app, 3), w.insertDeployment(other, 1)
		w.put(weighted(d1, ids[0], 80, started), weighted(d2, ids[0], 20, started), weighted(d3, ids[0], 5, stopped),
			named("dep_0", weighted(d4, ids[0], 100, started)), weighted(d1, ids[1], 0, started))
		routes := []model.Route{
			{WorkspaceID: w.ws, AppID: app.ID, RegionID: ids[0], Hosts: []string{"chat.example"}, Generation: 7, UpdatedAt: now},
			{WorkspaceID: w.ws, AppID: app.ID, RegionID: ids[1], Hosts: []string{"chat.example"}, Generation: 2, UpdatedAt: now},
			{WorkspaceID: w.ws, AppID: other.ID, RegionID: ids[0], Generation: 1, UpdatedAt: now},
		}
		w.update(func(tx store.Tx) error { return tx.PutRoutes(routes) })
		want := []model.DesiredItem{
			{RegionID: ids[0], Kind: model.KindRoutes, Key: app.ID, Generation: 7, Route: routes[0], Targets: []model.RouteTarget{{DeploymentID: d1.ID, Weight: 80}, {DeploymentID: d2.ID, Weight: 20}}},
			{RegionID: ids[0], Kind: model.KindRoutes, Key: other.ID, Generation: 1, Route: routes[2], Targets: []model.RouteTarget{{DeploymentID: d4.ID, Weight: 100, Workload: "dep_0"}}},
		}
		requireSame(t, want, items(w, ids[0], model.KindRoutes))
		requireSame(t, want[:1], items(w, ids[0], model.KindRoutes, app.ID))
		requireSame(t, []model.DesiredItem{{RegionID: ids[1], Kind: model.KindRoutes, Key: app.ID, Generation: 2, Route: routes[1]}}, items(w, ids[1], model.KindRoutes))
	})

	t.Run("an approved key of the quarantine is a tombstone above what runs there", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		w.put(newTopology(d, region, 3))
		w.update(func(tx store.Tx) error {
			return tx.SetQuarantine(region, []model.Quarantined{
				{RegionID: region, Key: "dep_approved", Generation: 4, Since: now},
				{RegionID: region, Key: "dep_waiting", Generation: 4, Since: now},
				{RegionID: region, Key: d.ID, Generation: 9, Since: now},
			})
		})
		require.Len(t, items(w, region, model.KindDeployment), 1, "nothing is approved yet")
		write(w, func(tx store.Tx) ([]model.Quarantined, error) {
			return tx.ApproveQuarantine(region, []string{"dep_approved", d.ID}, now)
		})
		tombstone := model.DesiredItem{
			RegionID: region, Kind: model.KindDeployment, Key: "dep_approved", Generation: 5, Delete: true, Deployment: model.Deployment{ID: "dep_approved"},
		}
		requireSame(t, []model.DesiredItem{tombstone}, items(w, region, model.KindDeployment, "dep_approved", "dep_waiting"))
		all := items(w, region, model.KindDeployment)
		require.Len(t, all, 2)
		for _, it := range all {
			require.Equal(t, it.Key == "dep_approved", it.Delete, "an assigned key has the state of its row")
		}
	})

	t.Run("a snapshot and the deltas after it are the final state for any history", func(t *testing.T) {
		w := setup(t)
		rapid.Check(t, func(t *rapid.T) {
			h := newHistory(t, w)
			n := rapid.IntRange(1, 12).Draw(t, "steps")
			cut := rapid.IntRange(0, n).Draw(t, "snapshot after")
			var agents []*agent
			for i := range n + 1 {
				if i == cut {
					for _, region := range h.regions {
						agents = append(agents, newAgent(t, w, region))
					}
				}
				if i < n {
					h.runStep(t)
				}
				// Some agents follow, a frame of any size at a time; others come late.
				if len(agents) > 0 && rapid.Bool().Draw(t, "an agent reads") {
					rapid.SampledFrom(agents).Draw(t, "agent").followFeed(t, rapid.IntRange(1, 4).Draw(t, "frame"))
				}
			}
			for _, a := range agents {
				for a.followFeed(t, 3) {
				}
				fresh := newAgent(t, w, a.region)
				require.Equal(t, fresh.head, a.head)
				require.Equal(t, fresh.inbox, a.inbox)
			}
		})
	})
}

// allDesired returns the items of a kind. Pages of every size have the same items.
func allDesired(t testing.TB, tx store.Tx, region string, kind model.ChangeKind) (items []model.DesiredItem, err error) {
	t.Helper()
	for _, size := range []int{1, 2, 1000} {
		var all []model.DesiredItem
		err := tx.EachDesired(region, size, func(page []model.DesiredItem) error {
			require.NotEmpty(t, page)
			if len(all) > 0 {
				require.LessOrEqual(t, all[len(all)-1].Kind, page[0].Kind, "routes come behind deployments")
			}
			all = append(all, page...)
			return nil
		})
		if err != nil {
			return nil, err
		}
		items = slices.DeleteFunc(slices.Clone(all), func(it model.DesiredItem) bool { return it.Kind != kind })
	}
	return items, nil
}
