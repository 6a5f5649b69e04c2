//go:build linux

package engine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

const (
	patience = time.Minute
	get      = "GET /a HTTP/1.1\r\nHost: echo.local\r\n"
)

// short answers with the body that it received, unless the path says something else.
type short struct {
	began   chan struct{}
	release chan struct{}
}

func (h short) Handle(ctx context.Context, c *engine.Conn, r *http1.Request, body []byte) engine.Outcome {
	switch string(r.Path) {
	case "/other":
		return engine.Other
	case "/panic":
		panic("the path is /panic")
	}
	c.Begin()
	switch string(r.Path) {
	case "/cut":
		return engine.Cut
	case "/wait":
		c.Blocking(func() {
			close(h.began)
			<-h.release
		})
	case "/watch":
		gone := make(chan struct{})
		c.Watch(func() { close(gone) })
		c.Blocking(func() {
			close(h.began)
			select {
			case <-gone:
				close(h.release)
			case <-ctx.Done():
			}
		})
		return engine.Cut
	}
	closing := ""
	if r.Close {
		closing = "Connection: close\r\n"
	}
	answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nWay: short\r\n%sContent-Length: %d\r\n\r\n%s", closing, len(body), body)
	if _, err := c.Write([]byte(answer), patience); err != nil {
		return engine.Cut
	}
	if r.Close {
		return engine.End
	}
	return engine.Next
}

type running struct {
	*engine.Server
	short

	address string
	server  *http.Server
	stop    func()
}

func start(t *testing.T) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &running{short: short{make(chan struct{}), make(chan struct{})}, address: l.Addr().String()}
	r.Server = engine.New(engine.Config{
		Handler: r.short, MaxHeader: 8 << 10, MaxBody: 64 << 10, Header: patience, Idle: patience, Log: slog.New(slog.DiscardHandler), Rand: rand.Float64,
	})
	r.server = &http.Server{ConnState: r.State, ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Way", "long")
		_, _ = io.Copy(w, q.Body)
	})}
	ended := make(chan struct{}, 2)
	go func() {
		_ = r.server.Serve(r.Others())
		ended <- struct{}{}
	}()
	go func() {
		r.Serve(context.Background(), l)
		ended <- struct{}{}
	}()
	r.stop = func() { _ = l.Close() }
	t.Cleanup(func() {
		r.stop()
		r.Close()
		_ = r.server.Close()
		<-ended
		<-ended
		require.Eventually(t, func() bool { return r.Open() == 0 }, patience, time.Millisecond)
		require.Zero(t, r.Undecided())
	})
	return r
}

func (r *running) dial(t *testing.T) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", r.address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn.(*net.TCPConn), bufio.NewReader(conn)
}

func answered(t *testing.T, in *bufio.Reader, way, body string) {
	t.Helper()
	res, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, way+" "+body, res.Header.Get("Way")+" "+string(got))
}

func ended(t *testing.T, in *bufio.Reader) {
	t.Helper()
	_, err := in.ReadByte()
	require.Error(t, err)
	var late net.Error
	require.False(t, errors.As(err, &late) && late.Timeout(), "the connection is open")
}

func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: echo.local\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// Each request is answered, whether the bytes come as one request or as many at once, whole or in pieces.
func TestConnection_ServesRequestsInTurn(t *testing.T) {
	t.Parallel()
	r := start(t)
	long := strings.Repeat("x", 60<<10)
	all := []string{"a", "", long, "b", strings.Repeat("y", 10<<10), long, "c"}
	text := ""
	for _, body := range all {
		text += post("/", body)
	}
	for _, size := range []int{len(text), 17 << 10, 16 << 10, 1000} {
		conn, in := r.dial(t)
		go func() {
			for rest := text; len(rest) > 0; {
				n, _ := io.WriteString(conn, rest[:min(size, len(rest))])
				rest = rest[n:]
			}
		}()
		for _, body := range all {
			answered(t, in, "short", body)
		}
	}
	require.Equal(t, int64(4), r.Open())
}

