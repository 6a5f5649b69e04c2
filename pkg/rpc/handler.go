package rpc

import (
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/otelconnect"
	"connectrpc.com/validate"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Config configures the handlers of one program.
type Config struct {
	// Log receives the causes that callers do not see. Nil discards them.
	Log *slog.Logger
	// Registerer receives rpc_server_requests_total{procedure,code},
	// rpc_server_request_duration_seconds{procedure,code} (unary calls) and rpc_server_streams{procedure}
	// (open now). It may be nil.
	Registerer prometheus.Registerer
	// Tracer makes a span for each call. Propagator joins it to the caller's span. They may be nil.
	Tracer     trace.TracerProvider
	Propagator propagation.TextMapPropagator
	// Timeout limits a unary call without a deadline. Default: DefaultTimeout.
	Timeout time.Duration
	// ReadMaxBytes is the maximum size of a decoded message. Default: DefaultReadMaxBytes.
	ReadMaxBytes int
	// IsUnavailable reports whether an error means that a component, such as the database, is unreachable. Then
	// callers get UNAVAILABLE instead of INTERNAL, and try again. Nil means never.
	IsUnavailable func(error) bool
	// Admit runs before the body is read. Nil allows all calls.
	Admit Admitter
	// HoldBack delays streams of callers that ignore a refusal's time to wait (LimitDetail.retry_after_ms); see
	// conns.Entry.Refused. It must be false for callers that cannot avoid refusals, such as agents that report
	// more than can be stored.
	HoldBack bool
	// Interceptors run after Admit, and before the schema's rules are checked.
	Interceptors []connect.Interceptor
}

// HandlerOptions returns the options for every handler constructor of a program. It can be called several times
// with the same Registerer.
func HandlerOptions(cfg Config) []connect.HandlerOption {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.IsUnavailable == nil {
		cfg.IsUnavailable = func(error) bool { return false }
	}
	interceptors := tracingInterceptors(cfg.Tracer, cfg.Propagator)
	interceptor := &serverInterceptor{log: cfg.Log, metrics: newMetrics(cfg.Registerer), timeout: cfg.Timeout, isUnavailable: cfg.IsUnavailable, holdBack: cfg.HoldBack}
	interceptors = append(interceptors, interceptor)
	interceptors = append(interceptors, cfg.Interceptors...)
	interceptors = append(interceptors, validate.NewInterceptor(validate.WithoutErrorDetails()))
	options := []connect.HandlerOption{
		connect.WithInterceptors(interceptors...),
		connect.WithReadMaxBytes(orDefault(cfg.ReadMaxBytes, DefaultReadMaxBytes)),
		connect.WithCompression(gzipName, newDecompressor, newCompressor),
		connect.WithCompressMinBytes(compressMinBytes),
	}
	if cfg.Admit != nil {
		options = append(options, connect.WithRequestGate(interceptor.requestGate(cfg.Admit)))
	}
	return options
}

// tracingInterceptors returns one interceptor, or none without a tracer.
func tracingInterceptors(tracer trace.TracerProvider, propagator propagation.TextMapPropagator) []connect.Interceptor {
	if tracer == nil {
		return nil
	}
	options := []otelconnect.Option{
		otelconnect.WithTracerProvider(tracer),
		otelconnect.WithoutMetrics(),
		// Every caller may choose the trace ID.
		otelconnect.WithTrustRemote(),
	}
	if propagator != nil {
		options = append(options, otelconnect.WithPropagator(propagator))
	}
	interceptor, err := otelconnect.NewInterceptor(options...)
	if err != nil {
		// NewInterceptor fails only if it cannot register its metrics, and they are off.
		panic(fmt.Errorf("rpc: create the tracing interceptor: %w", err))
	}
	return []connect.Interceptor{interceptor}
}

// orDefault returns value, or otherwise if value is not positive.
func orDefault[T int | int64 | time.Duration](value, otherwise T) T {
	if value <= 0 {
		return otherwise
	}
	return value
}
