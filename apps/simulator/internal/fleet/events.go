package fleet

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logWatcher is the handler of an agent's log. By the messages of the log, it notices that a stream began or that a
// snapshot was stored. It forwards warnings to next.
type logWatcher struct {
	region string
	// onSnapshot and onConnected may be nil.
	onSnapshot  func(region string, items int, took time.Duration)
	onConnected func(region string, resumed bool)
	next        slog.Handler

	mu          sync.Mutex
	connectedAt time.Time
}

// These are messages of the agent's log.
const (
	connectedMessage = "connected to the control plane"
	snapshotMessage  = "snapshot received"
)

func (w *logWatcher) Enabled(ctx context.Context, level slog.Level) bool {
	return (w.onSnapshot != nil || w.onConnected != nil) && level >= slog.LevelInfo || w.isForwarded(ctx, level)
}

// isForwarded reports whether next gets records of the level.
func (w *logWatcher) isForwarded(ctx context.Context, level slog.Level) bool {
	return w.next != nil && level >= slog.LevelWarn && w.next.Enabled(ctx, level)
}

func (w *logWatcher) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case r.Message == connectedMessage:
		w.mu.Lock()
		w.connectedAt = r.Time
		w.mu.Unlock()
		if w.onConnected != nil {
			w.onConnected(w.region, attributeOf(r, "resumed").Bool())
		}
	case r.Message == snapshotMessage && w.onSnapshot != nil:
		w.mu.Lock()
		took := r.Time.Sub(w.connectedAt)
		w.mu.Unlock()
		w.onSnapshot(w.region, int(attributeOf(r, "items").Int64()), took)
	}
	if !w.isForwarded(ctx, r.Level) {
		return nil
	}
	r = r.Clone()
	r.AddAttrs(slog.String("region", w.region))
	return w.next.Handle(ctx, r)
}

// WithAttrs and WithGroup return w, because next gets only the attributes of the record and the region.
func (w *logWatcher) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w *logWatcher) WithGroup(string) slog.Handler      { return w }

// attributeOf returns the value of a record's attribute, or the zero Value if the record has none of the name.
func attributeOf(r slog.Record, name string) (value slog.Value) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == name {
			value = a.Value
		}
		return a.Key != name
	})
	return value
}
