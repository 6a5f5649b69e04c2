package restate_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

func TestFront_ServesTheAdminAPIByTLS(t *testing.T) {
	now := time.Now()
	ca, err := authority.New("test", now)
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "front-") //nolint:usetesting // the paths of t.TempDir are too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	file := filepath.Join(dir, "ca.crt")
	require.NoError(t, os.WriteFile(file, ca.CertPEM(), 0o600))
	s, err := restate.Start(t.Context(), restate.Config{Dir: dir, Sockets: true, Relaxed: true, DieWithParent: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(t.Context())) })

	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	front := restate.Front{Listener: listener, TLS: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: ca.Serve}, Socket: restate.AdminSocket(dir)}
	go func() { _ = front.Serve(t.Context()) }()

	transport := &http.Transport{}
	configureTLS, err := certfile.RemoteFlags{CA: file}.Transport("restate-", nil)
	require.NoError(t, err)
	configureTLS(transport)
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+listener.Addr().String()+"/health", nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}

func TestNewIdentity_HasAPublicKey(t *testing.T) {
	key, err := restate.NewIdentity()
	require.NoError(t, err)
	public, err := restate.PublicIdentity(key)
	require.NoError(t, err)
	require.Regexp(t, `^publickeyv1_[1-9A-HJ-NP-Za-km-z]{43,44}$`, public)
	_, err = restate.PublicIdentity([]byte("no key"))
	require.ErrorContains(t, err, "no key in PEM")
}
