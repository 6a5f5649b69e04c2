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

// TracerConfig configures where spans are sent.
type TracerConfig struct {
	// ServiceName is the program ("controlplane"). Required.
	ServiceName string
	// Version is the version of the build. It may be empty.
	Version string
	// Attributes are added to every span's resource, such as the region and the replica.
	Attributes []attribute.KeyValue

	// Endpoint is the OTLP/HTTP collector's URL. The default path is /v1/traces. If it is empty,
	// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used, with the related variables
	// for headers and certificates. Without these, there is no collector.
	Endpoint string
	// File is a file to which every span is appended as one line of JSON when it ends, to read traces without
	// a collector. Several programs may share one file. It is not rotated.
	File string
	// SampleRatio is the share of new traces to keep, 0 to 1. For a trace from another program the caller's
	// decision counts. 0 means OTEL_TRACES_SAMPLER if set, else all.
	SampleRatio float64

	// Log receives a collector's failures. Nil discards them.
	Log *slog.Logger
}

// NewTracer returns a provider, and a function that flushes and stops it. The function must be called last,
// with a deadline.
//
// Without Endpoint and File no span is kept. Spans still have IDs, which connect the log lines of one request over all
// programs.
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
	// The environment comes last and wins, as in the standard. The command line is left out, because it may
	// contain a secret.
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
		// The exporter writes each line with one write, so that O_APPEND keeps it whole if several programs
		// write.
		exporter, err := stdouttrace.New(stdouttrace.WithWriter(file))
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("tracing: write to the span file: %w", err), file.Close())
		}
		options = append(options, sdktrace.WithSyncer(reportingExporter(exporter, cfg.Log, "write spans to the file")))
		closeFile = file.Close
	}

	collector, err := newCollector(ctx, cfg.Endpoint)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("tracing: %w", err), closeFile())
	}
	if collector != nil {
		options = append(options, sdktrace.WithBatcher(reportingExporter(collector, cfg.Log, "send spans to the collector")))
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

// newCollector returns the exporter to the collector, or nil if none is configured.
func newCollector(ctx context.Context, endpoint string) (sdktrace.SpanExporter, error) {
	if endpoint == "" {
		if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
			return nil, nil
		}
		return otlptracehttp.New(ctx) // it reads the environment
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

// reportingExporter returns an exporter whose errors go to log instead of the SDK's global handler. Failed spans are
// lost, because the exporter has already retried.
func reportingExporter(exporter sdktrace.SpanExporter, log *slog.Logger, operation string) sdktrace.SpanExporter {
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
