package telemetry

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

type spanIDKey struct{}

// ownID is a span ID that is used only once, because the spans under that span inherit its context.
type ownID struct {
	id    trace.SpanID
	given atomic.Bool
}

// WithSpanID returns a context that gives id to the first span that starts from it. It is for work that outlives
// processes. Child spans need the span's ID long before its end, and the process that sees the end writes the span
// once.
func WithSpanID(ctx context.Context, id trace.SpanID) context.Context {
	return context.WithValue(ctx, spanIDKey{}, &ownID{id: id})
}

// ids makes random IDs, except for spans with an ID from WithSpanID.
type ids struct{}

func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:8], rand.Uint64())
		binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id, g.NewSpanID(ctx, id)
}

func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if own, ok := ctx.Value(spanIDKey{}).(*ownID); ok && own.id.IsValid() && own.given.CompareAndSwap(false, true) {
		return own.id
	}
	var id trace.SpanID
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}
