package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// gpu is an instance that answers one request at a time. came counts all requests. crowded counts the requests that
// found crowd or more other requests at the instance.
type gpu struct {
	takes   time.Duration
	say     func(http.ResponseWriter)
	mu      sync.Mutex
	came    atomic.Int64
	waiting atomic.Int64
	crowded atomic.Int64 // requests that found crowd or more requests
}

const crowd = 6

func (g *gpu) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	g.came.Add(1)
	if g.waiting.Add(1) > crowd {
		g.crowded.Add(1)
	}
	defer g.waiting.Add(-1)
	g.mu.Lock()
	defer g.mu.Unlock()
	<-time.After(g.takes)
	if g.say != nil {
		g.say(w)
	}
	_, _ = io.WriteString(w, "answer")
}

// load runs clients at the same time. Each client sends its next request after the last one was answered. Together
// they send as many requests as answers says.
func (h *harness) load(t *testing.T, clients, answers int64) {
	t.Helper()
	var left atomic.Int64
	left.Store(answers)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				res, err := h.client.Do(h.request(t, http.MethodGet, "/", ""))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	}
	all.Wait()
}

func weighted(addresses ...string) *gatewayv1.AppRoutes {
	app := echo(addresses...)
	app.Policy.Balancing = gatewayv1.Balancing_BALANCING_WEIGHTED
	return app
}

// The instances send no load reports. One is three times as fast as the other, and both are always busy.
func TestWeighted_FasterInstanceHasMoreRequests(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		fast, slow := &gpu{takes: 2 * time.Millisecond}, &gpu{takes: 6 * time.Millisecond}
		// measure returns the share of requests that the fast instance gets, and the share of requests that find a crowd
		// at the slow instance.
		measure := func(requests int64) (share, tail float64) {
			came, crowded := fast.came.Load(), slow.crowded.Load()
			r.load(t, 8, requests)
			return float64(fast.came.Load()-came) / float64(requests), float64(slow.crowded.Load()-crowded) / float64(requests)
		}
		app := echo(instance(t, fast.ServeHTTP), instance(t, slow.ServeHTTP))
		r.put(t, app)
		share, long := measure(300)
		require.InDelta(t, 0.5, share, 0.02)
		require.Greater(t, long, 0.3, "without weights, most requests at the slow instance wait for nearly all other clients")

		app = proto.CloneOf(app)
		app.Generation++
		app.Policy.Balancing = gatewayv1.Balancing_BALANCING_WEIGHTED
		r.put(t, app)
		require.Eventually(t, func() bool {
			share, _ := measure(100)
			return share > 0.65
		}, patience, time.Millisecond)
		share, tail := measure(400)
		require.Greater(t, share, 0.62)
		require.Less(t, tail, long*2/3)
		part := func(id string) float64 {
			return r.series(t)["windlass_gateway_instance_part app=echo,app_id=app_1,instance_id="+id+",version=1,windlass_deployment=dep_1"]
		}
		require.Greater(t, part("dep_1-0"), part("dep_1-1"))
		require.InDelta(t, 2, part("dep_1-0")+part("dep_1-1"), 1e-9)
	})
}

// The instances are equally fast and report different loads, in a header or in trailers. Clients do not get the
// reports, except on routes whose strategy does not read them.
func TestWeighted_InstancesGetRequestsByTheirReportedLoad(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]func(w http.ResponseWriter, utilization float64){
		"text": func(w http.ResponseWriter, u float64) {
			w.Header().Set("Endpoint-Load-Metrics", fmt.Sprintf("TEXT application_utilization=%g, rps_fractional=100", u))
		},
		"json in a trailer": func(w http.ResponseWriter, u float64) {
			w.Header().Set("Trailer", "Endpoint-Load-Metrics, X-Kept")
			w.(http.Flusher).Flush()
			w.Header().Set("Endpoint-Load-Metrics", fmt.Sprintf(`JSON {"cpu_utilization": %g, "rps_fractional": 100}`, u))
			w.Header().Set("X-Kept", "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothEngines(t, func(t *testing.T) {
				r := start(t, nil)
				t.Parallel()
				saying := func(utilization float64) *gpu {
					return &gpu{say: func(w http.ResponseWriter) { say(w, utilization) }}
				}
				idle, busy := saying(0.2), saying(0.8)
				app := weighted(instance(t, idle.ServeHTTP), instance(t, busy.ServeHTTP))
				r.put(t, app)
				check := func() {
					res, body := r.do(t, r.request(t, http.MethodGet, "/", ""))
					require.Equal(t, "answer", body)
					for _, fields := range []http.Header{res.Header, res.Trailer} {
						require.NotContains(t, fields, "Endpoint-Load-Metrics")
					}
					if strings.Contains(name, "trailer") {
						require.Equal(t, "1", res.Trailer.Get("X-Kept"))
					}
				}
				check()
				// Reports count after the blackout of ten seconds.
				require.Eventually(t, func() bool {
					idleBefore, busyBefore := idle.came.Load(), busy.came.Load()
					r.load(t, 1, 100)
					return idle.came.Load()-idleBefore >= 78 && busy.came.Load()-busyBefore >= 18
				}, patience, 50*time.Millisecond)
				check()

				app = proto.CloneOf(app)
				app.Generation++
				app.Policy.Balancing = gatewayv1.Balancing_BALANCING_ROUND_ROBIN
				r.put(t, app)
				res, _ := r.do(t, r.request(t, http.MethodGet, "/", ""))
				require.NotEmpty(t, res.Header.Get("Endpoint-Load-Metrics")+res.Trailer.Get("Endpoint-Load-Metrics"), "other strategies pass the field on")
			})
		})
	}
}

