package gateway

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// ejections counts and logs ejections of instances, and their returns. countEjection runs on a poller of the
// engine, which must not wait for a log.
type ejections struct {
	log     *slog.Logger
	counter prometheus.Counter
	lines   chan upstream.Ejection
}

// ejectionLines is how many lines may wait for a slow log. Further lines are dropped, but the counter counts all
// ejections.
const ejectionLines = 256

func newEjections(log *slog.Logger, registerer prometheus.Registerer) (*ejections, error) {
	counter, err := registerEjections(registerer)
	return &ejections{log: log, counter: counter, lines: make(chan upstream.Ejection, ejectionLines)}, err
}

func (l *ejections) countEjection(e upstream.Ejection) {
	if e.Ejected {
		l.counter.Inc()
	}
	select {
	case l.lines <- e:
	default:
	}
}

// Run logs until ctx ends.
func (l *ejections) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-l.lines:
			if e.Ejected {
				l.log.WarnContext(ctx, "instance ejected", "instance_id", e.InstanceID, "reason", e.Reason, "until", e.Until)
			} else {
				l.log.InfoContext(ctx, "instance is back", "instance_id", e.InstanceID)
			}
		}
	}
}
