package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/apps/gateway/internal/remoteregions"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const (
	failover  = gatewayv1.CrossRegion_CROSS_REGION_FAILOVER
	spillover = gatewayv1.CrossRegion_CROSS_REGION_SPILLOVER
)

// crossing is echo with a policy for other regions, and without a queue.
func crossing(cross gatewayv1.CrossRegion, addresses ...string) *gatewayv1.AppRoutes {
	app := echo(addresses...)
	app.Policy.CrossRegion, app.Policy.QueueSize = cross, new(int32(0))
	return app
}

// equallyNear gives all reachable regions the same distance, so that the first region by name counts as
// the nearest.
func equallyNear(c *gateway.Config) {
	c.Near = func(ctx context.Context, u *url.URL) (time.Duration, error) {
		_, err := remoteregions.Connect(ctx, thisMachine, u)
		return time.Millisecond, err
	}
}

// around tells the gateway which other regions have the app. pairs are names and URLs of these regions. around
// waits until the gateway uses them and has measured how near each region is.
func (h *harness) around(t testing.TB, pairs ...string) {
	t.Helper()
	n := &gatewayv1.Neighbours{Region: "here", Whole: true, Apps: []*gatewayv1.AppNeighbours{{AppId: "app_1"}}}
	for i := 0; i < len(pairs); i += 2 {
		n.Apps[0].Regions = append(n.Apps[0].Regions, &gatewayv1.Neighbour{Region: pairs[i], GatewayUrl: pairs[i+1]})
	}
	h.look(t, n)
}

// look sends n to the gateway, and waits until the gateway has measured how near each region is.
func (h *harness) look(t testing.TB, n *gatewayv1.Neighbours) {
	t.Helper()
	h.mu.Lock()
	h.agent.around = append(h.agent.around, n)
	h.signal()
	h.mu.Unlock()
	// Frames come in order. So once the routes of app_next are served, the gateway has read n.
	h.put(t, &gatewayv1.AppRoutes{AppId: "app_next", Hosts: []string{fmt.Sprintf("n%d.local", len(h.agent.around))}})
	reached := 0
	for _, app := range n.Apps {
		reached += len(app.Regions)
	}
	require.Eventually(t, func() bool {
		return h.gauge(t, "windlass_gateway_regions_reached") == float64(reached)
	}, patience, 5*time.Millisecond)
}

// waiting waits until n requests wait for an instance.
func (h *harness) waiting(t testing.TB, n float64) {
	t.Helper()
	require.Eventually(t, func() bool { return h.gauge(t, "windlass_gateway_queue") == n }, patience, 5*time.Millisecond)
}

// get returns the answer's status, its region, and the code of the gateway's error or else the body.
func (h *harness) get(t testing.TB, method, body string) string {
	t.Helper()
	res, got := h.do(t, h.request(t, method, "/", body))
	if code := res.Header.Get("Windlass-Error"); code != "" {
		got = code
	}
	return strings.Join([]string{res.Status[:3], res.Header.Get("Windlass-Region"), got}, " ")
}

// untilGot waits until the result of get is want.
func (h *harness) untilGot(t testing.TB, want string) {
	t.Helper()
	require.Eventually(t, func() bool { return h.get(t, http.MethodGet, "") == want }, patience, 5*time.Millisecond)
}

