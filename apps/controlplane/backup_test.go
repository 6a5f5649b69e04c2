package controlplane

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func TestBackupCommands(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	_, err := Bootstrap(t.Context(), BootstrapConfig{MySQLDSN: dsn, Workspace: "default"})
	require.NoError(t, err)
	dir := t.TempDir()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	keys := filepath.Join(dir, "identity")
	require.NoError(t, os.WriteFile(keys, []byte(identity.String()), 0o600))
	file, metrics := filepath.Join(dir, "backup"), filepath.Join(dir, "backup.prom")
	run := func(args ...string) error {
		return Main(t.Context(), append([]string{"--log-level=error", "backup"}, args...))
	}
	create := []string{"create", file, "--mysql-dsn=" + dsn, "--recipient=" + identity.Recipient().String(), "--metrics-file=" + metrics}

	require.NoError(t, run(create...))
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	text, err := os.ReadFile(metrics)
	require.NoError(t, err)
	require.Contains(t, string(text), "windlass_backup_last_success_timestamp_seconds")
	first, err := os.ReadFile(file)
	require.NoError(t, err)
	require.False(t, bytes.Contains(first, []byte("workspaces")))

	t.Run("without --replace an existing file is kept", func(t *testing.T) {
		require.ErrorContains(t, run(create...), "--replace")
		now, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, first, now)
		require.NoError(t, run(append(create, "--replace")...))
	})
	t.Run("a backup that fails leaves no file", func(t *testing.T) {
		require.Error(t, run("create", filepath.Join(dir, "other"), "--mysql-dsn="+stacktest.MariaDB(t)))
		names, err := filepath.Glob(filepath.Join(dir, "*other*"))
		require.NoError(t, err)
		hidden, err := filepath.Glob(filepath.Join(dir, ".*"))
		require.NoError(t, err)
		require.Empty(t, append(names, hidden...))
	})
	t.Run("--keep deletes the oldest backups of the folder", func(t *testing.T) {
		folder := t.TempDir()
		for age, name := range []string{"future.backup", "new.backup", "old.backup", "other.txt", "oldest.backup", ".half.backup"} {
			path := filepath.Join(folder, name)
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			at := time.Now().Add(time.Duration(1-age) * time.Hour)
			require.NoError(t, os.Chtimes(path, at, at))
		}
		require.NoError(t, run("create", filepath.Join(folder, "this.backup"), "--keep=3", "--mysql-dsn="+dsn))
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		require.Equal(t, []string{".half.backup", "future.backup", "new.backup", "other.txt", "this.backup"}, names)
		require.ErrorContains(t, run("create", file, "--keep=3", "--mysql-dsn="+dsn), "--keep=3: name a file that ends in .backup")
		require.ErrorContains(t, run("create", file, "--keep=-1", "--mysql-dsn="+dsn), "--keep=-1: use the number of backups")
	})
	t.Run("mistakes name the flag and the fix", func(t *testing.T) {
		require.ErrorContains(t, run("create", file+"2", "--mysql-dsn="+dsn, "--recipient=age1"), "--recipient=\"age1\"")
		require.ErrorContains(t, run("create", file+"2", "--mysql-dsn="+dsn, "--recipients-file="+dir+"/none"), "--recipients-file")
		require.ErrorContains(t, run("create", filepath.Join(dir, "none", "x"), "--mysql-dsn="+dsn), "the folder of the file")
		require.ErrorContains(t, run("verify", file), "--identity-file")
		require.ErrorContains(t, run("verify", file, "--identity-file="+dir+"/none"), "--identity-file")
		require.ErrorContains(t, run("verify", keys), "not a Windlass backup")
	})
	t.Run("a whole backup is restored, and a damaged one changes nothing", func(t *testing.T) {
		require.NoError(t, run("verify", file, "--identity-file="+keys))
		whole, err := os.ReadFile(file)
		require.NoError(t, err)
		cut := filepath.Join(dir, "cut")
		require.NoError(t, os.WriteFile(cut, whole[:len(whole)-10], 0o600))
		target := stacktest.MariaDB(t)
		require.ErrorContains(t, run("restore", cut, "--mysql-dsn="+target, "--identity-file="+keys), "nothing was changed")
		require.NoError(t, run("restore", file, "--mysql-dsn="+target, "--identity-file="+keys), "the database is still empty")
		require.ErrorContains(t, run("restore", file, "--mysql-dsn="+target, "--identity-file="+keys), "--replace")
		require.NoError(t, run("restore", file, "--replace", "--mysql-dsn="+target, "--identity-file="+keys))
	})
}
