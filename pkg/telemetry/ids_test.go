package telemetry

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
)

func TestSpan_MayBringItsID(t *testing.T) {
	provider, shutdown, err := NewTracer(t.Context(), TracerConfig{ServiceName: "test"})
	require.NoError(t, err)
	defer func() { require.NoError(t, shutdown(context.Background())) }()
	start := provider.Tracer("test").Start

	known := trace.SpanID{1, 2, 3}
	root, span := start(t.Context(), "call")
	span.End()
	work, late := start(WithSpanID(root, known), "work")
	late.End()
	require.Equal(t, known, late.SpanContext().SpanID())
	require.Equal(t, span.SpanContext().TraceID(), late.SpanContext().TraceID())

	seen := map[trace.SpanID]bool{known: true}
	for range 100 {
		_, other := start(root, "other")
		other.End()
		require.False(t, seen[other.SpanContext().SpanID()])
		seen[other.SpanContext().SpanID()] = true
	}
	// Spans under the span, at any depth, do not inherit its ID.
	step, child := start(work, "step")
	child.End()
	require.NotEqual(t, known, child.SpanContext().SpanID())
	_, grandchild := start(step, "part of the step")
	grandchild.End()
	require.NotEqual(t, known, grandchild.SpanContext().SpanID())
}
