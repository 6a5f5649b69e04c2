package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	validation  = windlassv1.ErrorReason_ERROR_REASON_VALIDATION
	internal    = windlassv1.ErrorReason_ERROR_REASON_INTERNAL
	unavailable = windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE
	notFound    = windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND
)

func TestRule_BrokenNamesItsField(t *testing.T) {
	f := setup(t, settings{})
	_, err := f.projects().ListProjects(t.Context(), &windlassv1.ListProjectsRequest{
		Page: &windlassv1.PageRequest{Size: -1},
	})
	requireError(t, err, connect.CodeInvalidArgument, validation, "page.size")
	require.ErrorContains(t, err, "page.size: ")

	_, err = f.projects().ListProjects(t.Context(), &windlassv1.ListProjectsRequest{
		Page: &windlassv1.PageRequest{Size: 501, Token: strings.Repeat("x", 600)},
	})
	requireError(t, err, connect.CodeInvalidArgument, validation, "page.size")
	require.ErrorContains(t, err, "(and 1 more)")

	stream, err := f.apps().WatchApp(t.Context(), &windlassv1.WatchAppRequest{})
	require.NoError(t, err)
	require.False(t, stream.Receive())
	requireError(t, stream.Err(), connect.CodeInvalidArgument, validation, "app")
	require.Empty(t, f.log.String())
}

func TestHandler_IntendedErrorArrives(t *testing.T) {
	f := setup(t, settings{})
	f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) {
		return nil, fmt.Errorf("get: %w", ErrorWith(connect.CodeNotFound, &windlassv1.ErrorDetail{
			Reason: notFound, Field: "project", Fix: "List projects.",
		}, "no such project"))
	}
	_, err := f.projects().GetProject(t.Context(), echo)
	requireError(t, err, connect.CodeNotFound, notFound, "project")
	require.EqualError(t, err, "not_found: no such project")
	require.Equal(t, "List projects.", DetailOf(err).GetFix())

	f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("not yours"))
	}
	_, err = f.projects().GetProject(t.Context(), echo)
	requireError(t, err, connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
	require.EqualError(t, err, "permission_denied: not yours")
	require.Empty(t, f.log.String())
}

func TestOutage_AsksToCallAgain(t *testing.T) {
	errAway := errors.New("dial tcp 10.1.2.3: connection refused")
	f := setup(t, settings{Config: Config{IsUnavailable: func(err error) bool { return errors.Is(err, errAway) }}})
	f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) {
		return nil, fmt.Errorf("get: %w", errAway)
	}
	_, err := f.projects().GetProject(t.Context(), echo)
	requireError(t, err, connect.CodeUnavailable, unavailable, "")
	require.NotContains(t, err.Error(), "10.1.2.3")
	require.Contains(t, f.log.String(), "10.1.2.3")
}

func TestHandler_UnintendedErrorIsLoggedOnly(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	f := setup(t, settings{Config: Config{Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))}})
	for name, fail := range map[string]func() error{
		"a driver's error":         func() error { return errors.New("dial tcp 10.1.2.3: hunter2") },
		"coded without a reason":   func() error { return connect.NewError(connect.CodeInternal, errors.New("hunter2")) },
		"another server's answer":  func() error { return connect.NewWireError(connect.CodeNotFound, errors.New("hunter2")) },
		"a panic":                  func() error { panic("hunter2") },
		"the deadline of another":  func() error { return fmt.Errorf("hunter2: %w", context.DeadlineExceeded) },
		"an error's panic":         func() error { panic(errors.New("hunter2")) },
		"another's cancelled call": func() error { return connect.NewError(connect.CodeCanceled, errors.New("hunter2")) },
	} {
		t.Run(name, func(t *testing.T) {
			check := func(err error) {
				requireError(t, err, connect.CodeInternal, internal, "")
				require.NotContains(t, err.Error(), "hunter2")
				require.Regexp(t, `trace [0-9a-f]{32} `, DetailOf(err).GetFix())
				require.Contains(t, f.log.String(), "hunter2")
				f.log.mu.Lock()
				f.log.buf.Reset()
				f.log.mu.Unlock()
			}
			f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) { return nil, fail() }
			_, err := f.projects().GetProject(t.Context(), echo)
			check(err)

			f.watch = func(context.Context, func() error) error { return fail() }
			stream, err := f.apps().WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
			require.NoError(t, err)
			require.False(t, stream.Receive())
			check(stream.Err())
		})
	}
}

