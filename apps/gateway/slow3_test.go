package gateway_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/gateway"
)

// startHTTP3 starts a gateway with HTTP/3. It returns the TLS configuration and the address for its clients.
func startHTTP3(t *testing.T, change func(*gateway.Config)) (r *harness, config *tls.Config, address string) {
	t.Helper()
	dir := t.TempDir()
	roots := certify(t, dir)
	r = start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey, c.HTTP3 = "127.0.0.1:0", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), true
		change(c)
	})
	return r, &tls.Config{RootCAs: roots, ServerName: "echo.local", NextProtos: []string{http3.NextProtoH3}}, r.gateway.Addresses()[1].String()
}

// over3 returns an HTTP/3 client.
func over3(t *testing.T, config *tls.Config) *http3.Transport {
	transport := &http3.Transport{TLSClientConfig: config, DisableCompression: true}
	t.Cleanup(func() { _ = transport.Close() })
	return transport
}

// request3 returns a request for the app by HTTP/3.
func request3(t *testing.T, ctx context.Context, address string) *http.Request { //nolint:revive // t is the first parameter in all helpers
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/", nil)
	require.NoError(t, err)
	req.Host = "echo.local"
	return req
}

// HTTP/3 clients that send slowly are refused like other clients, and no instance is ejected.
func TestHTTP3_SlowUploadIsTheClientsFault(t *testing.T) {
	const clients = 6 // one more than the failures that eject
	r, config, address := startHTTP3(t, func(c *gateway.Config) { c.MinBodyRate, c.RateAfter = 10<<20, 300*time.Millisecond })
	app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) }))
	app.Policy.MaxInFlight, app.Policy.QueueSize = proto.Int32(clients), proto.Int32(0)
	r.put(t, app)
	client := over3(t, config)
	for name, length := range map[string]int64{"without a length": -1, "of a length": 200_000} {
		t.Run(name, func(t *testing.T) {
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					body, to := io.Pipe()
					defer body.Close()
					go func() {
						for tick := time.Tick(20 * time.Millisecond); ; <-tick {
							if _, err := io.WriteString(to, "x"); err != nil {
								return
							}
						}
					}()
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/", body)
					if err != nil {
						t.Error(err)
						return
					}
					req.Host, req.ContentLength = "echo.local", length
					res, err := client.RoundTrip(req)
					if err != nil {
						t.Error(err)
						return
					}
					defer res.Body.Close()
					if res.StatusCode != http.StatusRequestTimeout || res.Header.Get("Windlass-Error") != "body_too_slow" {
						t.Errorf("%d %s", res.StatusCode, res.Header.Get("Windlass-Error"))
					}
				})
			}
			all.Wait()
			require.Zero(t, r.gauge(t, "windlass_gateway_ejections_total"))
			require.Eventually(t, func() bool { return r.inFlight(t) == 0 }, patience, 10*time.Millisecond)
		})
	}
}

// An HTTP/3 client that reads an answer slowly is cut off, and the instance can take another request.
func TestHTTP3_SlowReaderIsCutOff(t *testing.T) {
	r, config, address := startHTTP3(t, func(c *gateway.Config) { c.MinAnswerRate, c.RateAfter = 100<<20, 200*time.Millisecond })
	block := strings.Repeat("x", 1<<20)
	app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
		for q.URL.Path == "/endless" {
			if _, err := io.WriteString(w, block); err != nil {
				return
			}
		}
	}))
	app.Policy.MaxInFlight, app.Policy.QueueSize = proto.Int32(1), proto.Int32(1)
	r.put(t, app)
	client := over3(t, config)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/endless", nil)
	require.NoError(t, err)
	req.Host = "echo.local"
	res, err := client.RoundTrip(req)
	require.NoError(t, err)
	defer res.Body.Close()
	r.untilSeries(t, "windlass_gateway_failures_total app=echo,app_id=app_1,reason=answer_too_slow", 1)
	next, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
	require.Equal(t, http.StatusOK, next.StatusCode, "the instance can take another request")
	require.Zero(t, r.gauge(t, "windlass_gateway_ejections_total"))
	_, err = io.Copy(io.Discard, res.Body)
	require.Error(t, err)
}

