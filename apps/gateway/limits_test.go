package gateway_test

import (
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
)

// A stream is cut when the request's timeout has passed. The instance is not ejected for that, because it only
// continued its stream.
func TestTimeout_OfTheRequestAppliesToStreams(t *testing.T) {
	const limit, streams = 400 * time.Millisecond, 8
	bothEngines(t, func(t *testing.T) {
		var log lines
		r := start(t, func(c *gateway.Config) {
			c.Log = slog.New(slog.NewJSONHandler(&log, nil))
		})
		var stopped atomic.Int64
		app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for q.Context().Err() == nil {
				_, _ = io.WriteString(w, "data: token\n\n")
				_ = http.NewResponseController(w).Flush()
				<-time.After(5 * time.Millisecond)
			}
			stopped.Add(1)
		}))
		app.Policy.RequestTimeout = durationpb.New(limit)
		r.put(t, app)
		var all sync.WaitGroup
		for range streams {
			req := r.request(t, http.MethodPost, "/", "{}")
			all.Go(func() {
				begin := time.Now()
				res, err := r.client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != http.StatusOK || err == nil || len(body) == 0 || time.Since(begin) < limit {
					t.Errorf("%d after %v with %d bytes: want 200 and a broken body after %v: %v", res.StatusCode, time.Since(begin), len(body), limit, err)
				}
			})
		}
		all.Wait()
		const app1 = "app=echo,app_id=app_1,"
		r.untilSeries(t, "windlass_gateway_failures_total "+app1+"reason=request_timeout", streams)
		r.untilSeries(t, "windlass_gateway_requests_total "+app1+"code=200,version=1,windlass_deployment=dep_1", streams)
		require.Eventually(t, func() bool { return stopped.Load() == streams }, patience, time.Millisecond, "the instance stops when its stream is cut")
		require.Zero(t, r.gauge(t, "windlass_gateway_ejections_total"))
		r.stop()
		r.wait(t)
		require.Contains(t, log.String(), `"code":"request_timeout"`)
	})
}

func TestEjection_OfAnInstanceSilentForTheTimeout(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := echo(instance(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }))
		app.Policy.RequestTimeout, app.Policy.QueueSize = durationpb.New(100*time.Millisecond), proto.Int32(0)
		r.put(t, app)
		for range 5 {
			begin := time.Now()
			res, body := r.do(t, r.request(t, http.MethodGet, "/", ""))
			require.Equal(t, http.StatusGatewayTimeout, res.StatusCode, body)
			require.Equal(t, "request_timeout", res.Header.Get("Windlass-Error"))
			require.Contains(t, body, "request timeout")
			require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
		}
		require.Equal(t, 1.0, r.gauge(t, "windlass_gateway_ejections_total"))
	})
}

// hold starts an app whose only instance takes one request at a time, and sends a request that stays there until
// release is called.
func hold(t *testing.T, r *harness, queue int32, wait time.Duration) (release func()) {
	t.Helper()
	released := make(chan struct{})
	app := echo(instance(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-released
	}))
	app.Policy.MaxInFlight, app.Policy.QueueSize, app.Policy.QueueWait = new(int32(1)), new(queue), durationpb.New(wait)
	r.put(t, app)
	res, err := r.client.Do(r.request(t, http.MethodGet, "/", ""))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode)
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(func() {
		release()
		_ = res.Body.Close()
	})
	return release
}

func TestQueue_WaitIsBounded(t *testing.T) {
	const wait = 200 * time.Millisecond
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		hold(t, r, 2, wait)
		begin := time.Now()
		res, body := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
		require.GreaterOrEqual(t, time.Since(begin), wait)
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, body)
		require.Equal(t, "queue_timeout", res.Header.Get("Windlass-Error"))
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		r.untilSeries(t, "windlass_gateway_failures_total app=echo,app_id=app_1,reason=queue_timeout", 1)
		r.waiting(t, 0)
	})
}

// TestQueue_WaitBeginsWhenTheBodyIsThere sends a body for longer than a request may wait in the queue.
func TestQueue_WaitBeginsWhenTheBodyIsThere(t *testing.T) {
	const wait = time.Second
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := echo()
		app.Policy.QueueSize, app.Policy.QueueWait = new(int32(1)), durationpb.New(wait)
		r.put(t, app)
		conn, in := r.dial(t)
		_, err := io.WriteString(conn, post+"Content-Length: 4\r\n\r\nab")
		require.NoError(t, err)
		<-time.After(wait + 100*time.Millisecond)
		sent := time.Now()
		_, err = io.WriteString(conn, "cd")
		require.NoError(t, err)
		res, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.GreaterOrEqual(t, time.Since(sent), wait)
	})
}

func TestQueue_FullRefusesAndServesItsRequests(t *testing.T) {
	const places = 3
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		release := hold(t, r, places, patience)
		var waiting sync.WaitGroup
		for range places {
			req := r.request(t, http.MethodPost, "/", "{}")
			waiting.Go(func() {
				res, err := r.client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
				if res.StatusCode != http.StatusOK {
					t.Errorf("a request with a place in the queue got status %d", res.StatusCode)
				}
			})
		}
		r.waiting(t, places)
		for range 2 {
			res, body := r.do(t, r.request(t, http.MethodPost, "/", "{}"))
			require.Equal(t, http.StatusTooManyRequests, res.StatusCode, body)
			require.Equal(t, "busy", res.Header.Get("Windlass-Error"))
			require.Equal(t, "1", res.Header.Get("Retry-After"))
		}
		r.waiting(t, places)
		release()
		waiting.Wait()
		r.waiting(t, 0)
		r.untilSeries(t, "windlass_gateway_failures_total app=echo,app_id=app_1,reason=busy", 2)
	})
}