func TestCrossRegion_RegionWithoutReadyInstancesHandsOver(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		var access bytes.Buffer
		here := start(t, func(c *gateway.Config) {
			c.Access = slog.New(slog.NewJSONHandler(&access, nil))
			equallyNear(c)
		})
		near, far := start(t, nil), start(t, nil)
		var got atomic.Pointer[http.Request]
		echoed := func(name string) string {
			return instance(t, func(w http.ResponseWriter, q *http.Request) {
				body, _ := io.ReadAll(q.Body)
				got.Store(q)
				w.Header().Set("Windlass-Region", "mine")
				w.Header().Set("Windlass-Error", "mine")
				_, _ = fmt.Fprintf(w, "%s %d", name, len(body))
			})
		}
		near.put(t, crossing(failover, echoed("near")))
		far.put(t, crossing(failover, echoed("far")))
		here.put(t, crossing(failover))
		require.Equal(t, "503  no_instance", here.get(t, http.MethodGet, ""), "there is no other region")
		here.around(t, "a-near", near.url, "b-far", far.url)

		// No instance got the request, so it is handed over with any method and any size.
		req := here.request(t, http.MethodPost, "/v1/chat?x=y", "hello")
		req.Header.Set("X-Request-Id", "req-1")
		res, body := here.do(t, req)
		require.Equal(t, "near 5", body)
		require.Equal(t, []string{"a-near"}, res.Header["Windlass-Region"])
		require.Empty(t, res.Header["Windlass-Error"])
		require.Equal(t, []string{"req-1"}, res.Header["X-Request-Id"])
		q := got.Load()
		require.Equal(t, "echo.local/v1/chat?x=y", q.Host+q.RequestURI)
		require.Equal(t, []string{"req-1"}, q.Header["X-Request-Id"])
		require.Empty(t, q.Header["Windlass-Handed-Over"])
		require.Contains(t, access.String(), `"handed_to":"a-near"`)
		require.Equal(t, "200 a-near near 1000000", here.get(t, http.MethodPost, strings.Repeat("x", 1_000_000)))

		// If the nearest region refuses the request or cannot be reached, the next region gets it.
		near.put(t, crossing(failover))
		require.Equal(t, "200 b-far far 5", here.get(t, http.MethodPost, "hello"))
		near.put(t, crossing(failover, echoed("near")))
		here.untilGot(t, "200 a-near near 0") // a-near gets no requests for a short time, because it has just refused one
		near.stop()
		near.wait(t)
		require.Equal(t, "200 b-far far 5", here.get(t, http.MethodPost, "hello"))

		// A region that can be reached again gets requests. But the region's own instance comes first.
		near.running = startGateway(t, near.dir, strings.TrimPrefix(near.url, "http://"), nil)
		here.untilGot(t, "200 a-near near 0") // the gateway tries to reach a-near from time to time
		here.put(t, crossing(failover, instance(t, named("here"))))
		require.Equal(t, "200  here", here.get(t, http.MethodPost, "hello"))

		// Requests are also handed over if the own instance cannot be reached. They are not handed over if the policy
		// does not say so, or for a preview.
		here.put(t, crossing(failover, "127.0.0.1:1"))
		require.Equal(t, "200 a-near near 5", here.get(t, http.MethodPost, "hello"))
		here.put(t, crossing(gatewayv1.CrossRegion_CROSS_REGION_OFF))
		require.Equal(t, "503  no_instance", here.get(t, http.MethodGet, ""))
		preview := crossing(failover)
		preview.Hosts, preview.Previews = []string{"other.local"}, []*gatewayv1.Preview{{Host: "echo.local", DeploymentId: "dep_1"}}
		here.put(t, preview)
		require.Equal(t, "503  no_instance", here.get(t, http.MethodGet, ""), "a preview is not handed over")

		// A message without the other regions removes them.
		here.put(t, crossing(failover))
		require.Equal(t, "200 a-near near 0", here.get(t, http.MethodGet, ""))
		here.around(t)
		require.Equal(t, "503  no_instance", here.get(t, http.MethodGet, ""))
	})
}

// What the gateway knows of other regions is a few seconds old. So a request waits in the queue, and is handed over
// as soon as the gateway knows that the other region has an instance.
func TestCrossRegion_QueuedRequestsGoToARegionThatComesUp(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		here, there := start(t, equallyNear), start(t, nil)
		there.put(t, crossing(failover, instance(t, named("there"))))
		app := crossing(failover)
		app.Targets, app.Policy.QueueSize, app.Policy.QueueWait = nil, new(int32(1)), durationpb.New(patience)
		here.put(t, app)
		got := make(chan string, 1)
		go func() { got <- here.get(t, http.MethodPost, "hello") }()
		here.waiting(t, 1)
		here.around(t, "there", there.url)
		require.Equal(t, "200 there there", <-got)
		require.Zero(t, here.gauge(t, "windlass_gateway_queue"))
	})
}

