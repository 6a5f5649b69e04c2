package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// TracerConfig says where spans go.
type TracerConfig struct {
	// ServiceName is the program ("controlplane"). Required.
	ServiceName string
	// Version of the build, or empty.
	Version string
	// Attributes of every span's resource: the region, the replica.
	Attributes []attribute.KeyValue

	// Endpoint is the OTLP/HTTP collector's URL. Without a path, /v1/traces is
	// meant. Empty: the standard OTEL_EXPORTER_OTLP_ENDPOINT or
	// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT when set (and their companions for
	// headers and certificates), else no collector.
	Endpoint string
	// File gets every span appended as one line of JSON as soon as it ends, for
	// looking at traces without a collector. Several programs may share one file.
	// It is not rotated.
	File string
	// SampleRatio is the share of new traces to keep, 0 to 1; a trace that came
	// from elsewhere keeps its caller's decision. 0: OTEL_TRACES_SAMPLER when
	// set, else all.
	SampleRatio float64

	// Log gets a collector's failures; nil: they are dropped.
	Log *slog.Logger
}

// NewTracer returns a provider and the function that flushes it and stops it;
// call that last, with a deadline.
//
// Without Endpoint and File no span is kept, but each still has ids: they join
// the log lines of one request, here and across programs.
func NewTracer(ctx context.Context, cfg TracerConfig) (*sdktrace.TracerProvider, func(context.Context) error, error) {
	if cfg.ServiceName == "" {
		return nil, nil, errors.New("tracing: the service name is empty")
	}
	if math.IsNaN(cfg.SampleRatio) || cfg.SampleRatio < 0 || cfg.SampleRatio > 1 {
		return nil, nil, fmt.Errorf("tracing: sample ratio %v: use a number from 0 to 1", cfg.SampleRatio)
	}
	attributes := append([]attribute.KeyValue{attribute.String("service.name", cfg.ServiceName)}, cfg.Attributes...)
	if cfg.Version != "" {
		attributes = append(attributes, attribute.String("service.version", cfg.Version))
	}
	// The environment comes last and wins, as the standard has it. The command
	// line stays out: it may hold a secret.
	res, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(attributes...), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, nil, fmt.Errorf("tracing: describe this process: %w", err)
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(res), sdktrace.WithIDGenerator(ids{})}
	closeFile := func() error { return nil }

	if cfg.File != "" {
		file, err := os.OpenFile(cfg.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, nil, fmt.Errorf("tracing: open the span file: %w", err)
		}
		// The exporter writes each line with one write, which O_APPEND keeps
		// whole beside other programs' lines.
		exporter, err := stdouttrace.New(stdouttrace.WithWriter(file))
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("tracing: write to the span file: %w", err), file.Close())
		}
		options = append(options, sdktrace.WithSyncer(reporting(exporter, cfg.Log, "write spans to the file")))
		closeFile = file.Close
	}

	collector, err := newCollector(ctx, cfg.Endpoint)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("tracing: %w", err), closeFile())
	}
	if collector != nil {
		options = append(options, sdktrace.WithBatcher(reporting(collector, cfg.Log, "send spans to the collector")))
	}

	switch {
	case collector == nil && cfg.File == "":
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	case cfg.SampleRatio > 0:
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))))
	}
	provider := sdktrace.NewTracerProvider(options...)
	return provider, func(ctx context.Context) error {
		if err := errors.Join(provider.Shutdown(ctx), closeFile()); err != nil {
			return fmt.Errorf("tracing: flush spans: %w", err)
		}
		return nil
	}, nil
}

// newCollector returns nil when no collector is configured.
func newCollector(ctx context.Context, endpoint string) (sdktrace.SpanExporter, error) {
	if endpoint == "" {
		if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
			return nil, nil
		}
		return otlptracehttp.New(ctx) // reads the environment itself
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("endpoint %q: use a URL like http://collector:4318", endpoint)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()))
}

// reporting sends an exporter's errors to our log rather than to the SDK's
// process-wide handler. Spans are then gone: the exporter has already retried.
func reporting(exporter sdktrace.SpanExporter, log *slog.Logger, operation string) sdktrace.SpanExporter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return reporter{exporter, log, operation}
}

type reporter struct {
	sdktrace.SpanExporter
	log       *slog.Logger
	operation string
}

func (r reporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := r.SpanExporter.ExportSpans(ctx, spans); err != nil {
		r.log.WarnContext(ctx, "spans lost", "operation", r.operation, "spans", len(spans), "error", err)
	}
	return nil
}
