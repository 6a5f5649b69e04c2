package certfile

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// handshake returns the errors of both sides.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			served <- err
			return
		}
		defer func() { _ = conn.Close() }()
		served <- tls.Server(conn, server).HandshakeContext(t.Context())
	}()
	conn, clientErr := (&tls.Dialer{Config: client}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if clientErr == nil {
		_, clientErr = conn.Read(make([]byte, 1)) // returns the error of a server that refuses the certificate
		_ = conn.Close()
	}
	return <-served, clientErr
}

func TestRefusedCertificate(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	past := time.Now().Add(-time.Minute)
	ours.issue(t, file("cert"), file("key"), "server", x509.ExtKeyUsageServerAuth)
	ours.issueUntil(t, file("old-cert"), file("old-key"), "server", x509.ExtKeyUsageServerAuth, past)
	ours.issue(t, file("client-cert"), file("client-key"), "agent-1", x509.ExtKeyUsageClientAuth)
	ours.issueUntil(t, file("old-client-cert"), file("old-client-key"), "agent-1", x509.ExtKeyUsageClientAuth, past)
	var logged bytes.Buffer
	files := NewFiles(slog.New(slog.NewTextHandler(&logged, nil)))
	serverConfig := func(cert, key, clientCA string) *tls.Config {
		config, err := ServerFlags{PairFlags: PairFlags{Cert: file(cert), Key: file(key)}, ClientCA: clientCA}.Config(Listener{}, files)
		require.NoError(t, err)
		return config
	}
	clientConfig := func(f ClientFlags) *tls.Config {
		config, err := f.Config("https://127.0.0.1", files)
		require.NoError(t, err)
		return config
	}
	trusting := ClientFlags{ServerCA: ours.path}

	t.Run("an unknown CA of the server is named with the file and the flag", func(t *testing.T) {
		_, err := handshake(t, serverConfig("cert", "key", ""), clientConfig(ClientFlags{ServerCA: theirs.path}))
		require.ErrorContains(t, err, `no CA in `+theirs.path+` (--server-ca) issued the certificate of 127.0.0.1, whose issuer is "ours": add that CA to the file`)
		require.ErrorAs(t, err, new(x509.UnknownAuthorityError), "callers know the error")
		_, err = handshake(t, serverConfig("cert", "key", ""), clientConfig(ClientFlags{}))
		require.ErrorContains(t, err, "give the file of that CA with --server-ca")
	})
	t.Run("the server logs its ended certificate with the file, and the client's error says when it ended", func(t *testing.T) {
		config := serverConfig("old-cert", "old-key", "")
		require.Contains(t, logged.String(), "the certificate has ended")
		require.Contains(t, logged.String(), "file="+file("old-cert")+" flag=--tls-cert")
		_, err := handshake(t, config, clientConfig(trusting))
		require.ErrorContains(t, err, "the certificate of 127.0.0.1 ended on "+dateText(past)+": replace its file on the server")
	})
	t.Run("the client's error names its own ended certificate with the file", func(t *testing.T) {
		f := trusting
		f.Cert, f.Key = file("old-client-cert"), file("old-client-key")
		_, err := handshake(t, serverConfig("cert", "key", ours.path), clientConfig(f))
		require.ErrorContains(t, err, "the client certificate "+f.Cert+" (--client-cert) ended on "+dateText(past)+": replace the file")
	})
	t.Run("the server says which CA file lacks the client's issuer, and whose certificate ended", func(t *testing.T) {
		f := trusting
		f.Cert, f.Key = file("client-cert"), file("client-key")
		err, _ := handshake(t, serverConfig("cert", "key", theirs.path), clientConfig(f))
		require.ErrorContains(t, err, `no CA in `+theirs.path+` (--client-ca) issued the certificate of client "agent-1", whose issuer is "ours"`)
		pair, err := tls.LoadX509KeyPair(file("old-client-cert"), file("old-client-key"))
		require.NoError(t, err)
		config := clientConfig(trusting)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		err, _ = handshake(t, serverConfig("cert", "key", ours.path), config)
		require.ErrorContains(t, err, `the certificate of client "agent-1" ended on `)
	})
}

func TestCertificateMetric(t *testing.T) {
	ca := newAuthority(t, "ca")
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	end := time.Now().Add(30 * time.Minute).Truncate(time.Second)
	ca.issueUntil(t, cert, key, "server", x509.ExtKeyUsageServerAuth, end)
	files := NewFiles(nil)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(files)
	flags := ServerFlags{PairFlags: PairFlags{Cert: cert, Key: key}, ClientCA: ca.path}
	for range 2 { // a file is reported once, even if it is opened for several hosts
		_, err := flags.Config(Listener{}, files)
		require.NoError(t, err)
	}
	got, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "windlass_certificate_not_after_seconds", got[0].GetName())
	values := map[string]float64{}
	for _, m := range got[0].GetMetric() {
		values[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	require.Equal(t, map[string]float64{"tls-cert " + cert: float64(end.Unix()), "client-ca " + ca.path: float64(ca.cert.NotAfter.Unix())}, values)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}
