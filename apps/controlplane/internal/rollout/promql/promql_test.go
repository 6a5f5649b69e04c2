package promql_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/promql"
)

// setup returns a source whose Prometheus is handler. The end-to-end tests use the real one.
func setup(t *testing.T, handler http.HandlerFunc) *promql.Source {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s, err := promql.New(promql.Config{URL: server.URL, Raw: true, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	return s
}

func measure(t *testing.T, s *promql.Source, q analysis.Queries) plan.Measurement {
	before := time.Now().UnixMilli()
	out := s.Measure(t.Context(), []plan.Measure{{RegionID: "reg_1", Check: "errors", Since: 7, Queries: q}})
	require.Len(t, out, 1)
	require.Equal(t, []any{"reg_1", "errors", int64(7)}, []any{out[0].RegionID, out[0].Check, out[0].Since})
	require.GreaterOrEqual(t, out[0].At, before)
	return out[0]
}

func answer(w http.ResponseWriter, result string) {
	_, _ = fmt.Fprintf(w, `{"status":"success","data":%s}`, result)
}

const (
	oneSeries = `{"resultType":"vector","result":[{"metric":{},"value":[1,"%s"]}]}`
	noSeries  = `{"resultType":"vector","result":[]}`
)

func TestQuery_EachIsItsOwnFigure(t *testing.T) {
	s := setup(t, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.FormValue("query"); q {
		case "new":
			answer(w, fmt.Sprintf(oneSeries, "0.25"))
		case "samples":
			answer(w, `{"resultType":"scalar","result":[1,"12"]}`)
		default:
			answer(w, noSeries)
		}
	})
	f := measure(t, s, analysis.Queries{New: "new", NewSamples: "samples", Old: "old"}).Figures
	require.Empty(t, f.Problem)
	require.Equal(t, []float64{0.25, 12}, []float64{*f.New, *f.NewSamples})
	require.Nil(t, f.Old, "a query without series gives no figure")
	require.Nil(t, f.OldSamples)
}

func TestFigure_MissingNamesTheProblem(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"several series": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, `{"resultType":"vector","result":[{"metric":{"a":"1"},"value":[1,"1"]},{"metric":{"a":"2"},"value":[1,"1"]}]}`)
		}, "2 results: aggregate them"},
		"a matrix": {func(w http.ResponseWriter, _ *http.Request) { answer(w, `{"resultType":"matrix","result":[]}`) }, "is a matrix"},
		"bad query": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprint(w, `{"status":"error","errorType":"bad_data","error":"parse error: unexpected }"}`)
		}, "Prometheus refuses the query: parse error"},
		"an unreachable storage": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(w, `{"status":"error","errorType":"execution","error":"expanding series: dial tcp 127.0.0.1:10901: connection refused"}`)
		}, "Prometheus fails: execution"},
		"an expression": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(w, `{"status":"error","errorType":"execution","error":"multiple matches for labels"}`)
		}, "Prometheus fails: multiple matches for labels"},
		"not Prometheus": {func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "<html>") }, "Prometheus "},
		"a bad gateway":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "Prometheus fails"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, "Prometheus fails"},
		"too large": {func(w http.ResponseWriter, _ *http.Request) {
			for range 64 {
				_, _ = fmt.Fprint(w, strings.Repeat(" ", 64<<10))
			}
		}, "larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			f := measure(t, setup(t, c.answer), analysis.Queries{New: "new"}).Figures
			require.Contains(t, f.Problem, c.says)
			require.NotContains(t, f.Problem, "127.0.0.1", "tenants must not see the operator's address")
		})
	}
	unreachable, err := promql.New(promql.Config{URL: "http://127.0.0.1:1", Raw: true, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	problem := measure(t, unreachable, analysis.Queries{New: "new"}).Figures.Problem
	require.Contains(t, problem, "cannot be reached")
	require.NotContains(t, problem, "127.0.0.1", "tenants must not see the operator's address")
}

func TestClient_SilentPrometheusMeetsTheDeadline(t *testing.T) {
	s := setup(t, func(_ http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // a server notices a closed connection only after it has read the request
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, context.DeadlineExceeded)
	defer cancel()
	var due []plan.Measure
	for range plan.MaxMeasure {
		due = append(due, plan.Measure{Queries: analysis.Queries{New: "new"}})
	}
	begin := time.Now()
	measured := s.Measure(ctx, due)
	require.Less(t, time.Since(begin), 5*time.Second, "the deadline of all queries together is 50 ms")
	require.Len(t, measured, plan.MaxMeasure)
	for _, m := range measured {
		require.Contains(t, m.Figures.Problem, context.DeadlineExceeded.Error())
	}
}

func TestClient_BoundsConcurrentQueries(t *testing.T) {
	var now, beyond atomic.Int32
	s := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		if now.Add(1) > 10 {
			beyond.Add(1)
		}
		defer now.Add(-1)
		answer(w, fmt.Sprintf(oneSeries, "1"))
	})
	var due []plan.Measure
	for range 50 {
		due = append(due, plan.Measure{Queries: analysis.Queries{New: "a", NewSamples: "b", Old: "c", OldSamples: "d"}})
	}
	for _, m := range s.Measure(t.Context(), due) {
		require.Empty(t, m.Figures.Problem)
	}
	require.Zero(t, beyond.Load())
}

