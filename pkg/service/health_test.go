package service

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func get(t *testing.T, h http.Handler) (int, Report) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	var report Report
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &report))
	return w.Code, report
}

func TestReady_NamesEachDependency(t *testing.T) {
	var h Health
	code, report := get(t, h.ReadyHandler())
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok", report.Status)

	h.Add("database", func(context.Context) error { return nil })
	h.Add("workflows", func(context.Context) error { return errors.New("connection refused") })
	code, report = get(t, h.ReadyHandler())
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "failing", report.Status)
	require.True(t, report.Checks["database"].OK)
	require.False(t, report.Checks["workflows"].OK)
	require.Equal(t, "connection refused", report.Checks["workflows"].Error)

	code, report = get(t, h.LiveHandler())
	require.Equal(t, http.StatusOK, code)
	require.Empty(t, report.Checks)

	h.Add("workflows", func(context.Context) error { return nil })
	code, _ = get(t, h.ReadyHandler())
	require.Equal(t, http.StatusOK, code)
}

func TestChecks_RunInParallelAndUnderTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Health{Timeout: 3 * time.Second}
		for _, name := range []string{"a", "b", "c"} {
			h.Add(name, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}
		start := time.Now()
		report := h.Check(t.Context())
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, Result{Error: "no answer within 3s", Millis: 3000}, report.Checks["b"])
	})
}

func TestHealthCheck_HangingRunsOnceAndDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Health
		release := make(chan struct{})
		var runs atomic.Int32
		h.Add("stuck", func(context.Context) error {
			runs.Add(1)
			<-release
			return nil
		})
		for range 10 {
			start := time.Now()
			require.Equal(t, "failing", h.Check(t.Context()).Status)
			require.Equal(t, DefaultCheckTimeout, time.Since(start))
		}
		require.Equal(t, int32(1), runs.Load())

		close(release)
		synctest.Wait()
		require.Equal(t, "ok", h.Check(t.Context()).Status)
	})
}

func TestHealthCheck_PanicIsAFailure(t *testing.T) {
	var h Health
	h.Add("bad", func(context.Context) error { panic("nil map") })
	require.Equal(t, "the check panicked: nil map", h.Check(t.Context()).Checks["bad"].Error)
}