// A host whose app has no targets is known. So the answer is 503, and the client may call again.
func TestHost_WithoutTargetsAnswers503(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		app := echo()
		app.Targets, app.Policy.QueueSize = nil, new(int32(0))
		r.put(t, app)
		res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
		require.Equal(t, []any{503, "no_instance", "5"}, []any{res.StatusCode, res.Header.Get("Windlass-Error"), res.Header.Get("Retry-After")})
		app.Policy.QueueSize, app.Policy.QueueWait = new(int32(1)), durationpb.New(patience)
		r.put(t, app)
		got := make(chan string, 1)
		go func() { got <- r.get(t, http.MethodGet, "") }()
		r.waiting(t, 1)
		r.put(t, echo(instance(t, named("up"))))
		require.Equal(t, "200  up", <-got)
		r.put(t, &gatewayv1.AppRoutes{AppId: "app_1"})
		require.Equal(t, "404  no_route", r.get(t, http.MethodGet, ""))
	})
}

// A request is handed over once only. A request that an instance may have got is not sent to a third region.
func TestCrossRegion_HandsOverOnce(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		here, there, third := start(t, equallyNear), start(t, equallyNear), start(t, nil)
		here.put(t, crossing(failover))
		there.put(t, crossing(failover))
		var had atomic.Int32
		third.put(t, crossing(failover, instance(t, func(http.ResponseWriter, *http.Request) { had.Add(1) })))
		here.around(t, "a-there", there.url)
		there.around(t, "here", here.url, "third", third.url)
		require.Equal(t, "503  no_instance", here.get(t, http.MethodGet, ""))
		require.Zero(t, had.Load(), "there must not hand the request over again")
		require.Equal(t, "200 third ", there.get(t, http.MethodGet, ""))
		require.EqualValues(t, 1, had.Load())

		there.put(t, crossing(failover, raw(t, func(c net.Conn) {})))
		here.around(t, "a-there", there.url, "b-third", third.url)
		for {
			got := here.get(t, http.MethodPost, "hello")
			if got == "502 a-there bad_answer" {
				break
			}
			require.Equal(t, "200 b-third ", got) // a-there gets no requests for a short time, because it has just refused one
		}
		require.Equal(t, "503 no_instance", func() string {
			req := here.request(t, http.MethodGet, "/", "")
			req.Header.Set("Windlass-Handed-Over", "failover nowhere")
			res, _ := here.do(t, req)
			return res.Status[:3] + " " + res.Header.Get("Windlass-Error")
		}(), "a request of a client that sets the header is not handed over")
	})
}

// A gateway without memory for the bodies of requests to pairs has sent the request to no instance.
func TestCrossRegion_PassesOverARegionWithoutMemoryForPairs(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		here, far := start(t, equallyNear), start(t, nil)
		far.put(t, crossing(failover, instance(t, named("far"))))
		here.put(t, crossing(failover))
		near := instance(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Windlass-Error", "pair_memory")
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		here.around(t, "a-near", "http://"+near, "b-far", far.url)
		require.Equal(t, "200 b-far far", here.get(t, http.MethodPost, "hello"))
	})
}

// A streamed body, as in gRPC, cannot be sent again to another region. But after a region has refused a stream, the
// next requests go to another region.
func TestCrossRegion_PassesOverARegionThatRefusesAStream(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		here, near, far := start(t, equallyNear), start(t, nil), start(t, nil)
		here.put(t, crossing(failover))
		near.put(t, crossing(failover))
		far.put(t, crossing(failover, instance(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(w, q.Body) })))
		here.around(t, "a-near", near.url, "b-far", far.url)
		streamed := func() string {
			t.Helper()
			out, in := io.Pipe()
			req := here.request(t, http.MethodPost, "/", "")
			req.Body, req.ContentLength = out, -1
			go func() {
				_, _ = io.WriteString(in, "hello") // it fails if the answer comes before the body is read
				_ = in.Close()
			}()
			res, body := here.do(t, req)
			if code := res.Header.Get("Windlass-Error"); code != "" {
				body = code
			}
			return strings.Join([]string{res.Status[:3], res.Header.Get("Windlass-Region"), body}, " ")
		}
		if got := streamed(); got != "200 b-far hello" { // a-near may refuse the request before any of the body was sent
			require.Equal(t, "503 a-near no_instance", got)
		}
		require.Eventually(t, func() bool { return streamed() == "200 b-far hello" }, patience, 5*time.Millisecond)
	})
}

