package planinput_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	workspace = "ws_acme"
	here      = "reg_here"   // the workspace's
	shared    = "reg_shared" // the platform's, granted
	closed    = "reg_closed" // the platform's, granted no longer
	catchesUp = "reg_catches_up"
)

// apps inserts one app of every kind. Their ids end with the suffix.
func apps(t *testing.T, tx store.Tx, suffix string) (ids []string) {
	t.Helper()
	must := func(err error) { require.NoError(t, err) }
	deployment := func(app string, version int32, status windlassv1.DeploymentStatus) string {
		id := fmt.Sprintf("dep_%s_%d", app, version)
		must(tx.InsertDeployment(model.Deployment{
			ID: id, WorkspaceID: workspace, AppID: app, Version: version, Status: status,
			Spec: &windlassv1.DeploymentSpec{Regions: []string{"here", "shared", "not-there"}},
		}))
		return id
	}
	runs := func(app, deployment, region string) {
		must(tx.PutTopology([]model.Topology{{
			WorkspaceID: workspace, AppID: app, DeploymentID: deployment, RegionID: region, Replicas: 2, Weight: 100,
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, Generation: 1,
		}}))
		must(tx.PutObserved([]model.Observed{{WorkspaceID: workspace, AppID: app, DeploymentID: deployment, RegionID: region, Guard: 1, Ready: 2}}))
	}
	rollout := func(app, deployment string) string {
		must(tx.InsertRollout(model.Rollout{
			ID: "rol_" + app, WorkspaceID: workspace, AppID: app, DeploymentID: deployment, Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING,
		}))
		return "rol_" + app
	}
	const (
		pending = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING
		ready   = windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY
	)
	insert := func(app model.App) {
		app.WorkspaceID, app.EnvironmentID, app.Name, app.Step = workspace, "env_production", app.ID[len("app_"):], 7
		must(tx.InsertApp(app))
		ids = append(ids, app.ID)
	}

	starts := "app_starts_" + suffix
	first := deployment(starts, 1, pending)
	insert(model.App{ID: starts, LatestVersion: 1, RolloutID: rollout(starts, first)})

	idle := "app_idle_" + suffix
	insert(model.App{ID: idle, LatestVersion: 1, LiveDeploymentID: deployment(idle, 1, ready), Domains: 1, AppKeys: 1})
	must(tx.InsertDomain(model.Domain{WorkspaceID: workspace, AppID: idle, Name: suffix + ".example.com"}))
	must(tx.VerifyDomain(idle, suffix+".example.com", 1))
	must(tx.InsertAppKey(model.AppKey{WorkspaceID: workspace, AppID: idle, Name: "mobile", Hash: []byte("hash")}))
	runs(idle, "dep_"+idle+"_1", here)

	failed := "app_failed_" + suffix
	insert(model.App{ID: failed, LatestVersion: 2, LiveDeploymentID: deployment(failed, 1, ready)})
	deployment(failed, 2, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED)

	staged := "app_staged_" + suffix
	live, next := deployment(staged, 1, ready), deployment(staged, 2, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING)
	insert(model.App{ID: staged, LatestVersion: 2, LiveDeploymentID: live, RolloutID: rollout(staged, next)})
	runs(staged, live, closed)
	runs(staged, next, shared)
	must(tx.PutRolloutState(model.RolloutState{AppID: staged, WorkspaceID: workspace, Progress: &model.Progress{
		RolloutID: "rol_" + staged,
		Waves:     []model.WaveProgress{{Regions: []model.RegionProgress{{RegionID: closed}, {RegionID: shared}, {RegionID: here}}}},
	}}))

	pinned := "app_pinned_" + suffix
	old := deployment(pinned, 1, ready)
	insert(model.App{ID: pinned, LatestVersion: 2, LiveDeploymentID: deployment(pinned, 2, ready)})
	runs(pinned, old, shared)
	must(tx.PutPin(model.Pin{WorkspaceID: workspace, AppID: pinned, DeploymentID: old, Version: 1, Weight: 5, Regions: []model.PinRegion{{RegionID: shared}}}))

	lags := "app_lags_" + suffix
	insert(model.App{ID: lags, LatestVersion: 1, LiveDeploymentID: deployment(lags, 1, ready)})
	must(tx.PutRolloutState(model.RolloutState{AppID: lags, WorkspaceID: workspace, Progress: &model.Progress{
		RolloutID: "rol_over", DoneAt: 1, Lagging: []model.LaggingRegion{{RegionID: catchesUp, DeploymentID: "dep_" + lags + "_1"}},
	}}))

	// This app is at zero in each kind of region. Requests wake the app there, except in the closed region.
	asleep := "app_asleep_" + suffix
	insert(model.App{ID: asleep, LatestVersion: 1, LiveDeploymentID: "dep_" + asleep + "_1"})
	must(tx.InsertDeployment(model.Deployment{
		ID: "dep_" + asleep + "_1", WorkspaceID: workspace, AppID: asleep, Version: 1, Status: ready,
		Spec: &windlassv1.DeploymentSpec{Regions: []string{"here", "shared", "closed"}, Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}},
	}))
	for _, region := range []string{here, shared, closed} {
		must(tx.PutTopology([]model.Topology{{
			WorkspaceID: workspace, AppID: asleep, DeploymentID: "dep_" + asleep + "_1", RegionID: region, Weight: 100,
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED, Generation: 1,
		}}))
	}
	return ids
}

