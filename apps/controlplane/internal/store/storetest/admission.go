package storetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
)

// newRunningApp makes an app that has a live deployment and a rollout, each perhaps empty.
func (w *fixture) newRunningApp(workspaceID, name, live, rollout string) model.App {
	w.t.Helper()
	a := w.newApp(name)
	a.WorkspaceID, a.LiveDeploymentID, a.RolloutID = workspaceID, live, rollout
	w.update(func(tx store.Tx) error { return tx.InsertApp(a) })
	return a
}

// claimOf returns a claim for the app's live deployment and rollout.
func claimOf(a model.App, instances, gpus int64) model.Claim {
	return model.Claim{
		AppID: a.ID, WorkspaceID: a.WorkspaceID, LiveDeploymentID: a.LiveDeploymentID, RolloutID: a.RolloutID,
		Instances: instances, GPUs: gpus,
	}
}

func (w *fixture) claimAll(claims ...model.Claim) {
	w.t.Helper()
	w.update(func(tx store.Tx) error { return tx.PutClaims(claims) })
}

func (w *fixture) usageWithout(exceptAppID string) (u model.Usage, unsettled int) {
	w.t.Helper()
	return read(w, func(tx store.Tx) (_ model.Usage, err error) {
		u, unsettled, err = tx.UsageOf(w.ws, exceptAppID)
		return u, err
	}), unsettled
}

func (w *fixture) unsettledNames(exceptAppID, after string, limit int) (names []string) {
	w.t.Helper()
	for _, a := range read(w, func(tx store.Tx) ([]model.App, error) { return tx.UnsettledApps(w.ws, exceptAppID, after, limit) }) {
		names = append(names, a.Name)
	}
	return names
}

