package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// tracer makes a provider that the test shuts down through the returned function.
func tracer(t *testing.T, cfg TracerConfig) (trace.Tracer, func()) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	provider, shutdown, err := NewTracer(t.Context(), cfg)
	require.NoError(t, err)
	return provider.Tracer("test"), func() { require.NoError(t, shutdown(t.Context())) }
}

func TestRegistry_DescribesProcessAndBuild(t *testing.T) {
	families, err := NewRegistry().Gather()
	require.NoError(t, err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	require.Subset(t, names, []string{"go_goroutines", "go_build_info", "process_start_time_seconds"})
}

func TestTraceparent_JoinsTracesAcrossPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spans.jsonl")
	api, stopAPI := tracer(t, TracerConfig{ServiceName: "controlplane", Version: "1.2", File: file})
	agent, stopAgent := tracer(t, TracerConfig{ServiceName: "agent", File: file})

	ctx, root := api.Start(t.Context(), "deployment.workflow", trace.WithAttributes(attribute.Int("replicas", 2)))
	stored := Inject(ctx)
	applied, apply := agent.Start(Extract(t.Context(), stored), "deployment.apply.eu-west-1")
	require.NotEqual(t, stored, Inject(applied))
	apply.SetStatus(codes.Error, "no such image")
	apply.End()
	root.End()

	// The file is read before the shutdown, because a killed program must have written its spans.
	lines, err := os.ReadFile(file)
	require.NoError(t, err)
	spans, err := ReadSpans(bytes.NewReader(append(lines, `{"Name":"half`...)))
	require.NoError(t, err)
	require.Len(t, spans, 2)
	child, parent := spans[0], spans[1]
	require.Equal(t, "agent", child.Service)
	require.Equal(t, "deployment.apply.eu-west-1", child.Name)
	require.True(t, child.Failed)
	require.Equal(t, "no such image", child.Message)
	require.Equal(t, "controlplane", parent.Service)
	require.Equal(t, parent.TraceID, child.TraceID)
	require.Equal(t, parent.SpanID, child.ParentID)
	require.Empty(t, parent.ParentID)
	require.False(t, parent.Failed)
	require.InEpsilon(t, 2.0, parent.Attributes["replicas"], 0)
	require.False(t, parent.End.Before(child.End))

	stopAPI()
	stopAgent()
}

func TestTraceparent_BrokenIsIgnored(t *testing.T) {
	require.Empty(t, Inject(t.Context()))
	for _, s := range []string{"", "x", "00-0-0-01", strings.Repeat("0", 1<<16)} {
		require.False(t, trace.SpanContextFromContext(Extract(t.Context(), s)).IsValid())
	}
}

func TestSpan_HasAnIDWithoutAnExporter(t *testing.T) {
	tr, stop := tracer(t, TracerConfig{ServiceName: "agent"})
	defer stop()
	ctx, span := tr.Start(t.Context(), "root")
	require.NotEmpty(t, Inject(ctx))
	require.False(t, span.IsRecording())

	const sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx, _ = tr.Start(Extract(t.Context(), sampled), "child")
	require.Regexp(t, `^00-0af7651916cd43dd8448eb211c80319c-[0-9a-f]{16}-01$`, Inject(ctx))
}

func TestSpan_ReachesTheCollectorOfConfigOrEnvironment(t *testing.T) {
	var mu sync.Mutex
	paths := map[string]int{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths[r.URL.Path]++
	}))
	defer collector.Close()

	send := func(cfg TracerConfig) {
		cfg.ServiceName = "controlplane"
		provider, shutdown, err := NewTracer(t.Context(), cfg)
		require.NoError(t, err)
		_, span := provider.Tracer("test").Start(t.Context(), "span")
		span.End()
		require.NoError(t, shutdown(t.Context()))
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	send(TracerConfig{Endpoint: collector.URL})
	send(TracerConfig{Endpoint: collector.URL + "/custom/path"})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	send(TracerConfig{})
	require.Equal(t, map[string]int{"/v1/traces": 2, "/custom/path": 1}, paths)
}