func TestClient_LeavesQueriesToOtherWorkspaces(t *testing.T) {
	var silent atomic.Int32
	s := setup(t, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("query") == "silent" {
			silent.Add(1)
			<-r.Context().Done()
			return
		}
		answer(w, fmt.Sprintf(oneSeries, "1"))
	})
	ctx, cancel := context.WithCancel(t.Context())
	var steps sync.WaitGroup
	for i := range 3 {
		var due []plan.Measure
		for range 10 {
			due = append(due, plan.Measure{WorkspaceID: fmt.Sprint("ws_", i), Queries: analysis.Queries{New: "silent"}})
		}
		steps.Go(func() { s.Measure(ctx, due) })
	}
	require.Eventually(t, func() bool { return silent.Load() >= 7 }, time.Minute, time.Millisecond, "the other workspaces have used up their shares")
	begin := time.Now()
	m := measure(t, s, analysis.Queries{New: "up", NewSamples: "up", Old: "up", OldSamples: "up"})
	require.Empty(t, m.Figures.Problem)
	require.Less(t, time.Since(begin), 5*time.Second, "before any query of the other workspaces meets its deadline")
	cancel()
	steps.Wait()
}

func TestToken_IsReadForEachQuery(t *testing.T) {
	var got atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
		answer(w, noSeries)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	s, err := promql.New(promql.Config{URL: server.URL, TokenFile: file, Raw: true, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	require.Contains(t, measure(t, s, analysis.Queries{New: "new"}).Figures.Problem, "cannot be reached")
	for _, token := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
		require.Empty(t, measure(t, s, analysis.Queries{New: "new"}).Figures.Problem)
		require.Equal(t, "Bearer "+token, got.Load())
	}
}

func TestURL_InvalidIsRefusedWithoutItsPassword(t *testing.T) {
	for _, text := range []string{"", "prometheus:9090", "ftp://ada:secret@host"} {
		_, err := promql.New(promql.Config{URL: text, Raw: true, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		require.ErrorContains(t, err, "http://prometheus:9090", text)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestQuery_IsRestrictedToItsDeploymentsUnlessRaw(t *testing.T) {
	var got atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.FormValue("query"))
		answer(w, noSeries)
	}))
	defer server.Close()
	for raw, want := range map[bool]string{true: "sum(requests_total)", false: `sum(requests_total{windlass_deployment=~"dep_1"})`} {
		s, err := promql.New(promql.Config{URL: server.URL, Raw: raw, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		require.NoError(t, err)
		require.Empty(t, measure(t, s, analysis.Queries{New: "sum(requests_total)", Within: []string{"dep_1"}}).Figures.Problem)
		require.Equal(t, want, got.Load())
	}
}
