package notify

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	calls   *prometheus.HistogramVec
	dead    prometheus.Counter
	merged  prometheus.Counter
	pending prometheus.Gauge
	oldest  prometheus.Gauge
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "windlass_notification_call_duration_seconds",
			Help:    "Time that calls of notification endpoints took, by outcome: delivered or failed. A failed call is repeated.",
			Buckets: prometheus.ExponentialBuckets(0.005, 3, 8),
		}, []string{"outcome"}),
		dead: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_notifications_dead_total",
			Help: "Notifications that were given up.",
		}),
		merged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_notifications_merged_total",
			Help: "Notifications merged into another one, because many of one kind waited for an endpoint.",
		}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_notifications_pending",
			Help: "Notifications of all workspaces that wait for a call.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_notification_oldest_pending_seconds",
			Help: "Time since the tries of the oldest pending notification began.",
		}),
	}
	return m, errors.Join(registerer.Register(m.calls), registerer.Register(m.dead), registerer.Register(m.merged),
		registerer.Register(m.pending), registerer.Register(m.oldest))
}
