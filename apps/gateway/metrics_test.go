package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// series returns the value of each series of the gateway. The key is "name label=value,label=value", with sorted
// labels. The value of a histogram is its count.
func (r *running) series(t testing.TB) map[string]float64 {
	t.Helper()
	families, err := r.registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := strings.TrimSpace(f.GetName() + " " + strings.Join(labels, ","))
			got[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

// gauge returns the sum of all series of a metric.
func (r *running) gauge(t testing.TB, name string) (n float64) {
	for key, value := range r.series(t) {
		if key == name || strings.HasPrefix(key, name+" ") {
			n += value
		}
	}
	return n
}

// untilSeries waits until a series has the value, because a request is counted after its answer.
func (r *running) untilSeries(t testing.TB, key string, value float64) {
	t.Helper()
	require.Eventually(t, func() bool { return r.series(t)[key] == value }, patience, 5*time.Millisecond, "%s is %v", key, r.series(t)[key])
}

func TestMetrics_AreByDeployment(t *testing.T) {
	const version = "version=1,windlass_deployment=dep_1"
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path != "/v1/completions" {
				_, _ = io.WriteString(w, "a")
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for _, event := range []string{`{"choices":[{"text":"a"}]}`, `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, "[DONE]"} {
				_, _ = io.WriteString(w, "data: "+event+"\n\n")
				_ = http.NewResponseController(w).Flush()
			}
		})))
		for range 3 {
			r.do(t, r.request(t, http.MethodGet, "/", ""))
		}
		for range 2 {
			r.do(t, r.request(t, http.MethodPost, "/v1/completions", "{}"))
		}
		req := r.request(t, http.MethodGet, "/", "")
		req.Host = "unknown.local"
		r.do(t, req)
		r.untilSeries(t, "windlass_gateway_failures_total app=,app_id=,reason=no_route", 1)
		r.untilSeries(t, "windlass_gateway_requests_total app=echo,app_id=app_1,code=200,"+version, 5)
		r.untilSeries(t, "windlass_gateway_first_byte_seconds app=echo,app_id=app_1,"+version, 5)
		r.untilSeries(t, "windlass_gateway_request_seconds app=echo,app_id=app_1,"+version, 5)
		// Only the two answers that stream count.
		r.untilSeries(t, "windlass_gateway_first_token_seconds app=echo,app_id=app_1,"+version, 2)
		r.untilSeries(t, "windlass_gateway_tokens_total app=echo,app_id=app_1,kind=prompt,"+version, 14)
		r.untilSeries(t, "windlass_gateway_tokens_total app=echo,app_id=app_1,kind=completion,"+version, 6)
		got := r.series(t)
		require.Equal(t, 1.0, got["windlass_gateway_routes"])
		require.Zero(t, got["windlass_gateway_in_flight app=echo,app_id=app_1,"+version])
		require.Contains(t, got, "windlass_gateway_in_flight app=echo,app_id=app_1,"+version)
		require.Contains(t, got, "windlass_gateway_queue app=echo,app_id=app_1")
		require.Zero(t, got["windlass_gateway_ejections_total"])
	})
}

// A request that fails has no tokens, even if the answer before it on the same connection had tokens.
func TestTokens_OfAnAnswerAreCountedOnce(t *testing.T) {
	const version = "version=1,windlass_deployment=dep_1"
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/broken" {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":7,"completion_tokens":3}}`)
		})))
		r.do(t, r.request(t, http.MethodPost, "/v1/completions", "{}"))
		res, _ := r.do(t, r.request(t, http.MethodPost, "/broken", "{}"))
		require.Equal(t, http.StatusBadGateway, res.StatusCode)
		r.untilSeries(t, "windlass_gateway_requests_total app=echo,app_id=app_1,code=502,"+version, 1)
		require.Equal(t, 7.0, r.series(t)["windlass_gateway_tokens_total app=echo,app_id=app_1,kind=prompt,"+version])
		require.Equal(t, 3.0, r.series(t)["windlass_gateway_tokens_total app=echo,app_id=app_1,kind=completion,"+version])
	})
}

// Requests in flight, waiting requests, failures and retries are counted for each app and version separately, even
// if two apps of different environments have the same name.
func TestMetrics_SeparateAppsOfOneName(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		release := make(chan struct{})
		held := instance(t, func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-release
		})
		end := sync.OnceFunc(func() { close(release) })
		t.Cleanup(end) // otherwise the servers would wait for their requests if the test fails
		production := echo()
		production.Targets = []*gatewayv1.Target{target("dep_1", 1, 100, held), target("dep_2", 2, 0, held)}
		production.Previews = []*gatewayv1.Preview{{Host: "v2.echo.local", DeploymentId: "dep_2"}}
		production.Policy.MaxInFlight, production.Policy.QueueWait = proto.Int32(2), durationpb.New(patience)
		staging := echo(closed(t))
		staging.AppId, staging.Hosts = "app_2", []string{"staging.local"}
		staging.Targets[0].DeploymentId = "dep_3"
		staging.Targets[0].Instances = append(staging.Targets[0].Instances, &gatewayv1.Instance{
			InstanceId: "dep_3-1", Address: instance(t, named("b")), State: gatewayv1.Instance_STATE_READY,
		})
		r.put(t, production)
		r.put(t, staging)
		ask := func(host string) *http.Response {
			req := r.request(t, http.MethodGet, "/", "")
			req.Host = host
			res, err := r.client.Do(req)
			require.NoError(t, err)
			t.Cleanup(func() { _ = res.Body.Close() })
			return res
		}
		ask("echo.local")
		ask("echo.local")
		ask("v2.echo.local")
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			res, err := r.client.Do(r.request(t, http.MethodGet, "/", ""))
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
		}()
		r.untilSeries(t, "windlass_gateway_queue app=echo,app_id=app_1", 1)
		const retries = "windlass_gateway_retries_total app=echo,app_id=app_2"
		for n := 0; r.series(t)[retries] == 0; n++ { // until a request is first sent to the address without a listener
			require.Less(t, n, 100)
			_, body := r.do(t, func() *http.Request {
				req := r.request(t, http.MethodGet, "/", "")
				req.Host = "staging.local"
				return req
			}())
			require.Equal(t, "b", body)
		}
		got := r.series(t)
		require.Equal(t, 2.0, got["windlass_gateway_in_flight app=echo,app_id=app_1,version=1,windlass_deployment=dep_1"], "%v", got)
		require.Equal(t, 1.0, got["windlass_gateway_in_flight app=echo,app_id=app_1,version=2,windlass_deployment=dep_2"])
		require.Contains(t, got, "windlass_gateway_in_flight app=echo,app_id=app_2,version=1,windlass_deployment=dep_3")
		require.Zero(t, got["windlass_gateway_queue app=echo,app_id=app_2"])
		require.Equal(t, 1.0, got[retries])
		require.NotContains(t, got, "windlass_gateway_retries_total app=echo,app_id=app_1")
		end()
		<-waited
	})
}

func TestEjection_IsCounted(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		r.put(t, echo(closed(t), instance(t, named("b"))))
		for range 6 { // every second request goes to the closed address until two refusals eject it
			_, body := r.do(t, r.request(t, http.MethodGet, "/", ""))
			require.Equal(t, "b", body)
		}
		require.Equal(t, 1.0, r.series(t)["windlass_gateway_ejections_total"])
	})
}
