//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/pkg/strict"
)

// request has the parts of a request that a handler sees.
type request struct {
	Method, Target, Host, Body string
	// Fields are "Name index: value", sorted. Names are in canonical form. The index counts the fields of one name.
	Fields []string
	Close  bool
	Broken bool
}

// seen has the requests of each connection, by the client's address.
type seen struct {
	mu sync.Mutex
	of map[string][]request
	// short is whether the engine itself read a request.
	short bool
}

func (s *seen) add(client string, r request, short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[client] = append(s.of[client], r)
	s.short = s.short || short
}

func (s *seen) hasShort() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.short
}

func (s *seen) take(client string) []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.of, client)
	return s.of[client]
}

// Handle implements engine.Handler.
func (s *seen) Handle(_ context.Context, c *engine.Conn, r *http1.Request, body []byte) engine.Outcome {
	c.Begin()
	header := http.Header{}
	for i := range r.Fields {
		if f := &r.Fields[i]; !f.Is("host") {
			header.Add(string(f.Name), string(f.Value))
		}
	}
	s.add(c.Remote(), request{string(r.Method), string(r.Target), string(r.Host), string(body), flat(header), r.Close, false}, true)
	closing := ""
	if r.Close {
		closing = "Connection: close\r\n"
	}
	if _, err := c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"+closing+"\r\n"), patience); err != nil {
		return engine.Cut
	}
	if r.Close {
		return engine.End
	}
	return engine.Next
}

// ServeHTTP implements http.Handler.
func (s *seen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.add(r.RemoteAddr, request{r.Method, r.RequestURI, r.Host, string(body), flat(r.Header), r.Close, err != nil}, false)
	w.Header()["Date"] = nil
	w.Header().Set("Content-Length", "0")
}

func flat(h http.Header) (fields []string) {
	for name, values := range h {
		for i, value := range values {
			fields = append(fields, fmt.Sprintf("%s %d: %s", name, i, value))
		}
	}
	slices.Sort(fields)
	return fields
}

// serve starts an engine on a new listener, and returns the listener's address.
func (s *seen) serve(f *testing.F, mode engine.Mode) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	const maxHeader = 8 << 10
	e := engine.New(engine.Config{
		Mode: mode, Handler: s, MaxHeader: maxHeader, MaxBody: 64 << 10, Header: patience, Idle: patience, Log: slog.New(slog.DiscardHandler), Rand: rand.Float64,
	})
	server := &http.Server{
		ConnState: e.State, ReadHeaderTimeout: patience, Handler: s, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(e.Others()) })
	serving.Go(func() {
		if !e.Serve(context.Background(), l) {
			_ = server.Serve(strict.Listen(l, maxHeader))
		}
	})
	f.Cleanup(func() {
		_ = l.Close()
		e.Close()
		_ = server.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// send sends the text in pieces of the given size, and returns the whole answer and the client's own address.
func send(t *testing.T, address, text string, piece int) (answer, client string) {
	t.Helper()
	// One client address would run out of ports, because the system keeps each port for a minute after its
	// connection.
	from := &net.TCPAddr{IP: net.IPv4(127, 0, byte(rand.Uint32()), byte(1+rand.IntN(254)))}
	conn, err := (&net.Dialer{LocalAddr: from}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	go func() {
		for rest := text; len(rest) > 0; {
			n, err := io.WriteString(conn, rest[:min(piece, len(rest))])
			if rest = rest[n:]; err != nil {
				return
			}
		}
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	all, _ := io.ReadAll(conn) // a server that closes early resets the connection
	return string(all), conn.LocalAddr().String()
}

// FuzzEngines sends the same bytes to a server whose engine reads sockets itself and to net/http. Both must see the
// same requests: net/http reads each request of the short way alike, and gets all bytes of the long way.
func FuzzEngines(f *testing.F) {
	const second, simplest = "GET /second HTTP/1.1\r\nHost: b\r\n\r\n", get + "\r\n"
	for _, text := range []string{
		simplest, post("/", "ab") + second, get + "X: y\r\nx: Z\r\n\r\n" + post("/?a=b;c", ""),
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n" + second,
		get + "Connection: close\r\n\r\n" + second, get + "Connection: x, close\r\nX: y\r\n\r\n" + second, get + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + second,
		"GET http://c/a HTTP/1.1\r\nHost: a\r\n\r\n" + second, "GET /a HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n" + second,
		get + "X: y\n\r\n" + second, get + "X: y\r\n z\r\n\r\n" + second, get + "X : y\r\n\r\n" + second, "\r\n" + get + "\r\n",
		"GET //a HTTP/1.1\r\nHost: a\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n" + second, post("/", "abc")[:len(post("/", "abc"))-1],
		"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc" + second, get + "Host: b\r\n\r\n", get + "Upgrade: h2c\r\nConnection: upgrade\r\n\r\n",
	} {
		f.Add(text, uint16(1<<15))
		f.Add(text, uint16(7))
	}
	own, plain := &seen{of: map[string][]request{}}, &seen{of: map[string][]request{}}
	at, peer := own.serve(f, engine.Epoll), plain.serve(f, engine.Net)
	f.Fuzz(func(t *testing.T, text string, piece uint16) {
		if strings.HasPrefix(text, "PRI ") {
			return // both servers read HTTP/2 with net/http
		}
		size := max(int(piece), len(text)/64+1)
		answer, client := send(t, at, text, size)
		same, other := send(t, peer, text, size)
		got, want := own.take(client), plain.take(other)
		require.Equal(t, want, got)
		if text == simplest {
			require.True(t, own.hasShort(), "the engine reads no request by itself, so nothing is compared")
		}
		// A reset may lose the end of the answer, but no other part.
		n := min(len(answer), len(same))
		require.Equal(t, statuses(same[:n]), statuses(answer[:n]))
	})
}

// statuses returns the status lines in answers. The answers must not have content.
func statuses(answers string) (lines []string) {
	for line := range strings.Lines(answers) {
		if strings.HasPrefix(line, "HTTP/1.1 ") && strings.HasSuffix(line, "\n") {
			lines = append(lines, line)
		}
	}
	return lines
}