func TestCollector_RefusalIsLoggedOnly(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer collector.Close()
	var out bytes.Buffer
	log, err := NewLogger(&out, "text", "warn")
	require.NoError(t, err)

	tr, stop := tracer(t, TracerConfig{ServiceName: "agent", Endpoint: collector.URL, Log: log})
	_, span := tr.Start(t.Context(), "span")
	span.End()
	stop()
	require.Contains(t, out.String(), "spans lost")
}

func TestTracerConfig_ErrorNamesTheFieldAndTheFix(t *testing.T) {
	for want, cfg := range map[string]TracerConfig{
		"service name":               {},
		"from 0 to 1":                {ServiceName: "x", SampleRatio: 1.5},
		"like http://collector:4318": {ServiceName: "x", Endpoint: "collector:4318"},
		"open the span file":         {ServiceName: "x", File: t.TempDir()},
		`endpoint "ftp://collector"`: {ServiceName: "x", Endpoint: "ftp://collector"},
		"use a URL like":             {ServiceName: "x", Endpoint: "http://", File: filepath.Join(t.TempDir(), "f")},
	} {
		_, _, err := NewTracer(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
}

func TestLog_LineCarriesItsTrace(t *testing.T) {
	tr, stop := tracer(t, TracerConfig{ServiceName: "agent"})
	defer stop()
	var out bytes.Buffer
	log, err := NewLogger(&out, "json", "")
	require.NoError(t, err)
	ctx, span := tr.Start(t.Context(), "root")

	log.With("app", "echo").InfoContext(ctx, "deployed")
	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line))
	require.Equal(t, "echo", line["app"])
	require.Equal(t, span.SpanContext().TraceID().String(), line["trace_id"])
	require.Equal(t, span.SpanContext().SpanID().String(), line["span_id"])

	out.Reset()
	log.Info("no span")
	log.Debug("below the level")
	require.NotContains(t, out.String(), "trace_id")
	require.NotContains(t, out.String(), "below")
}

func TestLog_HasNoSecrets(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, "text", "debug")
	require.NoError(t, err)
	for _, name := range []string{
		"authorization", "Authorization", "token", "join_token", "joinToken", "JOIN-TOKEN", "secret", "secret_value",
		"api_key", "apiKey", "apikey", "x-api-key", "password", "db.password", "dsn", "mysql_dsn", "credential",
		"set-cookie", "private_key", "signing_keys",
	} {
		out.Reset()
		log.Info("m", name, "hunter2")
		log.With(name, "hunter2").Info("m")
		log.WithGroup(name).Info("m", "value", "hunter2")
		log.Info("m", slog.Group("request", name, errors.New("hunter2")))
		require.NotContains(t, out.String(), "hunter2", name)
		require.Equal(t, 4, strings.Count(out.String(), Redacted), name)
	}
	for _, name := range []string{
		"tokens", "token_id", "tokenID", "secret_name", "secret_version", "token_count", "key", "app", "workload_key",
		"idempotency_key", "author", "keyboard",
	} {
		out.Reset()
		log.Info("m", name, "hunter2")
		require.Contains(t, out.String(), "hunter2", name)
	}
}

func TestLogSettings_ErrorNamesTheChoices(t *testing.T) {
	_, err := NewLogger(&bytes.Buffer{}, "xml", "info")
	require.EqualError(t, err, `log format "xml": use text or json`)
	_, err = NewLogger(&bytes.Buffer{}, "json", "loud")
	require.EqualError(t, err, `log level "loud": use debug, info, warn or error`)
	_, err = NewLogger(&bytes.Buffer{}, "", "")
	require.NoError(t, err)

	log, err := NewLogger(&bytes.Buffer{}, "json", "WARN")
	require.NoError(t, err)
	require.False(t, log.Enabled(context.Background(), slog.LevelInfo))
	require.True(t, log.Enabled(context.Background(), slog.LevelWarn))
}
