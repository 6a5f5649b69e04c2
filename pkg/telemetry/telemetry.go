// Package telemetry makes a program's loggers, metrics and spans. Nothing here is global. Each is created
// once, in the wiring, and passed to the code that needs it.
//
// The trace ID connects logs, errors and spans. Log lines under a span have it, and errors that hide their cause from
// the caller name it. The context of a trace is sent as a "traceparent" string in RPC headers, database rows and
// assignments of agents. So one deploy is one tree of spans over all programs and delays.
package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/propagation"
)

// NewRegistry returns a registry with metrics of the Go runtime, the process and the build.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return registry
}

// Propagator carries W3C trace context and baggage in headers.
func Propagator() propagation.TextMapPropagator {
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
}

const traceparent = "traceparent"

// Inject returns the W3C traceparent of ctx's span, for a later Extract, or "" if ctx has no span.
func Inject(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparent]
}

// Extract returns ctx with the remote span of a traceparent from Inject as parent of later spans. For an
// empty or malformed traceparent it returns ctx unchanged, because a broken trace must not break anything
// else.
func Extract(ctx context.Context, parent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}