func testAdmission(t *testing.T, setup setup) {
	admission := func(w *fixture, id string) model.Admission {
		return read(w, func(tx store.Tx) (model.Admission, error) { return tx.GetAdmission(id) })
	}

	t.Run("a workspace has the limits that were stored, until it is deleted", func(t *testing.T) {
		w := setup(t)
		none := admission(w, w.ws)
		require.Equal(t, model.NoLimitsOfItsOwn, none.Own)
		require.Zero(t, none.ResourceVersion)
		require.Zero(t, none.FullAt)
		require.Zero(t, none.Ceiling)

		given := filledRow[model.Admission]()
		given.WorkspaceID = w.ws
		for range 2 { // they are put, not inserted
			w.update(func(tx store.Tx) error { return tx.PutLimits(given) })
			w.update(func(tx store.Tx) error { return tx.PutStanding(given) })
			got := admission(w, w.ws)
			require.Positive(t, got.Now)
			got.Now = given.Now
			require.Equal(t, given, got)
			given.Own.GPUs, given.FullAt, given.Ceiling.GPUs = 0, given.FullAt+1, 0
		}
		locked := write(w, func(tx store.Tx) (model.Admission, error) { return tx.LockAdmission(w.ws) })
		require.Equal(t, admission(w, w.ws).Own, locked.Own)

		w.update(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		requireMissing(w, func(tx store.Tx) (model.Admission, error) { return tx.GetAdmission(w.ws) })
		w.update(func(tx store.Tx) error { return tx.InsertWorkspace(model.Workspace{ID: w.ws, Name: "acme"}) })
		require.Equal(t, model.NoLimitsOfItsOwn, admission(w, w.ws).Own)
		require.Zero(t, admission(w, w.ws).FullAt)
		require.Zero(t, admission(w, w.ws).Ceiling)
	})

	t.Run("a workspace that does not exist is not found", func(t *testing.T) {
		w := setup(t)
		requireMissing(w, func(tx store.Tx) (model.Admission, error) { return tx.GetAdmission("ws_unknown") })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { _, err := tx.LockAdmission("ws_unknown"); return err })
		require.Error(t, w.s.View(t.Context(), func(tx store.Tx) error { _, err := tx.LockAdmission(w.ws); return err }))
	})

	t.Run("the time in microseconds advances", func(t *testing.T) {
		w := setup(t)
		before := admission(w, w.ws).Now
		now := before
		for ; now == before; time.Sleep(time.Millisecond) {
			now = admission(w, w.ws).Now
		}
		require.Greater(t, now, before)
	})

	t.Run("only claims for an app's present deployment and rollout add up", func(t *testing.T) {
		w := setup(t)
		w.newRunningApp(w.ws, "idle", "", "")
		live, both := w.newRunningApp(w.ws, "live", "dep_1", ""), w.newRunningApp(w.ws, "both", "dep_2", "rol_2")
		w.claimAll(claimOf(live, 3, 0), claimOf(both, 5, 40))
		stranger := w.newRunningApp(ident.New("ws"), "strangers", "dep_3", "")
		w.claimAll(claimOf(stranger, 100, 100))
		gone := w.newRunningApp(w.ws, "gone", "dep_4", "")
		w.claimAll(claimOf(gone, 100, 100))
		gone.DeletedAt = now
		w.update(func(tx store.Tx) error { return tx.UpdateApp(gone) })
		u, unsettled := w.usageWithout("")
		require.Equal(t, model.Usage{Apps: 3, Deployments: 2, Instances: 8, GPUs: 40, Rollouts: 1}, u)
		require.Zero(t, unsettled)
		u, _ = w.usageWithout(both.ID)
		require.Equal(t, model.Usage{Apps: 2, Deployments: 1, Instances: 3}, u)

		both.LiveDeploymentID, both.RolloutID = "dep_5", ""
		w.update(func(tx store.Tx) error { return tx.UpdateApp(both) })
		u, unsettled = w.usageWithout("")
		require.Equal(t, model.Usage{Apps: 3, Deployments: 2, Instances: 3}, u)
		require.Equal(t, 1, unsettled)
		require.Equal(t, []string{"both"}, w.unsettledNames("", "", 9))
		w.claimAll(claimOf(both, 4, 4))
		u, unsettled = w.usageWithout("")
		require.Equal(t, model.Usage{Apps: 3, Deployments: 2, Instances: 7, GPUs: 4}, u)
		require.Zero(t, unsettled)

		// An app that runs nothing counts for nothing, whatever was claimed.
		both.LiveDeploymentID = ""
		w.update(func(tx store.Tx) error {
			a, err := tx.LockApp(w.ws, both.ID)
			a.LiveDeploymentID = ""
			if err != nil {
				return err
			}
			return tx.UpdateApp(a)
		})
		u, unsettled = w.usageWithout("")
		require.Equal(t, model.Usage{Apps: 3, Deployments: 1, Instances: 3}, u)
		require.Zero(t, unsettled)
	})

	t.Run("unsettled apps come by id in pages", func(t *testing.T) {
		w := setup(t)
		var apps []model.App
		for _, name := range []string{"a", "b", "c", "d"} {
			apps = append(apps, w.newRunningApp(w.ws, name, "", "rol_"+name))
		}
		slices.SortFunc(apps, func(a, b model.App) int { return strings.Compare(a.ID, b.ID) })
		w.newRunningApp(w.ws, "idle", "", "")
		require.Equal(t, []string{apps[0].Name, apps[2].Name}, w.unsettledNames(apps[1].ID, "", 2))
		require.Equal(t, []string{apps[3].Name}, w.unsettledNames(apps[1].ID, apps[2].ID, 2))
		_, unsettled := w.usageWithout(apps[1].ID)
		require.Equal(t, 3, unsettled)
	})

	t.Run("transactions that each take a part of a quota never exceed it", func(t *testing.T) {
		w := setup(t)
		const writers, limit = 12, 5
		for _, err := range w.runUpdates(writers, func(_ int, tx store.Tx) error {
			a := w.newApp(ident.New("app"))
			a.LiveDeploymentID = "dep_" + a.Name
			if err := tx.InsertApp(a); err != nil {
				return err
			}
			if _, err := tx.LockAdmission(w.ws); err != nil {
				return err
			}
			u, _, err := tx.UsageOf(w.ws, a.ID)
			if err != nil || u.Instances >= limit {
				a.LiveDeploymentID = ""
				return tx.UpdateApp(a)
			}
			return tx.PutClaims([]model.Claim{claimOf(a, 1, 0)})
		}) {
			require.NoError(t, err)
		}
		u, unsettled := w.usageWithout("")
		require.Equal(t, model.Usage{Apps: writers, Deployments: limit, Instances: limit}, u)
		require.Zero(t, unsettled)
	})

	t.Run("workspaces do not wait for each other", func(t *testing.T) {
		w := setup(t)
		other := ident.New("ws")
		w.update(func(tx store.Tx) error { return tx.InsertWorkspace(model.Workspace{ID: other, Name: "other"}) })
		admit := func(id string) func(tx store.Tx) error {
			a := w.newRunningApp(id, "app-of-"+id[len(id)-8:], "dep_1", "")
			return func(tx store.Tx) error {
				if _, err := tx.LockAdmission(id); err != nil {
					return err
				}
				if _, _, err := tx.UsageOf(id, a.ID); err != nil {
					return err
				}
				if err := tx.PutStanding(model.Admission{WorkspaceID: id, FullAt: 1}); err != nil {
					return err
				}
				return tx.PutClaims([]model.Claim{claimOf(a, 1, 1)})
			}
		}
		w.runOverlapping(admit(w.ws), admit(other), func() { require.EqualValues(t, 1, admission(w, other).FullAt) })
	})

	t.Run("rollouts are read by their ids", func(t *testing.T) {
		w := setup(t)
		first, second := filledRow[model.Rollout](), filledRow[model.Rollout]()
		first.ID, second.ID = "rol_1", "rol_2"
		w.update(func(tx store.Tx) error { return tx.InsertRollout(first) })
		w.update(func(tx store.Tx) error { return tx.InsertRollout(second) })
		require.ElementsMatch(t, []model.Rollout{first, second}, read(w, func(tx store.Tx) ([]model.Rollout, error) {
			return tx.GetRollouts([]string{"rol_1", "rol_2", "rol_2", "rol_none"})
		}))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Rollout, error) { return tx.GetRollouts(nil) }))
	})
}
