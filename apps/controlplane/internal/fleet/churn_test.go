package fleet

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// churn is an installation that changes without growing: each day makes the same number of new objects, and all of
// them are temporary.
type churn struct {
	t    *testing.T
	db   store.Store
	svc  *Service
	rows func() map[string]int
	day  time.Time
	apps []model.App
	ids  int
}

// id returns the id of a row that was made today, with the simulated time.
func (c *churn) id(prefix string) string {
	c.ids++
	return fmt.Sprintf("%s70008%015d", ident.Before(prefix, c.day), c.ids)
}

func (c *churn) update(fn func(tx store.Tx) error) {
	c.t.Helper()
	require.NoError(c.t, c.db.Update(c.t.Context(), fn))
}

func (c *churn) begin(fleet Config) {
	svc, err := New(fleet)
	require.NoError(c.t, err)
	c.svc = svc
	c.update(func(tx store.Tx) error {
		errs := []error{
			tx.InsertWorkspace(model.Workspace{ID: "ws_1", Name: "w", ResourceVersion: 1}),
			tx.InsertEnvironment(model.Environment{ID: "env_1", WorkspaceID: "ws_1", ProjectID: "prj_1", Name: "production", ResourceVersion: 1}),
			tx.InsertRegion(model.Region{ID: region, WorkspaceID: "ws_1", Name: "us-east-1", ResourceVersion: 1}),
		}
		for i := range 2 {
			app := model.App{ID: fmt.Sprint("app_", i), WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: fmt.Sprint("app-", i), ResourceVersion: 1}
			c.apps = append(c.apps, app)
			errs = append(errs, tx.InsertApp(app))
		}
		return errors.Join(errs...)
	})
}

// version inserts the app's next version as an ended version, with all rows that it leaves.
func (c *churn) version(tx store.Tx, app *model.App) error {
	app.LatestVersion++
	at, id := c.day.UnixMilli(), c.id("dep")
	errs := []error{
		tx.InsertDeployment(model.Deployment{
			ID: id, WorkspaceID: "ws_1", AppID: app.ID, Version: app.LatestVersion, Spec: &windlassv1.DeploymentSpec{},
			Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, CreatedAt: at, EndedAt: at,
		}),
		tx.InsertRollout(model.Rollout{
			ID: c.id("rol"), WorkspaceID: "ws_1", AppID: app.ID, DeploymentID: id, Version: app.LatestVersion,
			Status: windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, CreatedAt: at, FinishedAt: at,
		}),
		tx.PutTopology([]model.Topology{{
			WorkspaceID: "ws_1", AppID: app.ID, DeploymentID: id, RegionID: region, Generation: 3,
			Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED, CreatedAt: at, UpdatedAt: at,
		}}),
		tx.PutObserved([]model.Observed{{WorkspaceID: "ws_1", AppID: app.ID, DeploymentID: id, RegionID: region, Guard: 1, UpdatedAt: at}}),
		tx.PutInstances([]model.Instance{{
			ID: c.id("ins"), WorkspaceID: "ws_1", AppID: app.ID, DeploymentID: id, RegionID: region, Guard: 1,
			Status: windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED, UpdatedAt: at,
		}}),
	}
	var history []model.History
	for range 20 {
		history = append(history, model.History{ID: c.id("hst"), WorkspaceID: "ws_1", AppID: app.ID, At: at, What: "Decided", DeploymentID: id})
		tx.Change(region, model.KindDeployment, c.id("dep"), 1)
	}
	return errors.Join(append(errs, tx.InsertHistory(history))...)
}