// Incomplete requests of HTTP/3 use a bounded amount of memory. Their connection ends, because it has no complete
// request, and then the memory is free.
func TestHTTP3_HalfRequestsAreBounded(t *testing.T) {
	const connections, streams, part, bound = 10, 99, 8 << 10, 64 << 20
	r, config, address := startHTTP3(t, func(c *gateway.Config) { c.HeaderTimeout = 3 * time.Second })
	r.put(t, echo(instance(t, named("a"))))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := over3(t, config)
	serves := func() {
		t.Helper()
		res, err := client.RoundTrip(request3(t, ctx, address))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
	}
	serves() // this connects before the incomplete requests, after which the address gets no further connections
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	header := append([]byte{0x01, 0x7f, 0xff}, make([]byte, part)...) // a HEADERS frame of 16,383 bytes
	var all []*quic.Conn
	for range connections {
		conn, err := quic.DialAddr(ctx, address, config, &quic.Config{HandshakeIdleTimeout: patience, KeepAlivePeriod: 100 * time.Millisecond})
		require.NoError(t, err)
		all = append(all, conn)
		for range streams {
			stream, err := conn.OpenStreamSync(ctx)
			require.NoError(t, err)
			if _, err := stream.Write(header); err != nil {
				break // the gateway has closed the connection already
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(bound))
	serves()
	for _, conn := range all {
		select {
		case <-conn.Context().Done():
		case <-ctx.Done():
			t.Fatal("a connection with incomplete requests is still open")
		}
	}
}

// halfOf3 returns a HEADERS frame for GET / or POST / of the app's host, in two pieces.
func halfOf3(method string) (first, rest []byte) {
	index := map[string]byte{http.MethodGet: 17, http.MethodPost: 20}[method] // the index in QPACK's static table
	block := append([]byte{0, 0, 0xc0 | index, 0xc0 | 23, 0xc0 | 1, 0x50, byte(len("echo.local"))}, "echo.local"...)
	frame := append([]byte{0x01, byte(len(block))}, block...)
	return frame[:len(frame)/2], frame[len(frame)/2:]
}

// An HTTP/3 stream whose header does not end in time is reset. Its connection and the other requests continue, and
// the connection may open as many streams as before.
func TestHTTP3_HeadersHaveADeadline(t *testing.T) {
	const header, streams = time.Second, 99
	r, config, address := startHTTP3(t, func(c *gateway.Config) { c.HeaderTimeout = header })
	release := make(chan struct{})
	finish := sync.OnceFunc(func() { close(release) })
	defer finish()
	r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/wait" {
			_, _ = io.WriteString(w, "begun ")
			_ = http.NewResponseController(w).Flush()
			<-release
		}
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		_, _ = io.WriteString(w, string(body)+"end")
	})))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := quic.DialAddr(ctx, address, config, &quic.Config{HandshakeIdleTimeout: patience})
	require.NoError(t, err)
	defer func() { _ = conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "") }()
	client := (&http3.Transport{DisableCompression: true}).NewClientConn(conn)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/wait", nil)
	require.NoError(t, err)
	req.Host = "echo.local"
	long, err := client.RoundTrip(req)
	require.NoError(t, err)
	defer long.Body.Close()
	before := runtime.NumGoroutine()
	incomplete := func(stream *quic.Stream) {
		t.Helper()
		require.NoError(t, stream.SetReadDeadline(time.Now().Add(10*header)))
		_, err := stream.Read(make([]byte, 1))
		var reset *quic.StreamError
		require.ErrorAs(t, err, &reset)
		require.Equal(t, quic.StreamErrorCode(http3.ErrCodeRequestIncomplete), reset.ErrorCode)
		require.True(t, reset.Remote)
		<-stream.Context().Done() // the gateway does not read the stream any more
	}
	first, _ := halfOf3(http.MethodGet)
	for range 2 { // twice 99 streams are more than a connection may have at a time
		var all []*quic.Stream
		for range streams {
			stream, err := conn.OpenStreamSync(ctx)
			require.NoError(t, err)
			_, err = stream.Write(first)
			require.NoError(t, err)
			all = append(all, stream)
		}
		for _, stream := range all {
			incomplete(stream)
		}
	}
	for runtime.NumGoroutine() >= before+streams/2 { // the number of other goroutines varies a little
		require.NoError(t, ctx.Err(), "%d goroutines, and %d before", runtime.NumGoroutine(), before)
		<-time.After(10 * time.Millisecond)
	}

	// The time limit is a deadline: further bytes do not extend it.
	drips, err := conn.OpenStreamSync(ctx)
	require.NoError(t, err)
	go func() {
		_, err := drips.Write([]byte{0x01, 0x7f, 0xff})
		for tick := time.Tick(20 * time.Millisecond); err == nil; <-tick {
			_, err = drips.Write([]byte{0})
		}
	}()
	begun := time.Now()
	incomplete(drips)
	require.Less(t, time.Since(begun), 5*header)

	// A header that is complete in time is served, and the body has more time than the header.
	first, rest := halfOf3(http.MethodPost)
	slow, err := conn.OpenStreamSync(ctx)
	require.NoError(t, err)
	for _, part := range [][]byte{first, rest, append([]byte{0, 4}, "body"...)} {
		_, err = slow.Write(part)
		require.NoError(t, err)
		<-time.After(7 * header / 10)
	}
	require.NoError(t, slow.Close())
	answer, err := io.ReadAll(slow)
	require.NoError(t, err)
	require.Contains(t, string(answer), "bodyend")

	finish()
	body, err := io.ReadAll(long.Body)
	require.NoError(t, err)
	require.Equal(t, "begun end", string(body))
	require.NoError(t, conn.Context().Err())
}

