package service

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestAdmin_ServesMetricsHealthAndProfiles(t *testing.T) {
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "windlass_test_total"})
	registry.MustRegister(counter)
	counter.Inc()
	var health Health
	health.Add("database", func(context.Context) error { return errors.New("down") })

	start := func(cfg AdminConfig) (url string, stop func() error) {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		cfg.Listener = listener
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- AdminServer(cfg).Run(ctx) }()
		return "http://" + listener.Addr().String(), func() error {
			cancel()
			return <-ended
		}
	}
	client := &http.Client{Timeout: 10 * time.Second}
	fetch := func(url string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		res, err := client.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(body)
	}

	url, stop := start(AdminConfig{Registry: registry, Health: &health, Pprof: true})
	code, body := fetch(url + "/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "windlass_test_total 1")
	code, _ = fetch(url + "/healthz")
	require.Equal(t, http.StatusOK, code)
	code, body = fetch(url + "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, `"error":"down"`)
	code, _ = fetch(url + "/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusOK, code)
	require.NoError(t, stop())

	url, stop = start(AdminConfig{})
	for path, want := range map[string]int{
		"/readyz": http.StatusOK, "/metrics": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound,
	} {
		code, _ = fetch(url + path)
		require.Equal(t, want, code, path)
	}
	require.NoError(t, stop())
}

func TestAdmin_TakenAddressIsNamed(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	err = AdminServer(AdminConfig{Listen: taken.Addr().String()}).Run(t.Context())
	require.ErrorContains(t, err, taken.Addr().String())
}

func TestAdminServer(t *testing.T) {
	t.Run("metrics require the token and probes do not", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token")
		cfg := AdminConfig{Registry: prometheus.NewRegistry(), Pprof: true, TokenFile: file}
		ask := func(path, authorization string) int {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			r.Header.Set("Authorization", authorization)
			w := httptest.NewRecorder()
			adminMux(cfg).ServeHTTP(w, r)
			return w.Code
		}
		require.Equal(t, http.StatusServiceUnavailable, ask("/metrics", "Bearer "), "without a token every request is refused")
		require.NoError(t, os.WriteFile(file, []byte("first\n"), 0o600))
		for _, path := range []string{"/metrics", "/debug/pprof/cmdline"} {
			require.Equal(t, http.StatusOK, ask(path, "Bearer first"), path)
			require.Equal(t, http.StatusUnauthorized, ask(path, ""), path)
			require.Equal(t, http.StatusUnauthorized, ask(path, "Bearer second"), path)
		}
		require.Equal(t, http.StatusOK, ask("/healthz", ""))
		require.Equal(t, http.StatusOK, ask("/readyz", ""))
		require.NoError(t, os.WriteFile(file, []byte("second"), 0o600))
		require.Equal(t, http.StatusOK, ask("/metrics", "Bearer second"), "it is read for each request")
	})
}
