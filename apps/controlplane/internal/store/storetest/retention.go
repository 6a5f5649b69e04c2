package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testRetention(t *testing.T, setup setup) {
	const all = 99
	// ended makes versions of the app that nothing refers to any more, each with a rollout. The newest of them is the
	// app's latest.
	ended := func(w *fixture, app *model.App, versions int32) (ids []string) {
		w.t.Helper()
		for v := int32(1); v <= versions; v++ {
			d := w.newDeployment(*app, v)
			d.Status = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED
			w.update(func(tx store.Tx) error {
				if err := tx.InsertDeployment(d); err != nil {
					return err
				}
				return tx.InsertRollout(model.Rollout{
					ID: fmt.Sprintf("rol_%s_%d", app.ID, v), WorkspaceID: w.ws, AppID: app.ID, DeploymentID: d.ID, Version: v,
					Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED,
				})
			})
			ids = append(ids, d.ID)
		}
		app.LatestVersion = versions
		return ids
	}
	versions := func(w *fixture, app model.App) (found []int32) {
		w.t.Helper()
		for _, d := range read(w, func(tx store.Tx) ([]model.Deployment, error) {
			return tx.ListDeployments(w.ws, app.ID, store.Page{Limit: all})
		}) {
			found = append(found, d.Version)
		}
		return found
	}
	rollouts := func(w *fixture, app model.App) int {
		w.t.Helper()
		return len(read(w, func(tx store.Tx) ([]model.Rollout, error) {
			return tx.ListRollouts(w.ws, app.ID, store.Page{Limit: all})
		}))
	}
	history := func(w *fixture, app model.App, n int) {
		w.t.Helper()
		var rows []model.History
		for i := range n {
			rows = append(rows, model.History{ID: fmt.Sprintf("hst_%s_%03d", app.ID, i), WorkspaceID: w.ws, AppID: app.ID, At: now, What: fmt.Sprint(i)})
		}
		w.update(func(tx store.Tx) error { return tx.InsertHistory(rows) })
	}

	t.Run("the newest versions of an app stay, and those in use", func(t *testing.T) {
		w := setup(t)
		region, app, other := w.newRegion("eu"), w.insertApp("chat"), w.insertApp("other")
		ids := ended(w, &app, 10)
		ended(w, &other, 10)
		app.LiveDeploymentID, app.PreviousDeploymentID, app.RolloutID = ids[0], ids[1], fmt.Sprintf("rol_%s_%d", app.ID, 3)
		gone := model.Topology{WorkspaceID: w.ws, AppID: app.ID, DeploymentID: ids[3], RegionID: region, Generation: 1, Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED}
		w.put(gone)
		running := w.newDeployment(app, 11)
		running.Status = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING
		w.update(func(tx store.Tx) error { return tx.InsertDeployment(running) })
		app.LatestVersion = 12

		trim := func(limit int) int {
			return write(w, func(tx store.Tx) (int, error) { return tx.TrimVersions(app, 3, limit) })
		}
		require.Equal(t, 2, trim(2), "the oldest first")
		require.Equal(t, []int32{11, 10, 9, 8, 7, 4, 3, 2, 1}, versions(w, app))
		require.Equal(t, 3, trim(all))
		require.Equal(t, []int32{11, 10, 4, 3, 2, 1}, versions(w, app))
		require.Equal(t, 0, trim(all))
		require.Equal(t, 5, rollouts(w, app), "a version's rollout goes with it")
		require.Len(t, versions(w, other), 10)
	})

	t.Run("the newest entries of an app's history stay", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		history(w, app, 10)
		history(w, other, 10)
		trim := func(keep, limit int) int {
			return write(w, func(tx store.Tx) (int, error) { return tx.TrimHistory(app.ID, keep, limit) })
		}
		require.Equal(t, 0, trim(10, all))
		require.Equal(t, 0, trim(11, all))
		require.Equal(t, 4, trim(3, 4))
		require.Equal(t, 3, trim(3, 4))
		require.Equal(t, 0, trim(3, 4))
		rows := read(w, func(tx store.Tx) ([]model.History, error) { return tx.HistorySince(app.ID, "", all) })
		require.Len(t, rows, 3)
		require.Equal(t, "7", rows[0].What)
		require.Len(t, read(w, func(tx store.Tx) ([]model.History, error) { return tx.HistorySince(other.ID, "", all) }), 10)
	})

	t.Run("apps with more rows than are kept are found, in pages", func(t *testing.T) {
		w := setup(t)
		quiet, notified, both, made := w.insertApp("quiet"), w.insertApp("told"), w.insertApp("both"), w.insertApp("made")
		ended(w, &quiet, 3)
		history(w, quiet, 5)
		history(w, notified, 6)
		ended(w, &both, 4)
		history(w, both, 6)
		ended(w, &made, 4)
		crowded := func(after string, limit int) []string {
			return read(w, func(tx store.Tx) ([]string, error) { return tx.CrowdedApps(3, 5, after, limit) })
		}
		require.Equal(t, []string{notified.ID, both.ID, made.ID}, crowded("", all))
		require.Equal(t, []string{notified.ID, both.ID}, crowded("", 2))
		require.Equal(t, []string{made.ID}, crowded(both.ID, 2))
	})

	t.Run("a deleted app is forgotten with all its rows once nothing of it is left in a region", func(t *testing.T) {
		w := setup(t)
		region, app, living := w.newRegion("eu"), w.insertApp("chat"), w.insertApp("living")
		ids := ended(w, &app, 2)
		ended(w, &living, 2)
		stopped := model.Topology{
			WorkspaceID: w.ws, AppID: app.ID, DeploymentID: ids[0], RegionID: region, Generation: 1,
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, UpdatedAt: now,
		}
		for _, a := range []model.App{app, living} {
			history(w, a, 2)
			w.update(func(tx store.Tx) error {
				if err := tx.PutRoutes([]model.Route{{WorkspaceID: w.ws, AppID: a.ID, RegionID: region, Generation: 1}}); err != nil {
					return err
				}
				if err := tx.PutRouteObserved([]model.RouteObserved{{AppID: a.ID, RegionID: region, Guard: 1}}); err != nil {
					return err
				}
				return tx.Wake([]string{a.ID}, now, now)
			})
		}
		w.put(stopped)
		w.update(func(tx store.Tx) error {
			return tx.PutObserved([]model.Observed{{WorkspaceID: w.ws, AppID: app.ID, DeploymentID: ids[0], RegionID: region, Guard: 1}})
		})
		app.DeletedAt = now
		w.update(func(tx store.Tx) error { return tx.UpdateApp(app) })

		forget := func(before int64) int {
			return write(w, func(tx store.Tx) (int, error) { return tx.DeleteApps(before, all) })
		}
		require.Equal(t, 0, forget(now), "its retention is not over")
		require.Equal(t, 0, forget(now+1), "it has a tombstone in a region")
		require.Equal(t, 1, write(w, func(tx store.Tx) (int, error) { return tx.DeleteTopology(now+1, all) }))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Observed, error) { return tx.ListObserved([]string{app.ID}) }), "it goes with its row")
		require.Equal(t, 1, forget(now+1))
		require.Equal(t, 0, forget(now+1))

		requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) })
		for a, want := range map[string]int{app.ID: 0, living.ID: 2} {
			require.Len(t, read(w, func(tx store.Tx) ([]model.Deployment, error) {
				return tx.ListDeployments(w.ws, a, store.Page{Limit: all})
			}), want)
			require.Len(t, read(w, func(tx store.Tx) ([]model.Rollout, error) { return tx.ListRollouts(w.ws, a, store.Page{Limit: all}) }), want)
			require.Len(t, read(w, func(tx store.Tx) ([]model.History, error) { return tx.HistorySince(a, "", all) }), want)
			require.Len(t, read(w, func(tx store.Tx) ([]model.Route, error) { return tx.ListRoutes([]string{a}) }), want/2)
			require.Len(t, read(w, func(tx store.Tx) ([]model.RouteObserved, error) { return tx.ListRouteObserved([]string{a}) }), want/2)
		}
		require.Len(t, read(w, func(tx store.Tx) ([]model.Wake, error) { return tx.DueWakes(0, 0, all) }), 1)
	})

	t.Run("the newest versions of a secret stay", func(t *testing.T) {
		w := setup(t)
		for name, versions := range map[string]int32{"rotated": 6, "twice": 2} {
			for v := int32(1); v <= versions; v++ {
				w.update(func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret(name, v)) })
			}
		}
		trim := func() int { return write(w, func(tx store.Tx) (int, error) { return tx.TrimSecrets(2, all) }) }
		require.Equal(t, 1, trim())
		require.Equal(t, 0, trim())
		requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, "rotated", 4) })
		for name, version := range map[string]int32{"rotated": 5, "twice": 1} {
			require.Equal(t, w.newSecret(name, version), read(w, func(tx store.Tx) (model.Secret, error) {
				return tx.GetSecretVersion(w.ws, w.env, name, version)
			}))
		}
		w.update(func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("rotated", 7)) })
	})

	t.Run("audit, join tokens and keys are deleted by the time of their end and up to the limit", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		for n := range int64(5) {
			w.update(func(tx store.Tx) error {
				id := ident.Before("aud", time.UnixMilli(now+n)) + "7000800000000000000" + fmt.Sprint(n)
				if err := tx.InsertAudit(model.Audit{ID: id, WorkspaceID: w.ws, At: now + n}); err != nil {
					return err
				}
				err := tx.InsertJoinToken(model.JoinToken{ID: fmt.Sprint("jtk_", n), RegionID: region, Hash: []byte{byte(n)}, ExpiresAt: now + n})
				if err != nil {
					return err
				}
				key := model.APIKey{ID: fmt.Sprint("key_", n), WorkspaceID: w.ws, Name: fmt.Sprint("n", n), Hash: []byte{byte(n)}}
				if n%2 == 0 {
					key.ExpiresAt = now + n
				} else {
					key.RevokedAt = now + n
				}
				return tx.InsertAPIKey(key)
			})
		}
		w.update(func(tx store.Tx) error {
			return tx.InsertAPIKey(model.APIKey{ID: "key_good", WorkspaceID: w.ws, Name: "good", Hash: []byte("good")})
		})
		for name, forget := range map[string]func(tx store.Tx) (int, error){
			"audit":       func(tx store.Tx) (int, error) { return tx.DeleteAudit(now+3, 2) },
			"join tokens": func(tx store.Tx) (int, error) { return tx.DeleteJoinTokens(now+3, 2) },
			"keys":        func(tx store.Tx) (int, error) { return tx.DeleteAPIKeys(now+3, 2) },
		} {
			for _, want := range []int{2, 1, 0} {
				require.Equal(t, want, write(w, forget), name)
			}
		}
		audit := read(w, func(tx store.Tx) ([]model.Audit, error) { return tx.ListAudit(w.ws, store.Page{Limit: all}) })
		require.Len(t, audit, 2)
		require.Equal(t, now+3, audit[1].At)
		requireMissing(w, func(tx store.Tx) (model.JoinToken, error) { return tx.GetJoinTokenByHash([]byte{2}) })
		require.Equal(t, "jtk_3", read(w, func(tx store.Tx) (model.JoinToken, error) { return tx.GetJoinTokenByHash([]byte{3}) }).ID)
		require.Len(t, read(w, func(tx store.Tx) ([]model.APIKey, error) { return tx.ListAPIKeys(w.ws, store.Page{Limit: all}) }), 3)
	})
}
