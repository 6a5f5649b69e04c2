package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
)

// gRPC needs HTTP/2 with trailers, also between the gateway and the instance.
func TestGRPC_PassesWithItsTrailers(t *testing.T) {
	r := start(t, nil)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.ProtoMajor != 2 || q.Header.Get("Te") != "trailers" {
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.Copy(w, q.Body)
		w.Header().Set("Grpc-Status", "0")
	}))
	server.Config.Protocols = protocols
	server.Start()
	defer server.Close()
	r.put(t, echo(server.Listener.Addr().String()))
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	r.client = &http.Client{Transport: transport, Timeout: patience}
	req := r.request(t, http.MethodPost, "/pkg.Service/Call", "\x00\x00\x00\x00\x02hi")
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	res, body := r.do(t, req)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "\x00\x00\x00\x00\x02hi", body)
	require.Equal(t, "0", res.Trailer.Get("Grpc-Status"))
}

func TestQueue_ClientThatLeavesFreesItsPlace(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		begun := make(chan struct{})
		gone := make(chan struct{}, 1)
		app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path != "/hold" {
				return
			}
			_, _ = io.WriteString(w, "held")
			w.(http.Flusher).Flush()
			begun <- struct{}{}
			<-q.Context().Done()
			gone <- struct{}{}
		}))
		app.Policy.MaxInFlight, app.Policy.QueueSize = proto.Int32(1), proto.Int32(0)
		r.put(t, app)
		ctx, cancel := context.WithCancel(t.Context())
		res, err := r.client.Do(r.request(t, http.MethodPost, "/hold", "{}").WithContext(ctx))
		require.NoError(t, err)
		defer res.Body.Close()
		<-begun
		busy, _ := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
		require.Equal(t, http.StatusTooManyRequests, busy.StatusCode)
		require.Equal(t, "busy", busy.Header.Get("Windlass-Error"))
		require.Equal(t, "1", busy.Header.Get("Retry-After"))

		// With a queue the next request waits. It reaches the instance as soon as the client of the first one is gone.
		app = proto.CloneOf(app)
		app.Generation, app.Policy.QueueSize = 2, proto.Int32(10)
		r.put(t, app)
		waited := make(chan int, 1)
		go func() {
			res, err := r.client.Do(r.request(t, http.MethodPost, "/", "{}"))
			if err != nil {
				waited <- 0
				return
			}
			res.Body.Close()
			waited <- res.StatusCode
		}()
		cancel()
		<-gone
		require.Equal(t, http.StatusOK, <-waited)
	})
}

// lines is a log to which several goroutines write.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func TestAccessLog_IsSampledButHasFailures(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		var log lines
		r := start(t, func(c *gateway.Config) {
			c.Access, c.AccessEvery = slog.New(slog.NewJSONHandler(&log, nil)), 5
			c.Trusted = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		})
		seen := make(chan http.Header, 1)
		r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			seen <- q.Header.Clone()
			w.Header().Set("Windlass-Error", "mine")
			_, _ = io.WriteString(w, "12345")
		})))
		for range 10 {
			req := r.request(t, http.MethodPost, "/v1/chat?key=secret", "{}")
			req.Header.Set("X-Forwarded-For", "203.0.113.9")
			req.Header.Set("X-Forwarded-Proto", "https")
			res, _ := r.do(t, req)
			require.Empty(t, res.Header.Get("Windlass-Error"), "an instance cannot set the gateway's fields")
			h := <-seen
			require.Equal(t, "203.0.113.9, 127.0.0.1", h.Get("X-Forwarded-For"), "X-Forwarded-For of a trusted proxy is passed on")
			require.Equal(t, "https", h.Get("X-Forwarded-Proto"))
		}
		req := r.request(t, http.MethodGet, "/", "")
		req.Host = "unknown.local"
		r.do(t, req)
		r.stop()
		r.wait(t) // because a line is written after its answer

		ok, failed := 0, 0
		scanner := bufio.NewScanner(&log)
		for scanner.Scan() {
			require.NotContains(t, scanner.Text(), "secret")
			var line struct {
				Status          int
				Bytes           int64
				Path, App, Code string
				RequestID       string  `json:"request_id"`
				InstanceID      string  `json:"instance_id"`
				FirstByte       float64 `json:"first_byte_ms"`
			}
			require.NoError(t, json.Unmarshal(scanner.Bytes(), &line))
			require.True(t, strings.HasPrefix(line.RequestID, "req_"))
			if line.Code != "" {
				require.Equal(t, "no_route", line.Code)
				failed++
				continue
			}
			require.Equal(t, []any{200, int64(5), "/v1/chat", "echo", "dep_1-0"}, []any{line.Status, line.Bytes, line.Path, line.App, line.InstanceID})
			require.Positive(t, line.FirstByte)
			ok++
		}
		require.Equal(t, 2, ok)
		require.Equal(t, 1, failed)
	})
}

// The instance's time limit does not include the wait in the queue.
func TestTimeout_BeginsAfterTheQueue(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		const response = time.Second
		release := make(chan struct{})
		app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/first" {
				_ = http.NewResponseController(w).Flush() // the answer has begun
				<-release
			}
		}))
		app.Policy.MaxInFlight, app.Policy.QueueWait, app.Policy.ResponseTimeout = proto.Int32(1), durationpb.New(patience), durationpb.New(response)
		r.put(t, app)
		first, err := r.client.Do(r.request(t, http.MethodGet, "/first", ""))
		require.NoError(t, err)
		answered := make(chan *http.Response, 1)
		go func() {
			res, err := r.client.Do(r.request(t, http.MethodGet, "/second", ""))
			if err != nil {
				t.Error(err)
			}
			answered <- res
		}()
		r.waiting(t, 1)
		<-time.After(response + 100*time.Millisecond)
		close(release)
		require.NoError(t, first.Body.Close())
		second := <-answered
		require.NotNil(t, second)
		require.NoError(t, second.Body.Close())
		require.Equal(t, http.StatusOK, second.StatusCode)
		require.Zero(t, r.gauge(t, "windlass_gateway_retries_total"), "the instance was not at fault")
	})
}
