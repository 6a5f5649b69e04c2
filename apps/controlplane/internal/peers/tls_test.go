package peers

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/seal"
)

func newBox(t *testing.T) *seal.Box {
	data, err := seal.Generate()
	require.NoError(t, err)
	box, err := seal.New(data)
	require.NoError(t, err)
	return box
}

func TestTLS(t *testing.T) {
	box := newBox(t)
	server, _, err := TLS(box, time.Now())
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
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
	call := func(t *testing.T, config *tls.Config) error {
		config = config.Clone()
		config.ServerName, _, err = net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		conn, err := tls.Dial("tcp", l.Addr().String(), config)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.ReadAll(conn)
		return err
	}
	t.Run("another process with the keyset is let in", func(t *testing.T) {
		_, client, err := TLS(box, time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.NoError(t, call(t, client))
	})
	t.Run("a process with another keyset is refused, and does not trust this one", func(t *testing.T) {
		_, client, err := TLS(newBox(t), time.Now())
		require.NoError(t, err)
		require.ErrorContains(t, call(t, client), "certificate")
		client.InsecureSkipVerify = true
		require.ErrorContains(t, call(t, client), "bad certificate")
	})
	t.Run("a caller without a certificate is refused", func(t *testing.T) {
		_, client, err := TLS(box, time.Now())
		require.NoError(t, err)
		client.Certificates = nil
		require.ErrorContains(t, call(t, client), "certificate required")
	})
}