// The disconnect of a client is not a failure of the region to which its request was handed over.
func TestCrossRegion_ClientThatLeftDoesNotCountAgainstARegion(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		var seen sync.Map
		here := start(t, func(c *gateway.Config) {
			c.Near = func(ctx context.Context, u *url.URL) (time.Duration, error) {
				if _, again := seen.LoadOrStore(u.Host, true); again {
					<-ctx.Done() // a region that counts as unreachable stays unreachable
				}
				return time.Millisecond, ctx.Err()
			}
		})
		near, far := start(t, nil), start(t, nil)
		entered := make(chan struct{}, 1)
		near.put(t, crossing(failover, instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.Method == http.MethodPost {
				_, _ = q.Body.Read(make([]byte, 1))
				entered <- struct{}{}
				if _, err := io.Copy(io.Discard, q.Body); err == nil {
					<-q.Context().Done()
				}
				return
			}
			_, _ = io.WriteString(w, "near")
		})))
		far.put(t, crossing(failover, instance(t, named("far"))))
		here.put(t, crossing(failover))
		here.around(t, "a-near", near.url, "b-far", far.url)
		for name, length := range map[string]int{"before an answer": 1, "in a body": 100_000} { // the client sends at most 50,000 bytes
			conn, _ := here.dial(t)
			_, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: echo.local\r\nContent-Length: %d\r\n\r\n%s", length, strings.Repeat("x", min(length, 50_000)))
			require.NoError(t, err)
			<-entered
			before := here.gauge(t, "windlass_gateway_requests_total")
			require.NoError(t, conn.Close())
			require.Eventually(t, func() bool { return here.gauge(t, "windlass_gateway_requests_total") > before }, patience, 5*time.Millisecond)
			require.Equal(t, "200 a-near near", here.get(t, http.MethodGet, ""), name)
		}
	})
}

// A region whose instances are at their limit hands over requests instead of queueing them, if the policy says so
// and another region has a free instance.
func TestCrossRegion_RegionOverItsLimitHandsOver(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		here, there := start(t, nil), start(t, nil)
		busy := func(name string) (address string, entered, leave chan struct{}) {
			entered, leave = make(chan struct{}, 8), make(chan struct{})
			return instance(t, func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path == "/long" {
					entered <- struct{}{}
					<-leave
				}
				_, _ = io.WriteString(w, name)
			}), entered, leave
		}
		hereAt, hereIn, hereOut := busy("here")
		thereAt, thereIn, thereOut := busy("there")
		limited := func(cross gatewayv1.CrossRegion, at string, queue int32) *gatewayv1.AppRoutes {
			app := crossing(cross, at)
			app.Policy.MaxInFlight, app.Policy.QueueSize, app.Policy.QueueWait = new(int32(1)), &queue, durationpb.New(patience)
			return app
		}
		here.put(t, limited(spillover, hereAt, 8))
		there.put(t, limited(spillover, thereAt, 8))
		here.around(t, "there", there.url)
		long := func(r *harness) chan string {
			out := make(chan string, 1)
			req := r.request(t, http.MethodPost, "/long", "x")
			go func() {
				res, err := r.client.Do(req)
				if err != nil {
					out <- err.Error()
					return
				}
				defer res.Body.Close()
				body, _ := io.ReadAll(res.Body)
				out <- string(body)
			}()
			return out
		}
		first := long(here)
		<-hereIn
		require.Equal(t, "200 there there", here.get(t, http.MethodPost, "hello"))
		second := long(here)
		<-thereIn // the second request was handed over

		// Both regions are at their limit, so the third request waits in the region to which it came.
		third := long(here)
		here.waiting(t, 1)
		require.Zero(t, there.gauge(t, "windlass_gateway_queue"))
		hereOut <- struct{}{}
		require.Equal(t, "here", <-first)
		<-hereIn
		hereOut <- struct{}{}
		require.Equal(t, "here", <-third)
		thereOut <- struct{}{}
		require.Equal(t, "there", <-second)

		// With failover the second request waits in its own region.
		here.put(t, limited(failover, hereAt, 8))
		first = long(here)
		<-hereIn
		second = long(here)
		here.waiting(t, 1)
		hereOut <- struct{}{}
		<-hereIn
		hereOut <- struct{}{}
		require.Equal(t, []string{"here", "here"}, []string{<-first, <-second})

		// A request that is handed over because no instance is ready may wait in the other region.
		first = long(there)
		<-thereIn
		here.put(t, limited(failover, "127.0.0.1:1", 8))
		second = long(here)
		there.waiting(t, 1)
		thereOut <- struct{}{}
		<-thereIn
		thereOut <- struct{}{}
		require.Equal(t, []string{"there", "there"}, []string{<-first, <-second})
	})
}