func TestSlowPath_GetsAllThatWasRead(t *testing.T) {
	t.Parallel()
	r := start(t)
	for name, text := range map[string]string{
		"chunks":                   "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
		"for the handler":          post("/other", "ab"),
		"a long body":              post("/", strings.Repeat("x", 100<<10)),
		"a header above the limit": strings.Replace(post("/", "ab"), "\r\n", "\r\nX: "+strings.Repeat("x", 8<<10)+"\r\n", 1),
		"a long header":            strings.Replace(post("/", "ab"), "\r\n", "\r\nX: "+strings.Repeat("x", 20<<10)+"\r\n", 1),
		"HTTP/1.0":                 strings.Replace(post("/", "ab"), "HTTP/1.1", "HTTP/1.0", 1),
	} {
		conn, in := r.dial(t)
		_, err := io.WriteString(conn, post("/", "short"))
		require.NoError(t, err)
		answered(t, in, "short", "short")
		_, err = io.WriteString(conn, text)
		require.NoError(t, err)
		res, err := http.ReadResponse(in, nil)
		require.NoError(t, err, name)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err, name)
		require.NoError(t, res.Body.Close())
		require.Equal(t, "long", res.Header.Get("Way"), name)
		require.True(t, strings.HasSuffix(text, string(body)) || string(body) == "ab", "%s: %.20q", name, body)
		require.NoError(t, conn.Close())
	}
}

func TestSlowPath_TakesASlowRequest(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, text := range []string{get[:5] + "|" + get[5:] + "\r\n", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab|cd"} {
		conn, in := r.dial(t)
		first, rest, _ := strings.Cut(text, "|")
		_, err := io.WriteString(conn, first)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return r.Undecided() == 1 }, patience, time.Millisecond)
		require.Eventually(t, func() bool { return r.Undecided() == 0 }, patience, time.Millisecond)
		_, err = io.WriteString(conn, rest)
		require.NoError(t, err)
		_, body, _ := strings.Cut(first+rest, "\r\n\r\n")
		answered(t, in, "long", body)
	}
}

// A client that sends a byte now and then does not extend the time for its request.
func TestSlowPath_TakesADrippingRequest(t *testing.T) {
	t.Parallel()
	r := start(t)
	conn, in := r.dial(t)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	_, err := io.WriteString(conn, get+"X: ")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return r.Undecided() == 1 }, patience, time.Millisecond)
	for end := time.Now().Add(patience); r.Undecided() > 0; <-tick.C {
		require.True(t, time.Now().Before(end), "the engine still reads the request")
		_, err := io.WriteString(conn, "x")
		require.NoError(t, err)
	}
	_, err = io.WriteString(conn, "\r\n\r\n")
	require.NoError(t, err)
	answered(t, in, "long", "")
}

func TestConnection_EndsAsTheRequestSays(t *testing.T) {
	t.Parallel()
	r := start(t)
	for text, answer := range map[string]bool{
		get + "Connection: close\r\n\r\n" + post("/", "more"): true,
		strings.Replace(get, "/a", "/cut", 1) + "\r\n":        false,
		strings.Replace(get, "/a", "/panic", 1) + "\r\n":      false,
	} {
		conn, in := r.dial(t)
		_, err := io.WriteString(conn, text)
		require.NoError(t, err)
		if answer {
			answered(t, in, "short", "")
		}
		ended(t, in)
	}
}

func TestStop_EndsWaitsAndFinishesRequests(t *testing.T) {
	t.Parallel()
	r := start(t)
	idle, in := r.dial(t)
	_, err := io.WriteString(idle, post("/", "a"))
	require.NoError(t, err)
	answered(t, in, "short", "a")
	_, fresh := r.dial(t)
	busy, busyIn := r.dial(t)
	_, err = io.WriteString(busy, post("/wait", "b"))
	require.NoError(t, err)
	<-r.began
	require.Eventually(t, func() bool { return r.Open() == 3 }, patience, time.Millisecond)
	r.stop()
	r.Leave()
	ended(t, in)
	ended(t, fresh)
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Wait(soon), context.DeadlineExceeded)
	close(r.release)
	answered(t, busyIn, "short", "b")
	ended(t, busyIn)
	require.NoError(t, r.Wait(t.Context()))
}

func TestClient_ThatLeavesIsSeen(t *testing.T) {
	t.Parallel()
	r := start(t)
	conn, _ := r.dial(t)
	_, err := io.WriteString(conn, post("/watch", ""))
	require.NoError(t, err)
	<-r.began
	require.NoError(t, conn.Close())
	select {
	case <-r.release:
	case <-time.After(patience):
		t.Fatal("the watch was not called")
	}
}

// Connections of other listeners must be served by net/http.
func TestMode_Fits(t *testing.T) {
	t.Parallel()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer socket.Close()
	other := struct{ net.Listener }{socket}
	for _, mode := range []engine.Mode{"", engine.Auto, engine.Epoll} {
		require.NoError(t, mode.Fits(socket), mode)
		require.ErrorContains(t, mode.Fits(other), "is not a TCP socket", mode)
	}
	require.Error(t, engine.Net.Fits(socket))
	r := start(t)
	require.False(t, r.Serve(t.Context(), other))
}