// An instance that refuses requests at once with 429 is not ejected. It does not count as fast, even if it reports a
// low load.
func TestWeighted_FastFailuresAreNotSpeed(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		well, broken := &gpu{takes: 2 * time.Millisecond}, atomic.Int64{}
		app := weighted(instance(t, well.ServeHTTP), instance(t, func(w http.ResponseWriter, _ *http.Request) {
			if broken.Add(1)%4 != 0 {
				w.Header().Set("Endpoint-Load-Metrics", "TEXT application_utilization=0.001, rps_fractional=1000")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}))
		r.put(t, app)
		require.Eventually(t, func() bool {
			before, wellBefore := broken.Load(), well.came.Load()
			r.load(t, 4, 200)
			return broken.Load()-before < (well.came.Load()-wellBefore)*3/4
		}, patience, time.Millisecond)
	})
}

// A load report that cannot be read does not change the answer, and clients do not get it.
func TestWeighted_UnreadableLoadIsIgnored(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		say := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nEndpoint-Load-Metrics: TEXT rps_fractional=-1\r\n" +
			"endpoint-load-metrics: JSON {\r\nENDPOINT-LOAD-METRICS-BIN: ***\r\nX-Kept: 1\r\n\r\nok"
		a := raw(t, func(c net.Conn) { _, _ = io.Copy(c, bufio.NewReader(strings.NewReader(say))) })
		r.put(t, weighted(a, a))
		for range 3 {
			res, body := r.do(t, r.request(t, http.MethodGet, "/", ""))
			require.Equal(t, "ok", body)
			require.Equal(t, "1", res.Header.Get("X-Kept"))
			require.Empty(t, res.Header.Values("Endpoint-Load-Metrics"))
			require.Empty(t, res.Header.Values("Endpoint-Load-Metrics-Bin"))
		}
	})
}

// grpc-go's servers report their load in the binary trailer of each call.
func TestWeighted_GRPCServersReportTheirLoad(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	startReporting := func(utilization float64) (*counted, string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		c := &counted{utilization: utilization}
		server := grpc.NewServer(orca.CallMetricsServerOption(nil))
		grpc_testing.RegisterTestServiceServer(server, c)
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		t.Cleanup(func() {
			server.Stop()
			require.NoError(t, <-ended)
		})
		return c, l.Addr().String()
	}
	idle, idleAt := startReporting(0.2)
	busy, busyAt := startReporting(0.8)
	r.put(t, weighted(idleAt, busyAt))
	client := r.grpc(t)
	call := func() metadata.MD {
		var trailer metadata.MD
		_, err := client.EmptyCall(t.Context(), &grpc_testing.Empty{}, grpc.Trailer(&trailer))
		require.NoError(t, err)
		return trailer
	}
	require.Empty(t, call().Get("endpoint-load-metrics-bin"))
	require.Eventually(t, func() bool {
		idleBefore, busyBefore := idle.calls.Load(), busy.calls.Load()
		for range 100 {
			call()
		}
		return idle.calls.Load()-idleBefore >= 78 && busy.calls.Load()-busyBefore >= 18
	}, patience, 50*time.Millisecond)
}

type counted struct {
	grpc_testing.UnimplementedTestServiceServer

	utilization float64
	calls       atomic.Int64
}

func (c *counted) EmptyCall(ctx context.Context, _ *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	c.calls.Add(1)
	if recorder := orca.CallMetricsRecorderFromContext(ctx); recorder != nil {
		recorder.SetApplicationUtilization(c.utilization)
		recorder.SetQPS(100)
	}
	return &grpc_testing.Empty{}, nil
}
