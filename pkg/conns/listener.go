package conns

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// Listen returns a listener that accepts l's connections while the table has capacity for them. It
// must be the innermost listener, below TLS.
func (t *Table) Listen(l net.Listener) net.Listener {
	return &listener{Listener: l, table: t, tally: &tally{}}
}

// ListenAs is Listen for a listener whose connections NewCollector counts under the name.
func (t *Table) ListenAs(name string, l net.Listener) net.Listener {
	return &listener{Listener: l, table: t, tally: t.tallyOf(name)}
}

// ListenBusy is ListenAs for a server whose requests Handler does not see. Its connections always count as having a
// request, so they are never closed to make room. At the limit, a new connection is refused.
func (t *Table) ListenBusy(name string, l net.Listener) net.Listener {
	return &listener{Listener: l, table: t, tally: t.tallyOf(name), busy: true}
}

type listener struct {
	net.Listener

	table *Table
	tally *tally
	busy  bool
}

// shedAtOnce is how many connections without a request are closed when descriptors have run out.
const shedAtOnce = 16

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if Local(err) {
				l.table.Shed(shedAtOnce)
			}
			return nil, err
		}
		e, ok := l.table.add(l.tally, conn.RemoteAddr(), func() { _ = conn.Close() })
		if ok {
			if l.busy {
				e.Begin()
			}
			return &Conn{Conn: conn, entry: e}, nil
		}
		_ = conn.Close() // the table has no room for the connection
	}
}

// Conn is a connection that a listener of Listen accepted.
type Conn struct {
	net.Conn

	entry *Entry
	once  sync.Once
}

// Entry is the connection's place in the table.
func (c *Conn) Entry() *Entry { return c.entry }

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.once.Do(c.entry.Done)
	return c.Conn.Close()
}

// CloseWrite closes the sending direction, as net/http and proxies expect of a TCP connection.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type entryKey struct{}

// WithEntry returns a connection's context in which Handler finds its entry.
func WithEntry(ctx context.Context, e *Entry) context.Context {
	return context.WithValue(ctx, entryKey{}, e)
}

// EntryOf returns the entry of a request's connection, nil if it has none.
func EntryOf(ctx context.Context) *Entry {
	e, _ := ctx.Value(entryKey{}).(*Entry)
	return e
}

// Context is a function for http.Server.ConnContext. It adds the connection's entry, if the connection has one. It
// finds the entry of a TLS connection, too.
func Context(ctx context.Context, conn net.Conn) context.Context {
	for {
		switch c := conn.(type) {
		case interface{ Entry() *Entry }:
			return WithEntry(ctx, c.Entry())
		case interface{ NetConn() net.Conn }: // such as *tls.Conn
			conn = c.NetConn()
		default:
			return ctx
		}
	}
}

// Handler counts the requests of each connection, because connections without requests are closed first.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := EntryOf(r.Context())
		e.Begin()
		defer e.End()
		next.ServeHTTP(w, r)
	})
}
