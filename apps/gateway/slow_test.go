package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
)

// drip writes a chunk of one byte every 20 ms until the connection ends.
func drip(conn net.Conn) {
	for tick := time.Tick(20 * time.Millisecond); ; <-tick {
		if _, err := io.WriteString(conn, "1\r\nx\r\n"); err != nil {
			return
		}
	}
}

// Clients that send slowly are refused after a bounded time. The instance is not at fault: it is not ejected, and the
// error rate for rollouts does not count these requests.
func TestSlowUpload_IsTheClientsFault(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		const clients = 6 // one more than the number of failures that eject an instance
		for name, header := range map[string]string{
			"in chunks":                          "Transfer-Encoding: chunked\r\n\r\n",
			"of a length that is streamed":       "Content-Length: 200000\r\n\r\n" + strings.Repeat("x", 100<<10),
			"of a length that is read whole":     "Content-Length: 50000\r\n\r\n",
			"of a length, and the first is late": "Content-Length: 70000\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				r := start(t, func(c *gateway.Config) { c.MinBodyRate, c.RateAfter = 10<<20, 300*time.Millisecond })
				app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) }))
				app.Policy.ResponseTimeout, app.Policy.MaxInFlight, app.Policy.QueueSize = durationpb.New(100*time.Millisecond), proto.Int32(clients), proto.Int32(0)
				r.put(t, app)
				var all sync.WaitGroup
				for range clients {
					conn, in := r.dial(t)
					all.Go(func() {
						go func() {
							_, _ = io.WriteString(conn, post+header)
							drip(conn)
						}()
						res, err := http.ReadResponse(in, nil)
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
				r.untilSeries(t, "windlass_gateway_failures_total app=echo,app_id=app_1,reason=body_too_slow", clients)
				conn, in := r.dial(t)
				_, err := io.WriteString(conn, get+"\r\n")
				require.NoError(t, err)
				res, err := http.ReadResponse(in, nil)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, res.StatusCode)
				require.NoError(t, res.Body.Close())
			})
		}
	})
}

// The response timeout begins when the instance has the whole request. It stops while the gateway waits for the
// client.
func TestTimeout_OfTheResponseDoesNotCountTheClient(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		const limit = 150 * time.Millisecond
		r := start(t, nil)
		app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if _, err := io.Copy(io.Discard, q.Body); err != nil || q.URL.Path == "/silent" {
				<-q.Context().Done()
				return
			}
			_, _ = io.WriteString(w, "whole")
		}))
		app.Policy.ResponseTimeout = durationpb.New(limit)
		r.put(t, app)
		send := func(path string, piece time.Duration) (*http.Response, string) {
			body, to := io.Pipe()
			go func() {
				for range 4 {
					_, _ = io.WriteString(to, "piece")
					<-time.After(piece)
				}
				_ = to.Close()
			}()
			req := r.request(t, http.MethodPost, path, "")
			req.Body, req.ContentLength = body, -1
			return r.do(t, req)
		}
		res, text := send("/", limit)
		require.Equal(t, http.StatusOK, res.StatusCode, text)
		require.Equal(t, "whole", text)
		res, _ = send("/silent", 0)
		require.Equal(t, http.StatusGatewayTimeout, res.StatusCode)
		require.Equal(t, "instance_timeout", res.Header.Get("Windlass-Error"))

		deaf := echo(raw(t, func(c net.Conn) { <-t.Context().Done() })) // an instance that does not read the body
		deaf.Policy.ResponseTimeout, deaf.Generation = durationpb.New(limit), 2
		deaf.Targets[0].Instances[0].InstanceId = "deaf"
		r.put(t, deaf)
		req := r.request(t, http.MethodPost, "/", "")
		req.Body, req.ContentLength = io.NopCloser(io.LimitReader(zeros{}, 32<<20)), 32<<20
		res, _ = r.do(t, req)
		require.Equal(t, "instance_timeout", res.Header.Get("Windlass-Error"))
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A client that reads an answer slowly is cut off, and the instance can take another request.
func TestSlowReader_IsCutOff(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, func(c *gateway.Config) {
			c.MinAnswerRate, c.RateAfter = 100<<20, 200*time.Millisecond
		})
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
		conn, _ := r.dial(t)
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
		_, err := fmt.Fprint(conn, "GET /endless HTTP/1.1\r\nHost: echo.local\r\n\r\n")
		require.NoError(t, err)
		slow := time.NewTicker(5 * time.Millisecond)
		defer slow.Stop()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			one := make([]byte, 1)
			for _, err := conn.Read(one); err == nil; _, err = conn.Read(one) {
				<-slow.C
			}
		}()
		r.untilSeries(t, "windlass_gateway_failures_total app=echo,app_id=app_1,reason=answer_too_slow", 1)
		res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
		require.Equal(t, http.StatusOK, res.StatusCode, "the instance can take another request")
		require.Zero(t, r.gauge(t, "windlass_gateway_ejections_total"))
		r.untilSeries(t, "windlass_gateway_requests_total app=echo,app_id=app_1,code=200,version=1,windlass_deployment=dep_1", 2)
		require.NoError(t, conn.Close())
		<-ended
	})
}

// A websocket on which neither side sends a byte ends, and the instance can take another request.
func TestSilentWebsocket_Ends(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, func(c *gateway.Config) { c.UpgradedIdle = 200 * time.Millisecond })
		told := make(chan error, 1)
		app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.Header.Get("Upgrade") == "" {
				return
			}
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_ = rw.Flush()
			_, err = conn.Read(make([]byte, 1))
			told <- err
		}))
		app.Policy.MaxInFlight = proto.Int32(1)
		r.put(t, app)
		conn, in := r.dial(t)
		_, err := io.WriteString(conn, get+"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
		require.NoError(t, err)
		res, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
		_, err = bufio.NewReader(conn).ReadByte()
		require.Error(t, err)
		require.Error(t, <-told, "the instance's side must end, too")
		res, _ = r.do(t, r.request(t, http.MethodGet, "/", ""))
		require.Equal(t, http.StatusOK, res.StatusCode)
	})
}

// Any client may ask an app for a stream that stays silent. The stream ends, and no instance is ejected for it.
func TestSilentStream_EjectsNoInstance(t *testing.T) {
	const streams = 6 // one more than the number of failures that eject an instance
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/stream" {
				_, _ = io.WriteString(w, "begun\n")
				_ = http.NewResponseController(w).Flush()
				<-q.Context().Done()
			}
		}))
		app.Policy.IdleTimeout = durationpb.New(300 * time.Millisecond)
		r.put(t, app)
		var all sync.WaitGroup
		for range streams {
			all.Go(func() {
				res, err := r.client.Do(r.request(t, http.MethodGet, "/stream", ""))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); err == nil {
					t.Error("the client must see that the stream is incomplete")
				}
			})
		}
		all.Wait()
		require.Zero(t, r.gauge(t, "windlass_gateway_ejections_total"))
		res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
		require.Equal(t, http.StatusOK, res.StatusCode)
	})
}
