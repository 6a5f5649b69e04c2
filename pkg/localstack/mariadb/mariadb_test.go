package mariadb_test

import (
	"context"
	"database/sql"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
)

func start(t *testing.T, cfg mariadb.Config) *mariadb.Server {
	t.Helper()
	cfg.DieWithParent = true
	cfg.Durability = mariadb.Relaxed
	s, err := mariadb.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
	})
	return s
}

func open(t *testing.T, s *mariadb.Server, database string) *sql.DB {
	t.Helper()
	db, err := s.Open(database)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestSettings_AreWhatWindlassNeeds(t *testing.T) {
	s := start(t, mariadb.Config{Dir: t.TempDir()})
	require.NoError(t, s.CreateDatabase(t.Context(), "one"))
	require.NoError(t, s.CreateDatabase(t.Context(), "one"), "creating a database twice is not an error")

	db, err := sql.Open("mysql", s.DSN("one"))
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	var isolation, charset, bind string
	var connections, binlog int
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT @@tx_isolation, @@character_set_database, @@bind_address, @@max_connections, @@log_bin").
		Scan(&isolation, &charset, &bind, &connections, &binlog))
	require.Equal(t, "READ-COMMITTED", isolation)
	require.Equal(t, "utf8mb4", charset)
	require.Equal(t, "127.0.0.1", bind)
	require.Equal(t, 500, connections)
	require.Zero(t, binlog)

	cfg, err := mysql.ParseDSN(s.DSN("one"))
	require.NoError(t, err)
	require.True(t, cfg.ClientFoundRows)
}

func TestPassword_IsNeededOverTCP(t *testing.T) {
	s := start(t, mariadb.Config{Dir: t.TempDir()})
	for _, user := range []string{"root", "windlass", ""} {
		cfg, err := mysql.ParseDSN(s.DSN(""))
		require.NoError(t, err)
		cfg.User, cfg.Passwd, cfg.Logger = user, "", &mysql.NopLogger{}
		c, err := mysql.NewConnector(cfg)
		require.NoError(t, err)
		db := sql.OpenDB(c)
		require.Error(t, db.PingContext(t.Context()), "user %q", user)
		require.NoError(t, db.Close())
	}
}

func TestRestart_KeepsCommittedRowsAfterAKill(t *testing.T) {
	dir := t.TempDir()
	s := start(t, mariadb.Config{Dir: dir})
	require.NoError(t, s.CreateDatabase(t.Context(), "one"))
	db := open(t, s, "one")
	_, err := db.ExecContext(t.Context(), "CREATE TABLE t (id INT PRIMARY KEY)")
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO t VALUES (1)")
	require.NoError(t, err)

	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	require.ErrorContains(t, s.Wait(), "signal: killed")

	again := start(t, mariadb.Config{Dir: dir, Port: s.Port()})
	var n int
	require.NoError(t, open(t, again, "one").QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t").Scan(&n))
	require.Equal(t, 1, n)
}

func TestStart_StopsTheServerOfItsDirectory(t *testing.T) {
	dir := t.TempDir()
	first := start(t, mariadb.Config{Dir: dir})
	second := start(t, mariadb.Config{Dir: dir})
	<-first.Done()
	require.NoError(t, open(t, second, "").PingContext(t.Context()))
}

func TestDataDirectory_IncompleteOneIsReplaced(t *testing.T) {
	dir := t.TempDir()
	// A kill -9 during a copy leaves such a folder.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data.tmp", "mysql"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data.tmp", "ibdata1"), []byte("torn"), 0o600))
	s := start(t, mariadb.Config{Dir: dir})
	require.NoError(t, open(t, s, "").PingContext(t.Context()))
	require.NoDirExists(t, filepath.Join(dir, "data.tmp"))
}

func TestTemplate_IsCreatedOnce(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	found, err := mariadb.Find(t.Context())
	require.NoError(t, err)
	me, err := user.Current()
	require.NoError(t, err)
	from := filepath.Join(cache, "windlass", "mariadb", found.Version+"-"+me.Username)
	// A kill -9 during mariadb-install-db leaves such a folder.
	require.NoError(t, os.MkdirAll(filepath.Join(from, "data.tmp"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(from, "data.tmp", "ibdata1"), []byte("torn"), 0o600))
	durable, err := mariadb.Start(t.Context(), mariadb.Config{Dir: t.TempDir(), DieWithParent: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, durable.Stop(context.WithoutCancel(t.Context()))) }()
	relaxed := start(t, mariadb.Config{Dir: t.TempDir()})
	for _, s := range []*mariadb.Server{durable, relaxed} {
		require.NoError(t, s.CreateDatabase(t.Context(), "one"))
	}
	require.DirExists(t, filepath.Join(from, "data"))
	require.NoDirExists(t, filepath.Join(from, "data.tmp"))
	require.NoDirExists(t, filepath.Join(from, "data", "one"), "servers must not run on the template")
}

func TestStart_TakenPortIsNamedAtOnce(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	_, err = mariadb.Start(t.Context(), mariadb.Config{Dir: t.TempDir(), Port: l.Addr().(*net.TCPAddr).Port})
	require.ErrorContains(t, err, "is taken by another process")
}

func TestStart_FailureHasItsReasonAndLog(t *testing.T) {
	dir := t.TempDir()
	s := start(t, mariadb.Config{Dir: dir})
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, os.Truncate(filepath.Join(dir, "data", "ibdata1"), 4096))
	_, err := mariadb.Start(t.Context(), mariadb.Config{Dir: dir})
	require.ErrorContains(t, err, filepath.Join(dir, "mariadbd.log"))
	require.NotContains(t, err.Error(), "\n")
}
