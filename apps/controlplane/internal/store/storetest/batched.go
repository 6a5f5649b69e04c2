package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
)

func testUpdateBatched(t *testing.T, setup setup) {
	// about runs n requests of one key at once, each about one app. all names no app.
	about := func(w *fixture, n int, app func(i int) string, fn func(i int, tx store.Tx) (func() error, error)) []error {
		errs := make([]error, n)
		var works sync.WaitGroup
		for i := range n {
			works.Go(func() {
				errs[i] = w.s.UpdateBatched(w.t.Context(), "key", app(i), func(tx store.Tx) (func() error, error) { return fn(i, tx) })
			})
		}
		works.Wait()
		return errs
	}
	all := func(w *fixture, n int, fn func(i int, tx store.Tx) (func() error, error)) []error {
		return about(w, n, func(int) string { return "" }, fn)
	}
	failure := errors.New("no")

	t.Run("each of many requests is durable as a whole or leaves no trace", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		const n = 40
		apps := make([]model.App, n)
		deployments := make([]model.Deployment, n)
		for i := range n {
			apps[i] = w.newApp(fmt.Sprintf("app-%02d", i))
			deployments[i] = w.newDeployment(apps[i], 1)
		}
		var mu sync.Mutex
		woken := map[string]bool{}
		w.s.OnCommit(func(c store.Commit) {
			mu.Lock()
			defer mu.Unlock()
			for id := range c.Woken {
				woken[id] = true
			}
		})
		errs := all(w, n, func(i int, tx store.Tx) (func() error, error) {
			if err := tx.InsertApp(apps[i]); err != nil {
				return nil, err
			}
			if i%5 == 1 {
				return nil, failure
			}
			a := apps[i]
			a.Message = "made"
			if err := tx.UpdateApp(a); err != nil {
				return nil, err
			}
			if i%5 == 2 { // it reads its own row, which is therefore written at once
				got, err := tx.GetApp(w.ws, a.ID)
				if err != nil || got.Message != "made" || got.ResourceVersion != 2 {
					return nil, errors.Join(fmt.Errorf("got %+v", got), err)
				}
			}
			if err := tx.InsertDeployment(deployments[i]); err != nil {
				return nil, err
			}
			if i%5 == 3 { // it cannot be removed from the transaction
				tx.Change(region, model.KindDeployment, deployments[i].ID, 1)
			}
			return func() error {
				if err := tx.Wake([]string{a.ID}, now, now); err != nil || i%10 < 6 {
					return err
				}
				return failure
			}, nil
		})
		for i, err := range errs {
			if i%5 == 1 || i%10 >= 6 {
				require.ErrorIs(t, err, failure)
				requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, apps[i].ID) })
				requireMissing(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(w.ws, deployments[i].ID) })
				require.False(t, woken[apps[i].ID])
				continue
			}
			require.NoError(t, err)
			got := read(w, func(tx store.Tx) (model.App, error) { return tx.GetAppByName(w.ws, w.env, apps[i].Name) })
			require.Equal(t, "made", got.Message)
			require.EqualValues(t, 2, got.ResourceVersion)
			read(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(w.ws, deployments[i].ID) })
			require.True(t, woken[apps[i].ID])
		}
		require.Len(t, w.readFeed(region), n/10, "those of i%10 == 3, the others fail")
	})

	t.Run("of many requests for one name or one key, one gets it", func(t *testing.T) {
		w := setup(t)
		const n = 24
		errs := all(w, n, func(i int, tx store.Tx) (func() error, error) {
			if err := tx.InsertApp(w.newApp(fmt.Sprintf("app-%d", i%6))); err != nil {
				return nil, err
			}
			return func() error {
				return tx.InsertIdempotency(model.Idempotency{
					WorkspaceID: w.ws, Key: fmt.Sprint(i % 3), RequestHash: []byte{1}, Response: []byte{byte(i)}, CreatedAt: now,
				})
			}, nil
		})
		names := map[string]int{}
		for i, err := range errs {
			if err == nil {
				names[fmt.Sprint(i%3)]++
				continue
			}
			require.ErrorIs(t, err, model.ErrExists)
		}
		require.Equal(t, map[string]int{"0": 1, "1": 1, "2": 1}, names)
		require.Len(t, read(w, func(tx store.Tx) ([]model.App, error) { return tx.ListApps(w.ws, "", store.Page{Limit: 99}) }), 3)
	})

	t.Run("requests see what was done before them", func(t *testing.T) {
		w := setup(t)
		app, region := w.insertApp("chat"), w.newRegion("eu")
		d := w.insertDeployment(app, 1)
		w.put(newTopology(d, region, 1))
		const n = 40
		for i, err := range all(w, n, func(_ int, tx store.Tx) (func() error, error) {
			a, err := tx.LockApp(w.ws, app.ID)
			if err != nil {
				return nil, err
			}
			rows, err := tx.LockTopology(app.ID)
			if err != nil || len(rows) != 1 {
				return nil, errors.Join(fmt.Errorf("%d rows", len(rows)), err)
			}
			a.LatestVersion++
			rows[0].Generation++
			if err := tx.UpdateApp(a); err != nil {
				return nil, err
			}
			if err := tx.PutTopology(rows); err != nil {
				return nil, err
			}
			tx.Change(region, model.KindDeployment, d.ID, rows[0].Generation)
			listed, err := tx.ListTopology([]string{app.ID})
			if err != nil || len(listed) != 1 || listed[0].Generation != rows[0].Generation {
				return nil, errors.Join(fmt.Errorf("listed %+v", listed), err)
			}
			return func() error {
				have, err := tx.LockAdmission(w.ws)
				if err != nil {
					return err
				}
				have.Ceiling.CountedAt = 1
				have.Ceiling.Apps++
				return tx.PutStanding(have)
			}, nil
		}) {
			require.NoError(t, err, i)
		}
		require.EqualValues(t, n, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }).LatestVersion)
		require.EqualValues(t, n+1, read(w, func(tx store.Tx) ([]model.Topology, error) { return tx.ListTopology([]string{app.ID}) })[0].Generation)
		require.EqualValues(t, n, read(w, func(tx store.Tx) (model.Admission, error) { return tx.GetAdmission(w.ws) }).Ceiling.Apps)
	})

	t.Run("requests that name their app see the same as others", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		const n, each = 7, 12
		apps := make([]model.App, n)
		for i := range n {
			a := w.newApp(fmt.Sprintf("app-%d", i))
			d := w.newDeployment(a, 1)
			a.LiveDeploymentID, apps[i] = d.ID, a
			w.update(func(tx store.Tx) error {
				return errors.Join(tx.InsertApp(a), tx.InsertDeployment(d), tx.PutTopology([]model.Topology{newTopology(d, region, 0)}),
					tx.PutObserved([]model.Observed{newReport(d, region, model.Guard(i+1))}),
					tx.PutInstances([]model.Instance{{ID: "ins_" + d.ID, WorkspaceID: w.ws, AppID: a.ID, DeploymentID: d.ID, RegionID: region, Guard: 1}}))
			})
		}
		// Its app's row, its place and its rollout state say how many requests there have been.
		work := func(i int, tx store.Tx) (func() error, error) {
			want := apps[i%n]
			found, err := tx.GetAppByName(w.ws, w.env, want.Name)
			if err != nil || found.ID != want.ID {
				return nil, errors.Join(fmt.Errorf("found %+v", found), err)
			}
			a, err := tx.LockApp(w.ws, want.ID)
			if err != nil || a.ID != want.ID {
				return nil, errors.Join(fmt.Errorf("locked %+v", a), err)
			}
			d, err := tx.GetDeployment(w.ws, a.LiveDeploymentID)
			if err != nil || d.AppID != a.ID {
				return nil, errors.Join(fmt.Errorf("got %+v", d), err)
			}
			rows, err := tx.LockTopology(a.ID)
			if err != nil || len(rows) != 1 || rows[0].Generation != int64(a.LatestVersion) {
				return nil, errors.Join(fmt.Errorf("version %d, rows %+v", a.LatestVersion, rows), err)
			}
			rolloutStates, err := tx.GetRolloutStates([]string{a.ID})
			if err != nil || len(rolloutStates) > 0 && rolloutStates[0].UpdatedAt != a.UpdatedAt || len(rolloutStates) == 0 && a.UpdatedAt != now {
				return nil, errors.Join(fmt.Errorf("updated at %d, rollout states %+v", a.UpdatedAt, rolloutStates), err)
			}
			seen, err := tx.ListObserved([]string{a.ID})
			if err != nil || len(seen) != 1 || seen[0].DeploymentID != d.ID || int(seen[0].Guard) != i%n+1 {
				return nil, errors.Join(fmt.Errorf("observed %+v", seen), err)
			}
			instances, err := tx.ListInstances(store.InstanceFilter{WorkspaceID: w.ws, DeploymentID: d.ID}, store.Page{Limit: 5})
			if err != nil || len(instances) != 1 || instances[0].ID != "ins_"+d.ID {
				return nil, errors.Join(fmt.Errorf("instances %+v", instances), err)
			}
			a.LatestVersion++
			rows[0].Generation++
			if i%5 == 0 {
				a.UpdatedAt += int64(a.LatestVersion)
				if err := tx.PutRolloutState(model.RolloutState{AppID: a.ID, WorkspaceID: w.ws, UpdatedAt: a.UpdatedAt}); err != nil {
					return nil, err
				}
			}
			if err := errors.Join(tx.UpdateApp(a), tx.PutTopology(rows)); err != nil {
				return nil, err
			}
			if i%11 == 0 {
				return nil, failure
			}
			if again, err := tx.LockApp(w.ws, a.ID); err != nil || again.LatestVersion != a.LatestVersion {
				return nil, errors.Join(fmt.Errorf("locked again %+v", again), err)
			}
			return func() error {
				if again, err := tx.ListTopology([]string{a.ID}); err != nil || again[0].Generation < rows[0].Generation {
					return errors.Join(fmt.Errorf("at last %+v", again), err)
				}
				return nil
			}, nil
		}
		name := func(i int) string {
			switch i % 6 {
			case 0:
				return "" // it names no app
			case 1:
				return apps[i%n].ID
			case 2:
				return apps[(i+1)%n].Name // it names another app
			case 3:
				return "no-such-app"
			}
			return apps[i%n].Name
		}
		done := make([]int, n)
		for i, err := range about(w, n*each, name, work) {
			if i%11 == 0 {
				require.ErrorIs(t, err, failure)
				continue
			}
			require.NoError(t, err, i)
			done[i%n]++
		}
		for i, a := range apps {
			require.EqualValues(t, done[i], read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, a.ID) }).LatestVersion)
		}
	})

	t.Run("a request may change a list that it read", func(t *testing.T) {
		w := setup(t)
		regions := w.newRegions(3)
		w.update(func(tx store.Tx) error {
			return tx.PutFreeze(model.Freeze{ID: ident.New("frz"), WorkspaceID: w.ws, Name: "weekend"})
		})
		for _, err := range all(w, 20, func(_ int, tx store.Tx) (func() error, error) {
			for range 2 {
				byID, err := tx.GetRegions(regions)
				if err != nil {
					return nil, err
				}
				listed, err := tx.ListRegions("", store.Page{Limit: 9})
				if err != nil {
					return nil, err
				}
				freezes, err := tx.ListFreezesFor(w.ws, "weekend")
				if err != nil {
					return nil, err
				}
				unnamed := func(r model.Region) bool { return r.Name == "" }
				if len(byID) != 3 || len(listed) != 3 || len(freezes) != 1 || slices.ContainsFunc(byID, unnamed) || slices.ContainsFunc(listed, unnamed) || freezes[0].Name == "" {
					return nil, fmt.Errorf("read %+v, %+v, %+v", byID, listed, freezes)
				}
				clear(byID)
				clear(listed)
				clear(freezes)
			}
			return nil, nil
		}) {
			require.NoError(t, err)
		}
	})

	t.Run("a request whose context has ended does not run", func(t *testing.T) {
		w := setup(t)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		app := w.newApp("chat")
		require.ErrorIs(t, w.s.UpdateBatched(over, "key", "", func(tx store.Tx) (func() error, error) { return nil, tx.InsertApp(app) }), context.Canceled)
		requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) })
	})
}
