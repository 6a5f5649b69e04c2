package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testApps(t *testing.T, setup setup) {
	t.Run("a deleted app is found by id only and its name is free again", func(t *testing.T) {
		w := setup(t)
		for i := range 2 {
			app := w.insertApp("chat")
			w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertApp(w.newApp("chat")) })
			app.DeletedAt = now + int64(i)
			w.update(func(tx store.Tx) error { return tx.UpdateApp(app) })
			app.ResourceVersion++
			require.Equal(t, app, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
			require.Equal(t, []model.App{app}, read(w, func(tx store.Tx) ([]model.App, error) { return tx.GetApps([]string{app.ID, "app_x", app.ID}) }))
			requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetAppByName(w.ws, w.env, "chat") })
			require.Empty(t, read(w, func(tx store.Tx) ([]model.App, error) { return tx.ListApps(w.ws, "", store.Page{Limit: 9}) }))
			require.Empty(t, read(w, func(tx store.Tx) ([]model.App, error) { return tx.ListApps(w.ws, w.env, store.Page{Limit: 9}) }))
			require.Zero(t, read(w, func(tx store.Tx) (int, error) { return tx.CountApps(w.ws, "", "") }))
		}
	})

	t.Run("a name is unique in its environment", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			return tx.InsertEnvironment(model.Environment{ID: "env_2", WorkspaceID: w.ws, ProjectID: w.prj, Name: "staging", ResourceVersion: 1})
		})
		w.insertApp("chat")
		other := w.newApp("chat")
		other.EnvironmentID = "env_2"
		w.update(func(tx store.Tx) error { return tx.InsertApp(other) })
		require.Equal(t, other, read(w, func(tx store.Tx) (model.App, error) { return tx.GetAppByName(w.ws, "env_2", "chat") }))
		oneWins(t, w.runUpdates(6, func(_ int, tx store.Tx) error { return tx.InsertApp(w.newApp("raced")) }), model.ErrExists)
	})

	t.Run("apps are listed by name and id and counted", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			return tx.InsertEnvironment(model.Environment{ID: "env_2", WorkspaceID: w.ws, ProjectID: "prj_2", Name: "staging", ResourceVersion: 1})
		})
		b, a := w.insertApp("b"), w.insertApp("a")
		b2 := w.newApp("b")
		b2.EnvironmentID, b2.ProjectID = "env_2", "prj_2"
		w.update(func(tx store.Tx) error { return tx.InsertApp(b2) })
		require.Equal(t, []model.App{a, b, b2}, read(w, func(tx store.Tx) ([]model.App, error) {
			return tx.ListApps(w.ws, "", store.Page{Limit: 9})
		}))
		require.Equal(t, []model.App{b2}, read(w, func(tx store.Tx) ([]model.App, error) {
			return tx.ListApps(w.ws, "", store.Page{After: "b\x00" + b.ID, Limit: 9})
		}))
		require.Equal(t, []model.App{a, b}, read(w, func(tx store.Tx) ([]model.App, error) {
			return tx.ListApps(w.ws, w.env, store.Page{Limit: 9})
		}))
		require.Equal(t, []int{3, 2, 1, 2, 1}, read(w, func(tx store.Tx) ([]int, error) {
			var counts []int
			for _, of := range [][2]string{{"", ""}, {w.prj, ""}, {"prj_2", ""}, {"", w.env}, {"", "env_2"}} {
				n, err := tx.CountApps(w.ws, of[0], of[1])
				if err != nil {
					return nil, err
				}
				counts = append(counts, n)
			}
			return counts, nil
		}))
	})

	t.Run("the workflow locks an app without knowing its workspace", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		w.update(func(tx store.Tx) error {
			got, err := tx.LockApp("", app.ID)
			require.Equal(t, app, got)
			return err
		})
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { _, err := tx.LockApp("", "app_x"); return err })
	})

	t.Run("workflows lock apps together without knowing their workspaces", func(t *testing.T) {
		w := setup(t)
		one, other := w.insertApp("chat"), w.insertApp("voice")
		w.update(func(tx store.Tx) error {
			got, err := tx.LockApps([]string{other.ID, "app_x", one.ID, other.ID})
			require.Equal(t, []model.App{one, other}, got)
			return err
		})
	})

	t.Run("of many steps of an app from one number, exactly one is stored", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		stepped := func(id string, step int64) []model.AppStep {
			return []model.AppStep{{App: model.App{ID: id, Step: step}}}
		}
		for step := range int64(3) {
			oneWins(t, w.runUpdates(12, func(i int, tx store.Tx) error {
				if err := tx.StepApps(stepped(app.ID, step)); err != nil {
					return err
				}
				return tx.InsertHistory([]model.History{{ID: fmt.Sprintf("his_%d_%d", step, i), WorkspaceID: w.ws, AppID: app.ID, At: now}})
			}), model.ErrConflict)
		}
		want := app
		want.Step = 3
		require.Equal(t, want, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }), "nothing else moved")
		require.Len(t, read(w, func(tx store.Tx) ([]model.History, error) { return tx.ListHistory(w.ws, app.ID, store.Page{Limit: 99}) }), 3,
			"a step that lost left nothing behind")
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.StepApps(stepped(app.ID, 2)) })
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.StepApps(stepped(app.ID, 4)) })
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.StepApps(stepped("app_x", 0)) })
		w.update(func(tx store.Tx) error { return tx.StepApps(nil) })
	})

	t.Run("the steps of many apps are all stored, or none is", func(t *testing.T) {
		w := setup(t)
		var steps []model.AppStep
		var ids []string
		for i := range 5 {
			app := w.insertApp(fmt.Sprintf("chat-%d", i))
			app.Message = fmt.Sprintf("it is number %d", i)
			steps = append(steps, model.AppStep{App: app, Changed: i%2 == 0})
			ids = append(ids, app.ID)
		}
		w.requireFails(model.ErrConflict, func(tx store.Tx) error {
			late := slices.Clone(steps)
			late[3].App.Step++
			return tx.StepApps(late)
		})
		w.requireFails(model.ErrConflict, func(tx store.Tx) error {
			late := slices.Clone(steps)
			late[4].App.ResourceVersion--
			return tx.StepApps(late)
		})
		for _, a := range read(w, func(tx store.Tx) ([]model.App, error) { return tx.GetApps(ids) }) {
			require.Equal(t, []any{"", int64(0), int64(1)}, []any{a.Message, a.Step, a.ResourceVersion}, a.Name)
		}
		w.update(func(tx store.Tx) error { return tx.StepApps(steps) })
		for _, a := range read(w, func(tx store.Tx) ([]model.App, error) { return tx.GetApps(ids) }) {
			want := steps[slices.Index(ids, a.ID)]
			want.App.Step++
			if want.Changed {
				want.App.ResourceVersion++
			} else {
				want.App.Message = ""
			}
			require.Equal(t, want.App, a)
		}
	})

	t.Run("a step stores the app and moves its number at once, or does neither", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		changed := func(a model.App) func(store.Tx) error {
			return func(tx store.Tx) error { return tx.StepApps([]model.AppStep{{App: a, Changed: true}}) }
		}
		app.Message = "one step further"
		w.update(changed(app))
		got := read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) })
		require.Equal(t, []any{app.Message, app.Step + 1, app.ResourceVersion + 1}, []any{got.Message, got.Step, got.ResourceVersion})
		w.requireFails(model.ErrConflict, changed(app))
		late := got
		late.Step--
		w.requireFails(model.ErrConflict, changed(late))
		late = got
		late.ResourceVersion--
		w.requireFails(model.ErrConflict, changed(late))
		require.Equal(t, got, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
		missing := got
		missing.ID = "app_x"
		w.requireFails(model.ErrConflict, changed(missing))
	})

	t.Run("only a step moves the step number", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		w.update(func(tx store.Tx) error {
			if err := tx.StepApps([]model.AppStep{{App: app}}); err != nil {
				return err
			}
			a, err := tx.LockApp("", app.ID)
			if err != nil {
				return err
			}
			require.EqualValues(t, 1, a.Step)
			a.Step = 99
			return tx.UpdateApp(a)
		})
		require.EqualValues(t, 1, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }).Step)
	})

	t.Run("an update stores all fields of an app that it may change", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		want := filledRow[model.App]()
		want.ID, want.WorkspaceID, want.ProjectID, want.EnvironmentID, want.Name = app.ID, w.ws, w.prj, w.env, app.Name
		want.CreatedAt, want.Step, want.ResourceVersion, want.DeletedAt = app.CreatedAt, app.Step, 1, 0
		w.update(func(tx store.Tx) error { return tx.UpdateApp(want) })
		want.ResourceVersion = 2
		require.Equal(t, want, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
	})

	t.Run("a version number of an app is used once", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		oneWins(t, w.runUpdates(6, func(_ int, tx store.Tx) error { return tx.InsertDeployment(w.newDeployment(app, 1)) }), model.ErrExists)
		w.insertDeployment(app, 2)
		d := w.insertDeployment(other, 1)
		requireSame(t, d, read(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeploymentByVersion(w.ws, other.ID, 1) }))
		requireMissing(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeploymentByVersion(w.ws, other.ID, 2) })
	})

	t.Run("the newest deployments of apps are those of their latest versions", func(t *testing.T) {
		w := setup(t)
		app, other, without := w.insertApp("chat"), w.insertApp("other"), w.insertApp("without")
		w.insertDeployment(app, 1)
		newest, only := w.insertDeployment(app, 2), w.insertDeployment(other, 1)
		for _, a := range []struct {
			app     model.App
			version int32
		}{{app, 2}, {other, 1}, {without, 3}} {
			a.app.LatestVersion = a.version
			w.update(func(tx store.Tx) error { return tx.UpdateApp(a.app) })
		}
		found := read(w, func(tx store.Tx) ([]model.Deployment, error) {
			return tx.GetNewestDeployments([]string{app.ID, other.ID, without.ID, app.ID, "app_none"})
		})
		slices.SortFunc(found, func(a, b model.Deployment) int { return cmp.Compare(b.Version, a.Version) })
		require.Len(t, found, 2)
		requireSame(t, newest, found[0])
		requireSame(t, only, found[1])
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Deployment, error) { return tx.GetNewestDeployments(nil) }))
	})

	t.Run("an update of a deployment changes only its status", func(t *testing.T) {
		w := setup(t)
		d := w.insertDeployment(w.insertApp("chat"), 1)
		changed := filledRow[model.Deployment]()
		changed.ID, changed.WorkspaceID, changed.AppID = d.ID, d.WorkspaceID, d.AppID
		changed.Status = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY
		w.update(func(tx store.Tx) error { return tx.UpdateDeployment(changed) })
		want := d
		want.Status, want.Reason, want.Message = changed.Status, changed.Reason, changed.Message
		want.ResolvedImage, want.Stable = changed.ResolvedImage, changed.Stable
		want.ReadyAt, want.EndedAt = changed.ReadyAt, changed.EndedAt
		requireSame(t, want, read(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(w.ws, d.ID) }))

		other := w.insertDeployment(w.insertApp("voice"), 1)
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error {
			return tx.UpdateDeployment(other, model.Deployment{ID: "dep_x", WorkspaceID: w.ws})
		})
		want.Message, other.Message, other.Status = "of two at once", "the other", windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED
		w.update(func(tx store.Tx) error { return tx.UpdateDeployment(other, want) })
		for _, d := range []model.Deployment{want, other} {
			requireSame(t, d, read(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(w.ws, d.ID) }))
		}
		w.update(func(tx store.Tx) error { return tx.UpdateDeployment(other, want) }) // an unchanged row is found, too
	})

	t.Run("deployments are listed newest first and fetched by id", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		d1, d2, d3 := w.insertDeployment(app, 1), w.insertDeployment(other, 1), w.insertDeployment(app, 2)
		all := store.Page{Limit: 9}
		requireSame(t, []model.Deployment{d3, d2, d1}, read(w, func(tx store.Tx) ([]model.Deployment, error) { return tx.ListDeployments(w.ws, "", all) }))
		requireSame(t, []model.Deployment{d3, d1}, read(w, func(tx store.Tx) ([]model.Deployment, error) { return tx.ListDeployments(w.ws, app.ID, all) }))
		got := map[string]bool{}
		for _, d := range read(w, func(tx store.Tx) ([]model.Deployment, error) {
			return tx.GetDeployments([]string{d3.ID, "dep_x", d1.ID, d1.ID})
		}) {
			got[d.ID] = true
		}
		require.Equal(t, map[string]bool{d1.ID: true, d3.ID: true}, got)
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Deployment, error) { return tx.GetDeployments(nil) }))
	})

	t.Run("rollouts in flight are counted with the age of the oldest", func(t *testing.T) {
		w := setup(t)
		require.Equal(t, model.ActiveRolloutCount{}, read(w, store.Tx.CountActiveRollouts))
		rollout := func(app string, at int64) model.Rollout {
			r := filledRow[model.Rollout]()
			r.ID, r.WorkspaceID, r.AppID, r.CreatedAt = ident.New("rol"), w.ws, app, at
			return r
		}
		first, second, over := rollout("app_1", now-5), rollout("app_2", now-9), rollout("app_3", now-20)
		w.update(func(tx store.Tx) error {
			return errors.Join(tx.InsertRollout(first), tx.InsertRollout(second), tx.InsertRollout(over))
		})
		w.newRunningApp(w.ws, "chat", "dep_1", first.ID)
		w.newRunningApp(w.ws, "search", "", second.ID)
		w.newRunningApp(w.ws, "quiet", "dep_3", "")
		require.Equal(t, model.ActiveRolloutCount{Rollouts: 2, OldestAt: now - 9}, read(w, store.Tx.CountActiveRollouts))
	})

	t.Run("an update of a rollout changes only the fields that may change", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		r := model.Rollout{
			ID: ident.New("rol"), WorkspaceID: w.ws, AppID: app.ID, DeploymentID: "dep_2", Version: 2, FromDeploymentID: "dep_1",
			FromVersion: 1, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, CreatedBy: "me", CreatedAt: now,
		}
		later := r
		later.ID = ident.New("rol")
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.InsertRollout(r))
			return tx.InsertRollout(later)
		})
		changed := filledRow[model.Rollout]()
		changed.ID, changed.WorkspaceID, changed.AppID, changed.DeploymentID, changed.Version = r.ID, r.WorkspaceID, r.AppID, r.DeploymentID, r.Version
		changed.FromDeploymentID, changed.FromVersion, changed.CreatedBy, changed.CreatedAt = r.FromDeploymentID, r.FromVersion, r.CreatedBy, r.CreatedAt
		w.update(func(tx store.Tx) error { return tx.UpdateRollout(changed) })
		require.Equal(t, changed, read(w, func(tx store.Tx) (model.Rollout, error) { return tx.GetRollout(w.ws, r.ID) }))
		require.Equal(t, []model.Rollout{later, changed}, read(w, func(tx store.Tx) ([]model.Rollout, error) {
			return tx.ListRollouts(w.ws, app.ID, store.Page{Limit: 9})
		}))
		later.Message, changed.Message = "of two at once", "the other"
		w.update(func(tx store.Tx) error { return tx.UpdateRollout(later, changed) })
		require.Equal(t, []model.Rollout{later, changed}, read(w, func(tx store.Tx) ([]model.Rollout, error) {
			return tx.ListRollouts(w.ws, app.ID, store.Page{Limit: 9})
		}))
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error {
			return tx.UpdateRollout(changed, model.Rollout{ID: "rol_x", WorkspaceID: w.ws})
		})
	})
}

