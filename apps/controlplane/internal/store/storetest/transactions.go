package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func testTransactions(t *testing.T, setup setup) {
	t.Run("a transaction that fails leaves no trace and takes no revision", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		before := w.headOf(region)
		var commits []store.Commit
		w.s.OnCommit(func(c store.Commit) { commits = append(commits, c) })
		failure := errors.New("no")
		d := w.newDeployment(app, 1)
		w.requireFails(failure, func(tx store.Tx) error {
			a, err := tx.LockApp(w.ws, app.ID)
			require.NoError(t, err)
			a.Message = "half done"
			require.NoError(t, tx.UpdateApp(a))
			require.NoError(t, tx.InsertDeployment(d))
			require.NoError(t, tx.PutTopology([]model.Topology{newTopology(d, region, 1)}))
			require.NoError(t, tx.Wake([]string{app.ID}, now, now))
			tx.Change(region, model.KindDeployment, d.ID, 1)
			return failure
		})
		require.Equal(t, app, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
		requireMissing(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(w.ws, d.ID) })
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Topology, error) { return tx.ListTopology([]string{app.ID}) }))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Wake, error) { return tx.DueWakes(0, 0, 10) }))
		require.Equal(t, before, w.headOf(region))
		require.Empty(t, w.readFeed(region))
		require.Empty(t, commits)
	})

	t.Run("a transaction sees its own writes and others see them after its commit", func(t *testing.T) {
		w := setup(t)
		app := w.newApp("chat")
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.InsertApp(app))
			got, err := tx.GetAppByName(w.ws, w.env, "chat")
			require.NoError(t, err)
			require.Equal(t, app, got)
			listed, err := tx.ListApps(w.ws, "", store.Page{Limit: 10})
			require.NoError(t, err)
			require.Equal(t, []model.App{app}, listed)
			requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) })
			return nil
		})
		require.Equal(t, app, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
	})

	t.Run("a transaction that changes nothing takes no revision", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		before := w.headOf(region)
		w.update(func(tx store.Tx) error {
			_, err := tx.LockRegion(region)
			return err
		})
		require.Equal(t, before, w.headOf(region))
	})

	t.Run("a transaction over too many regions writes nothing", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		ids := w.newRegions(store.MaxRegions + 1)
		touch := func(ids []string) func(store.Tx) error {
			return func(tx store.Tx) error {
				a, err := tx.LockApp(w.ws, app.ID)
				if err != nil {
					return err
				}
				a.Message = "changed"
				if err := tx.UpdateApp(a); err != nil {
					return err
				}
				for _, id := range ids {
					tx.Change(id, model.KindDeployment, "dep_x", 1)
				}
				return nil
			}
		}
		w.requireFails(model.ErrTooManyRegions, touch(ids))
		require.Equal(t, app, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
		for _, h := range read(w, func(tx store.Tx) ([]model.Head, error) { return tx.GetHeads(ids) }) {
			require.Zero(t, h.Revision)
		}
		w.update(touch(ids[:store.MaxRegions]))
	})

	t.Run("a change in a region that does not exist fails the transaction", func(t *testing.T) {
		w := setup(t)
		app := w.newApp("chat")
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error {
			tx.Change("reg_nowhere", model.KindDeployment, "dep_x", 1)
			return tx.InsertApp(app)
		})
		requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) })
	})

	t.Run("views and snapshots refuse to write and to lock", func(t *testing.T) {
		w := setup(t)
		app, region := w.insertApp("chat"), w.newRegion("eu")
		for name, f := range map[string]func(store.Tx) error{
			"insert":  func(tx store.Tx) error { return tx.InsertApp(w.newApp("other")) },
			"update":  func(tx store.Tx) error { return tx.UpdateApp(app) },
			"step":    func(tx store.Tx) error { return tx.StepApps([]model.AppStep{{App: app}}) },
			"lock":    func(tx store.Tx) error { _, err := tx.LockApp(w.ws, app.ID); return err },
			"wake":    func(tx store.Tx) error { return tx.Wake([]string{app.ID}, now, now) },
			"session": func(tx store.Tx) error { _, _, err := tx.StartSession(region, "s", 1, model.Region{}); return err },
			"epoch":   func(tx store.Tx) error { _, err := tx.BumpEpoch(region, nil); return err },
			"put": func(tx store.Tx) error {
				return tx.PutObserved([]model.Observed{{DeploymentID: "d", RegionID: region}})
			},
		} {
			require.Error(t, w.s.View(t.Context(), f), "view: %s", name)
			require.Error(t, w.s.Snapshot(t.Context(), f), "snapshot: %s", name)
		}
		require.Equal(t, app, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
	})

	t.Run("a snapshot reads one moment", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		w.put(newTopology(d, region, 1))
		require.NoError(t, w.s.Snapshot(t.Context(), func(tx store.Tx) error {
			head, err := tx.GetHead(region)
			require.NoError(t, err)
			w.update(func(tx store.Tx) error {
				tx.Change(region, model.KindDeployment, d.ID, 2)
				return tx.PutTopology([]model.Topology{newTopology(d, region, 2)})
			})
			again, err := tx.GetHead(region)
			require.NoError(t, err)
			require.Equal(t, head, again)
			items, err := allDesired(t, tx, region, model.KindDeployment)
			require.NoError(t, err)
			require.Len(t, items, 1)
			require.EqualValues(t, 1, items[0].Generation)
			changes, err := tx.Changes(map[string]int64{region: 0}, 10)
			require.NoError(t, err)
			require.Empty(t, changes)
			return nil
		}))
		require.EqualValues(t, 1, w.headOf(region).Revision)
	})

	t.Run("the second of two transactions that lock one app sees all writes of the first", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		const writers = 12
		// Each transaction adds a row that counts the rows that it finds. If two had decided on the same state, they
		// would have the same count. No two write the same row.
		for _, err := range w.runUpdates(writers, func(i int, tx store.Tx) error {
			if _, err := tx.LockApp(w.ws, app.ID); err != nil {
				return err
			}
			rows, err := tx.LockTopology(app.ID)
			if err != nil {
				return err
			}
			d := w.newDeployment(app, int32(i+1))
			row := newTopology(d, region, 1)
			row.Replicas = int32(len(rows) + 1)
			tx.Change(region, model.KindDeployment, d.ID, 1)
			return tx.PutTopology([]model.Topology{row})
		}) {
			require.NoError(t, err)
		}
		counts := map[int32]bool{}
		for _, r := range read(w, func(tx store.Tx) ([]model.Topology, error) { return tx.ListTopology([]string{app.ID}) }) {
			counts[r.Replicas] = true
		}
		require.Len(t, counts, writers)
		require.EqualValues(t, writers, w.headOf(region).Revision)
	})

	t.Run("counters under a lock lose no increment", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		const writers = 16
		for _, err := range w.runUpdates(writers, func(_ int, tx store.Tx) error {
			a, err := tx.LockApp("", app.ID)
			if err != nil {
				return err
			}
			a.LatestVersion++
			return tx.UpdateApp(a)
		}) {
			require.NoError(t, err)
		}
		got := read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) })
		require.EqualValues(t, writers, got.LatestVersion)
		require.EqualValues(t, 1+writers, got.ResourceVersion)
	})

	t.Run("a context that is over writes nothing", func(t *testing.T) {
		w := setup(t)
		app := w.newApp("chat")
		ctx, cancel := context.WithCancel(t.Context())
		err := w.s.Update(ctx, func(tx store.Tx) error {
			if err := tx.InsertApp(app); err != nil {
				return err
			}
			cancel()
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) })
		require.ErrorIs(t, w.s.Update(ctx, func(store.Tx) error { return nil }), context.Canceled)
	})

	t.Run("the store answers a ping", func(t *testing.T) {
		require.NoError(t, setup(t).s.Ping(t.Context()))
	})
}

