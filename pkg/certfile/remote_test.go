package certfile

import (
	"crypto/x509"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRemoteFlags(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ours.issue(t, file("cert"), file("key"), "server", x509.ExtKeyUsageServerAuth)
	ours.issue(t, file("client-cert"), file("client-key"), "client", x509.ExtKeyUsageClientAuth)
	url := serve(t, ServerFlags{PairFlags: PairFlags{Cert: file("cert"), Key: file("key")}, ClientCA: ours.path})
	get := func(t *testing.T, f RemoteFlags) error {
		transport := &http.Transport{}
		change, err := f.Transport("restate-", nil)
		require.NoError(t, err)
		change(transport)
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	good := RemoteFlags{CA: ours.path, Cert: file("client-cert"), Key: file("client-key")}
	t.Run("the files are used for a server at an IP address", func(t *testing.T) {
		require.NoError(t, get(t, good))
	})
	t.Run("a server of another CA is refused", func(t *testing.T) {
		other := good
		other.CA = theirs.path
		require.ErrorContains(t, get(t, other), "unknown authority")
		require.ErrorContains(t, get(t, RemoteFlags{}), "unknown authority")
	})
	t.Run("an invalid combination of flags is refused with the flag's name", func(t *testing.T) {
		_, err := RemoteFlags{Cert: "a"}.Transport("restate-", nil)
		require.ErrorContains(t, err, "--restate-cert and --restate-key: give both")
		_, err = RemoteFlags{CA: file("none")}.Transport("mysql-", nil)
		require.ErrorContains(t, err, "--mysql-ca: ")
		_, err = MetricsFlags{PairFlags: PairFlags{Cert: "a"}}.Config(nil)
		require.ErrorContains(t, err, "--metrics-tls-cert and --metrics-tls-key: give both")
	})
}
