package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/trace"

	"github.com/windlass-run/windlass/pkg/conns"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// serverInterceptor is the server's interceptor. It counts calls, limits their time, recovers panics and
// translates errors.
type serverInterceptor struct {
	log           *slog.Logger
	metrics       *metrics
	timeout       time.Duration
	isUnavailable func(error) bool
	holdBack      bool
}

func (e *serverInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		procedure := req.Spec().Procedure
		start := time.Now()
		ctx, cancel := unaryContext(ctx, e.timeout)
		defer cancel()
		defer func() {
			if err = e.translateError(ctx, procedure, err, recover()); err != nil {
				res = nil
			}
			e.metrics.countUnary(procedure, err, time.Since(start))
		}()
		return next(ctx, req)
	}
}

func (e *serverInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		procedure := conn.Spec().Procedure
		e.metrics.streamOpened(procedure)
		defer func() {
			err = e.translateError(ctx, procedure, err, recover())
			e.metrics.streamClosed(procedure, err)
			e.noteRefusal(ctx, err)
		}()
		if in := messageReaderOf(ctx); in != nil {
			conn = chargedConn{conn, in}
		}
		return next(ctx, conn)
	}
}

func (e *serverInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// noteRefusal records a stream that was refused with a time to wait, to find callers that ignore this time.
func (e *serverInterceptor) noteRefusal(ctx context.Context, err error) {
	if !e.holdBack || connect.CodeOf(err) != connect.CodeResourceExhausted || DetailOf(err).GetLimit().GetRetryAfterMs() == 0 {
		return
	}
	if in := messageReaderOf(ctx); in != nil {
		conns.EntryOf(ctx).Refused(in.caller)
	}
}

// unaryContext returns the context of a unary call. It ends at the call's deadline, when the caller disconnects,
// or when the grace period of a stopping server is over. It does not end when the stop begins.
func unaryContext(request context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancelCause := context.WithCancelCause(context.WithoutCancel(request))
	stopFollowing := context.AfterFunc(request, func() {
		// A deadline is set below, so that the call ends with DeadlineExceeded.
		if errors.Is(request.Err(), context.Canceled) && !errors.Is(context.Cause(request), errStopping) {
			cancelCause(context.Cause(request))
		}
	})
	ignoreCut := func() bool { return true }
	if cut, ok := request.Value(cutKey{}).(context.Context); ok {
		ignoreCut = context.AfterFunc(cut, func() { cancelCause(errStopping) })
	}
	deadline, ok := request.Deadline()
	if !ok {
		deadline = time.Now().Add(timeout)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	return ctx, func() {
		stopFollowing()
		ignoreCut()
		cancel()
		cancelCause(nil)
	}
}

// translateError turns an error or panic of a handler into the error that the caller may see.
func (e *serverInterceptor) translateError(ctx context.Context, procedure string, err error, panicked any) error {
	switch {
	case panicked == http.ErrAbortHandler: //nolint:errorlint // as net/http compares it
		panic(panicked)
	case panicked != nil:
		return e.hideCause(ctx, procedure, fmt.Errorf("panic: %v", panicked), "stack", string(debug.Stack()))
	case err == nil || connect.IsNotModifiedError(err):
		return err
	}

	if invalid, ok := errors.AsType[*protovalidate.ValidationError](err); ok {
		return validationError(invalid)
	}
	var coded *connect.Error
	if errors.As(err, &coded) && isForCaller(coded) {
		if DetailOf(coded) != nil {
			return coded
		}
		return attachDetail(coded, &windlassv1.ErrorDetail{Reason: reasonOfCode(coded.Code())})
	}

	// If the context has ended, that is the cause of the error.
	switch {
	case ctx.Err() == nil && e.isUnavailable(err):
		e.log.WarnContext(ctx, "a component is unreachable", "procedure", procedure, "error", err)
		return ErrorWith(connect.CodeUnavailable, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
			Fix:    "Call again in a moment.",
		}, "a component of the control plane is unreachable")
	case ctx.Err() == nil:
		return e.hideCause(ctx, procedure, err)
	case errors.Is(context.Cause(ctx), errStopping):
		return Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the server is stopping: call again")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return ErrorWith(connect.CodeDeadlineExceeded, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE,
			Fix:    "Call again with a longer deadline.",
		}, "the deadline passed before the call was answered")
	default:
		return connect.NewError(connect.CodeCanceled, ctx.Err())
	}
}

// isForCaller reports whether a coded error was written for our caller. An error from another server was not written
// for it. An error with the code of an unspecific failure was written for the caller only if it has a detail.
func isForCaller(err *connect.Error) bool {
	var (
		badRule *protovalidate.CompilationError
		badEval *protovalidate.RuntimeError
	)
	if connect.IsWireError(err) || errors.As(err, &badRule) || errors.As(err, &badEval) {
		return false
	}
	switch err.Code() {
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss, connect.CodeCanceled, connect.CodeDeadlineExceeded:
		return DetailOf(err) != nil
	default:
		return true
	}
}

// hideCause logs the cause, and returns an error with the trace ID of the log entry.
func (e *serverInterceptor) hideCause(ctx context.Context, procedure string, cause error, more ...any) error {
	e.log.ErrorContext(ctx, "call failed", append([]any{"procedure", procedure, "error", cause}, more...)...)
	detail := &windlassv1.ErrorDetail{Reason: windlassv1.ErrorReason_ERROR_REASON_INTERNAL}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		detail.Fix = fmt.Sprintf("Look for trace %s in the server's log.", span.TraceID())
	}
	return ErrorWith(connect.CodeInternal, detail, "internal error")
}
