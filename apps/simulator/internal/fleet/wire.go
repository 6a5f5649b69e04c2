package fleet

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/windlass-run/windlass/pkg/rpc"
)

// wire is the network between a member and the control plane. It has the member's connections, so that it can
// break or stall them.
type wire struct {
	mu   sync.Mutex
	open map[*conn]struct{}
	// stallEnd is closed when the current stall ends. nil: the wire is not stalled.
	stallEnd chan struct{}
}

func newWire() *wire { return &wire{open: map[*conn]struct{}{}} }

// httpClient returns an HTTP client like that of a shipped agent, but with its connections through the wire.
func (w *wire) httpClient() *http.Client {
	return rpc.NewHTTPClient(rpc.HTTPClientConfig{Dial: w.dial})
}

// dial opens a connection through the wire.
func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	tcp, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: tcp, wire: w, closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = struct{}{}
	return c, nil
}

// cutAll breaks every connection.
func (w *wire) cutAll() {
	w.mu.Lock()
	open := make([]*conn, 0, len(w.open))
	for c := range w.open {
		open = append(open, c)
	}
	w.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// setStalled begins or ends a stall of all connections.
func (w *wire) setStalled(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case on && w.stallEnd == nil:
		w.stallEnd = make(chan struct{})
	case !on && w.stallEnd != nil:
		close(w.stallEnd)
		w.stallEnd = nil
	}
}

// currentStall returns the channel that is closed when the current stall ends, or nil without a stall.
func (w *wire) currentStall() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stallEnd
}

// transport is the HTTP transport of one agent. All agents of a member share its wire, one after the other. A
// killed agent must not open another connection, so its transport fails.
type transport struct {
	next   http.RoundTripper
	killed atomic.Bool
}

var errKilled = errors.New("the agent was killed")

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.killed.Load() {
		return nil, errKilled
	}
	return t.next.RoundTrip(req)
}

// CloseIdleConnections lets http.Client.CloseIdleConnections reach the next transport.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// conn is one connection through a wire.
type conn struct {
	net.Conn
	wire   *wire
	once   sync.Once
	closed chan struct{}
}

// Read reads from the socket, but returns only when the wire is not stalled. During a stall, it holds at most one
// buffer of bytes. Then the TCP window closes, and the sender has to wait.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if stallEnd := c.wire.currentStall(); stallEnd != nil {
		select {
		case <-stallEnd:
		case <-c.closed:
		}
	}
	return n, err
}

// Close closes the connection, and ends a Read that a stall holds.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.wire.mu.Lock()
		delete(c.wire.open, c)
		c.wire.mu.Unlock()
	})
	return c.Conn.Close()
}
