package mariadb_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
)

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	issue := func() {
		ca, err := authority.New("a CA", time.Now())
		require.NoError(t, err)
		cert, key, err := ca.Issue(authority.Request{Name: "mariadb", Hosts: []string{"127.0.0.1"}, Server: true, Life: time.Hour}, time.Now())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file("ca"), ca.CertPEM(), 0o600))
		require.NoError(t, os.WriteFile(file("pair"), append(cert, key...), 0o600))
	}
	issue()
	s := start(t, mariadb.Config{Dir: t.TempDir(), TLS: &mariadb.TLS{CA: file("ca"), Cert: file("pair"), Key: file("pair")}})

	t.Run("a client without TLS is refused", func(t *testing.T) {
		db, err := sql.Open("mysql", s.DSN(""))
		require.NoError(t, err)
		defer func() { _ = db.Close() }()
		require.Error(t, db.PingContext(t.Context()), "the same account may connect with TLS")
	})
	t.Run("new connections get a renewed certificate, and open ones stay", func(t *testing.T) {
		conn, err := open(t, s, "").Conn(t.Context())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		var id int
		require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
		before := file("ca-before")
		data, err := os.ReadFile(file("ca"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(before, data, 0o600))
		dial := func(ca string) error { return mariadb.Ping(t.Context(), filepath.Dir(s.LogFile()), s.Port(), ca) }
		require.NoError(t, dial(before))
		// The new certificate has another CA, so that the test can see which certificate a client gets. The
		// client that reloads still trusts the previous CA.
		issue()
		next, err := os.ReadFile(file("ca"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file("ca"), data, 0o600))
		require.NoError(t, s.ReloadTLS(t.Context()))
		require.NoError(t, os.WriteFile(file("ca"), next, 0o600))
		require.ErrorContains(t, dial(before), "no CA in "+before+" (--mysql-ca) issued the certificate of 127.0.0.1")
		require.NoError(t, dial(file("ca")))
		var still int
		require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&still))
		require.Equal(t, id, still)
	})
}