// A client that sends incomplete headers again and again loses its connection, and its address gets no further HTTP/3
// connection for a time. It does not matter how the streams end. A connection of the same address with complete
// requests continues, and so does TCP.
func TestHTTP3_RepeatedHalfRequestsEndTheConnection(t *testing.T) {
	for name, end := range map[string]func(*quic.Stream){
		"reset by the gateway": func(s *quic.Stream) { _, _ = s.Read(make([]byte, 1)) },
		"reset by the client":  func(s *quic.Stream) { s.CancelWrite(quic.StreamErrorCode(http3.ErrCodeRequestCanceled)) },
		"ended by the client":  func(s *quic.Stream) { _ = s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r, config, address := startHTTP3(t, func(c *gateway.Config) { c.HeaderTimeout = 500 * time.Millisecond })
			r.put(t, echo(instance(t, named("a"))))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			client := over3(t, config)
			serves := func() {
				t.Helper()
				res, err := client.RoundTrip(request3(t, ctx, address))
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				require.Equal(t, http.StatusOK, res.StatusCode)
			}
			serves()
			conn, err := quic.DialAddr(ctx, address, config, &quic.Config{HandshakeIdleTimeout: patience, KeepAlivePeriod: 100 * time.Millisecond})
			require.NoError(t, err)
			_, err = (&http3.Transport{}).NewClientConn(conn).RoundTrip(request3(t, ctx, address))
			require.NoError(t, err)
			first, _ := halfOf3(http.MethodGet)
			var all sync.WaitGroup
			var sent atomic.Int64
			for range 50 {
				all.Go(func() {
					for {
						stream, err := conn.OpenStreamSync(ctx)
						if err != nil {
							return // the connection has ended
						}
						if _, err := stream.Write(first); err == nil {
							sent.Add(1)
						}
						end(stream)
						stream.CancelRead(quic.StreamErrorCode(http3.ErrCodeRequestCanceled))
					}
				})
			}
			all.Wait()
			require.NoError(t, ctx.Err(), "the connection is open after %d incomplete headers", sent.Load())
			// Streams end before the connection has its error.
			select {
			case <-conn.Context().Done():
			case <-ctx.Done():
			}
			var closed *quic.ApplicationError
			require.ErrorAs(t, context.Cause(conn.Context()), &closed)
			require.True(t, closed.Remote)
			require.Equal(t, quic.ApplicationErrorCode(http3.ErrCodeExcessiveLoad), closed.ErrorCode)
			require.Greater(t, sent.Load(), int64(200), "the gateway tolerates some incomplete headers")

			_, err = quic.DialAddr(ctx, address, config, &quic.Config{HandshakeIdleTimeout: patience})
			var refused *quic.TransportError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, quic.ConnectionRefused, refused.ErrorCode)
			require.GreaterOrEqual(t, r.gauge(t, "windlass_gateway_connections_refused_total"), 1.0)
			serves()
			res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
			require.Equal(t, http.StatusOK, res.StatusCode)
		})
	}
}