// The owner of a region chooses the address of its gateways. If the operator of this gateway does not allow the
// address, the gateway does not connect to it, even if the region is known to be near.
func TestCrossRegion_OnlyAllowedAddressesAreCalled(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		near := func(c *gateway.Config) {
			c.NeighbourAllow = nil
			c.Near = func(context.Context, *url.URL) (time.Duration, error) { return time.Millisecond, nil }
		}
		var connections atomic.Int64
		inner := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") }))
		inner.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				connections.Add(1)
			}
		}
		inner.Start()
		t.Cleanup(inner.Close)
		_, port, err := net.SplitHostPort(inner.Listener.Addr().String())
		require.NoError(t, err)
		for name, host := range map[string]string{"by address": "http://127.0.0.1:", "by name": "http://localhost:", "by TLS": "https://127.0.0.1:"} {
			t.Run(name, func(t *testing.T) {
				here := start(t, near)
				here.put(t, crossing(failover))
				here.around(t, "there", host+port)
				require.Equal(t, "503  no_instance", here.get(t, http.MethodGet, ""))
				require.Zero(t, connections.Load())
			})
		}
	})
}

// The gateway reaches other regions by TLS and verifies their certificate for the app's host. It remembers other
// regions over a restart without an agent.
func TestCrossRegion_UsesTLSAndRemembersRegions(t *testing.T) {
	t.Parallel()
	bothEngines(t, func(t *testing.T) {
		certs := t.TempDir()
		certify(t, certs)
		secure := func(c *gateway.Config) {
			c.TLSListen, c.TLSCert, c.TLSKey = "127.0.0.1:0", filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
		}
		trusting := func(c *gateway.Config) { c.NeighbourRoots = filepath.Join(certs, "cert.pem") }
		here, stranger, there := start(t, trusting), start(t, nil), start(t, secure)
		var protocol atomic.Value
		next := make(chan struct{})
		there.put(t, crossing(failover, instance(t, func(w http.ResponseWriter, q *http.Request) {
			protocol.Store(q.Header.Get("X-Forwarded-Proto"))
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				_, _ = io.WriteString(w, "data: token\n\n")
				w.(http.Flusher).Flush()
				<-next
			}
		})))
		at := "https://" + there.gateway.Addresses()[1].String()
		here.put(t, crossing(failover))
		here.around(t, "there", at)
		streams := func(r *harness) {
			t.Helper()
			res, err := r.client.Do(r.request(t, http.MethodPost, "/", strings.Repeat("x", 100)))
			require.NoError(t, err)
			defer res.Body.Close()
			require.Equal(t, []string{"there"}, res.Header["Windlass-Region"])
			event := make([]byte, len("data: token\n\n"))
			for range 3 {
				_, err = io.ReadFull(res.Body, event)
				require.NoError(t, err)
				next <- struct{}{}
			}
			_, err = io.ReadFull(res.Body, event)
			require.ErrorIs(t, err, io.EOF)
			require.Equal(t, "https", protocol.Load())
		}
		streams(here)
		streams(here)

		stranger.put(t, crossing(failover))
		stranger.around(t, "there", at)
		require.Equal(t, "503  no_instance", stranger.get(t, http.MethodGet, ""), "the gateway does not trust the certificate")

		here.stop()
		here.wait(t)
		here.stopAgent()
		here.running = startGateway(t, here.dir, "127.0.0.1:0", trusting)
		here.url = "http://" + here.gateway.Addresses()[0].String()
		streams(here)

		_, err := gateway.New(context.Background(), gateway.Config{
			Agent: "unix:x", Listen: []string{"127.0.0.1:0"}, NeighbourRoots: filepath.Join(certs, "none.pem"),
			Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Random: func() uint64 { return 0 }, Rand: func() float64 { return 0 },
		})
		require.ErrorContains(t, err, "roots of other regions' gateways")
	})
}

