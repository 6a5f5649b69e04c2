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

// hole is a way to a server that can lose all that goes over it, in both directions,
// while both connections stay open: what a dead link or a rebooted machine looks like.
type hole struct {
	net.Listener
	server string

	mu    sync.Mutex
	lost  bool
	conns []net.Conn
}

func dig(t *testing.T, server string) *hole {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &hole{Listener: l, server: server}
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
			all.Go(func() { h.pass(near, far) })
			all.Go(func() { h.pass(far, near) })
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

// pass what one end says on, as long as nothing is lost. An end that closes is not told
// of to the other either.
func (h *hole) pass(from, to net.Conn) {
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

func TestBlackHole_IsNoticedOnBothEnds(t *testing.T) {
	t.Parallel()
	f := setup(t, settings{})
	ended := make(chan time.Time, 1)
	f.watch = func(ctx context.Context, send func() error) error {
		err := untilStopped(ctx, send)
		ended <- time.Now()
		return err
	}
	h := dig(t, strings.TrimPrefix(f.url, "http://"))
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
	require.False(t, stream.Receive(), "nothing can have arrived")
	require.Error(t, stream.Err())
	// Not how long it takes, on whatever machine: that it is the ping that ended it, and
	// not one of the timeouts of minutes.
	const patience = 40 * time.Second
	require.Less(t, time.Since(begin), patience, "the client")
	select {
	case at := <-ended:
		require.Less(t, at.Sub(begin), patience, "the server")
	case <-time.After(patience):
		require.Fail(t, "the server holds a stream whose client is gone")
	}
}