func TestPanic_IsLoggedWithItsPlace(t *testing.T) {
	f := setup(t, settings{})
	f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) {
		return nil, []error{}[len(f.log.String())] // out of range
	}
	_, err := f.projects().GetProject(t.Context(), echo)
	requireError(t, err, connect.CodeInternal, internal, "")
	require.Contains(t, f.log.String(), "handler_test.go")
	require.Contains(t, f.log.String(), "GetProject")
}

func TestCall_UnaryEndsWithoutADeadline(t *testing.T) {
	f := setup(t, settings{Config: Config{Timeout: 20 * time.Millisecond}})
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("query: %w", ctx.Err())
	}
	_, err := f.projects().GetProject(t.Context(), echo)
	requireError(t, err, connect.CodeDeadlineExceeded, unavailable, "")

	// The result is the same with a driver that does not wrap the context's error.
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		<-ctx.Done()
		return nil, errors.New("invalid connection")
	}
	_, err = f.projects().GetProject(t.Context(), echo)
	requireError(t, err, connect.CodeDeadlineExceeded, unavailable, "")
	require.Empty(t, f.log.String())
}

func TestDeadline_OfTheCallerHolds(t *testing.T) {
	f := setup(t, settings{Config: Config{Timeout: time.Millisecond}})
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		deadline, _ := ctx.Deadline()
		if left := time.Until(deadline); left < time.Minute || left > time.Hour {
			return nil, Error(connect.CodeInvalidArgument, validation, "", left.String())
		}
		return &windlassv1.GetProjectResponse{}, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := f.projects().GetProject(ctx, echo)
	require.NoError(t, err)
}

func TestHandler_IsCancelledIfTheCallerLeaves(t *testing.T) {
	f := setup(t, settings{})
	started, seen := make(chan struct{}), make(chan error, 1)
	f.get = func(ctx context.Context, _ string) (*windlassv1.GetProjectResponse, error) {
		close(started)
		<-ctx.Done()
		seen <- ctx.Err()
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	_, err := f.projects().GetProject(ctx, echo)
	require.Equal(t, connect.CodeCanceled, connect.CodeOf(err))
	require.ErrorIs(t, <-seen, context.Canceled)
}

func TestInterceptors_ComeBeforeTheRules(t *testing.T) {
	deny := connect.UnaryInterceptorFunc(func(connect.UnaryFunc) connect.UnaryFunc {
		return func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
			return nil, Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "who are you?")
		}
	})
	f := setup(t, settings{Config: Config{Interceptors: []connect.Interceptor{deny}}})
	_, err := f.projects().GetProject(t.Context(), &windlassv1.GetProjectRequest{})
	requireError(t, err, connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "")
}

func TestJSON_HasCodeReasonAndField(t *testing.T) {
	f := setup(t, settings{})
	post := func(body string) (int, map[string]any) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			f.url+"/windlass.v1.ProjectService/ListProjects", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		res, err := NewHTTPClient(HTTPClientConfig{HTTP1: true}).Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, 1, res.ProtoMajor)
		var answer map[string]any
		require.NoError(t, json.NewDecoder(res.Body).Decode(&answer))
		return res.StatusCode, answer
	}
	code, answer := post(`{}`)
	require.Equal(t, http.StatusOK, code)
	require.Empty(t, answer)

	code, answer = post(`{"page":{"size":-1}}`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Equal(t, "invalid_argument", answer["code"])
	detail := answer["details"].([]any)[0].(map[string]any)
	require.Equal(t, "windlass.v1.ErrorDetail", detail["type"])
	require.Equal(t, map[string]any{"reason": "ERROR_REASON_VALIDATION", "field": "page.size"}, detail["debug"])

	code, answer = post(`{"page":`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Equal(t, "invalid_argument", answer["code"])
}

func TestMessage_TooLargeIsRefusedOnBothEnds(t *testing.T) {
	f := setup(t, settings{Config: Config{ReadMaxBytes: 1000}})
	large := &windlassv1.GetProjectRequest{Project: strings.Repeat("x", 2000)}
	for _, gzip := range []bool{false, true} {
		_, err := f.projects(ClientOptions(ClientConfig{Gzip: gzip})...).GetProject(t.Context(), large)
		require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, ReasonOf(err))
	}

	f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) {
		return &windlassv1.GetProjectResponse{Project: &windlassv1.Project{Name: strings.Repeat("x", 2000)}}, nil
	}
	_, err := f.projects(ClientOptions(ClientConfig{ReadMaxBytes: 1000})...).GetProject(t.Context(), echo)
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
}

