package mysql_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/db"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func TestMigrateTwiceChangesNothing(t *testing.T) {
	d := handle(t, stacktest.MariaDB(t))
	require.NoError(t, db.Migrate(t.Context(), d))
	require.NoError(t, db.Migrate(t.Context(), d))
}

func TestProcessesThatMigrateAtOnceAllSucceed(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		d := handle(t, dsn)
		wg.Go(func() { errs[i] = db.Migrate(t.Context(), d) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestAMigrationKilledBeforeItWasNotedIsFinishedByTheNext(t *testing.T) {
	d := handle(t, stacktest.MariaDB(t))
	require.NoError(t, db.Migrate(t.Context(), d))
	for _, noted := range []string{"version_id >= 20", "version_id >= 0"} {
		_, err := d.ExecContext(t.Context(), "DELETE FROM goose_db_version WHERE "+noted)
		require.NoError(t, err)
		require.NoError(t, db.Migrate(t.Context(), d))
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	d := handle(t, dsn)
	require.NoError(t, db.Migrate(t.Context(), d))
	_, err := d.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, TRUE)")
	require.NoError(t, err)
	_, err = mysql.Open(t.Context(), mysql.Config{DSN: dsn})
	require.ErrorIs(t, err, db.ErrNewerSchema)
}

func TestABadDSNIsSaidByName(t *testing.T) {
	for _, dsn := range []string{"", "not a dsn", "root@tcp(127.0.0.1:3306)/"} {
		_, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
		require.ErrorContains(t, err, "DSN")
	}
}
