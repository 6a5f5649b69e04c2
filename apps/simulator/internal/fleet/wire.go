package fleet

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// wire is a member's network: it knows every connection, so that it can break or
// stall them.
type wire struct {
	mu      sync.Mutex
	open    map[*conn]struct{}
	stalled chan struct{} // closed when the stall ends; nil while there is none
}

func newWire() *wire { return &wire{open: map[*conn]struct{}{}} }

// client speaks HTTP/2 without TLS, as agents on a private network do, with the
// same keepalive as the shipped client.
func (w *wire) client() *http.Client {
	transport := &http.Transport{
		DialContext:           w.dial,
		ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout:       90 * time.Second,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  5 * time.Second,
			PingTimeout:      4 * time.Second,
			WriteByteTimeout: 30 * time.Second,
		},
	}
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	plain, err := dialer.DialContext(ctx, network, address)
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

// conn is one connection.
type conn struct {
	net.Conn
	wire   *wire
	once   sync.Once
	closed chan struct{}
}

// Read hands on what arrived, once the wire is not stalled: what is read from the
// socket meanwhile is at most one buffer, and then the sender's window closes.
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
