package gateway_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// atZero is echo without instances.
func atZero() *gatewayv1.AppRoutes {
	app := echo()
	app.Held = true
	app.Policy.ColdStart = &gatewayv1.ColdStart{Hold: durationpb.New(patience)}
	return app
}

// wakes makes each call of Wake call f.
func (h *harness) wakes(f func(appID string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onWake = f
}

func (h *harness) wokenTimes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.woken["app_1"]
}

// held waits until n requests are held.
func (h *harness) held(t testing.TB, n float64) {
	t.Helper()
	require.Eventually(t, func() bool { return h.gauge(t, "windlass_gateway_held") == n }, patience, time.Millisecond)
}

// ask sends a GET, and returns a channel for its answer.
func (h *harness) ask(t testing.TB, path string) <-chan string {
	got := make(chan string, 1)
	req := h.request(t, http.MethodGet, path, "")
	go func() {
		res, err := h.client.Do(req)
		if err != nil {
			got <- err.Error()
			return
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		code := res.Header.Get("Windlass-Error")
		if code != "" {
			body = []byte("after " + res.Header.Get("Retry-After"))
		}
		got <- strings.TrimSpace(fmt.Sprint(res.StatusCode, " ", code, " ", string(body)))
	}()
	return got
}

func TestHold(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		t.Run("requests wait, wake the app, and go on in the order in which they came", func(t *testing.T) {
			r := start(t, nil)
			var mu sync.Mutex
			var order []string
			address := instance(t, func(w http.ResponseWriter, q *http.Request) {
				mu.Lock()
				order = append(order, q.URL.Path)
				mu.Unlock()
				_, _ = io.WriteString(w, q.URL.Path)
			})
			r.put(t, atZero())
			var answers []<-chan string
			var want []string
			for i := range 20 {
				path := fmt.Sprintf("/%02d", i)
				want = append(want, path)
				answers = append(answers, r.ask(t, path))
				// A request counts as held before it is in the queue. Its place in the queue decides the order.
				require.Eventually(t, func() bool { return r.gauge(t, "windlass_gateway_queue") == float64(i+1) }, patience, time.Millisecond)
			}
			require.Eventually(t, func() bool { return r.wokenTimes() > 0 }, patience, time.Millisecond)
			ready := echo(address)
			ready.Policy.MaxInFlight = new(int32(1)) // so that requests reach the instance in their order
			r.put(t, ready)
			for i, a := range answers {
				require.Equal(t, "200  "+want[i], <-a)
			}
			require.Equal(t, want, order)
			r.held(t, 0)
			require.Equal(t, 20.0, r.series(t)["windlass_gateway_holds_total app=echo,app_id=app_1,outcome=released"])
		})
		t.Run("a wake starts the app", func(t *testing.T) {
			r := start(t, nil)
			address := instance(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
			r.put(t, atZero())
			r.wakes(func(string) error {
				r.set(echo(address))
				return nil
			})
			begun := time.Now()
			require.Equal(t, "200  here", r.get(t, http.MethodGet, ""))
			require.Less(t, time.Since(begun), patience/2)
		})
		t.Run("a request above maxHeld is refused, with the time that a start takes", func(t *testing.T) {
			r := start(t, nil)
			app := atZero()
			app.Policy.ColdStart.MaxHeld, app.StartTime = new(int32(2)), durationpb.New(42500*time.Millisecond)
			r.put(t, app)
			one, two := r.ask(t, "/1"), r.ask(t, "/2")
			r.held(t, 2)
			require.Regexp(t, "^503 hold_full after (43|42|41|3.)$", <-r.ask(t, "/3"))
			r.put(t, &gatewayv1.AppRoutes{AppId: "app_1"})
			require.Equal(t, "404 no_route after", <-one)
			require.Equal(t, "404 no_route after", <-two)
		})
		t.Run("a request above the limit of the process is refused", func(t *testing.T) {
			r := start(t, func(c *gateway.Config) { c.MaxHeld = 1 })
			app := atZero()
			app.StartTime = durationpb.New(time.Hour)
			r.put(t, app)
			one := r.ask(t, "/1")
			r.held(t, 1)
			res, body := r.do(t, r.request(t, http.MethodGet, "/2", ""))
			require.Equal(t, "hold_full", res.Header.Get("Windlass-Error"))
			require.Regexp(t, "^3...$", res.Header.Get("Retry-After"))
			require.Contains(t, body, "--max-held")
			r.put(t, echo(instance(t, func(http.ResponseWriter, *http.Request) {})))
			require.Equal(t, "200", <-one)
		})
		t.Run("a request that has waited for the whole hold is refused", func(t *testing.T) {
			r := start(t, nil)
			app := atZero()
			app.Policy.ColdStart.Hold, app.StartTime = durationpb.New(50*time.Millisecond), durationpb.New(10*time.Second)
			r.put(t, app)
			require.Equal(t, "503 hold_timeout after 10", <-r.ask(t, "/"))
			r.held(t, 0)
		})
		t.Run("a client that goes away frees its place", func(t *testing.T) {
			r := start(t, nil)
			r.put(t, atZero())
			c, _ := r.dial(t)
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: echo.local\r\n\r\n")
			require.NoError(t, err)
			r.held(t, 1)
			require.NoError(t, c.Close())
			r.held(t, 0)
		})
		t.Run("a request that waits for its turn is held when the app goes to zero", func(t *testing.T) {
			r := start(t, nil)
			app := echo("127.0.0.1:1")
			app.Targets[0].Instances[0].State = gatewayv1.Instance_STATE_DRAINING
			app.Policy.QueueWait = durationpb.New(patience)
			r.put(t, app)
			got := r.ask(t, "/")
			r.waiting(t, 1)
			require.Zero(t, r.wokenTimes())
			r.put(t, atZero())
			r.held(t, 1)
			r.put(t, echo(instance(t, func(http.ResponseWriter, *http.Request) {})))
			require.Equal(t, "200", <-got)
		})
		t.Run("instances that drain get no requests while the app is held", func(t *testing.T) {
			r := start(t, nil)
			app := atZero()
			app.Targets = []*gatewayv1.Target{target("dep_1", 1, 100, "127.0.0.1:1")}
			app.Targets[0].Instances[0].State, app.Targets[0].Instances[0].WasReady = gatewayv1.Instance_STATE_NOT_READY, new(true)
			r.put(t, app)
			got := r.ask(t, "/")
			r.held(t, 1)
			r.put(t, echo(instance(t, func(http.ResponseWriter, *http.Request) {})))
			require.Equal(t, "200", <-got)
		})
		t.Run("a client that asked for events gets comments, and then the answer in the same stream", func(t *testing.T) {
			r := start(t, nil)
			app := atZero()
			app.Policy.ColdStart.Heartbeat = true
			r.put(t, app)
			req := r.request(t, http.MethodPost, "/", "hello")
			req.Header.Set("Accept", "text/event-stream")
			res, err := r.client.Do(req) // the header comes while the request waits
			require.NoError(t, err)
			defer res.Body.Close()
			require.Equal(t, []string{"200 OK", "text/event-stream"}, []string{res.Status, res.Header.Get("Content-Type")})
			r.held(t, 1)
			r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
				body, _ := io.ReadAll(q.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = fmt.Fprintf(w, "data: %s\n\n", body)
			})))
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Regexp(t, "^(: waiting\n\n)+data: hello\n\n$", string(body))
		})
		t.Run("HEAD gets no comments, because its answer has no body", func(t *testing.T) {
			r := start(t, nil)
			app := atZero()
			app.Policy.ColdStart.Heartbeat, app.Policy.ColdStart.Hold = true, durationpb.New(3*time.Second) // after the first comment
			r.put(t, app)
			req := r.request(t, http.MethodHead, "/", "")
			req.Header.Set("Accept", "text/event-stream")
			res, _ := r.do(t, req)
			require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		})
		t.Run("an answer that is not a stream of events becomes an event", func(t *testing.T) {
			r := start(t, nil)
			app := atZero()
			app.Policy.ColdStart.Heartbeat = true
			r.put(t, app)
			req := r.request(t, http.MethodPost, "/", "hello")
			req.Header.Set("Accept", "text/event-stream")
			res, err := r.client.Do(req)
			require.NoError(t, err)
			defer res.Body.Close()
			r.put(t, echo(instance(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusTeapot)
				_, _ = io.WriteString(w, "{\n}")
			})))
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Regexp(t, "^(: waiting\n\n)+event: error\ndata: {\ndata: }\n\n$", string(body))
			r.untilSeries(t, "windlass_gateway_requests_total app=echo,app_id=app_1,code=418,version=1,windlass_deployment=dep_1", 1)
		})
	})
	t.Run("a request for a preview is not held, and does not wake the app", func(t *testing.T) {
		r := start(t, nil)
		app := atZero()
		app.Policy.QueueWait = durationpb.New(20 * time.Millisecond)
		app.Previews = []*gatewayv1.Preview{{Host: "v1.echo.local", DeploymentId: "dep_1"}}
		r.put(t, app)
		req := r.request(t, http.MethodGet, "/", "")
		req.Host = "v1.echo.local"
		res, _ := r.do(t, req)
		require.Equal(t, "no_instance", res.Header.Get("Windlass-Error"))
		require.Zero(t, r.wokenTimes())
	})
	t.Run("an agent that is away or fails is called until it answers", func(t *testing.T) {
		r := start(t, nil)
		r.put(t, atZero())
		r.wakes(func(string) error { return errors.New("not now") })
		got := r.ask(t, "/")
		require.Eventually(t, func() bool { return r.wokenTimes() > 2 }, patience, time.Millisecond)
		r.stopAgent()
		address := instance(t, func(http.ResponseWriter, *http.Request) {})
		next, _ := startAgent(t, filepath.Join(r.dir, "gateway.sock"), "table-2")
		next.mu.Lock()
		next.onWake = func(string) error {
			next.set(echo(address))
			return nil
		}
		next.mu.Unlock()
		next.set(atZero())
		require.Equal(t, "200", <-got)
	})
	t.Run("a gateway that restarts without its agent holds requests, and calls the agent that comes", func(t *testing.T) {
		r := start(t, nil)
		r.put(t, atZero())
		require.Eventually(t, func() bool {
			data, err := os.ReadFile(filepath.Join(r.dir, "routes"))
			return err == nil && strings.Contains(string(data), "echo.local")
		}, patience, 5*time.Millisecond)
		r.stopAgent()
		r.stop()
		r.wait(t)
		again := startGateway(t, r.dir, "127.0.0.1:0", nil)
		later := &harness{running: again, url: "http://" + again.gateway.Addresses()[0].String(), client: r.client, dir: r.dir}
		got := later.ask(t, "/")
		later.held(t, 1)
		address := instance(t, func(http.ResponseWriter, *http.Request) {})
		next, _ := startAgent(t, filepath.Join(r.dir, "gateway.sock"), "table-2")
		next.mu.Lock()
		next.onWake = func(string) error {
			next.set(echo(address))
			return nil
		}
		next.mu.Unlock()
		next.set(atZero())
		require.Equal(t, "200", <-got)
	})
	t.Run("another region that gets a ready instance answers requests that are held", func(t *testing.T) {
		bothEngines(t, func(t *testing.T) {
			here, warm := start(t, equallyNear), start(t, nil)
			warm.put(t, echo(instance(t, named("there"))))
			app := atZero()
			app.Policy.ColdStart.Elsewhere = true
			here.put(t, app)
			got := here.ask(t, "/")
			here.held(t, 1)
			here.around(t, "warm", warm.url)
			require.Equal(t, "200  there", <-got)
		})
	})
	t.Run("another region with a ready instance answers, and the app still wakes in this region", func(t *testing.T) {
		here, warm := start(t, equallyNear), start(t, nil)
		warm.put(t, echo(instance(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "there") })))
		app := atZero()
		app.Policy.ColdStart.Elsewhere = true
		here.put(t, app)
		here.around(t, "warm", warm.url)
		require.Equal(t, "200 warm there", here.get(t, http.MethodGet, ""))
		require.Equal(t, 1.0, here.series(t)["windlass_gateway_holds_total app=echo,app_id=app_1,outcome=held"])
		here.untilSeries(t, "windlass_gateway_handed_over_total app=echo,app_id=app_1,region=warm,why=zero", 1)
		require.Eventually(t, func() bool { return here.wokenTimes() > 0 }, patience, time.Millisecond)

		// Now the app is at zero in the other region, too. The request does not wait there, and does not wake the app
		// there.
		warm.put(t, atZero())
		got := here.ask(t, "/")
		here.held(t, 1)
		here.put(t, echo(instance(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })))
		require.Equal(t, "200  here", <-got)
		require.Zero(t, warm.wokenTimes())
	})
}
