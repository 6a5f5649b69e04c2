package rpc

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// lossyProxy forwards connections to a server. If lost is set, it drops all bytes in both directions, and keeps the
// connections open. A dead link or a rebooted machine has the same effect.
type lossyProxy struct {
	net.Listener
	server string

	mu    sync.Mutex
	lost  bool
	conns []net.Conn
}

func newLossyProxy(t *testing.T, server string) *lossyProxy {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &lossyProxy{Listener: l, server: server}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := new(net.Dialer).DialContext(t.Context(), "tcp", server)
			if err != nil {
				_ = near.Close()
				return
			}
			h.mu.Lock()
			h.conns = append(h.conns, near, far)
			h.mu.Unlock()
			all.Go(func() { h.forward(near, far) })
			all.Go(func() { h.forward(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		h.mu.Lock()
		for _, c := range h.conns {
			_ = c.Close()
		}
		h.mu.Unlock()
		all.Wait()
	})
	return h
}

// forward copies bytes until one end closes. It does not close the other end.
func (h *lossyProxy) forward(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		h.mu.Lock()
		lost := h.lost
		h.mu.Unlock()
		if lost {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func TestDeadLink_IsNoticedOnBothEnds(t *testing.T) {
	t.Parallel()
	f := setup(t, settings{})
	ended := make(chan time.Time, 1)
	f.watch = func(ctx context.Context, send func() error) error {
		err := untilStopped(ctx, send)
		ended <- time.Now()
		return err
	}
	h := newLossyProxy(t, strings.TrimPrefix(f.url, "http://"))
	client := NewHTTPClient(HTTPClientConfig{})
	defer client.CloseIdleConnections()
	stream, err := windlassv1connect.NewAppServiceClient(client, "http://"+h.Addr().String()).
		WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
	require.NoError(t, err)
	require.True(t, stream.Receive())

	h.mu.Lock()
	h.lost = true
	h.mu.Unlock()
	begin := time.Now()
	require.False(t, stream.Receive(), "no message can have arrived")
	require.Error(t, stream.Err())
	// The time depends on the machine. It only shows that a ping ended the stream, and not a timeout of minutes.
	const patience = 40 * time.Second
	require.Less(t, time.Since(begin), patience, "the client")
	select {
	case at := <-ended:
		require.Less(t, at.Sub(begin), patience, "the server")
	case <-time.After(patience):
		require.Fail(t, "the server holds a stream whose client is gone")
	}
}