// seeded returns a store with each kind of app n times.
func seeded(t *testing.T, n int) (s *memory.Store, ids []string) {
	t.Helper()
	s = memory.New(func() int64 { return time.Now().UnixMilli() })
	require.NoError(t, s.Update(t.Context(), func(tx store.Tx) error {
		ids = nil
		for _, r := range []model.Region{
			{ID: here, WorkspaceID: workspace, Name: "here"},
			{ID: catchesUp, WorkspaceID: workspace, Name: "catches-up"},
			{ID: shared, Name: "shared"},
			{ID: closed, Name: "closed"},
		} {
			require.NoError(t, tx.InsertRegion(r))
		}
		require.NoError(t, tx.GrantRegion(shared, workspace, 1))
		for i := range n {
			ids = append(ids, apps(t, tx, fmt.Sprint(i))...)
		}
		return nil
	}))
	return s, ids
}

func read(t *testing.T, s *memory.Store, ids []string, by func(store.Tx, []model.App) ([]*plan.Input, error)) (out []plan.Input) {
	t.Helper()
	require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
		rows, err := tx.GetApps(ids)
		require.NoError(t, err)
		slices.SortFunc(rows, func(a, b model.App) int { return cmp.Compare(a.ID, b.ID) })
		found, err := by(tx, rows)
		for i, in := range found {
			require.Equal(t, rows[i].ID, in.App.ID, "inputs are in the order of the apps")
			slices.SortFunc(in.Deployments, func(a, b model.Deployment) int { return cmp.Compare(a.ID, b.ID) })
			out = append(out, *in)
		}
		return err
	}))
	return out
}

func load(tx store.Tx, apps []model.App) ([]*plan.Input, error) {
	return planinput.Load(tx, apps, "apps.test")
}

func rows(tx store.Tx, apps []model.App) ([]*plan.Input, error) { return planinput.Rows(tx, apps) }

func shown(tx store.Tx, apps []model.App) ([]*plan.Input, error) {
	return planinput.Shown(tx, apps, planinput.Known{})
}

func TestInput(t *testing.T) {
	s, ids := seeded(t, 1)
	loaded := read(t, s, ids, load)
	require.Len(t, loaded, 7)

	t.Run("a step reads everything that its app names", func(t *testing.T) {
		of := map[string]plan.Input{}
		for _, in := range loaded {
			of[in.App.Name] = in
		}
		starts := of["starts_0"]
		require.Equal(t, map[string]string{"here": here, "shared": shared}, starts.RegionIDs, "unknown names are left out")
		require.Equal(t, []string{model.Host(starts.App, "apps.test")}, starts.Hosts)
		require.Contains(t, of["idle_0"].Hosts, "0.example.com", "a verified domain")
		require.NotEmpty(t, of["idle_0"].Keys)
		staged := of["staged_0"]
		require.Equal(t, map[string]bool{closed: true}, staged.Closed, "the region's grant is revoked")
		require.Equal(t, map[string]bool{closed: true}, of["asleep_0"].Closed, "without a rollout or pin")
		require.Empty(t, of["idle_0"].Closed)
		require.Len(t, staged.Deployments, 2)
		require.Len(t, staged.Regions, 3, "the regions of rows and waves")
		require.Len(t, staged.Observed, 2)
		require.Len(t, of["failed_0"].Deployments, 2, "the live and the newest deployment")
		require.Len(t, of["pinned_0"].Pins, 1)
		require.Len(t, of["pinned_0"].Deployments, 2, "the live and the pinned deployment")
		require.Equal(t, catchesUp, of["lags_0"].Regions[0].ID)
	})

	t.Run("a preview reads the same rows as the next step", func(t *testing.T) {
		for i, in := range read(t, s, ids, rows) {
			want := loaded[i]
			// A forecast assumes these facts.
			want.Hosts, want.Keys, want.Routes, want.Freezes, want.Observed, want.RouteObserved = nil, nil, nil, nil, nil, nil
			require.Equal(t, want, in, in.App.ID)
		}
	})

	t.Run("a view reads the same rows as the next step", func(t *testing.T) {
		for i, in := range read(t, s, ids, shown) {
			want := loaded[i]
			require.Equal(t, want.Topology, in.Topology, in.App.ID)
			require.Equal(t, want.Rollout, in.Rollout, in.App.ID)
			require.Equal(t, want.RolloutState, in.RolloutState, in.App.ID)
			require.Equal(t, want.Pins, in.Pins, in.App.ID)
			require.Equal(t, want.Observed, in.Observed, in.App.ID)
			for _, d := range in.Deployments {
				require.Contains(t, want.Deployments, d, in.App.ID)
			}
			for _, r := range in.Regions {
				require.Contains(t, want.Regions, r, in.App.ID)
			}
		}
	})

	t.Run("rows that the caller has are not read again", func(t *testing.T) {
		require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
			app, err := tx.GetApp(workspace, "app_staged_0")
			require.NoError(t, err)
			queries := &counting{Tx: tx}
			found, err := planinput.Shown(queries, []model.App{app}, planinput.Known{
				Deployments: loaded[slices.IndexFunc(loaded, func(in plan.Input) bool { return in.App.ID == app.ID })].Deployments, RolloutStates: []model.RolloutState{{AppID: app.ID}},
			})
			require.NoError(t, err)
			require.Len(t, found[0].Deployments, 2)
			require.NotContains(t, queries.asked, "deployments")
			require.NotContains(t, queries.asked, "rollout states")
			return nil
		}))
	})

	t.Run("the number of queries does not grow with the number of apps", func(t *testing.T) {
		count := func(n int, by func(planinput.Tx, []model.App) ([]*plan.Input, error)) (asked []string) {
			s, ids := seeded(t, n)
			read(t, s, ids, func(tx store.Tx, apps []model.App) ([]*plan.Input, error) {
				queries := &counting{Tx: tx}
				defer func() { asked = queries.asked }()
				return by(queries, apps)
			})
			return asked
		}
		for name, by := range map[string]func(planinput.Tx, []model.App) ([]*plan.Input, error){
			"Load": func(tx planinput.Tx, apps []model.App) ([]*plan.Input, error) {
				return planinput.Load(tx, apps, "apps.test")
			},
			"Rows": planinput.Rows,
			"Shown": func(tx planinput.Tx, apps []model.App) ([]*plan.Input, error) {
				return planinput.Shown(tx, apps, planinput.Known{})
			},
		} {
			require.Equal(t, count(1, by), count(20, by), name)
		}
	})
}

