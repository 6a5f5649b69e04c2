package access

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

func TestPodUsages(t *testing.T) {
	answer := func(http.ResponseWriter) {}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/apis/metrics.k8s.io/v1beta1/namespaces/windlass-shop/pods" || r.FormValue("labelSelector") != "windlass.run/region=east" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer(w)
	}))
	defer server.Close()
	api, err := New(Config{
		Client: &rest.Config{Host: server.URL}, Region: "east", AgentVersion: "test", CallTimeout: 5 * time.Second, Outage: Outage, Reopen: Reopen,
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Random: func() float64 { return 0 },
	})
	require.NoError(t, err)
	t.Run("only the app's container counts", func(t *testing.T) {
		answer = func(w http.ResponseWriter) {
			_, _ = fmt.Fprint(w, `{"kind":"PodMetricsList","items":[
				{"metadata":{"name":"chat-1"},"timestamp":"2026-11-28T00:00:00Z","window":"15s","containers":[
					{"name":"sidecar","usage":{"cpu":"9","memory":"9Gi"}},{"name":"main","usage":{"cpu":"250123456n","memory":"131072Ki"}}]},
				{"metadata":{"name":"chat-2"},"containers":[]}]}`)
		}
		got, ok, err := api.PodUsages(t.Context(), "windlass-shop")
		require.NoError(t, err)
		require.True(t, ok)
		require.Len(t, got, 1)
		require.Equal(t, "chat-1", got[0].Name)
		require.InDelta(t, 250.123, got[0].CPUMillicores, 0.001)
		require.EqualValues(t, 128<<20, got[0].MemoryBytes)
	})
	t.Run("a cluster without the metrics API has no usages", func(t *testing.T) {
		answer = func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		}
		_, ok, err := api.PodUsages(t.Context(), "windlass-shop")
		require.NoError(t, err)
		require.False(t, ok)
	})
	t.Run("a metrics server that is down is an error and delays no other call", func(t *testing.T) {
		calls := 0
		answer = func(w http.ResponseWriter) {
			calls++
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503}`)
		}
		_, _, err := api.PodUsages(t.Context(), "windlass-shop")
		require.ErrorContains(t, err, "metrics of pods in namespace windlass-shop")
		require.Equal(t, 1, calls)
		wait, _ := api.breaker.mayPass(time.Now())
		require.Zero(t, wait)
	})
	t.Run("an answer that cannot be read is an error", func(t *testing.T) {
		answer = func(w http.ResponseWriter) {
			_, _ = fmt.Fprint(w, `{"items":[{"containers":[{"name":"main","usage":{"cpu":"x"}}]}]}`)
		}
		_, _, err := api.PodUsages(t.Context(), "windlass-shop")
		require.Error(t, err)
	})
}
