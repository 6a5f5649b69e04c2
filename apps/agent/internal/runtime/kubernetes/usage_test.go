package kubernetes

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
)

func TestUsages(t *testing.T) {
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"%s","code":%d}`
	var calls atomic.Int32
	var absent atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case absent.Load():
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprintf(w, status, "NotFound", http.StatusNotFound)
		case strings.Contains(r.URL.Path, "/namespaces/refused/"):
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, status, "Forbidden", http.StatusForbidden)
		default:
			_, _ = fmt.Fprint(w, `{"items":[{"metadata":{"name":"chat-1"},"containers":[{"name":"main","usage":{"cpu":"2","memory":"1Mi"}}]}]}`)
		}
	}))
	defer server.Close()
	api, err := access.New(access.Config{
		Client: &rest.Config{Host: server.URL}, Region: "east", AgentVersion: "test", CallTimeout: 5 * time.Second,
		Outage: access.Outage, Reopen: access.Reopen,
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Random: func() float64 { return 0 },
	})
	require.NoError(t, err)
	t.Run("are unknown for a namespace that refuses, and known for the others", func(t *testing.T) {
		var u usages
		calls.Store(0)
		pods, ok, err := u.usageIn(t.Context(), api, "refused")
		require.ErrorContains(t, err, "refused")
		require.True(t, ok)
		require.Empty(t, pods)
		for range 2 {
			pods, ok, err = u.usageIn(t.Context(), api, "shop")
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, map[string]runtime.Usage{"chat-1": {CPUMillicores: 2000, HasCPU: true, MemoryBytes: 1 << 20}}, pods)
		}
		_, _, err = u.usageIn(t.Context(), api, "refused")
		require.ErrorContains(t, err, "refused", "the metrics API is not called again at once, and the reason stays")
		require.EqualValues(t, 2, calls.Load())
	})
	t.Run("are not requested in a cluster without a metrics API", func(t *testing.T) {
		var u usages
		absent.Store(true)
		_, ok, err := u.usageIn(t.Context(), api, "shop")
		require.NoError(t, err)
		require.False(t, ok)
		require.True(t, u.absent.After(time.Now()))
	})
}
