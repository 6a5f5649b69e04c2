package mysql_test

import (
	"bytes"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/backup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/db"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

func dump(t *testing.T, dsn string) []byte {
	t.Helper()
	var out bytes.Buffer
	_, err := mysql.Dump(t.Context(), mysql.BackupConfig{Config: mysql.Config{DSN: dsn}, Program: "1.0.0"}, func(h backup.Header) (*backup.Writer, error) {
		return backup.NewWriter(&out, h)
	})
	require.NoError(t, err)
	return out.Bytes()
}

func load(t *testing.T, dsn string, b []byte, replace bool) error {
	t.Helper()
	r, err := backup.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	_, err = mysql.Load(t.Context(), mysql.BackupConfig{Config: mysql.Config{DSN: dsn}, Replace: replace}, r)
	return err
}

// contents returns the rows of each table.
func contents(t *testing.T, d *sql.DB) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, table := range tables(t, d) {
		if table.name != "peers" {
			out[table.name] = table.read(t, d)
		}
	}
	return out
}

// filled makes a database with two rows in each table. Its schema is at the version.
func filled(t *testing.T, version int64) (string, *sql.DB) {
	t.Helper()
	dsn := stacktest.MariaDB(t)
	d := handle(t, dsn)
	require.NoError(t, db.MigrateTo(t.Context(), d, version))
	for _, table := range tables(t, d) {
		table.insert(t, d, 1)
		table.insert(t, d, 2)
	}
	_, err := d.ExecContext(t.Context(), "DELETE FROM peers")
	require.NoError(t, err)
	return dsn, d
}