// A request that the client cancels after its header is complete does not count as a fault.
func TestHTTP3_CancelledRequestsAreNoFault(t *testing.T) {
	r, config, address := startHTTP3(t, func(*gateway.Config) {})
	r.put(t, echo(instance(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := quic.DialAddr(ctx, address, config, &quic.Config{HandshakeIdleTimeout: patience})
	require.NoError(t, err)
	first, rest := halfOf3(http.MethodGet)
	for range 300 {
		stream, err := conn.OpenStreamSync(ctx)
		require.NoError(t, err)
		_, err = stream.Write(append(slices.Clone(first), rest...))
		require.NoError(t, err)
		require.NoError(t, stream.Close())
		require.Eventually(t, func() bool { return r.inFlight(t) == 1 }, patience, time.Millisecond)
		stream.CancelRead(quic.StreamErrorCode(http3.ErrCodeRequestCanceled))
		require.Eventually(t, func() bool { return r.inFlight(t) == 0 }, patience, time.Millisecond)
	}
	require.NoError(t, conn.Context().Err())
}

// A gateway that stops tells HTTP/3 clients which of their requests it handles: the requests that have begun. Later
// requests are rejected, so that the client can send them to another gateway.
func TestHTTP3_SaysWhichRequestsItLeaves(t *testing.T) {
	r, config, address := startHTTP3(t, func(*gateway.Config) {})
	began, release := make(chan struct{}), make(chan struct{})
	finish := sync.OnceFunc(func() { close(release) })
	defer finish()
	r.put(t, echo(instance(t, func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-release
		_, _ = io.WriteString(w, "end")
	})))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := quic.DialAddr(ctx, address, config, &quic.Config{HandshakeIdleTimeout: patience})
	require.NoError(t, err)
	stream, err := conn.OpenStreamSync(ctx)
	require.NoError(t, err)
	first, rest := halfOf3(http.MethodGet)
	_, err = stream.Write(append(first, rest...))
	require.NoError(t, err)
	require.NoError(t, stream.Close())
	<-began
	r.stop()

	control, err := conn.AcceptUniStream(ctx)
	require.NoError(t, err)
	in := quicvarint.NewReader(control)
	number := func() uint64 {
		t.Helper()
		n, err := quicvarint.Read(in)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, number(), "the type of a control stream")
	require.EqualValues(t, 4, number(), "the type of a SETTINGS frame")
	_, err = io.CopyN(io.Discard, in, int64(number()))
	require.NoError(t, err)
	require.EqualValues(t, 7, number(), "the type of a GOAWAY frame")
	require.EqualValues(t, 1, number(), "the length of the frame")
	require.EqualValues(t, stream.StreamID()+4, number(), "the first request that is not handled")

	late, err := conn.OpenStreamSync(ctx)
	require.NoError(t, err)
	_, err = late.Write(append(first, rest...))
	require.NoError(t, err)
	var reset *quic.StreamError
	_, err = late.Read(make([]byte, 1))
	require.ErrorAs(t, err, &reset)
	require.Equal(t, quic.StreamErrorCode(http3.ErrCodeRequestRejected), reset.ErrorCode)

	finish()
	answer, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.Contains(t, string(answer), "end")
	r.wait(t)
	<-conn.Context().Done()
	var closed *quic.ApplicationError
	require.ErrorAs(t, context.Cause(conn.Context()), &closed)
	require.Equal(t, quic.ApplicationErrorCode(http3.ErrCodeNoError), closed.ErrorCode)
}
