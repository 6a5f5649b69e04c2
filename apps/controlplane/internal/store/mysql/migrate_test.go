package mysql_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/db"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func TestMigrate_TwiceChangesNothing(t *testing.T) {
	d := handle(t, stacktest.MariaDB(t))
	require.NoError(t, db.Migrate(t.Context(), d))
	require.NoError(t, db.Migrate(t.Context(), d))
}

func TestMigrate_ConcurrentProcessesAllSucceed(t *testing.T) {
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

func TestMigrate_FinishesAKilledMigration(t *testing.T) {
	d := handle(t, stacktest.MariaDB(t))
	require.NoError(t, db.Migrate(t.Context(), d))
	for _, noted := range []string{"version_id >= 20", "version_id >= 0"} {
		_, err := d.ExecContext(t.Context(), "DELETE FROM goose_db_version WHERE "+noted)
		require.NoError(t, err)
		require.NoError(t, db.Migrate(t.Context(), d))
	}
}

// A process that restarts while newer processes run continues with the newer schema.
func TestMigrate_NewerSchemaIsRefusedOnceItLacksSomething(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	d := handle(t, dsn)
	require.NoError(t, db.Migrate(t.Context(), d))
	exec := func(query string) {
		t.Helper()
		_, err := d.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, TRUE)")
	older, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
	require.NoError(t, err)
	require.NoError(t, older.Close())
	exec("UPDATE goose_oldest_program SET oldest = 99999")
	_, err = mysql.Open(t.Context(), mysql.Config{DSN: dsn})
	require.ErrorIs(t, err, db.ErrNewerSchema)
	require.ErrorContains(t, err, "run a newer version")
	exec("DELETE FROM goose_oldest_program")
	_, err = mysql.Open(t.Context(), mysql.Config{DSN: dsn})
	require.ErrorIs(t, err, db.ErrNewerSchema, "the database has no record of the oldest program")
}

func TestOpen_BadDSNIsNamed(t *testing.T) {
	for _, dsn := range []string{"", "not a dsn", "root@tcp(127.0.0.1:3306)/"} {
		_, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
		require.ErrorContains(t, err, "DSN")
	}
}

func TestOpen_DSNsMayHaveSpaceAroundThem(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	for _, cfg := range []mysql.Config{{DSN: dsn + "\n"}, {DSN: " " + dsn + "\r\n", ReadDSN: dsn + "\n"}, {DSN: dsn, ReadDSN: "\n"}} {
		s := open(t, cfg)
		require.NoError(t, s.View(t.Context(), func(tx store.Tx) error {
			_, err := tx.GetRegion("reg_none")
			require.ErrorIs(t, err, model.ErrNotFound)
			return nil
		}))
	}
}

// An old control plane names the columns that it knows, so it ignores other columns.
func TestMigrate_EarlierProgramRunsOnTheNewestSchema(t *testing.T) {
	newest := handle(t, stacktest.MariaDB(t))
	require.NoError(t, db.Migrate(t.Context(), newest))
	var version int64
	require.NoError(t, newest.QueryRowContext(t.Context(), "SELECT MAX(version_id) FROM goose_db_version").Scan(&version))
	require.Greater(t, version, int64(db.Baseline))

	for _, earlier := range []int64{db.Baseline, version - 1} {
		t.Run(fmt.Sprintf("version %d", earlier), func(t *testing.T) {
			d := handle(t, stacktest.MariaDB(t))
			require.NoError(t, db.MigrateTo(t.Context(), d, earlier))
			known := tables(t, d)
			require.NotEmpty(t, known)
			for _, table := range known {
				table.insert(t, d, 1)
			}
			before := map[string][]string{}
			for _, table := range known {
				before[table.name] = table.read(t, d)
			}
			require.NoError(t, db.Migrate(t.Context(), d))
			for _, table := range known {
				require.Equal(t, before[table.name], table.read(t, d), "rows of %s changed", table.name)
				table.insert(t, d, 2)
				require.Len(t, table.read(t, d), 2, table.name)
			}
		})
	}
}

// table is a table with the columns that the program of an earlier schema knows.
type table struct {
	name           string
	columns, types []string
}

func tables(t *testing.T, d *sql.DB) (all []*table) {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), `SELECT table_name, column_name, data_type FROM information_schema.columns
		WHERE table_schema = DATABASE() AND table_name NOT LIKE 'goose%' ORDER BY table_name, ordinal_position`)
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name, column, kind string
		require.NoError(t, rows.Scan(&name, &column, &kind))
		if len(all) == 0 || all[len(all)-1].name != name {
			all = append(all, &table{name: name})
		}
		last := all[len(all)-1]
		last.columns, last.types = append(last.columns, column), append(last.types, kind)
	}
	require.NoError(t, rows.Err())
	return all
}

// insert inserts a row with the number. Each row has other values.
func (b *table) insert(t *testing.T, d *sql.DB, number int) {
	t.Helper()
	var args []any
	for i, kind := range b.types {
		switch kind {
		case "int", "bigint":
			args = append(args, 100*i+number)
		case "tinyint":
			args = append(args, number%2)
		default:
			args = append(args, fmt.Sprintf("%d-%d", i, number))
		}
	}
	_, err := d.ExecContext(t.Context(), "INSERT INTO "+b.name+" ("+strings.Join(b.columns, ", ")+") VALUES (?"+
		strings.Repeat(", ?", len(args)-1)+")", args...)
	require.NoError(t, err, b.name)
}

// read returns all rows of the table, each with its columns joined.
func (b *table) read(t *testing.T, d *sql.DB) (all []string) {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), "SELECT CONCAT_WS('|', "+strings.Join(b.columns, ", ")+") AS joined FROM "+b.name+" ORDER BY joined")
	require.NoError(t, err, b.name)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var row string
		require.NoError(t, rows.Scan(&row))
		all = append(all, row)
	}
	require.NoError(t, rows.Err())
	return all
}
