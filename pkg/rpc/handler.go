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

// Config of the handlers of one program.
type Config struct {
	// Log gets the causes that callers do not see; nil: they are not logged.
	Log *slog.Logger
	// Registerer gets rpc_server_requests_total{procedure,code},
	// rpc_server_request_duration_seconds{procedure,code} (unary calls) and
	// rpc_server_streams{procedure} (open now); nil: none.
	Registerer prometheus.Registerer
	// Tracer makes a span per call, joined to the caller's by Propagator; nil:
	// none.
	Tracer     trace.TracerProvider
	Propagator propagation.TextMapPropagator
	// Timeout of a unary call whose caller set none. 0: DefaultTimeout.
	Timeout time.Duration
	// ReadMaxBytes bounds a decoded message. 0: DefaultReadMaxBytes.
	ReadMaxBytes int
	// IsUnavailable tells a part that is out of reach (a database that restarts)
	// from a fault: callers get UNAVAILABLE, which asks to try again, where INTERNAL
	// would tell them to give up. nil: no error is one.
	IsUnavailable func(error) bool
	// Gate runs before the body is read. nil: everybody gets in.
	Gate Gate
	// HoldBack delays the streams of callers that ignore the time to wait (LimitDetail.retry_after_ms)
	// with which their streams are refused; see conns.Entry.Refused. Leave it out where the caller may
	// not be the cause of the refusal: agents report more than can be stored.
	HoldBack bool
	// Interceptors run inside of all the above and before the schema's rules.
	Interceptors []connect.Interceptor
}

// HandlerOptions are for every handler constructor of a program. Several calls
// may share one Registerer.
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
	interceptors := tracing(cfg.Tracer, cfg.Propagator)
	edge := &edge{log: cfg.Log, metrics: newMetrics(cfg.Registerer), timeout: cfg.Timeout, isUnavailable: cfg.IsUnavailable, holdBack: cfg.HoldBack}
	interceptors = append(interceptors, edge)
	interceptors = append(interceptors, cfg.Interceptors...)
	interceptors = append(interceptors, validate.NewInterceptor(validate.WithoutErrorDetails()))
	options := []connect.HandlerOption{
		connect.WithInterceptors(interceptors...),
		connect.WithReadMaxBytes(orDefault(cfg.ReadMaxBytes, DefaultReadMaxBytes)),
		connect.WithCompression(gzipName, newDecompressor, newCompressor),
		connect.WithCompressMinBytes(compressMinBytes),
	}
	if cfg.Gate != nil {
		options = append(options, connect.WithRequestGate(edge.gated(cfg.Gate)))
	}
	return options
}

// tracing returns one interceptor, or none without a tracer.
func tracing(tracer trace.TracerProvider, propagator propagation.TextMapPropagator) []connect.Interceptor {
	if tracer == nil {
		return nil
	}
	options := []otelconnect.Option{
		otelconnect.WithTracerProvider(tracer),
		otelconnect.WithoutMetrics(),
		// Callers are our own programs, or users who may as well name the trace.
		otelconnect.WithTrustRemote(),
	}
	if propagator != nil {
		options = append(options, otelconnect.WithPropagator(propagator))
	}
	interceptor, err := otelconnect.NewInterceptor(options...)
	if err != nil {
		// It fails only when it cannot register its metrics, which are off.
		panic(fmt.Errorf("rpc: make the tracing interceptor: %w", err))
	}
	return []connect.Interceptor{interceptor}
}

func orDefault[T int | int64 | time.Duration](value, otherwise T) T {
	if value <= 0 {
		return otherwise
	}
	return value
}
