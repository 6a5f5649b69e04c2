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

// wire is a member's network. It knows every connection, so that it can break or stall them.
type wire struct {
	mu      sync.Mutex
	open    map[*conn]struct{}
	stalled chan struct{} // closed when the stall ends; nil while there is none
}

func newWire() *wire { return &wire{open: map[*conn]struct{}{}} }

// client returns the shipped client, which opens its connections through the wire.
func (w *wire) client() *http.Client { return rpc.NewHTTPClient(rpc.HTTPClientConfig{Dial: w.dial}) }

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	plain, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: plain, wire: w, closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = struct{}{}
	return c, nil
}

// cut breaks every connection.
func (w *wire) cut() {
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

func (w *wire) stall(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case on && w.stalled == nil:
		w.stalled = make(chan struct{})
	case !on && w.stalled != nil:
		close(w.stalled)
		w.stalled = nil
	}
}

func (w *wire) stalledNow() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled
}

// voice is one agent's transport over its member's network. A member's agents follow one another, and a
// killed agent must not open another connection.
type voice struct {
	next   http.RoundTripper
	silent atomic.Bool
}

var errSilent = errors.New("the agent was killed")

// RoundTrip implements http.RoundTripper.
func (v *voice) RoundTrip(req *http.Request) (*http.Response, error) {
	if v.silent.Load() {
		return nil, errSilent
	}
	return v.next.RoundTrip(req)
}

// CloseIdleConnections is called by http.Client's method of the same name.
func (v *voice) CloseIdleConnections() {
	if c, ok := v.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// conn is one connection.
type conn struct {
	net.Conn
	wire   *wire
	once   sync.Once
	closed chan struct{}
}

// Read returns what arrived once the wire is not stalled. During a stall it reads at most one buffer from the
// socket, and then the sender's window closes.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if stalled := c.wire.stalledNow(); stalled != nil {
		select {
		case <-stalled:
		case <-c.closed:
		}
	}
	return n, err
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.wire.mu.Lock()
		delete(c.wire.open, c)
		c.wire.mu.Unlock()
	})
	return c.Conn.Close()
}