func testRolloutStates(t *testing.T, setup setup) {
	rolloutState := func(w *fixture, appID string) model.RolloutState {
		w.t.Helper()
		found := read(w, func(tx store.Tx) ([]model.RolloutState, error) {
			return tx.GetRolloutStates([]string{appID, "app_none"})
		})
		require.Len(t, found, 1)
		return found[0]
	}
	put := func(w *fixture, s model.RolloutState) {
		w.t.Helper()
		w.update(func(tx store.Tx) error { return tx.PutRolloutState(s) })
	}
	same := func(t *testing.T, want, got model.RolloutState) {
		t.Helper()
		require.True(t, proto.Equal(want.Policy, got.Policy), "%v is not %v", got.Policy, want.Policy)
		require.True(t, want.Progress.Equal(got.Progress), "%+v is not %+v", got.Progress, want.Progress)
		want.Policy, want.Progress, got.Policy, got.Progress = nil, nil, nil, nil
		require.Equal(t, want, got)
	}

	t.Run("an active rollout has its deployment and its app's rollout state", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		r := filledRow[model.Rollout]()
		r.ID, r.WorkspaceID, r.AppID, r.DeploymentID = ident.New("rol"), w.ws, app.ID, d.ID
		lost := r
		lost.ID, lost.DeploymentID = ident.New("rol"), "dep_gone"
		w.update(func(tx store.Tx) error { return errors.Join(tx.InsertRollout(r), tx.InsertRollout(lost)) })
		active := func(tx store.Tx) ([]model.ActiveRollout, error) {
			return tx.GetActiveRollouts([]string{r.ID, lost.ID, "rol_none", r.ID})
		}
		activeRollout := func() model.ActiveRollout {
			t.Helper()
			found := read(w, active)
			require.Len(t, found, 1, "those whose deployment is there")
			return found[0]
		}
		got := activeRollout()
		require.Equal(t, r, got.Rollout)
		require.Equal(t, read(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(w.ws, d.ID) }), got.Deployment)
		require.Nil(t, got.RolloutState)

		s := model.RolloutState{AppID: app.ID, WorkspaceID: w.ws, UpdatedAt: now, Policy: &windlassv1.RolloutPolicy{MaxSurge: "25%"}, Progress: &model.Progress{RolloutID: r.ID, Replicas: -1}}
		put(w, s)
		same(t, rolloutState(w, app.ID), *activeRollout().RolloutState)
		put(w, model.RolloutState{AppID: app.ID, WorkspaceID: w.ws, UpdatedAt: now})
		same(t, model.RolloutState{AppID: app.ID, WorkspaceID: w.ws, UpdatedAt: now}, *activeRollout().RolloutState)
	})

	t.Run("an app's rollout state is what was put last", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		require.Empty(t, read(w, func(tx store.Tx) ([]model.RolloutState, error) { return tx.GetRolloutStates([]string{app.ID}) }))
		s := model.RolloutState{AppID: app.ID, WorkspaceID: w.ws, UpdatedAt: now, Policy: &windlassv1.RolloutPolicy{
			Strategy: windlassv1.RolloutPolicy_STRATEGY_ROLLING, MaxSurge: "25%",
			Waves: []*windlassv1.Wave{{Name: "canary", Labels: map[string]string{"tier": "one"}}},
		}}
		put(w, s)
		put(w, model.RolloutState{AppID: other.ID, WorkspaceID: w.ws, UpdatedAt: now})
		same(t, s, rolloutState(w, app.ID))
		require.Nil(t, rolloutState(w, other.ID).Policy)
		require.Nil(t, rolloutState(w, other.ID).Progress)

		s.Progress = &model.Progress{
			RolloutID: "rol_1", Policy: &windlassv1.RolloutPolicy{MaxSurge: "1"}, Replicas: -1, DefaultReplicas: 2,
			OldSizes: map[string]int32{"reg_1": 3}, Sizes: map[string]int32{"reg_1": 4, "reg_2": 0},
			Back: true, Final: windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED, Reason: "CrashLoop", Message: "exit code 1 in Zürich",
			PausedAt: 1, PausedBy: "ada", PausedWhy: "lunch", Failed: true, DoneAt: 9,
			Waves: []model.WaveProgress{{
				Name: "canary", Policy: 1, State: windlassv1.WaveProgress_STATE_BAKING, BakingSince: 7, SkippedBy: "ada",
				Regions: []model.RegionProgress{{
					RegionID: "reg_1", State: windlassv1.RegionProgress_STATE_MOVED, Since: 2, Reason: "NotReady", Message: "soon",
					ProgressClock: model.ProgressClock{Score: -3, ScoredAt: 4, ClockStoppedSince: 5},
					StepWait:      model.StepWait{Step: 2, StoppedAt: 6, PromotedBy: "ada"},
					HealthWatch:   model.HealthWatch{MostReady: 3, HealthGeneration: 8},
				}},
			}},
		}
		s.Progress.Lagging = []model.LaggingRegion{{RegionID: "reg_2", DeploymentID: "dep_1", Progress: &model.Progress{
			RolloutID: "rol_1", Policy: &windlassv1.RolloutPolicy{MaxSurge: "1"}, CatchesUp: true, OldSizes: map[string]int32{"reg_2": 1},
		}}}
		s.UpdatedAt++
		put(w, s)
		same(t, s, rolloutState(w, app.ID))
		s.Policy = nil
		put(w, s)
		same(t, s, rolloutState(w, app.ID))
	})

	t.Run("a reader may change the rows that it read", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		put(w, model.RolloutState{AppID: app.ID, WorkspaceID: w.ws, Progress: &model.Progress{
			Policy: &windlassv1.RolloutPolicy{}, Sizes: map[string]int32{"reg_1": 1}, Waves: []model.WaveProgress{{Name: "1"}},
		}})
		s := rolloutState(w, app.ID)
		s.Progress.Sizes["reg_1"], s.Progress.Waves[0].Name = 9, "changed"
		s = rolloutState(w, app.ID)
		require.Equal(t, int32(1), s.Progress.Sizes["reg_1"])
		require.Equal(t, "1", s.Progress.Waves[0].Name)
	})
}