func testCommits(t *testing.T, setup setup) {
	t.Run("listeners get the changes of a commit once it is durable", func(t *testing.T) {
		w := setup(t)
		ids, app := w.newRegions(2), w.insertApp("chat")
		d := w.newDeployment(app, 1)
		var commits []store.Commit
		w.s.OnCommit(func(c store.Commit) {
			for id, rev := range c.Revisions {
				require.Equal(t, rev, w.headOf(id).Revision)
			}
			commits = append(commits, c)
		})
		w.update(func(tx store.Tx) error {
			tx.Change(ids[0], model.KindDeployment, d.ID, 1)
			tx.Change(ids[1], model.KindDeployment, d.ID, 1)
			tx.Change(ids[1], model.KindRoutes, app.ID, 1)
			if err := tx.Wake([]string{app.ID}, now, now); err != nil {
				return err
			}
			return tx.InsertDeployment(d)
		})
		require.Equal(t, []store.Commit{{
			Revisions: map[string]int64{ids[0]: 1, ids[1]: 2}, Woken: map[string]time.Duration{app.ID: 0}, Apps: []string{app.ID},
		}}, commits)
	})

	t.Run("every listener is called, in the goroutine of the committer", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		var order []string
		w.s.OnCommit(func(store.Commit) { order = append(order, "first") })
		w.s.OnCommit(func(store.Commit) { order = append(order, "second") })
		w.commitChange(region, 1)
		require.Equal(t, []string{"first", "second"}, order)
		// Nothing changes that a commit reports to listeners.
		w.update(func(tx store.Tx) error { _, err := tx.LockRegion(region); return err })
		require.Len(t, order, 2)
	})

	t.Run("commits name the apps whose state changed", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		r := model.Rollout{ID: "rol_1", WorkspaceID: w.ws, AppID: app.ID, DeploymentID: d.ID, CreatedAt: now}
		var apps []string
		w.s.OnCommit(func(c store.Commit) { apps = append(apps, c.Apps...) })
		for _, c := range []struct {
			changed string
			by      func(store.Tx) error
		}{
			{"app", func(tx store.Tx) error { return tx.UpdateApp(app) }},
			{"deployment", func(tx store.Tx) error { return tx.UpdateDeployment(d) }},
			{"rollout", func(tx store.Tx) error { return tx.InsertRollout(r) }},
			{"topology", func(tx store.Tx) error { return tx.PutTopology([]model.Topology{newTopology(d, region, 1)}) }},
			{"observed", func(tx store.Tx) error { return tx.PutObserved([]model.Observed{newReport(d, region, 7)}) }},
			{"observed, again as unknown", func(tx store.Tx) error { _, err := tx.ResetObserved(region, 99, now); return err }},
			{"observed route", func(tx store.Tx) error { return tx.PutRouteObserved([]model.RouteObserved{newAck(app, region, 7)}) }},
		} {
			apps = nil
			w.update(c.by)
			require.Equal(t, []string{app.ID}, apps, c.changed)
		}
	})

	t.Run("a bumped epoch is reported like a moved head", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		w.commitChange(region, 1)
		var commits []store.Commit
		w.s.OnCommit(func(c store.Commit) { commits = append(commits, c) })
		write(w, func(tx store.Tx) (model.Head, error) { return tx.BumpEpoch(region, []byte("salt")) })
		require.Len(t, commits, 1)
		require.Equal(t, map[string]int64{region: 1}, commits[0].Revisions)
	})

	t.Run("two transactions that commit in the opposite order of their start lose nothing", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		// A reader follows the feed by revision, and reads between the two commits.
		var seen []string
		var at int64
		tail := func() {
			for _, c := range read(w, func(tx store.Tx) ([]model.Change, error) {
				return tx.Changes(map[string]int64{region: at}, 100)
			}) {
				require.Equal(t, at+1, c.Revision)
				at = c.Revision
				seen = append(seen, c.Key)
			}
		}
		w.runOverlapping(func(tx store.Tx) error {
			tx.Change(region, model.KindDeployment, "dep_first", 1)
			return tx.InsertApp(w.newApp("first"))
		}, func(tx store.Tx) error {
			tx.Change(region, model.KindDeployment, "dep_second", 1)
			return tx.InsertApp(w.newApp("second"))
		}, tail)
		tail()
		require.Equal(t, []string{"dep_second", "dep_first"}, seen)
	})

	t.Run("revisions are gap-free and commit-ordered per region and a concurrent tailer sees each once", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(4)
		const writers, each = 8, 12
		received := make(chan store.Commit, writers*each)
		w.s.OnCommit(func(c store.Commit) { received <- c })

		done := make(chan []error, 1)
		go func() {
			done <- runTogether(writers, func(i int) error {
				for n := range each {
					key := fmt.Sprintf("dep_%d_%d", i, n)
					err := w.s.Update(t.Context(), func(tx store.Tx) error {
						// Regions in an order that differs between writers: the store sorts its locks.
						for k := range ids {
							if region := ids[(i+k)%len(ids)]; k == 0 || (i+n+k)%3 != 0 {
								tx.Change(region, model.KindDeployment, key, int64(n))
								tx.Change(region, model.KindRoutes, key, int64(n))
							}
						}
						return nil
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
		}()

		feed := map[string][]model.Change{}
		after := map[string]int64{}
		for _, id := range ids {
			after[id] = 0
		}
		tail := func() {
			heads := read(w, func(tx store.Tx) ([]model.Head, error) { return tx.GetHeads(ids) })
			for {
				page := read(w, func(tx store.Tx) ([]model.Change, error) { return tx.Changes(after, 7) })
				for _, c := range page {
					require.Equal(t, after[c.RegionID]+1, c.Revision, "region %s has a gap", c.RegionID)
					after[c.RegionID] = c.Revision
					feed[c.RegionID] = append(feed[c.RegionID], c)
				}
				if len(page) < 7 {
					break
				}
			}
			for _, h := range heads {
				require.GreaterOrEqual(t, after[h.RegionID], h.Revision, "a head is ahead of its changes")
			}
		}
		var errs []error
		for errs == nil {
			select {
			case errs = <-done:
			default:
			}
			tail()
		}
		for _, err := range errs {
			require.NoError(t, err)
		}
		tail()

		revisions := map[string]map[int64]bool{}
		close(received)
		for c := range received {
			for id, rev := range c.Revisions {
				if revisions[id] == nil {
					revisions[id] = map[int64]bool{}
				}
				revisions[id][rev] = true
			}
		}
		for k, id := range ids {
			want := 0
			for i := range writers {
				for n := range each {
					for j := range ids {
						if (i+j)%len(ids) == k && (j == 0 || (i+n+j)%3 != 0) {
							want++
						}
					}
				}
			}
			require.Len(t, feed[id], 2*want)
			require.Len(t, revisions[id], want, "each commit reported its own revision")
			seen := map[string]int{}
			for i, c := range feed[id] {
				seen[c.Key]++
				// The two changes of a transaction are neighbours: nothing came between.
				require.Equal(t, feed[id][i-i%2].Key, c.Key)
			}
			require.Len(t, seen, want)
			checkChain(t, w, id, feed[id])
		}
	})

	t.Run("one key changed twice in a transaction is one change with the later generation", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		w.update(func(tx store.Tx) error {
			tx.Change(region, model.KindDeployment, "dep_a", 1)
			tx.Change(region, model.KindDeployment, "dep_b", 1)
			tx.Change(region, model.KindRoutes, "dep_a", 9)
			tx.Change(region, model.KindDeployment, "dep_a", 2)
			return nil
		})
		var got []string
		for _, c := range w.readFeed(region) {
			got = append(got, fmt.Sprintf("%d %d %s %d", c.Revision, c.Kind, c.Key, c.Generation))
		}
		require.Equal(t, []string{"1 1 dep_a 2", "2 1 dep_b 1", "3 2 dep_a 9"}, got)
	})

	t.Run("two transactions over the same regions in any order never block each other for good", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(6)
		reversed := slices.Clone(ids)
		slices.Reverse(reversed)
		for _, err := range w.runUpdates(16, func(i int, tx store.Tx) error {
			order := ids
			if i%2 == 1 {
				order = reversed
			}
			for _, id := range order {
				tx.Change(id, model.KindDeployment, fmt.Sprintf("dep_%d", i), 1)
			}
			return nil
		}) {
			require.NoError(t, err)
		}
		for _, id := range ids {
			require.EqualValues(t, 16, w.headOf(id).Revision)
		}
	})
}
