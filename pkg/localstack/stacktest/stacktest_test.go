package stacktest_test

import (
	"database/sql"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func TestDatabase_IsNewAndIsDroppedWithItsTest(t *testing.T) {
	var first, second string
	t.Run("two in one test", func(t *testing.T) {
		first, second = stacktest.MariaDB(t), stacktest.MariaDB(t)
		require.NotEqual(t, first, second)
		for _, dsn := range []string{first, second} {
			db, err := sql.Open("mysql", dsn)
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), "CREATE TABLE t (id INT PRIMARY KEY)")
			require.NoError(t, err)
			require.NoError(t, db.Close())
		}
		cfg, err := mysql.ParseDSN(first)
		require.NoError(t, err)
		require.True(t, cfg.ClientFoundRows)
	})
	for _, dsn := range []string{first, second} {
		db, err := sql.Open("mysql", dsn)
		require.NoError(t, err)
		require.ErrorContains(t, db.PingContext(t.Context()), "Unknown database")
		require.NoError(t, db.Close())
	}
}

func TestRestate_Answers(t *testing.T) {
	ingress, admin := stacktest.Restate(t)
	for _, url := range []string{ingress + "/restate/health", admin + "/health"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
}

func TestSweep_RemovesDirectoriesOfEndedProcesses(t *testing.T) {
	temp := t.TempDir()
	dirs := map[string]string{}
	for _, name := range []string{"windlass-stack-ended", "windlass-stack-held", "windlass-stack-new", "other"} {
		dir := filepath.Join(temp, name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		dirs[name] = dir
	}
	lock, err := flock.Try(filepath.Join(dirs["windlass-stack-held"], "lock"))
	require.NoError(t, err)
	defer func() { _ = lock.Unlock() }()
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"windlass-stack-ended", "windlass-stack-held", "other"} {
		require.NoError(t, os.Chtimes(dirs[name], old, old))
	}

	stacktest.Sweep(temp)
	require.NoDirExists(t, dirs["windlass-stack-ended"])
	require.DirExists(t, dirs["windlass-stack-held"])
	require.DirExists(t, dirs["windlass-stack-new"])
	require.DirExists(t, dirs["other"])
}