// DNS may lead a client to a region in which the app does not run.
func TestCrossRegion_RegionWithoutTheAppHandsOver(t *testing.T) {
	t.Parallel()
	bothEngines(t, func(t *testing.T) {
		here, there := start(t, nil), start(t, nil)
		app := crossing(failover, instance(t, named("there")))
		app.Policy.RequireApiKey, app.ApiKeys = true, []*gatewayv1.ApiKey{apiKey("mobile", "secret", time.Time{})}
		there.put(t, app)
		ask := func(method, key string) string {
			t.Helper()
			req := here.request(t, method, "/", "hello")
			if key != "" {
				req.Header.Set("Authorization", "Bearer "+key)
			}
			res, body := here.do(t, req)
			if code := res.Header.Get("Windlass-Error"); code != "" {
				body = code
			}
			return strings.Join([]string{res.Status[:3], res.Header.Get("Windlass-Region"), body}, " ")
		}
		around := func(regions ...*gatewayv1.Neighbour) *gatewayv1.Neighbours {
			return &gatewayv1.Neighbours{Region: "here", Whole: true, Apps: []*gatewayv1.AppNeighbours{
				{AppId: "app_1", AppName: "echo", Hosts: []string{"echo.local"}, Regions: regions},
			}}
		}
		here.put(t, &gatewayv1.AppRoutes{AppId: "app_other", Hosts: []string{"other.local"}})
		require.Equal(t, "404  no_route", ask(http.MethodGet, "secret"))
		at := &gatewayv1.Neighbour{Region: "there", GatewayUrl: there.url}
		here.look(t, around(at))
		require.Equal(t, "200 there there", ask(http.MethodPost, "secret"))
		require.Equal(t, "401 there api_key", ask(http.MethodPost, ""), "the region that runs the app checks the key")
		require.InDelta(t, 2, here.gauge(t, "windlass_gateway_routes"), 0, "routes of app_other and of the app in the other region")

		here.look(t, around())
		require.Equal(t, "503  no_instance", ask(http.MethodPost, "secret"), "the app is not ready in any region")
		here.look(t, around(at))

		// Routes of the app in this region come first.
		own := crossing(failover, instance(t, named("here")))
		here.put(t, own)
		require.Equal(t, "200  here", ask(http.MethodPost, "secret"))
		own.Previews, own.Hosts, own.Policy = []*gatewayv1.Preview{{Host: "v1.echo.local", DeploymentId: "dep_1"}}, nil, nil
		own.Targets[0].Weight = 0
		here.put(t, own)
		require.Equal(t, "200 there there", ask(http.MethodPost, "secret"), "only a preview is left in this region")
		here.put(t, &gatewayv1.AppRoutes{AppId: own.AppId})
		require.Equal(t, "200 there there", ask(http.MethodPost, "secret"))

		// A gateway that starts without an agent remembers the other region. It still does after it connects to another
		// agent that does not know the app.
		here.stop()
		here.wait(t)
		here.stopAgent()
		here.running = startGateway(t, here.dir, "127.0.0.1:0", nil)
		here.url = "http://" + here.gateway.Addresses()[0].String()
		require.Equal(t, "200 there there", ask(http.MethodPost, "secret"))
		here.agent, here.stopAgent = startAgent(t, filepath.Join(here.dir, "gateway.sock"), "table-2")
		here.put(t, &gatewayv1.AppRoutes{AppId: "app_other", Hosts: []string{"other.local"}})
		here.until(t, func() bool { return here.served["app_other"] > 0 && here.served["app_1"] == 0 })
		require.Equal(t, "200 there there", ask(http.MethodPost, "secret"))

		here.look(t, &gatewayv1.Neighbours{Region: "here", Whole: true})
		require.Equal(t, "404  no_route", ask(http.MethodGet, "secret"))
	})
}
