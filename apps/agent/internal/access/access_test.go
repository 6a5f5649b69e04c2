package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// memory is a Store. refuse is the error that Put returns.
type memory struct {
	files  map[string][]byte
	puts   int
	refuse error
}

func (m *memory) Get(context.Context) (map[string][]byte, string, error) {
	return maps.Clone(m.files), "", nil
}

func (m *memory) Put(_ context.Context, files map[string][]byte, _ string) error {
	if m.refuse != nil {
		return m.refuse
	}
	m.puts++
	m.files = maps.Clone(files)
	return nil
}

func TestOpen(t *testing.T) {
	now := time.Now()
	t.Run("the files are made once", func(t *testing.T) {
		m := &memory{}
		_, err := Open(t.Context(), m, now)
		require.NoError(t, err)
		first := maps.Clone(m.files)
		_, err = Open(t.Context(), m, now)
		require.NoError(t, err)
		require.Equal(t, first, m.files)
		require.Equal(t, 1, m.puts)
	})
	t.Run("a CA that cannot be stored is not used", func(t *testing.T) {
		_, err := Open(t.Context(), &memory{refuse: errors.New("another agent has written")}, now)
		require.Error(t, err)
	})
	t.Run("a client certificate is issued anew by the same CA", func(t *testing.T) {
		m := &memory{}
		_, err := Open(t.Context(), m, now)
		require.NoError(t, err)
		for name, at := range map[string]time.Time{"a crash left half of the pair": now, "the certificate ends soon": now.Add(authority.Life - renewWithin/2)} {
			before := maps.Clone(m.files)
			if name == "a crash left half of the pair" {
				m.files[clientKey] = before[caKey]
			}
			_, err = Open(t.Context(), m, at)
			require.NoError(t, err, name)
			require.NotEqual(t, before[clientCert], m.files[clientCert], name)
			require.Equal(t, before[caCert], m.files[caCert], name)
		}
	})
	t.Run("a CA without its key is an error, and is not replaced", func(t *testing.T) {
		m := &memory{}
		_, err := Open(t.Context(), m, now)
		require.NoError(t, err)
		delete(m.files, caKey)
		_, err = Open(t.Context(), m, now)
		require.ErrorContains(t, err, "ca.key is missing")
	})
}

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gateway-access")
	_, err := Open(t.Context(), Folder(dir), time.Now())
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	for _, name := range []string{caCert, caKey, clientCert, clientKey} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
	}
	before, _, err := Folder(dir).Get(t.Context())
	require.NoError(t, err)
	_, err = Open(t.Context(), Folder(dir), time.Now())
	require.NoError(t, err)
	after, _, err := Folder(dir).Get(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gateway-access")
	ca, err := Open(t.Context(), Folder(dir), time.Now())
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", Config(ca))
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
	dial := func(t *testing.T, c certfile.Client, url string) error {
		config, err := c.Config(url, nil)
		require.NoError(t, err)
		if config.ServerName == "" {
			config.ServerName, _, err = net.SplitHostPort(l.Addr().String())
			require.NoError(t, err)
		}
		conn, err := tls.Dial("tcp", l.Addr().String(), config)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.ReadAll(conn)
		return err
	}
	good := certfile.Client{CA: filepath.Join(dir, caCert), Cert: filepath.Join(dir, clientCert), Key: filepath.Join(dir, clientKey)}
	t.Run("the client files connect to the address", func(t *testing.T) {
		require.NoError(t, dial(t, good, "https://"+l.Addr().String()))
	})
	t.Run("the client files connect under every name", func(t *testing.T) {
		config, err := good.Config("https://windlass-agent-routes:7720", nil)
		require.NoError(t, err)
		config.ServerName = "windlass-agent-routes"
		conn, err := tls.Dial("tcp", l.Addr().String(), config)
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.ReadAll(conn)
		require.NoError(t, err)
	})
	t.Run("without a certificate, or with one of another CA, connections fail", func(t *testing.T) {
		require.Error(t, dial(t, certfile.Client{CA: good.CA}, "https://"+l.Addr().String()))
		other := filepath.Join(t.TempDir(), "gateway-access")
		_, err := Open(t.Context(), Folder(other), time.Now())
		require.NoError(t, err)
		require.Error(t, dial(t, certfile.Client{CA: good.CA, Cert: filepath.Join(other, clientCert), Key: filepath.Join(other, clientKey)}, "https://"+l.Addr().String()))
	})
	t.Run("the clients' certificate is not valid for a server", func(t *testing.T) {
		pair, err := tls.LoadX509KeyPair(good.Cert, good.Key)
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: ca.Pool()})
		require.Error(t, err)
	})
}
