// Package telemetry is what a program says about itself: log lines, metrics and
// spans. Nothing here is global: each is made once, in the wiring, and handed to
// those who need it.
//
// The three meet in the trace id. A log line written under a span carries it, and an error that
// hides its cause from the caller names it. The context of a trace travels as one "traceparent"
// string in RPC headers, database rows and assignments of agents. So one deploy is one tree
// over all programs and delays.
package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/propagation"
)

// NewRegistry returns a registry that already tells about the Go runtime, the
// process and the build.
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

// Inject returns the W3C traceparent of ctx's span, to be stored and given to
// Extract elsewhere and later. Empty when ctx has no span.
func Inject(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparent]
}

// Extract returns ctx with the remote span that Inject told as parent of the
// spans to come. An empty or malformed traceparent leaves ctx as it is: a broken
// trace must break nothing else.
func Extract(ctx context.Context, parent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}
