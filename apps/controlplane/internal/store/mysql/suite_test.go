package mysql_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/storetest"
	"github.com/windlass-run/windlass/db"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func TestMySQL_KeepsTheStoresContract(t *testing.T) {
	keepsContract(t, func(_ testing.TB, s *mysql.Store) store.Store { return s })
}

// A request has the same guarantees in a batch as alone.
func TestMySQL_KeepsTheStoresContractInABatch(t *testing.T) {
	keepsContract(t, mysql.Accompanied)
}

// keepsContract empties one database between tests, which is ten times faster than making
// a new database.
func keepsContract(t *testing.T, as func(testing.TB, *mysql.Store) store.Store) {
	dsn := stacktest.MariaDB(t)
	d := handle(t, dsn)
	require.NoError(t, db.Migrate(t.Context(), d))
	rows, err := d.QueryContext(t.Context(), "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	var tables []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		if !strings.HasPrefix(name, "goose_") {
			tables = append(tables, name)
		}
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, tables)

	storetest.Run(t, func(t testing.TB) store.Store {
		for _, name := range tables {
			_, err := d.ExecContext(t.Context(), "DELETE FROM "+name)
			require.NoError(t, err)
		}
		return as(t, open(t, mysql.Config{DSN: dsn, MaxTries: 100}))
	})
}
