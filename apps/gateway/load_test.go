package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

func TestLoad(t *testing.T) {
	counted := func(addresses ...string) *gatewayv1.AppRoutes {
		app := echo(addresses...)
		app.CountLoad = true
		app.Previews = []*gatewayv1.Preview{{Host: "v1.echo.local", DeploymentId: "dep_1"}}
		return app
	}
	// is waits until the gateway has reported this load to the agent.
	is := func(t *testing.T, r *harness, inFlight, queued int32, began uint64) {
		t.Helper()
		r.until(t, func() bool {
			l := r.loads["app_1"]
			return l != nil && l.Queued == queued && len(l.Deployments) == 1 &&
				l.Deployments[0].InFlight == inFlight && l.Deployments[0].Began == began
		})
	}

	t.Run("counts requests from their begin to their end, on both ways", func(t *testing.T) {
		bothEngines(t, func(t *testing.T) {
			r := start(t, nil)
			release := make(chan struct{})
			r.put(t, counted(instance(t, func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path == "/stream" {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, "data: 1\n\n")
					w.(http.Flusher).Flush()
					<-release
				}
				_, _ = io.WriteString(w, "data: 2\n\n")
			})))
			is(t, r, 0, 0, 0)
			r.do(t, r.request(t, http.MethodPost, "/", "{}"))
			res, err := r.client.Do(r.request(t, http.MethodPost, "/stream", "{}"))
			require.NoError(t, err)
			defer res.Body.Close()
			is(t, r, 1, 0, 2)
			// A request that is larger than the engine's limit goes the long way.
			r.do(t, r.request(t, http.MethodPost, "/", strings.Repeat("x", 2<<20)))
			is(t, r, 1, 0, 3)
			close(release)
			_, err = io.Copy(io.Discard, res.Body)
			require.NoError(t, err)
			is(t, r, 0, 0, 3)
		})
	})

	t.Run("counts no request for a preview, without a route or without a key", func(t *testing.T) {
		bothEngines(t, func(t *testing.T) {
			r := start(t, nil)
			app := counted(instance(t, named("a")))
			app.Policy.RequireApiKey, app.ApiKeys = true, []*gatewayv1.ApiKey{apiKey("mobile", "k-good", time.Time{})}
			r.put(t, app)
			ask := func(host, key string, status int) {
				t.Helper()
				req := r.request(t, http.MethodGet, "/", "")
				req.Host = host
				req.Header.Set("X-Api-Key", key)
				res, _ := r.do(t, req)
				require.Equal(t, status, res.StatusCode)
			}
			ask("v1.echo.local", "k-good", http.StatusOK)
			ask("other.local", "k-good", http.StatusNotFound)
			ask("echo.local", "k-bad", http.StatusUnauthorized)
			ask("echo.local", "k-good", http.StatusOK)
			is(t, r, 0, 0, 1)
		})
	})

	t.Run("counts requests that wait", func(t *testing.T) {
		bothEngines(t, func(t *testing.T) {
			r := start(t, nil)
			app := counted(instance(t, named("a")))
			app.Targets[0].Instances[0].State = gatewayv1.Instance_STATE_NOT_READY
			app.Policy.QueueWait = durationpb.New(patience)
			r.put(t, app)
			answered := make(chan int, 1)
			go func() {
				res, err := r.client.Do(r.request(t, http.MethodPost, "/", "{}"))
				if err != nil {
					answered <- 0
					return
				}
				_ = res.Body.Close()
				answered <- res.StatusCode
			}()
			is(t, r, 0, 1, 0)
			r.put(t, counted(instance(t, named("a"))))
			require.Equal(t, http.StatusOK, <-answered)
			is(t, r, 0, 0, 1)
		})
	})

	t.Run("counts no request that another region answers", func(t *testing.T) {
		here, there := start(t, equallyNear), start(t, nil)
		away := counted(instance(t, named("there")))
		there.put(t, away)
		mine := crossing(failover)
		mine.CountLoad = true
		here.put(t, mine)
		here.around(t, "b-far", there.url)
		require.Equal(t, "200 b-far there", here.get(t, http.MethodPost, "hello"))
		is(t, there, 0, 0, 1)
		is(t, here, 0, 0, 0)
	})

	t.Run("of an app without scaling is not reported", func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo(instance(t, named("a"))))
		r.do(t, r.request(t, http.MethodPost, "/", "{}"))
		r.untilSeries(t, "windlass_gateway_requests_total app=echo,app_id=app_1,code=200,version=1,windlass_deployment=dep_1", 1)
		var reports int
		r.until(t, func() bool { reports = r.reports; return true })
		r.until(t, func() bool { return r.reports > reports+1 })
		r.until(t, func() bool { return len(r.loads) == 0 })
	})
}
