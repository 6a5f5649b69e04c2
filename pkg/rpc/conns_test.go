package rpc_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/rpc"
)

// At the limit of connections, the listener closes a connection without a request to accept a new connection.
func TestServe_WithALimitOfConnections(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	began, release := make(chan struct{}), make(chan struct{})
	server := rpc.NewServer(rpc.ServerConfig{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(began)
		<-release
	})})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rpc.Serve(ctx, server, conns.New(conns.Limits{Total: 2}).Listen(l), 30*time.Second) }()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		return conn
	}
	busy := dial()
	_, err = busy.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	require.NoError(t, err)
	<-began
	idle := dial()
	third := dial()
	_, err = idle.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	close(release)
	_, err = busy.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, third.Close()) // an open connection would delay the stop
	stop()
	require.NoError(t, <-ended)
}