// counting records which queries were made.
type counting struct {
	planinput.Tx
	asked []string
}

func (c *counting) ask(what string) { c.asked = append(c.asked, what) }

func (c *counting) ListTopology(ids []string) ([]model.Topology, error) {
	c.ask("topology")
	return c.Tx.ListTopology(ids)
}

func (c *counting) ListRoutes(ids []string) ([]model.Route, error) {
	c.ask("routes")
	return c.Tx.ListRoutes(ids)
}

func (c *counting) ListObserved(ids []string) ([]model.Observed, error) {
	c.ask("observed")
	return c.Tx.ListObserved(ids)
}

func (c *counting) ListRouteObserved(ids []string) ([]model.RouteObserved, error) {
	c.ask("observed routes")
	return c.Tx.ListRouteObserved(ids)
}

func (c *counting) DomainsOfApps(ids []string) ([]model.Domain, error) {
	c.ask("domains")
	return c.Tx.DomainsOfApps(ids)
}

func (c *counting) KeysOfApps(ids []string) ([]model.AppKey, error) {
	c.ask("keys")
	return c.Tx.KeysOfApps(ids)
}

func (c *counting) GetActiveRollouts(ids []string) ([]model.ActiveRollout, error) {
	c.ask("active rollouts")
	return c.Tx.GetActiveRollouts(ids)
}

func (c *counting) GetRollouts(ids []string) ([]model.Rollout, error) {
	c.ask("rollouts")
	return c.Tx.GetRollouts(ids)
}

func (c *counting) GetRolloutStates(ids []string) ([]model.RolloutState, error) {
	c.ask("rollout states")
	return c.Tx.GetRolloutStates(ids)
}

func (c *counting) ListPins(ids []string) ([]model.Pin, error) {
	c.ask("pins")
	return c.Tx.ListPins(ids)
}

func (c *counting) GetDeployments(ids []string) ([]model.Deployment, error) {
	c.ask("deployments")
	return c.Tx.GetDeployments(ids)
}

func (c *counting) GetNewestDeployments(ids []string) ([]model.Deployment, error) {
	c.ask("newest deployments")
	return c.Tx.GetNewestDeployments(ids)
}

func (c *counting) ListFreezesFor(workspaceID, name string, ids ...string) ([]model.Freeze, error) {
	c.ask("freezes")
	return c.Tx.ListFreezesFor(workspaceID, name, ids...)
}

func (c *counting) GetRegions(ids []string) ([]model.Region, error) {
	c.ask("regions")
	return c.Tx.GetRegions(ids)
}

func (c *counting) GetRegionsByName(workspaceID string, names []string) ([]model.Region, error) {
	c.ask("regions by name")
	return c.Tx.GetRegionsByName(workspaceID, names)
}
