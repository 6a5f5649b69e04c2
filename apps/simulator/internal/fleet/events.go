package fleet

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// events is the handler of an agent's log. It notices when a stream begins and when a snapshot is stored, and
// passes warnings on.
type events struct {
	region   string
	snapshot func(region string, items int, took time.Duration)
	began    func(region string, resumed bool)
	next     slog.Handler

	mu        sync.Mutex
	connected time.Time
}

// These are the agent's messages at the two moments.
const (
	saysConnected = "connected to the control plane"
	saysSnapshot  = "snapshot received"
)

func (e *events) Enabled(ctx context.Context, level slog.Level) bool {
	return (e.snapshot != nil || e.began != nil) && level >= slog.LevelInfo || e.handsOn(ctx, level)
}

func (e *events) handsOn(ctx context.Context, level slog.Level) bool {
	return e.next != nil && level >= slog.LevelWarn && e.next.Enabled(ctx, level)
}

func (e *events) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case r.Message == saysConnected:
		e.mu.Lock()
		e.connected = r.Time
		e.mu.Unlock()
		if e.began != nil {
			e.began(e.region, attribute(r, "resumed").Bool())
		}
	case r.Message == saysSnapshot && e.snapshot != nil:
		e.mu.Lock()
		took := r.Time.Sub(e.connected)
		e.mu.Unlock()
		e.snapshot(e.region, int(attribute(r, "items").Int64()), took)
	}
	if !e.handsOn(ctx, r.Level) {
		return nil
	}
	r = r.Clone()
	r.AddAttrs(slog.String("region", e.region))
	return e.next.Handle(ctx, r)
}

func (e *events) WithAttrs([]slog.Attr) slog.Handler { return e }
func (e *events) WithGroup(string) slog.Handler      { return e }

func attribute(r slog.Record, name string) (value slog.Value) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == name {
			value = a.Value
		}
		return a.Key != name
	})
	return value
}