func TestBackup(t *testing.T) {
	t.Run("restores every row of every table, of this schema and of earlier ones", func(t *testing.T) {
		for _, version := range []int64{db.Newest(), db.Newest() - 1, db.Baseline} {
			dsn, d := filled(t, version)
			before := contents(t, d)
			require.NotEmpty(t, before)
			target := stacktest.MariaDB(t)
			require.NoError(t, load(t, target, dump(t, dsn), false))
			restored := handle(t, target)
			require.Equal(t, before, contents(t, restored), "schema %d", version)

			s, err := mysql.Open(t.Context(), mysql.Config{DSN: target})
			require.NoError(t, err, "a control plane starts on it, and migrates it")
			require.NoError(t, s.Close())
		}
	})
	t.Run("replaces a database only with Replace, and while no control plane uses it", func(t *testing.T) {
		dsn, d := filled(t, db.Newest())
		saved, before := dump(t, dsn), contents(t, d)
		for _, table := range tables(t, d) {
			table.insert(t, d, 3)
		}
		changed := contents(t, d)
		require.ErrorContains(t, load(t, dsn, saved, false), "--replace")
		_, err := d.ExecContext(t.Context(), "INSERT INTO peers VALUES ('proc_1', 'a:1', 1, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED))")
		require.NoError(t, err)
		require.ErrorContains(t, load(t, dsn, saved, true), "stop them all")
		_, err = d.ExecContext(t.Context(), "DELETE FROM peers")
		require.NoError(t, err)
		_, err = d.ExecContext(t.Context(), "CREATE TABLE invoices (id INT)")
		require.NoError(t, err)
		require.ErrorContains(t, load(t, dsn, saved, true), `"invoices"`)
		_, err = d.ExecContext(t.Context(), "DROP TABLE invoices")
		require.NoError(t, err)
		require.Equal(t, changed, contents(t, d), "a refused restore changes nothing")

		require.NoError(t, load(t, dsn, saved, true))
		require.Equal(t, before, contents(t, d))
	})
	t.Run("no control plane starts on a part of a backup, and the restore can be repeated", func(t *testing.T) {
		dsn, d := filled(t, db.Newest())
		saved, before := dump(t, dsn), contents(t, d)
		require.ErrorIs(t, load(t, dsn, saved[:len(saved)-20], true), backup.ErrDamaged)
		_, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
		require.ErrorIs(t, err, mysql.ErrUnfinishedRestore)
		_, err = mysql.Dump(t.Context(), mysql.BackupConfig{Config: mysql.Config{DSN: dsn}}, nil)
		require.ErrorIs(t, err, mysql.ErrUnfinishedRestore)
		require.NoError(t, load(t, dsn, saved, true))
		require.Equal(t, before, contents(t, d))
		s, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
	t.Run("is of one moment", func(t *testing.T) {
		dsn, d := filled(t, db.Newest())
		before := contents(t, d)
		var out bytes.Buffer
		_, err := mysql.Dump(t.Context(), mysql.BackupConfig{
			Config: mysql.Config{DSN: dsn},
			Progress: func(string) { // other connections write during the backup
				for n, table := range tables(t, d) {
					if n%7 == 0 {
						_, err := d.ExecContext(t.Context(), "DELETE FROM "+table.name)
						require.NoError(t, err)
					}
				}
			},
		}, func(h backup.Header) (*backup.Writer, error) { return backup.NewWriter(&out, h) })
		require.NoError(t, err)
		target := stacktest.MariaDB(t)
		require.NoError(t, load(t, target, out.Bytes(), false))
		require.Equal(t, before, contents(t, handle(t, target)))
	})
	t.Run("of a later schema is refused", func(t *testing.T) {
		var out bytes.Buffer
		w, err := backup.NewWriter(&out, backup.Header{Schema: db.Newest() + 1, Program: "9.9.9"})
		require.NoError(t, err)
		_, err = w.Close()
		require.NoError(t, err)
		require.ErrorContains(t, load(t, stacktest.MariaDB(t), out.Bytes(), false), "9.9.9 or later")
	})
	t.Run("of a database that is not Windlass' is refused", func(t *testing.T) {
		_, err := mysql.Dump(t.Context(), mysql.BackupConfig{Config: mysql.Config{DSN: stacktest.MariaDB(t)}}, nil)
		require.ErrorContains(t, err, "--mysql-dsn")
	})
	t.Run("keeps rows of all sizes and letters", func(t *testing.T) {
		dsn, d := filled(t, db.Newest())
		// The length of a text column counts characters, and the text has more than ASCII.
		_, err := d.ExecContext(t.Context(), "UPDATE apps SET message = ? LIMIT 1", "é\u2028'\\\x00\n")
		require.NoError(t, err)
		for n := range 1200 {
			_, err := d.ExecContext(t.Context(), "INSERT INTO secret_versions (environment_id, name, version, ciphertext, created_at) VALUES (?, ?, ?, ?, 0)",
				"'\\\"\n", "many", n, bytes.Repeat([]byte{0, '\'', '\\', 255, byte(n)}, n))
			require.NoError(t, err)
		}
		_, err = d.ExecContext(t.Context(), "INSERT INTO secret_versions (environment_id, name, version, ciphertext, created_at) VALUES ('large', 'large', 1, ?, 0)",
			bytes.Repeat([]byte{0, '\'', '\\', 255}, 1<<20))
		require.NoError(t, err)
		target := stacktest.MariaDB(t)
		require.NoError(t, load(t, target, dump(t, dsn), false))
		sums := func(d *sql.DB) (n int, sum string) {
			require.NoError(t, d.QueryRowContext(t.Context(), "SELECT COUNT(*), BIT_XOR(CRC32(CONCAT(HEX(environment_id), name, version, HEX(ciphertext)))) FROM secret_versions").Scan(&n, &sum))
			return n, sum
		}
		n, want := sums(d)
		require.Greater(t, n, 1200)
		m, got := sums(handle(t, target))
		require.Equal(t, n, m)
		require.Equal(t, want, got)
		require.Equal(t, contents(t, d)["apps"], contents(t, handle(t, target))["apps"])
	})
}