func TestAnswers_LargeOnesAreCompressed(t *testing.T) {
	f := setup(t, settings{})
	encoding := func(size int) string {
		f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) {
			return &windlassv1.GetProjectResponse{Project: &windlassv1.Project{Name: strings.Repeat("x", size)}}, nil
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			f.url+"/windlass.v1.ProjectService/GetProject", bytes.NewReader([]byte(`{"project":"echo"}`)))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept-Encoding", "gzip")
		res, err := f.http.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		return res.Header.Get("Content-Encoding")
	}
	require.Empty(t, encoding(100))
	require.Equal(t, "gzip", encoding(5000))
}

func TestMetrics_CountByProcedureAndCode(t *testing.T) {
	registry := prometheus.NewRegistry()
	f := setup(t, settings{Config: Config{Registerer: registry}})
	_, err := f.projects().GetProject(t.Context(), echo)
	require.NoError(t, err)
	_, err = f.projects().GetProject(t.Context(), &windlassv1.GetProjectRequest{})
	require.Error(t, err)

	f.watch = func(ctx context.Context, send func() error) error {
		if err := send(); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := f.apps().WatchApp(ctx, &windlassv1.WatchAppRequest{App: "echo"})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP rpc_server_requests_total Calls that ended, unary and streams, by procedure and code.
# TYPE rpc_server_requests_total counter
rpc_server_requests_total{code="invalid_argument",procedure="/windlass.v1.ProjectService/GetProject"} 1
rpc_server_requests_total{code="ok",procedure="/windlass.v1.ProjectService/GetProject"} 1
# HELP rpc_server_streams Streams that are open now, by procedure.
# TYPE rpc_server_streams gauge
rpc_server_streams{procedure="/windlass.v1.AppService/WatchApp"} 1
`), "rpc_server_requests_total", "rpc_server_streams"))
	count, err := testutil.GatherAndCount(registry, "rpc_server_request_duration_seconds")
	require.NoError(t, err)
	require.Equal(t, 2, count)

	cancel()
	require.Eventually(t, func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP rpc_server_streams Streams that are open now, by procedure.
# TYPE rpc_server_streams gauge
rpc_server_streams{procedure="/windlass.v1.AppService/WatchApp"} 0
`), "rpc_server_streams") == nil
	}, time.Minute, time.Millisecond)
}

func TestTrace_JoinsBothEnds(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	f := setup(t, settings{Config: Config{Tracer: tracer, Propagator: propagation.TraceContext{}}})
	client := f.projects(ClientOptions(ClientConfig{Tracer: tracer, Propagator: propagation.TraceContext{}})...)

	ctx, root := tracer.Tracer("test").Start(t.Context(), "root")
	_, err := client.GetProject(ctx, echo)
	require.NoError(t, err)
	root.End()

	// The server ends its span after it has sent the answer.
	require.Eventually(t, func() bool { return len(spans.Ended()) == 3 }, time.Minute, time.Millisecond)
	byKind := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range spans.Ended() {
		byKind[s.SpanKind().String()] = s
		require.Empty(t, s.Events())
	}
	require.Equal(t, byKind["internal"].SpanContext().SpanID(), byKind["client"].Parent().SpanID())
	require.Equal(t, byKind["client"].SpanContext().SpanID(), byKind["server"].Parent().SpanID())
	require.Equal(t, root.SpanContext().TraceID(), byKind["server"].SpanContext().TraceID())
}

func TestCode_EachHasAReason(t *testing.T) {
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED, ReasonOf(nil))
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED, ReasonOf(errors.New("disk full")))
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_UNSPECIFIED, ReasonOf((*connect.Error)(nil)))
	require.Nil(t, DetailOf((*connect.Error)(nil)))
	require.Equal(t, unavailable, ReasonOf(connect.NewError(connect.CodeUnavailable, nil)))
	require.Equal(t, notFound, ReasonOf(fmt.Errorf("x: %w", Error(connect.CodeFailedPrecondition, notFound, "", ""))))
}