// pass simulates a day, and runs maintenance at its end.
func (c *churn) pass() {
	c.t.Helper()
	at := c.day.UnixMilli()
	for i := range c.apps {
		app := &c.apps[i]
		c.update(func(tx store.Tx) error {
			stored, err := tx.LockApp("", app.ID)
			if err != nil {
				return err
			}
			for range 4 {
				err = errors.Join(err, c.version(tx, &stored))
			}
			if err := errors.Join(err, tx.UpdateApp(stored)); err != nil {
				return err
			}
			*app = stored
			return nil
		})
	}
	c.update(func(tx store.Tx) error {
		// An app that lived for less than a day.
		gone := model.App{ID: c.id("app"), WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "brief", CreatedAt: at, ResourceVersion: 1}
		errs := []error{
			tx.InsertApp(gone), c.version(tx, &gone),
			tx.PutRoutes([]model.Route{{WorkspaceID: "ws_1", AppID: gone.ID, RegionID: region, Generation: 1}}),
			tx.PutRouteObserved([]model.RouteObserved{{AppID: gone.ID, RegionID: region, Guard: 1}}),
			tx.Wake([]string{gone.ID}, at, at),
		}
		gone.DeletedAt = at
		errs = append(errs, tx.UpdateApp(gone))
		for i := range 5 {
			id := c.id("x")
			errs = append(errs,
				tx.InsertAudit(model.Audit{ID: c.id("aud"), WorkspaceID: "ws_1", At: at}),
				tx.InsertIdempotency(model.Idempotency{WorkspaceID: "ws_1", Key: id, RequestHash: []byte{1}, CreatedAt: at}),
				tx.InsertJoinToken(model.JoinToken{ID: c.id("jtk"), RegionID: region, Hash: model.HashToken(id), CreatedAt: at, ExpiresAt: at + int64(i)}),
				tx.InsertAPIKey(model.APIKey{ID: c.id("key"), WorkspaceID: "ws_1", Name: id, Hash: model.HashToken(id), CreatedAt: at, RevokedAt: at}),
			)
		}
		// One secret is rotated, another is made and deleted.
		versions, err := tx.SecretVersions("env_1", []string{"token"})
		floor, floorErr := tx.SecretFloor("env_1")
		brief := model.Secret{WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "brief", Version: floor + 1}
		token := model.Secret{WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "token", Version: versions["token"] + 1}
		return errors.Join(append(errs, err, floorErr,
			tx.InsertSecretVersion(token), tx.InsertSecretVersion(brief), tx.DeleteSecret("ws_1", "env_1", "brief"),
			tx.PutStream(region, c.id("cp")))...)
	})
	c.day = c.day.Add(24 * time.Hour)
	require.NoError(c.t, c.svc.maintainAll(c.t.Context(), c.day))
}

// peaks simulates days, and returns the maximum number of rows of each table at the end of a day.
func (c *churn) peaks(days int) map[string]int {
	c.t.Helper()
	peaks := map[string]int{}
	for range days {
		c.pass()
		for table, n := range c.rows() {
			peaks[table] = max(peaks[table], n)
		}
	}
	return peaks
}

func testChurn(t *testing.T, db store.Store, rows func() map[string]int) {
	c := &churn{t: t, db: db, rows: rows, day: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	c.begin(Config{
		Store: store.Bind[Tx](db), Box: newBox(t),
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), KeepChanges: 1000, LookupTXT: new(dns).lookup,
	})
	// The longest retention is that of the audit, 90 days.
	c.peaks(92)
	then := c.peaks(30)
	now := c.peaks(30)
	for table, n := range then {
		require.LessOrEqual(t, now[table], n, "table %s grows: from at most %d rows to %d a month later", table, n, now[table])
		require.LessOrEqual(t, n, 2500, "table %s", table)
	}
	for _, app := range c.apps {
		require.NoError(t, db.View(context.Background(), func(tx store.Tx) error {
			kept, err := tx.ListDeployments("ws_1", app.ID, model.Page{Limit: 1000})
			require.GreaterOrEqual(t, len(kept), 100, "versions for rollbacks")
			require.LessOrEqual(t, len(kept), 110)
			require.Equal(t, app.LatestVersion, kept[0].Version)
			history, err2 := tx.ListHistory("ws_1", app.ID, model.Page{Limit: 5000})
			require.GreaterOrEqual(t, len(history), 1000)
			return errors.Join(err, err2)
		}))
	}
}

func TestMaintenance_KeepsTheDatabaseFlatOverMonths(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		db := memory.New(func() int64 { return time.Now().UnixMilli() })
		testChurn(t, db, db.Rows)
	})
	t.Run("mysql", func(t *testing.T) {
		dsn := stacktest.MariaDB(t)
		db, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		raw, err := sql.Open("mysql", dsn)
		require.NoError(t, err)
		defer func() { require.NoError(t, raw.Close()) }()
		testChurn(t, db, func() map[string]int { return countTables(t, raw) })
	})
}

// countTables counts the rows of all tables in the database, so that new tables are included.
func countTables(t *testing.T, db *sql.DB) map[string]int {
	t.Helper()
	names, err := db.QueryContext(t.Context(), "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
	require.NoError(t, err)
	defer func() { require.NoError(t, names.Close()) }()
	var parts []string
	for names.Next() {
		var name string
		require.NoError(t, names.Scan(&name))
		parts = append(parts, fmt.Sprintf("SELECT '%s', COUNT(*) FROM %s", name, name))
	}
	require.NoError(t, names.Err())
	rows, err := db.QueryContext(t.Context(), strings.Join(parts, " UNION ALL "))
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	counts := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		require.NoError(t, rows.Scan(&name, &n))
		counts[name] = n
	}
	require.NoError(t, rows.Err())
	return counts
}
