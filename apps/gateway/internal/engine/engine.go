// Package engine accepts connections and reads their requests without net/http where possible.
// Only this package imports its subpackages. A plain HTTP/1.1 request goes the short way: the
// engine reads header and body into one buffer, and a handler answers on the connection. All other
// requests go the long way: HTTP/2 or 1.0, chunks, upgrades, malformed requests and requests that the
// handler refuses. Then net/http takes over the connection, with all bytes that were read from it.
//
//	listener ─▶ Server ─▶ plain: Handler, on this connection, request after request
//	                  └─▶ other: Others, a listener that an http.Server serves
package engine

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/strict"
)

// Outcome of a request.
type Outcome int

const (
	// Next: the request was answered, and the connection stays open.
	Next Outcome = iota
	// End: the request was answered, and the connection ends.
	End
	// Cut: the answer broke off, or the client is gone. The connection is cut.
	Cut
	// Other: nothing was answered. The request goes the long way.
	Other
)

// Handler of plain requests.
type Handler interface {
	// Handle answers a request. It must not use r and body after it returns. It calls c.Begin before
	// it does anything that cannot be undone. Other connections wait for the poller that runs Handle,
	// so calls that may block must run in c.Blocking. Reads and writes of the connection and of sockets
	// that it adopted are the exception.
	Handle(ctx context.Context, c *Conn, r *http1.Request, body []byte) Outcome
}

// Config of a Server.
type Config struct {
	// Mode says which connections the short way takes. Empty: Auto.
	Mode    Mode
	Handler Handler
	// MaxHeader and MaxBody limit a request's header and body, in bytes. Larger requests go the long way.
	MaxHeader int
	MaxBody   int64
	// Header bounds the wait for a connection's first request, Idle the wait for each later one.
	Header, Idle time.Duration
	// Conns limits connections; nil: there is no limit.
	Conns *conns.Table
	Log   *slog.Logger
	Rand  func() float64
}

const (
	// bufferSize limits the header of a request that goes the short way, in bytes.
	bufferSize = 16 << 10
	// arrives is the time in which a request must arrive once its first byte was read. A slower
	// request goes to net/http, which has its own limits for slow clients.
	arrives = time.Second
	// linger is how long a connection is still read after its last answer. If it were closed at once,
	// bytes that arrive late would reset the connection, and the client could lose the answer.
	linger = 500 * time.Millisecond
)

// Server of connections. Make it with New.
type Server struct {
	cfg     Config
	buffers epoll.Buffers
	others  *others
	open    atomic.Int64
	taken   atomic.Int64
	reading atomic.Int64
	leaving atomic.Bool
	running sync.WaitGroup
	mu      sync.Mutex
	conns   map[*Conn]struct{}
}

// New returns a Server.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, buffers: epoll.Buffers{Size: bufferSize}, others: newOthers(), conns: map[*Conn]struct{}{}}
}

// Others returns the listener of the connections that go the long way.
func (s *Server) Others() net.Listener { return s.others }

// Open returns the number of open connections, including the connections of Others.
func (s *Server) Open() int64 { return s.open.Load() }

// Taken returns when the last connection was accepted; 1970 if none was.
func (s *Server) Taken() time.Time { return time.Unix(0, s.taken.Load()) }

// Serve accepts connections from l until l is closed. The contexts of requests end with ctx. Serve
// returns false at once if l's connections can only go the long way.
func (s *Server) Serve(ctx context.Context, l net.Listener) bool {
	if s.cfg.Mode.Fits(l) != nil {
		return false
	}
	retry := backoff.Policy{Min: 5 * time.Millisecond, Max: time.Second}
	for failures := 0; ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			failures = 0
		case errors.Is(err, net.ErrClosed):
			return true
		default:
			// A lack of descriptors ends after a time. Other errors may not end. Then the loop tries once
			// a second.
			failures++
			if conns.Local(err) {
				s.cfg.Conns.Shed(shedAtOnce)
			}
			s.cfg.Log.WarnContext(ctx, "cannot accept a connection", "error", err)
			if err := backoff.Sleep(ctx, retry.Delay(failures, s.cfg.Rand)); err != nil {
				return true
			}
			continue
		}
		entry, ok := s.cfg.Conns.Add(conn.RemoteAddr(), func() { _ = conn.Close() })
		if !ok {
			_ = conn.Close() // the table has no room for the connection
			continue
		}
		s.open.Add(1)
		s.taken.Store(time.Now().UnixNano())
		remote := conn.RemoteAddr().String()
		sock, err := epoll.Open(conn)
		if err != nil {
			s.cfg.Log.WarnContext(ctx, "a connection is served by net/http", "error", err)
			s.running.Go(func() { s.passToOthers(conn, nil, entry) })
			continue
		}
		c := &Conn{Socket: sock, server: s, entry: entry, remote: remote}
		entry.Shuts(c.Cut) // Cut ends the task that serves the connection
		c.client, _, _ = net.SplitHostPort(c.remote)
		s.running.Add(1)
		epoll.Go(func(t *epoll.Task) {
			defer s.running.Done()
			c.serveRequests(ctx, t)
		})
	}
}

// shedAtOnce is how many connections without a request are closed when descriptors have run out.
const shedAtOnce = 16

// passToOthers hands a connection to Others. before has the bytes that were read from the connection.
func (s *Server) passToOthers(conn net.Conn, before []byte, entry *conns.Entry) {
	passed := &Passed{Conn: conn, before: before, reader: strict.NewReader(s.cfg.MaxHeader), server: s, entry: entry}
	entry.Shuts(func() { _ = conn.Close() })
	if !s.others.pushPassed(passed) {
		_ = passed.Close() // the listener Others is closed
		passed.Release()
	}
}

// Leave ends each connection that has no request at once, and each other connection after its current request.
func (s *Server) Leave() {
	s.leaving.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.leaveIdle()
	}
}

// Undecided returns how many connections have a request whose way, short or long, is not decided
// yet. The decision takes about a second at most.
func (s *Server) Undecided() int64 { return s.reading.Load() }

// Wait waits until all requests of the short way have ended, or ctx ends.
func (s *Server) Wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close cuts all connections of the short way, and waits until their tasks have ended.
func (s *Server) Close() {
	_ = s.others.Close()
	s.leaving.Store(true)
	s.mu.Lock()
	for c := range s.conns {
		c.Cut() // ends the task that serves the connection
	}
	s.mu.Unlock()
	s.running.Wait()
}

// State must be the http.Server.ConnState of the servers that serve Others or other listeners. Then Open counts
// their connections, too.
func (s *Server) State(conn net.Conn, state http.ConnState) {
	strict.State(conn, state)
	passed, ours := conn.(*Passed)
	switch {
	case state == http.StateNew && !ours:
		s.open.Add(1)
	case state != http.StateClosed && state != http.StateHijacked:
	case ours:
		passed.Release()
	default:
		s.open.Add(-1)
	}
}
